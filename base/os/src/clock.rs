//! Clocks of the system, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of a clock in nanoseconds. Times before the clock's zero count as 0.
#[must_use]
pub fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let [seconds, nanoseconds] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Returns the time of the monotonic clock in nanoseconds. All processes of the machine see the same one.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_clocks_advance_and_count_from_their_zero() {
        let begin = clock_ns(ClockId::Monotonic);
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let now = u128::from(clock_ns(ClockId::Realtime));
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        assert!((before..=after).contains(&now), "{now} is not between {before} and {after}");
        assert!(clock_ns(ClockId::Monotonic) >= begin);
    }
}
