//! The distance between two CPUs, measured by the travel time of a cache line.
//!
//! A handover between two threads takes as long as a cache line needs between their cores. On a virtual machine this
//! time is not known beforehand and changes, because the hypervisor moves the virtual CPUs. A measurement of two
//! threads means little without this distance.

use crate::cpus::run_on;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The distance that a cache line travels between two CPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Distance {
    /// As close as two threads of one core: a round trip takes at most [`Distance::NEAR_WITHIN`].
    Near,
    /// On different cores.
    Far,
    /// Both threads run on one CPU, so no cache line moves.
    Same,
}

impl Distance {
    /// The longest round trip that counts as near.
    ///
    /// Source: measured on two virtual CPUs of an AMD EPYC 9004, 2026-11-22: 50 to 75 ns in one state, 290 to 430 ns in
    /// the other. The value is the geometric mean of the gap between them.
    pub const NEAR_WITHIN: Duration = Duration::from_nanos(147);

    /// Returns the distance for a round trip, see [`line_round_trip`].
    #[must_use]
    pub fn of(round_trip: Duration) -> Distance {
        if round_trip <= Distance::NEAR_WITHIN { Distance::Near } else { Distance::Far }
    }

    /// Returns the name in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Distance::Near => "near",
            Distance::Far => "far",
            Distance::Same => "one core",
        }
    }
}

/// Round trips that are timed together; a batch takes much longer than reading the clock.
const BATCH: u32 = 64;

/// Measures how long a cache line takes from CPU `one` to CPU `other` and back. Two threads do nothing else for
/// `during`; the result is the median over batches of 64 round trips. Twenty milliseconds are enough on idle CPUs.
/// Returns `None` if both CPUs are the same, or if the two threads did not run simultaneously for the time of a batch,
/// as on busy CPUs.
///
/// # Errors
/// The kernel's refusal to let a thread run there.
pub fn line_round_trip(one: usize, other: usize, during: Duration) -> io::Result<Option<Duration>> {
    if one == other {
        return Ok(None);
    }
    let counter = HandoverCounter(AtomicU32::new(0));
    let until = Instant::now() + during;
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let kept = run_on(&[other]);
            // This side waits for odd numbers, the other side for even ones.
            let mut turn = 1;
            while kept.is_ok() && counter.await_turn(turn, until) {
                counter.pass(turn + 1);
                turn += 2;
            }
            kept
        });
        let here = scope.spawn(|| run_on(&[one]).map(|()| counter.batches(until)));
        let [there, here] = [there.join().map(|kept| kept.map(|()| Vec::new())), here.join()];
        there.expect("the thread does not panic")?;
        let mut batches = here.expect("the thread does not panic")?;
        batches.sort_unstable();
        Ok(batches.get(batches.len() / 2).map(|batch| *batch / BATCH))
    })
}

/// A number that two threads increment in turn. It is alone in its cache line and the adjacent one, which some
/// processors prefetch with it.
#[repr(align(128))]
struct HandoverCounter(AtomicU32);

impl HandoverCounter {
    /// Waits until the number equals `turn`; returns false on timeout.
    fn await_turn(&self, turn: u32, until: Instant) -> bool {
        loop {
            for _ in 0..1024 {
                // Acquire: pairs with the Release of `pass`, as a real handover would.
                if self.0.load(Ordering::Acquire) == turn {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    fn pass(&self, turn: u32) {
        self.0.store(turn, Ordering::Release);
    }

    /// Returns the durations of batches of round trips until `until`.
    fn batches(&self, until: Instant) -> Vec<Duration> {
        let (mut batches, mut turn) = (Vec::new(), 0);
        loop {
            let start = Instant::now();
            for _ in 0..BATCH {
                // Cannot overflow: even round trips of a nanosecond would take four seconds.
                self.pass(turn + 1);
                turn += 2;
                if !self.await_turn(turn, until) {
                    return batches;
                }
            }
            batches.push(start.elapsed());
            if Instant::now() >= until {
                return batches;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity};

    const SHORTLY: Duration = Duration::from_millis(20);

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }

    #[test]
    fn a_round_trip_takes_time() {
        if let [one, other, ..] = allowed()[..] {
            // `None` if other threads kept the CPUs busy. Less than a nanosecond would mean that no line was exchanged.
            let took = line_round_trip(one, other, SHORTLY).unwrap();
            assert!(took.is_none_or(|took| took >= Duration::from_nanos(1)), "{took:?}");
        }
        // The CPU affinity of this thread is unchanged.
        assert_eq!(allowed(), std::thread::spawn(allowed).join().unwrap());
    }

    #[test]
    fn a_missing_cpu_is_refused() {
        let one = allowed()[0];
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            if !allowed().contains(&cpu) {
                for (one, other) in [(one, cpu), (cpu, one)] {
                    let refused = line_round_trip(one, other, SHORTLY).unwrap_err();
                    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
                }
            }
        }
    }

    #[test]
    fn hyperthreads_are_near_and_cores_are_far() {
        assert_eq!(Distance::of(Duration::from_nanos(75)), Distance::Near);
        assert_eq!(Distance::of(Duration::from_nanos(290)), Distance::Far);
    }
}
