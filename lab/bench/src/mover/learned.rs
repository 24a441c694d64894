//! A mover that learns whether a device is worth it, against movers with fixed thresholds, on five mixes of sizes.
//!
//! Two ways of submitting make one model behave like two devices. In the first, the thread waits for each operation on
//! an inline device. That costs the CPU's work and a little more, so the CPU is better at every size. In the second,
//! eight operations are in flight on a device with its own thread, which works in parallel with the submitting thread.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates, ratio};
use crate::BenchError;
use crate::buffers::fill_known;
use crate::devices::{self, Shape};
use crate::goal::{Goal, Row};
use crate::results::Runner;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_device::{ModelSource, Preset};
use telpher_mover::{Learning, Mover, Opcode, Policy, Threshold};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "learned",
    question: "How close does a mover that learns come to the best fixed threshold?",
    cores: 2,
    weight: 4.0,
    measure,
};

/// Minimum speed with a learned threshold, divided by that of the best fixed one. Source: goal of the mover.
const LEARNED: f64 = 0.95;
/// Number of operations from which a mover may learn before it is measured. Source: goal of the mover.
const LESSONS: u64 = 10_000;
/// The fixed thresholds, in bytes.
const FIXED: [u64; 7] = [0, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, u64::MAX];
/// Operations in a step: enough that locking the buffers for a step costs nothing noticeable.
const STEP: u64 = 64;
/// Number of sizes drawn for a mix before it is measured.
const DRAWN: usize = 4096;
/// The largest size of any mix.
const LARGEST: usize = 1 << 20;

/// Maps two random numbers in 0..1 to a size.
type Draw = fn(f64, f64) -> f64;

/// The mixes: name and size distribution.
const MIXES: [(&str, Draw); 5] = [
    ("small, 64 B to 2 KiB", |a, _| spread(64.0, 2048.0, a)),
    ("pages, most of them single", |a, b| if a < 0.9 { 4096.0 } else { 4096.0 * (1.0 + (b * 16.0).floor()) }),
    (
        "messages, one in twenty large",
        |a, b| if a < 0.95 { spread(64.0, 512.0, b) } else { spread(32768.0, 262_144.0, b) },
    ),
    ("everything, 64 B to 1 MiB", |a, _| spread(64.0, 1_048_576.0, a)),
    ("large, 64 KiB to 1 MiB", |a, _| spread(65536.0, 1_048_576.0, a)),
];

/// Returns a size between two sizes; the logarithms are evenly spread.
fn spread(from: f64, to: f64, share: f64) -> f64 {
    from * (to / from).powf(share)
}

/// Returns the sizes of a mix; they are equal in every run.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two sizes")]
fn draw(mix: Draw) -> Vec<usize> {
    let mut random = telpher_os::Random::new(1);
    let mut share = || (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
    (0..DRAWN).map(|_| (mix(share(), share()) as usize).clamp(1, LARGEST)).collect()
}

/// The buffers of a mix. All movers use the same memory, because two regions of memory are not equally fast.
struct Buffers {
    sizes: Vec<usize>,
    src: Vec<u8>,
    /// A destination for each operation in flight.
    places: Vec<Vec<u8>>,
}

impl Buffers {
    fn new(sizes: Vec<usize>, together: usize) -> Self {
        let mut src = vec![0; LARGEST];
        fill_known(&mut src, 1);
        Buffers { sizes, src, places: vec![vec![0; LARGEST]; together] }
    }
}

/// One mover that works on a mix.
struct MoverOnMix<'a> {
    mover: Mover,
    next: usize,
    /// Locked for a step; the movers take turns.
    ground: &'a Mutex<Buffers>,
}

impl<'a> MoverOnMix<'a> {
    fn new(queue: &Arc<dyn Portal>, policy: Policy, ground: &'a Mutex<Buffers>) -> Self {
        MoverOnMix { mover: Mover::new([Arc::clone(queue)], policy), next: 0, ground }
    }

    /// Makes [`STEP`] copies; as many are in flight at a time as there are destinations.
    fn copy(&mut self) -> Result<u64, BenchError> {
        let mut ground = self.ground.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { sizes, src, places } = &mut *ground;
        let (mover, next) = (&self.mover, &mut self.next);
        let mut turn = || {
            *next = (*next + 1) % sizes.len();
            sizes[*next]
        };
        if let [place] = &mut places[..] {
            for _ in 0..STEP {
                let bytes = turn();
                EXPERIMENT.done(mover.copy_slices(&src[..bytes], &mut place[..bytes]))?;
            }
            return Ok(STEP);
        }
        for _ in 0..STEP / places.len() as u64 {
            mover.scope(|scope| {
                let sized = places.iter_mut().map(|place| (turn(), place));
                let jobs: Vec<_> = sized.map(|(bytes, place)| scope.copy(&src[..bytes], &mut place[..bytes])).collect();
                jobs.into_iter().try_for_each(|copy| EXPERIMENT.done(copy.wait().result))
            })?;
        }
        Ok(STEP)
    }

