//! The only file that names locks and clocks of protocols between threads.
#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// The time of the limits, in nanoseconds from an arbitrary start.
#[cfg(not(loom))]
pub(crate) fn clock_ns() -> u64 {
    telpher_os::monotonic_ns()
}

/// Loom has no time: nothing is limited in its tests.
#[cfg(loom)]
pub(crate) fn clock_ns() -> u64 {
    0
}
