//! The clock of a server.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of the monotonic clock: the same for all loops, which share the time-outs of controllers.
pub(super) fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// Nanoseconds of the monotonic clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    u64::try_from(nanoseconds).unwrap_or(0)
}
