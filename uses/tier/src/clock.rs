//! CPU time of a thread.

use rustix::time::ClockId;
use std::time::Duration;

/// Returns the CPU time that this thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    Duration::from_nanos(telpher_os::clock_ns(ClockId::ThreadCPUTime))
}

/// Returns how many units of time must pass for each unit that a thread works, if it may use this share of a core.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
pub(crate) fn inverse_share(share: f64) -> u32 {
    // A share out of range counts as the nearest sensible one.
    (1.0 / share.max(1e-6)).clamp(1.0, 1e6) as u32
}
