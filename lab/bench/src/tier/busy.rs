//! Two mechanisms that move pages while threads write to them.

use super::shuttle::{FAST, HOME, PAGE, heap};
use crate::BenchError;
use crate::ffi::{self, Remapped};
use crate::goal::{Goal, Row};
use crate::measure::{Clock, median};
use crate::questions::Experiment;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use telpher_mem::PageSize;
use telpher_os::Random;
use telpher_report::machine::Machine;
use telpher_report::units;
use telpher_tier::Heap;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "busy",
    question: "How fast do pages move while two threads write to them, and how long do the threads wait, \
               compared with HeMem's protection, copy and remapping?",
    cores: 2,
    weight: 1.0,
    measure,
};

/// Number of threads that write.
const WRITERS: usize = 2;
/// Bytes of the memory that they write to.
const HOT: usize = 8 << 20;
/// Pages moved together. Source: HeMem moves 2 MiB (Raybuck et al., SOSP 2021); 32 pages are the smallest batch in the
/// kernel's patch series for migration by a device.
const TOGETHER: [usize; 2] = [32, 512];
/// A write that takes this many nanoseconds met a page being moved, or another activity of the kernel. Source: chosen,
/// longer than any cache miss.
const WAITED: f64 = 2e3;
/// From this time on, the thread may have been preempted, so the kernel's counters are checked. Source: chosen, longer
/// than a fault takes.
const ASKED: f64 = 20e3;
/// Turns of each mechanism, and the minimum length of a turn. Source: chosen, some dozens of waits.
const TURNS: u32 = 5;
/// On a busy machine the threads wait less often: turns are added, up to this number, until there are enough waits.
const MOST_TURNS: u32 = 10 * TURNS;
/// The percentile of the waits that is shown, as a part of one.
const PERCENTILE: f64 = 0.99;
const SHORTEST: Duration = Duration::from_millis(100);
/// Goals for the exchange against the remapping: at least this factor in pages, at most this part of the wait. Source:
/// goal of the migrator.
const TIMES: f64 = 5.0;
const PART: f64 = 0.1;

/// The mechanism that moves pages.
#[derive(Clone, Copy)]
enum MoveMechanism<'a> {
    Exchange { heap: &'a Heap, start: u64 },
    Remap(&'a Remapped),
}

/// One mechanism, with a number of pages moved together.
struct MechanismCase<'a> {
    way: MoveMechanism<'a>,
    words: &'a [AtomicU64],
    together: usize,
    /// Index of the first page of the next batch.
    next: usize,
    /// Whether the next pages are away, so that the next move brings them back.
    away: bool,
    /// Sum of the writers' additions.
    added: u64,
    /// Pages per second, one value per turn.
    rates: Vec<f64>,
    /// Nanoseconds of the writes that waited.
    waits: Histogram<u64>,
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let clock = Clock::calibrate();
    let slice = (time / (4 * TURNS)).max(SHORTEST);
    let mut rows = Vec::new();
    for together in TOGETHER {
        let heap = heap(together)?;
        let mut arena = heap.arena(HOT, PageSize::Small)?;
        // Makes every page present.
        arena.fill(0);
        let remapped = Remapped::new(HOT).map_err(|error| {
            BenchError::NotHere(format!("memory of files was to be mapped and protected, and the system said: {error}"))
        })?;
        let exchange = MoveMechanism::Exchange { heap: &heap, start: arena.addresses().start };
        let mut sides = [
            MechanismCase::new(exchange, ffi::atomics(&mut arena), together),
            MechanismCase::new(MoveMechanism::Remap(&remapped), remapped.words(), together),
        ];
        for number in 0..MOST_TURNS {
            if number >= TURNS && sides.iter().all(|side| telpher_sim::enough(side.waits.len(), PERCENTILE)) {
                break;
            }
            // The order alternates.
            for at in [number % 2, 1 - number % 2] {
                sides[at as usize].turn(machine, slice, &clock)?;
            }
        }
        for side in &sides {
            // Relaxed: all threads have been joined.
            let sum = side.words.iter().fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
            if sum != side.added {
                return Err(BenchError::Wrong { op: "move".into(), route: EXPERIMENT.name.into() });
            }
        }
        rows.extend(rows_of(&sides));
    }
    Ok(rows)
}

fn rows_of(sides: &[MechanismCase<'_>; 2]) -> [Row; 6] {
    let pages = sides.each_ref().map(|side| median(&mut side.rates.clone()));
    let wait = |side: &MechanismCase<'_>, part| {
        let is_enough = telpher_sim::enough(side.waits.len(), part);
        if is_enough { side.waits.value_at_quantile(part) as f64 / 1e3 } else { f64::NAN }
    };
    let waits = sides.each_ref().map(|side| wait(side, PERCENTILE));
    let how =
        |side: &MechanismCase<'_>| format!("{} waits, median {}", side.waits.len(), units::time(wait(side, 0.5) * 1e3));
    let [exchange, remap] = sides;
    let what = |what: &str| format!("{} pages together: {what}", exchange.together);
    [
        Row::new(what("moved by exchange"), pages[0] / 1e6, "million pages/s", None, "small pages, neighbours"),
        Row::new(
            what("moved by protection, copy and mapping"),
            pages[1] / 1e6,
            "million pages/s",
            None,
            "small pages of a file in memory",
        ),
        Row::new(
            what("exchange by mapping"),
            pages[0] / pages[1],
            "times the rate",
            Some(Goal::AtLeast(TIMES)),
            format!("medians of {} turns each", exchange.rates.len()),
        ),
        Row::new(what("a write that waits for an exchange, p99"), waits[0], "µs", None, how(exchange)),
        Row::new(what("a write that waits for a mapping, p99"), waits[1], "µs", None, how(remap)),
        Row::new(
            what("exchange by mapping, p99"),
            waits[0] / waits[1],
            "of the wait",
            Some(Goal::AtMost(PART)),
            "of all turns; where a thread was preempted is left out",
        ),
    ]
}

