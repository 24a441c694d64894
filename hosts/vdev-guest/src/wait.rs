//! UMWAIT and TPAUSE: a short wait that polls the monitored line.

use crate::faults;
use crate::node;
use crate::sys;
use telpher_interpose::{Monitor, signals};
use telpher_mem::Space;
use telpher_os::ticks;

/// Time-stamp counts after which the kernel's limit ends a wait. Source: K612 `umwait.c`, the default of max_time.
const LIMIT: u64 = 100_000;
/// Polls between two yields of the processor. Source: chosen: about 2 µs.
const POLLS: u32 = 32;

/// Waits until the line changes, the counter reaches `deadline`, or the kernel's limit; true for the last.
pub(crate) fn wait(monitor: Option<&Monitor>, deadline: u64) -> bool {
    let limit = ticks().saturating_add(LIMIT);
    // The waiting thread executes the remaining work of an inline device.
    node::each(|replica| replica.drive());
    let mut polls = 0_u32;
    loop {
        if monitor.is_some_and(has_changed) || signals::is_deferred() {
            return false;
        }
        let time = ticks();
        if time >= deadline {
            return false;
        }
        if time >= limit {
            return true;
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(POLLS) {
            sys::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// True if the line differs from when it was armed, or cannot be read any more.
fn has_changed(monitor: &Monitor) -> bool {
    let mut line = [0; 64];
    faults::memory().read(monitor.address, &mut line).is_err()
        || line.as_chunks::<8>().0.iter().zip(&monitor.line).any(|(now, then)| u64::from_le_bytes(*now) != *then)
}
