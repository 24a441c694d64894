//! Pages that move while threads write to them, by two ways.

use super::shuttle::{FAST, HOME, PAGE, heap};
use crate::bench::BenchError;
use crate::bench::machine::Machine;
use crate::bench::measure::{Clock, median};
use crate::bench::questions::Contest;
use crate::bench::row::{Goal, Row};
use crate::ffi;
use hdrhistogram::Histogram;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use telpher_mem::PageSize;
use telpher_tier::{Heap, TierId};

/// The contest.
pub(super) const CONTEST: Contest = Contest {
    name: "busy",
    question: "How fast do pages move that two threads write to, and how long do those wait, beside protection, a copy and another mapping (HeMem)?",
    cores: 2,
    weight: 1.0,
    measure,
};

/// Threads that write.
const WRITERS: usize = 2;
/// Bytes that they write to, and that move together. Source: 2 MiB are what HeMem moves (Raybuck et al., SOSP 2021).
const HOT: usize = 8 << 20;
const UNIT: usize = 2 << 20;
/// A write that takes so many nanoseconds met a page on its way, or something else of the kernel's. Source: chosen, beyond any miss of a cache.
const WAITED: f64 = 2e3;
/// Beyond this it may as well be that the thread was preempted, and the kernel is asked. Source: chosen, longer than a fault takes.
const ASKED: f64 = 20e3;
/// Turns of each way, and the shortest. Source: chosen, some dozens of waits.
const TURNS: u32 = 5;
const SHORTEST: Duration = Duration::from_millis(20);
/// How many times the pages, and what part of the wait, there must be. Source: promise of the migrator.
const TIMES: f64 = 5.0;
const PART: f64 = 0.1;

/// One way, and memory that moves by it.
struct Side<'a> {
    words: &'a [AtomicU64],
    heap: &'a Heap,
    start: u64,
    /// What writers have added.
    added: u64,
    /// Pages a second, a value a turn.
    rates: Vec<f64>,
    /// Nanoseconds of writes that waited.
    waits: Histogram<u64>,
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let (one, other) = (heap(UNIT / PAGE)?, heap(UNIT / PAGE)?);
    let (mut private, mut shared) = (one.arena(HOT, PageSize::Small)?, other.shared_arena(HOT)?);
    let starts = [private.addresses().start, shared.addresses().start];
    let sides = [(&one, starts[0], &mut private[..]), (&other, starts[1], &mut shared[..])];
    let mut sides = sides.map(|(heap, start, bytes)| {
        // Every page is there.
        bytes.fill(0);
        let waits = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds and precision");
        Side { words: ffi::atomics(bytes), heap, start, added: 0, rates: Vec::new(), waits }
    });
    let clock = Clock::calibrate();
    let slice = (time / (2 * TURNS)).max(SHORTEST);
    for number in 0..TURNS {
        // Who begins alternates.
        for at in [number % 2, 1 - number % 2] {
            sides[at as usize].turn(machine, slice, &clock)?;
        }
    }
    for side in &sides {
        // Relaxed: all threads have been joined.
        let sum = side.words.iter().fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        if sum != side.added {
            return Err(BenchError::Wrong { op: "move".into(), route: CONTEST.name.into() });
        }
    }
    let [exchange, remap] = &mut sides;
    let pages = [&*exchange, &*remap].map(|side| median(&mut side.rates.clone()));
    let wait = |side: &Side<'_>, quantile| side.waits.value_at_quantile(quantile) as f64 / 1e3;
    let how = |side: &Side<'_>| format!("2 MiB at once, {} waits, median {:.0} µs", side.waits.len(), wait(side, 0.5));
    let waits = [&*exchange, &*remap].map(|side| if side.waits.is_empty() { f64::NAN } else { wait(side, 0.99) });
    Ok(vec![
        Row::new("moved by exchange", pages[0] / 1e6, "million pages/s", None, "small pages, neighbours"),
        Row::new("moved by protection, copy and mapping", pages[1] / 1e6, "million pages/s", None, "shared memory"),
        Row::new(
            "exchange by mapping",
            pages[0] / pages[1],
            "times the rate",
            Some(Goal::AtLeast(TIMES)),
            format!("medians of {TURNS} turns each"),
        ),
        Row::new("a write that waits for an exchange, p99", waits[0], "µs", None, how(exchange)),
        Row::new("a write that waits for a mapping, p99", waits[1], "µs", None, how(remap)),
        Row::new(
            "exchange by mapping, p99",
            waits[0] / waits[1],
            "of the wait",
            Some(Goal::AtMost(PART)),
            "of all turns; where a thread was preempted is left out",
        ),
    ])
}

impl Side<'_> {
    /// Moves what writers write to for a while.
    fn turn(&mut self, machine: &Machine, time: Duration, clock: &Clock) -> Result<(), BenchError> {
        let (stop, words, cores) = (AtomicBool::new(false), self.words, machine.cores.len());
        let (stop, begun) = (&stop, Instant::now());
        thread::scope(|scope| {
            let writers = (0..WRITERS).map(|number| {
                scope.spawn(move || {
                    // On other cores than the one that moves, as far as there are any.
                    let _ = ffi::pin(&[machine.core(1 + number % (cores - 1).max(1))]);
                    write(words, number, stop, clock)
                })
            });
            let writers: Vec<_> = writers.collect();
            let moved = self.shuttle(begun + time);
            // Relaxed: nothing is published by it; the join synchronises.
            stop.store(true, Ordering::Relaxed);
            for writer in writers {
                let (added, waits) = writer.join().expect("writers do not panic");
                self.added += added;
                self.waits.add(waits).expect("the same bounds");
            }
            self.rates.push(moved? as f64 / begun.elapsed().as_secs_f64());
            Ok(())
        })
    }

    /// Moves unit by unit there and back. Returns the pages.
    fn shuttle(&self, end: Instant) -> Result<u64, BenchError> {
        let units = (0..HOT / UNIT).map(|unit| self.start + (unit * UNIT) as u64);
        let units = units.map(|start| start..start + UNIT as u64).collect::<Vec<Range<u64>>>();
        let mut pages = 0;
        while Instant::now() < end {
            for (unit, to) in [FAST, HOME].into_iter().flat_map(|to| units.iter().map(move |unit| (unit, to))) {
                pages += self.go(unit, to)?;
            }
        }
        Ok(pages)
    }

    fn go(&self, unit: &Range<u64>, to: TierId) -> Result<u64, BenchError> {
        let moved = self.heap.migrate(unit.clone(), to)?;
        // What is pinned for a moment stays, and counts for nothing.
        if moved.left.no_room + moved.left.unsupported + moved.left.failed > 0 {
            return Err(BenchError::NotHere(format!("pages were to move, and this became of them: {moved:?}")));
        }
        Ok(moved.pages)
    }
}

/// Adds to words here and there. Returns how much, and what waited.
fn write(words: &[AtomicU64], seed: usize, stop: &AtomicBool, clock: &Clock) -> (u64, Histogram<u64>) {
    let mut waits = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds and precision");
    let (mut state, mut added, mut slept) = (seed as u64 * 2 + 1, 0, ffi::voluntary_switches());
    // Relaxed, as below: words are counts by which nothing is published.
    while !stop.load(Ordering::Relaxed) {
        // Knuth's MMIX multiplier; the upper bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = &words[(state >> 33) as usize % words.len()];
        let begun = ffi::ticks();
        word.fetch_add(1, Ordering::Relaxed);
        let nanos = clock.ns(clock.since(begun));
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
