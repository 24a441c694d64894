//! Competitors in turns, each on as many threads as it has states.

use crate::BenchError;
use crate::measure::{median, window};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use telpher_report::machine::Machine;

/// Target number of turns.
const TURNS: u32 = 15;
/// Minimum number of turns, even if the time is over.
const FEWEST: usize = 3;
/// Shortest turn: hundreds of the smallest operations.
const SHORTEST: Duration = Duration::from_micros(200);

/// One of the loads that take turns: one state for each of its threads, and the step that each thread repeats.
pub(crate) struct InterleavedLoad<'a, S> {
    /// The states, one per thread.
    pub states: Vec<S>,
    /// One step; returns its number of operations.
    pub step: &'a (dyn Fn(&mut S) -> Result<u64, BenchError> + Sync),
}

/// Operations per second of a competitor in a turn, summed over its threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// By wall-clock time.
    pub wall: f64,
    /// By each thread's CPU time. For threads that never sleep, this is the rate on an otherwise idle machine.
    pub cpu: f64,
}

/// Returns operations per second of each competitor by wall-clock time, one value per turn. Each competitor works once
/// in every turn, in rotating order.
pub(crate) fn rates<S: Send>(
    machine: &Machine,
    time: Duration,
    loads: &mut [InterleavedLoad<'_, S>],
) -> Result<Vec<Vec<f64>>, BenchError> {
    let seen = rates_by_both(machine, time, loads)?;
    Ok(seen.into_iter().map(|seen| seen.into_iter().map(|rate| rate.wall).collect()).collect())
}

/// Like [`rates`], but by both clocks.
pub(crate) fn rates_by_both<S: Send>(
    machine: &Machine,
    time: Duration,
    loads: &mut [InterleavedLoad<'_, S>],
) -> Result<Vec<Vec<Rate>>, BenchError> {
    let many = u32::try_from(loads.len()).unwrap_or(u32::MAX).max(1);
    let slice = (time / (many * TURNS)).max(SHORTEST);
    // One turn each is not measured: it maps pages, warms caches and makes the threads' first allocations.
    for load in &mut *loads {
        turn(machine, SHORTEST, load)?;
    }
    let mut seen = vec![Vec::new(); loads.len()];
    let begin = Instant::now();
    while seen.first().is_some_and(|first| first.len() < FEWEST) || begin.elapsed() < time {
        let count = loads.len();
        let first = seen[0].len();
        for place in 0..count {
            let contestant = (first + place) % count;
            seen[contestant].push(turn(machine, slice, &mut loads[contestant])?);
        }
    }
    Ok(seen)
}

/// Runs one turn of one competitor: its threads begin together, each on its own core if there are enough cores.
fn turn<S: Send>(machine: &Machine, time: Duration, load: &mut InterleavedLoad<'_, S>) -> Result<Rate, BenchError> {
    let threads = load.states.len();
    let ready = AtomicUsize::new(0);
    let (ready, step) = (&ready, load.step);
    let rates = thread::scope(|scope| {
        let work = |(number, state): (usize, &'_ mut S)| -> Result<Rate, BenchError> {
            let _ = telpher_os::run_on(&[machine.core(number)]);
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < threads {
                thread::yield_now();
            }
            let seen = window(time, || step(state))?;
            Ok(Rate { wall: 1e9 / seen.ns_per_op(), cpu: 1e9 / seen.cpu_ns_per_op() })
        };
        let workers: Vec<_> = load.states.iter_mut().enumerate().map(|each| scope.spawn(move || work(each))).collect();
        let rates = workers.into_iter().map(|worker| worker.join().expect("measurements report their errors"));
        rates.collect::<Result<Vec<Rate>, BenchError>>()
    })?;
    Ok(Rate { wall: rates.iter().map(|rate| rate.wall).sum(), cpu: rates.iter().map(|rate| rate.cpu).sum() })
}

/// Returns the median over the turns of one competitor's rate divided by another's.
pub(crate) fn ratio(of: &[f64], by: &[f64]) -> f64 {
    median(&mut of.iter().zip(by).map(|(of, by)| of / by).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_competitor_has_every_turn_on_all_its_threads() {
        let step = |calls: &mut u64| {
            *calls += 1;
            Ok(1)
        };
        let mut both =
            [InterleavedLoad { states: vec![0; 2], step: &step }, InterleavedLoad { states: vec![0], step: &step }];
        let seen = rates(&Machine::read(), Duration::from_millis(5), &mut both).unwrap();
        assert!(seen[0].len() >= FEWEST && seen[0].len() == seen[1].len());
        assert!(both.iter().all(|load| load.states.iter().all(|calls| *calls > 0)));
        assert!(seen.iter().flatten().all(|rate| *rate > 0.0));
    }

    #[test]
    fn an_error_in_a_thread_is_returned() {
        let step = |_: &mut ()| Err(BenchError::NotHere("no".into()));
        let mut one = [InterleavedLoad { states: vec![(); 2], step: &step }];
        assert_eq!(rates(&Machine::read(), Duration::ZERO, &mut one).unwrap_err().to_string(), "no");
    }

    #[test]
    fn a_ratio_is_the_median_of_the_turns() {
        assert_eq!(ratio(&[1.0, 4.0, 9.0], &[2.0, 2.0, 3.0]), 2.0);
    }
}
