//! Moments by the time stamp counter, and the nanoseconds between them.
//!
//! To read the counter takes less time than to read a clock of the system. The kernel does not report its rate, so it
//! follows from two readings of the counter and of the monotonic clock, at least a millisecond apart. On a processor
//! whose counter has no constant rate, a stamp is the time of the monotonic clock.

use crate::clock::monotonic_ns;
use crate::ticks::{has_constant_rate, ticks};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shortest time from which the rate is computed. Source: chosen. Two readings of a clock differ by less than 100 ns
/// from the truth, so the rate is right to 0.01 %.
const SHORTEST: Duration = Duration::from_millis(1);
/// Readings of the two clocks, of which the quickest is taken. Source: chosen; a thread is rarely interrupted twice.
const READINGS: usize = 3;
/// The rate of a processor without a constant one.
const NO_COUNTER: u64 = u64::MAX;

/// The first reading, once a program has said that it will need stamps.
static FIRST: OnceLock<Reading> = OnceLock::new();
/// Nanoseconds of a tick in units of 2⁻³²; 0 before it is known. Threads may compute it at the same time: each result
/// is right.
static RATE: AtomicU64 = AtomicU64::new(0);

/// The counter and the clock at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ticks: u64,
    clock: Instant,
}

impl Reading {
    fn now() -> Reading {
        let read = || {
            let before = ticks();
            let clock = Instant::now();
            let took = ticks().saturating_sub(before);
            (took, Reading { ticks: before.saturating_add(took / 2), clock })
        };
        let (_, reading) = (0..READINGS).map(|_| read()).min_by_key(|(took, _)| *took).expect("some readings");
        reading
    }

    /// The rate from this reading to a later one; `None` if that is too early.
    fn rate_to(self, later: Reading) -> Option<u64> {
        let time = later.clock.saturating_duration_since(self.clock);
        let ticks = later.ticks.saturating_sub(self.ticks).max(1);
        let rate = || u64::try_from((time.as_nanos() << 32) / u128::from(ticks)).ok();
        // A counter that stood still, or ran away, is none.
        (time >= SHORTEST).then(|| rate().filter(|rate| *rate > 0).unwrap_or(NO_COUNTER))
    }
}

/// Says that stamps may be needed later, so that the first one need not wait for the rate.
pub fn prepare_stamps() {
    FIRST.get_or_init(Reading::now);
}

/// Returns a stamp of this moment, for [`ns_between`]. The first one in a process waits up to a millisecond, unless
/// [`prepare_stamps`] was called so long before.
#[must_use]
#[inline]
pub fn stamp() -> u64 {
    // Relaxed: the rate is all that a thread needs to know.
    match RATE.load(Ordering::Relaxed) {
        0 => first_stamp(),
        NO_COUNTER => monotonic_ns(),
        _ => ticks(),
    }
}

/// Returns the nanoseconds between two stamps of this process; 0 if the second one is earlier.
#[must_use]
#[inline]
pub fn ns_between(begin: u64, end: u64) -> u64 {
    // Relaxed: as above.
    ns_at(RATE.load(Ordering::Relaxed), end.saturating_sub(begin))
}

fn ns_at(rate: u64, stamps: u64) -> u64 {
    if rate == NO_COUNTER {
        return stamps;
    }
    u64::try_from((u128::from(stamps) * u128::from(rate)) >> 32).unwrap_or(u64::MAX)
}

#[cold]
fn first_stamp() -> u64 {
    let rate = if has_constant_rate() {
        let first = FIRST.get().copied().unwrap_or_else(Reading::now);
        loop {
            if let Some(rate) = first.rate_to(Reading::now()) {
                break rate;
            }
            std::hint::spin_loop();
        }
    } else {
        NO_COUNTER
    };
    // Relaxed: as above.
    RATE.store(rate, Ordering::Relaxed);
    if rate == NO_COUNTER { monotonic_ns() } else { ticks() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_stamps_is_that_of_the_clock() {
        prepare_stamps();
        let _ = stamp();
        // The clock's interval encloses that of the stamps, and is enclosed by it, as the readings are ordered.
        let (outer, begin, inner) = (monotonic_ns(), stamp(), monotonic_ns());
        while monotonic_ns() < inner + 20_000_000 {}
        let (inner_end, end, outer_end) = (monotonic_ns(), stamp(), monotonic_ns());
        let (least, between, most) = (inner_end - inner, ns_between(begin, end), outer_end - outer);
        // Readings may have been interrupted: by a part of the millisecond from which the rate was computed.
        assert!(least / 2 <= between && between <= most * 2, "{least} {between} {most}");
        assert_eq!(ns_between(end, begin), 0);
    }

    #[test]
    fn a_rate_follows_from_two_readings_far_enough_apart() {
        let begin = Instant::now();
        let first = Reading { ticks: 1000, clock: begin };
        let later = |ticks, ns| first.rate_to(Reading { ticks, clock: begin + Duration::from_nanos(ns) });
        assert_eq!(later(3_001_000, 999_999), None);
        // Three ticks a nanosecond.
        let rate = later(3_001_000, 1_000_000).unwrap();
        assert_eq!((ns_at(rate, 3_000_000), ns_at(rate, 0)), (999_999, 0));
        assert_eq!(ns_at(later(501_000, 1_000_000).unwrap(), 500), 1000);
        // A counter that stands still or runs away.
        assert_eq!(later(1000, u64::MAX / 2), Some(NO_COUNTER));
        assert_eq!(later(u64::MAX, 1_000_000), Some(NO_COUNTER));
        assert_eq!((ns_at(NO_COUNTER, 7), ns_at(1 << 40, u64::MAX)), (7, u64::MAX));
    }
}
