//! One copy shared between a device and the thread that waits for it, against one thread alone.
//!
//! The device's engine thread and the waiting thread run on two cores, so two cores work on one copy. The upper limit
//! is what two plain threads reach with one half of the same copy each. The first thread hands a half to the second and
//! spins until that half is back. This limit is measured too: if it is below twice one thread, memory is the limit. The
//! buffers rotate over more memory than the caches hold, for one half as for both, like those of a program that moves
//! bulk data.

use super::Experiment;
use super::interleaved::{Contestant, rates, ratio};
use crate::BenchError;
use crate::buffers::fill_known;
use crate::devices::start_beside;
use crate::goal::{Goal, Row};
use crate::measure::median;
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use telpher_device::{Config, ModelOptions, Runner, WqMode};
use telpher_mover::{Mover, Outcome, Policy, Split};
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "hybrid",
    question: "How much faster than memcpy on one thread is a copy shared by a device and the waiting thread?",
    cores: 2,
    weight: 3.0,
    measure,
};

/// Minimum speed of a shared copy, divided by that of one thread. Source: goal of the mover.
const SHARED: f64 = 1.5;
/// Fraction of the speed of two threads from which on memory counts as the limit.
const LIMIT: f64 = 0.95;
/// Bytes of one copy.
const SIZES: [usize; 4] = [1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Polls of the second thread for its half in one call; together they take some microseconds. The clock is read between
/// calls.
const LOOKS: u32 = 4096;

/// A source and a destination.
type Pair = (Vec<u8>, Vec<u8>);

/// How a pair is copied.
enum CopyBy {
    /// By one thread.
    Alone,
    /// By a device, and by the waiting thread too if the policy says so.
    By(Mover),
    /// By two threads, one half each; the side's own pairs are halves, and the other halves go to the second thread.
    Halves(Arc<Handoff>, VecDeque<Pair>),
    /// By the second thread, which receives its halves.
    Brought(Arc<Handoff>),
}

/// A pair that is handed to another thread and back.
#[derive(Default)]
struct Handoff {
    state: AtomicU8,
    pair: Mutex<Option<Pair>>,
}

const NOTHING: u8 = 0;
const OFFERED: u8 = 1;
const TAKEN: u8 = 2;
const BACK: u8 = 3;

impl Handoff {
    fn put(&self, pair: Pair, state: u8) {
        *self.pair.lock().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        // Release: pairs with the Acquire in `take`; the lock orders the pair itself.
        self.state.store(state, Ordering::Release);
    }

    /// Returns the pair if the hand-off is in `state`, and sets `then`.
    fn take(&self, state: u8, then: u8) -> Option<Pair> {
        // Load first: a cache line that is only read stays in the caches of both cores.
        if self.state.load(Ordering::Acquire) != state {
            return None;
        }
        self.state.compare_exchange(state, then, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        self.pair.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn copied((src, mut dst): Pair) -> Pair {
    dst.copy_from_slice(&src);
    (src, dst)
}

/// How the pairs are copied, and the pairs, used in rotation.
struct HybridCase {
    way: CopyBy,
    /// The last one is copied next.
    pairs: VecDeque<Pair>,
}

/// Returns pairs of buffers of `bytes` bytes each that together fill `room`; at least one pair.
fn pairs(bytes: usize, room: u64, seed: u64) -> VecDeque<Pair> {
    let count = (usize::try_from(room).unwrap_or(usize::MAX) / (2 * bytes)).max(1);
    let mut src = vec![0; bytes];
    fill_known(&mut src, seed);
    (0..count).map(|_| (src.clone(), vec![0; bytes])).collect()
}

impl HybridCase {
    fn new(way: CopyBy, bytes: usize, room: u64) -> Self {
        HybridCase { way, pairs: pairs(bytes, room, 1) }
    }

    /// Two threads that work on each copy together.
    fn halves(bytes: usize, room: u64) -> Vec<Self> {
        let handoff = Arc::new(Handoff::default());
        let others = pairs(bytes / 2, room / 2, 2);
        let leads = HybridCase::new(CopyBy::Halves(Arc::clone(&handoff), others), bytes / 2, room / 2);
        vec![leads, HybridCase { way: CopyBy::Brought(handoff), pairs: VecDeque::new() }]
    }

    /// Copies one pair and returns the number of bytes.
    fn copy(&mut self) -> Result<u64, BenchError> {
        if let CopyBy::Brought(handoff) = &self.way {
            for _ in 0..LOOKS {
                match handoff.take(OFFERED, TAKEN) {
                    Some(pair) => handoff.put(copied(pair), BACK),
                    None => spin_loop(),
                }
            }
            // The first thread counts the bytes of both halves.
            return Ok(0);
        }
        let (src, dst) = self.pairs.pop_back().expect("the buffers came back");
        let mut bytes = src.len() as u64;
        let (result, src, dst) = match &mut self.way {
            CopyBy::By(mover) => mover.copy(src, dst).wait().into_parts(),
            CopyBy::Halves(handoff, others) => {
                handoff.put(others.pop_back().expect("the halves came back"), OFFERED);
                let (src, dst) = copied((src, dst));
                let other = loop {
                    // If the second thread's turn is over, this thread copies both halves.
                    match handoff.take(OFFERED, NOTHING).map(copied).or_else(|| handoff.take(BACK, NOTHING)) {
                        Some(other) => break other,
                        None => spin_loop(),
                    }
                };
                bytes += other.0.len() as u64;
                others.push_front(other);
                (Ok(Outcome::Done), src, dst)
            }
            CopyBy::Alone | CopyBy::Brought(_) => {
                let (src, dst) = copied((src, dst));
                (Ok(Outcome::Done), src, dst)
            }
        };
        self.pairs.push_front((src, dst));
        EXPERIMENT.done(result).map(|()| bytes)
    }

    /// Compares the pairs copied last.
    fn check(&self) -> Result<(), BenchError> {
        let others = if let CopyBy::Halves(_, others) = &self.way { others.front() } else { None };
        self.pairs.front().into_iter().chain(others).try_for_each(|(src, dst)| EXPERIMENT.arrived(src, dst))
    }
}

/// Starts a device whose engine thread runs on the second core; returns two movers on its queue, without and with
/// sharing.
fn movers(machine: &Machine) -> Result<[Mover; 2], BenchError> {
    let options =
        ModelOptions::default().with_config(Config::single(WqMode::Shared, 64, 1)).with_runner(Runner::Threaded);
    let device = start_beside(options, 1, "model:spr", machine)?;
    let queue = device.portal("wq0.0")?;
    let with = |hybrid| Policy { split: Split { hybrid, ..Split::default() }, ..Policy::default() };
    Ok([false, true].map(|hybrid| Mover::new([queue.clone()], with(hybrid))))
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let [alone, shared] = movers(machine)?;
    let each = time / u32::try_from(SIZES.len()).unwrap_or(1);
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(at(machine, each, bytes, [&alone, &shared])?);
    }
    Ok(rows)
}

/// Returns the rows of one size.
fn at(machine: &Machine, time: Duration, bytes: usize, [alone, shared]: [&Mover; 2]) -> Result<[Row; 2], BenchError> {
    // The buffers must be cold for one half too, because its thread may have its own cache.
    let room = 2 * machine.cold_bytes();
    let one = |way| Contestant { states: vec![HybridCase::new(way, bytes, room)], step: &HybridCase::copy };
    let halves = Contestant { states: HybridCase::halves(bytes, room), step: &HybridCase::copy };
    let mut sides = [one(CopyBy::By(shared.clone())), one(CopyBy::Alone), one(CopyBy::By(alone.clone())), halves];
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(HybridCase::check)?;
    let speed = |side: usize| units::rate(median(&mut seen[side].clone()));
    let size = units::size(bytes as u64);
    let (of_one, of_two) = (ratio(&seen[0], &seen[1]), ratio(&seen[0], &seen[3]));
    let limited = of_one < SHARED && of_two >= LIMIT;
    let how = format!(
        "cold buffers; {} shared, {} memcpy, {} device alone; two threads with a half each: {} ({:.2} of one){}",
        speed(0),
        speed(1),
        speed(2),
        speed(3),
        ratio(&seen[3], &seen[1]),
        if limited { "; limit reached" } else { "" },
    );
    Ok([
        Row::new(
            format!("{size} copies, device and waiting thread: against memcpy on one thread"),
            of_one,
            "of its speed",
            // If two threads are no faster either, memory is the limit; the next row shows it.
            (!limited).then_some(Goal::AtLeast(SHARED)),
            how,
        ),
        Row::new(
            format!("{size} copies, device and waiting thread: against two threads with a half each"),
            of_two,
            "of their speed",
            (of_one < SHARED).then_some(Goal::AtLeast(LIMIT)),
            "the same turns",
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_shared_copy_is_complete_and_a_wrong_byte_is_found() {
        let [_, shared] = movers(&Machine::read()).unwrap();
        let mut side = HybridCase::new(CopyBy::By(shared), 4 << 20, 0);
        assert_eq!(side.copy().unwrap(), 4 << 20);
        side.check().unwrap();
        side.pairs[0].1[1_234_567] ^= 1;
        assert!(matches!(side.check(), Err(BenchError::Mismatch { offset: 1_234_567, .. })));
    }

    #[test]
    fn two_threads_copy_one_half_each_and_one_alone_copies_both() {
        let mut sides = HybridCase::halves(2 << 20, 0);
        let mut other = sides.pop().unwrap();
        let mut leads = sides.pop().unwrap();
        assert_eq!(leads.copy().unwrap(), 2 << 20, "nothing takes the half that is offered");
        let others = |side: &mut HybridCase| match &mut side.way {
            CopyBy::Halves(_, others) => others[0].1.clone(),
            _ => Vec::new(),
        };
        leads.check().unwrap();
        let other_half = others(&mut leads);
        assert!(leads.pairs[0].1 != other_half && other_half.len() == 1 << 20);
        thread::scope(|scope| {
            let brought = scope.spawn(move || {
                while Arc::strong_count(match &other.way {
                    CopyBy::Brought(handoff) => handoff,
                    _ => unreachable!("the second of two halves"),
                }) > 1
                {
                    assert_eq!(other.copy().unwrap(), 0);
                }
            });
            (0..20).for_each(|_| assert_eq!(leads.copy().unwrap(), 2 << 20));
            leads.check().unwrap();
            drop(leads);
            brought.join().unwrap();
        });
    }
}