impl<'a> MechanismCase<'a> {
    fn new(way: MoveMechanism<'a>, words: &'a [AtomicU64], together: usize) -> MechanismCase<'a> {
        let waits = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds and precision");
        MechanismCase { way, words, together, next: 0, away: false, added: 0, rates: Vec::new(), waits }
    }

    /// Moves the pages for `time` while the writers write to them.
    fn turn(&mut self, machine: &Machine, time: Duration, clock: &Clock) -> Result<(), BenchError> {
        let (stop, words, cores) = (AtomicBool::new(false), self.words, machine.cores.len());
        let (stop, side) = (&stop, &mut *self);
        let (rate, written) = thread::scope(|scope| {
            let writers = (0..WRITERS).map(|number| {
                scope.spawn(move || {
                    // Writers run on other cores than the moving thread, if there are enough.
                    let _ = telpher_os::run_on(&[machine.core(1 + number % (cores - 1).max(1))]);
                    write(words, number, stop, clock)
                })
            });
            let writers: Vec<_> = writers.collect();
            let mover = scope.spawn(move || {
                let _ = telpher_os::run_on(&[machine.core(0)]);
                let start = Instant::now();
                let moved = side.shuttle(start + time)?;
                Ok::<_, BenchError>(moved as f64 / start.elapsed().as_secs_f64())
            });
            let rate = mover.join().expect("the thread that moves pages does not panic");
            // Relaxed: nothing is published by it; the join synchronises.
            stop.store(true, Ordering::Relaxed);
            let written = writers.into_iter().map(|writer| writer.join().expect("writers do not panic"));
            (rate, written.collect::<Vec<_>>())
        });
        for (added, waits) in written {
            self.added += added;
            self.waits.add(waits).expect("the same bounds");
        }
        self.rates.push(rate?);
        Ok(())
    }

    /// Moves all pages there and back, `together` at a time, until `end`; returns the number of moved pages.
    fn shuttle(&mut self, end: Instant) -> Result<u64, BenchError> {
        let mut pages = 0;
        while Instant::now() < end {
            pages += self.go(self.next)?;
            self.next += self.together;
            if self.next == HOT / PAGE {
                (self.next, self.away) = (0, !self.away);
            }
        }
        Ok(pages)
    }

    /// Moves the batch that begins at page `first`; returns how many pages moved.
    fn go(&self, first: usize) -> Result<u64, BenchError> {
        match self.way {
            MoveMechanism::Exchange { heap, start } => {
                let start = start + (first * PAGE) as u64;
                let to = if self.away { HOME } else { FAST };
                let moved = heap.migrate(start..start + (self.together * PAGE) as u64, to)?;
                // A page that is pinned for a moment stays and is not counted.
                if moved.left.no_room + moved.left.unsupported + moved.left.failed > 0 {
                    let what = format!("pages were to move, and this became of them: {moved:?}");
                    return Err(BenchError::NotHere(what));
                }
                Ok(moved.pages)
            }
            MoveMechanism::Remap(remapped) => match remapped.go(first, self.together) {
                Ok(()) => Ok(self.together as u64),
                Err(error) => {
                    let what = format!("pages were to be protected, copied and mapped, and the system said: {error}");
                    Err(BenchError::NotHere(what))
                }
            },
        }
    }
}
/// Adds to random words; returns the number of additions and the writes that waited.
fn write(words: &[AtomicU64], seed: usize, stop: &AtomicBool, clock: &Clock) -> (u64, Histogram<u64>) {
    let mut waits = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds and precision");
    let (mut random, mut added, mut slept) = (Random::new(seed as u64), 0, ffi::voluntary_switches());
    // Relaxed, as below: the words are only counters and publish nothing.
    while !stop.load(Ordering::Relaxed) {
        let at = usize::try_from(random.below(words.len() as u64)).expect("less than a length");
        let word = &words[at];
        let start = telpher_os::ticks();
        word.fetch_add(1, Ordering::Relaxed);
        let nanos = clock.ns(clock.since(start));
        added += 1;
        if nanos >= WAITED {
            let preempted = nanos >= ASKED && {
                let before = std::mem::replace(&mut slept, ffi::voluntary_switches());
                before == slept
            };
            if !preempted {
                let took = Duration::from_secs_f64(nanos / 1e9).as_nanos();
                waits.saturating_record(u64::try_from(took).unwrap_or(u64::MAX));
            }
        }
    }
    (added, waits)
}