    /// Learns from at most [`LESSONS`] operations and for at most `time`; returns the number of operations.
    fn learn(&mut self, time: Duration) -> Result<u64, BenchError> {
        let begin = Instant::now();
        let mut lessons = 0;
        while lessons + STEP <= LESSONS && begin.elapsed() < time {
            lessons += self.copy()?;
        }
        Ok(lessons)
    }

    /// Clears the destinations, makes a step more and compares the result.
    fn check(&mut self) -> Result<(), BenchError> {
        let ground = || self.ground.lock().unwrap_or_else(PoisonError::into_inner);
        ground().places.iter_mut().for_each(|place| place.fill(0));
        self.copy()?;
        let ground = ground();
        ground.places.iter().try_for_each(|place| {
            let copied = place.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            EXPERIMENT.arrived(&ground.src[..copied], &place[..copied])
        })
    }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let ways = [(1, Runner::Inline, "each waited for, inline"), (8, Runner::Threaded, "eight at a time, threaded")];
    let each = time / u32::try_from(MIXES.len() * ways.len()).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    for (together, runner, how) in ways {
        let source = ModelSource::Preset(Preset::default());
        let running = devices::start("model:spr", &source, Shape::PLAIN, runner, machine)?;
        // The queue is dedicated, so one mover at a time: each completes its operations before the next has its turn.
        let queue = running.portals.first().expect("a device that runs has a queue");
        for (mix, sizes) in MIXES {
            rows.push(against(machine, each, queue, (mix, draw(sizes)), (together, how))?);
        }
    }
    Ok(rows)
}

/// Compares a learning mover with every fixed threshold on one mix.
fn against(
    machine: &Machine,
    time: Duration,
    queue: &Arc<dyn Portal>,
    (mix, sizes): (&str, Vec<usize>),
    (together, how): (usize, &str),
) -> Result<Row, BenchError> {
    let fixed = FIXED.map(|from| Policy { threshold: Threshold::all(from), ..Policy::default() });
    let learner = Policy { learning: Learning::On, ..Policy::default() };
    // One policy twice: the difference between two movers that decide alike is the noise of the experiment.
    let twin = fixed[FIXED.len() - 1];
    let ground = Mutex::new(Buffers::new(sizes, together));
    let hand = |policy| MoverOnMix::new(queue, policy, &ground);
    let mut sides: Vec<InterleavedLoad<'_, MoverOnMix<'_>>> = std::iter::once(learner)
        .chain(fixed)
        .chain([twin])
        .map(|policy| InterleavedLoad { states: vec![hand(policy)], step: &MoverOnMix::copy })
        .collect();
    let lessons = sides[0].states[0].learn(time / 4)?;
    let seen = rates(machine, time * 3 / 4, &mut sides)?;
    for side in &mut sides {
        side.states.iter_mut().try_for_each(MoverOnMix::check)?;
    }
    let (of_fixed, of_twin) = (&seen[1..=FIXED.len()], &seen[FIXED.len() + 1]);
    let ratios = of_fixed.iter().map(|fixed| ratio(&seen[0], fixed));
    let (best, least) =
        FIXED.into_iter().zip(ratios).min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are fixed thresholds");
    let noise = ratio(of_twin, &of_fixed[FIXED.len() - 1]);
    let learned = sides[0].states[0].mover.threshold().of(Opcode::MemoryMove);
    Ok(Row::new(
        format!("{mix}; {how}: learned, against the best of {} fixed thresholds", FIXED.len()),
        least,
        "of its speed",
        Some(Goal::AtLeast(LEARNED)),
        format!(
            "learned from {lessons} copies: device {}; best fixed: {}; 'never' against itself: {noise:.3}",
            limit(learned),
            limit(best)
        ),
    ))
}

fn limit(bytes: u64) -> String {
    match bytes {
        0 => "always".into(),
        u64::MAX => "never".into(),
        _ => format!("from {}", units::size(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_draws_the_sizes_it_names() {
        for (name, mix) in MIXES {
            let sizes = draw(mix);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(*least >= 64 && *most <= LARGEST, "{name}: {least} to {most}");
            assert_eq!(sizes, draw(mix), "{name} differs from run to run");
        }
        assert!(draw(MIXES[0].1).iter().all(|size| *size <= 2048));
        let large = draw(MIXES[2].1).iter().filter(|size| **size > 512).count();
        assert!((100..400).contains(&large), "{large} of {DRAWN}");
    }

    #[test]
    fn copies_are_correct_after_learning() {
        let source = ModelSource::Preset(Preset::default());
        let running = devices::start("model:spr", &source, Shape::PLAIN, Runner::Inline, &Machine::read()).unwrap();
        for together in [1, 8] {
            let policy = Policy { learning: Learning::On, threshold: Threshold::DEVICE, ..Policy::default() };
            let ground = Mutex::new(Buffers::new(draw(MIXES[3].1), together));
            let mut hand = MoverOnMix::new(&running.portals[0], policy, &ground);
            assert!(hand.learn(Duration::from_millis(20)).unwrap() > 0);
            hand.check().unwrap();
        }
    }
}
