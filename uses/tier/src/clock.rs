//! Time of a core.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// What this thread has had.
pub(crate) fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// For each unit of time that a thread has worked which may have this part of a core, so many must go by.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
pub(crate) fn units_of(share: f64) -> u32 {
    // A share that makes no sense is none or all.
    (1.0 / share.max(1e-6)).clamp(1.0, 1e6) as u32
}
