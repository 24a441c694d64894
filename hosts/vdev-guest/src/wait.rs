//! UMWAIT and TPAUSE: a short sleep that looks at its line.
#![allow(unsafe_code, reason = "reads the time-stamp counter")]

use crate::faults;
use crate::node;
use crate::sys;
use std::arch::x86_64::_rdtsc;
use telpher_interpose::{Monitor, signals};
use telpher_mem::Space;

/// Time-stamp counts after which the system ends a wait. Source: K612 `umwait.c`, the default of max_time.
const LIMIT: u64 = 100_000;
/// Looks between two offers of the processor to others. Source: chosen: about 2 µs.
const LOOKS: u32 = 32;

/// Waits until the line changes, the counter reaches `deadline`, or the system's limit; true for the last.
pub(crate) fn wait(monitor: Option<&Monitor>, deadline: u64) -> bool {
    let limit = now().saturating_add(LIMIT);
    // What an inline device has left undone gets done by who waits for it.
    node::each(|replica| replica.drive());
    let mut looks = 0_u32;
    loop {
        if monitor.is_some_and(has_changed) || signals::is_deferred() {
            return false;
        }
        let time = now();
        if time >= deadline {
            return false;
        }
        if time >= limit {
            return true;
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) {
            sys::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// True if the line holds something else than when it was armed, or cannot be read any more.
fn has_changed(monitor: &Monitor) -> bool {
    let mut line = [0; 64];
    faults::memory().read(monitor.address, &mut line).is_err()
        || line.as_chunks::<8>().0.iter().zip(&monitor.line).any(|(now, then)| u64::from_le_bytes(*now) != *then)
}

fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; a system that forbids it to programs (CR4.TSD) forbids UMWAIT too.
    unsafe { _rdtsc() }
}
