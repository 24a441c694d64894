//! How far two CPUs are from each other, as a cache line travels.
//!
//! What two threads hand each other takes as long as a line takes between their cores, which on a virtual machine is not known beforehand
//! and does not stay: the hypervisor moves the CPUs it lends. A measurement of such a pair means little without its distance.

use crate::cpus::run_on;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How far a line travels between two CPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Distance {
    /// No farther than threads of one core share: there and back in up to [`Distance::NEAR_WITHIN`].
    Near,
    /// Between cores.
    Far,
}

impl Distance {
    /// The longest round trip that is near.
    ///
    /// Source: measured on two virtual CPUs of an AMD EPYC 9004, 2026-11-22: 50 to 75 ns in one state, 290 to 430 ns in the other; the
    /// geometric mean of what lies between.
    pub const NEAR_WITHIN: Duration = Duration::from_nanos(147);

    /// That of a round trip, see [`line_round_trip`].
    #[must_use]
    pub fn of(round_trip: Duration) -> Distance {
        if round_trip <= Distance::NEAR_WITHIN { Distance::Near } else { Distance::Far }
    }
}

/// Round trips that are timed together: much longer than it takes to read the clock.
const BATCH: u32 = 64;

/// How long a cache line takes from CPU `one` to CPU `other` and back, found out by two threads that do nothing else for `during`: the
/// median over batches of 64 round trips. Twenty milliseconds are enough on idle CPUs. `None` if the two threads did not run at the same time for as
/// long as one batch takes, as on CPUs that others keep busy, or if both are the same.
///
/// # Errors
/// The kernel's refusal to let a thread run there.
pub fn line_round_trip(one: usize, other: usize, during: Duration) -> io::Result<Option<Duration>> {
    if one == other {
        return Ok(None);
    }
    let ball = Ball(AtomicU32::new(0));
    let until = Instant::now() + during;
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let kept = run_on(&[other]);
            // An odd number is for this side; the next even one for the other.
            let mut turn = 1;
            while kept.is_ok() && ball.await_turn(turn, until) {
                ball.pass(turn + 1);
                turn += 2;
            }
            kept
        });
        let here = scope.spawn(|| run_on(&[one]).map(|()| ball.batches(until)));
        let [there, here] = [there.join().map(|kept| kept.map(|()| Vec::new())), here.join()];
        there.expect("it does not panic")?;
        let mut batches = here.expect("it does not panic")?;
        batches.sort_unstable();
        Ok(batches.get(batches.len() / 2).map(|batch| *batch / BATCH))
    })
}

/// A number that two threads count up in turn, alone in its cache line and the neighbour's, which some processors fetch with it.
#[repr(align(128))]
struct Ball(AtomicU32);

impl Ball {
    /// Waits until the number is this; false if it is not in time.
    fn await_turn(&self, turn: u32, until: Instant) -> bool {
        loop {
            for _ in 0..1024 {
                // Acquire: pairs with the Release of `pass`, as what is handed over in earnest would be.
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

    /// How long batches of round trips took, until then.
    fn batches(&self, until: Instant) -> Vec<Duration> {
        let (mut batches, mut turn) = (Vec::new(), 0);
        loop {
            let start = Instant::now();
            for _ in 0..BATCH {
                // Cannot overflow: a round trip of a nanosecond would take four seconds of them.
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
    fn a_line_takes_some_time_there_and_back() {
        if let [one, other, ..] = allowed()[..] {
            // Nothing if others kept the CPUs busy; less than a nanosecond would mean that no line was exchanged.
            let took = line_round_trip(one, other, SHORTLY).unwrap();
            assert!(took.is_none_or(|took| took >= Duration::from_nanos(1)), "{took:?}");
        }
        // This thread stayed free.
        assert_eq!(allowed(), std::thread::spawn(allowed).join().unwrap());
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
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
