//! CPU time of a thread.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the CPU time that this thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns how many units of time must pass for each unit that a thread works, if it may use this share of a core.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
pub(crate) fn inverse_share(share: f64) -> u32 {
    // A share out of range counts as the nearest sensible one.
    (1.0 / share.max(1e-6)).clamp(1.0, 1e6) as u32
}
