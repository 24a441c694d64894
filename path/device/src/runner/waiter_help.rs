//! Work of a worker thread that a waiting thread does instead while the worker does not run.
//!
//! The work is behind a lock that each thread only tries. Waiting threads count their checks, and the worker clears the
//! count whenever it runs. So a high count means that the worker has no core, or sleeps. A worker that finds the lock
//! taken must assume that work is left, and must not sleep: the helper may leave work behind.

use crate::sync::{AtomicU32, Ordering, TryLock};

/// Checks by waiting threads without a sign of the worker before one of them helps. Source: chosen; about half a
/// microsecond of PAUSE, several times what a running worker needs to see a descriptor.
const PATIENCE: u32 = 16;

/// A value that a worker, or a thread that helps it, works on.
#[derive(Debug)]
pub(crate) struct Helped<T> {
    value: TryLock<T>,
    checks: Checks,
}

/// Checks by waiting threads since the worker last ran. A hint: no other memory depends on it. An idle worker reads it
/// all the time, so it has a cache line other than the value's, which other threads write.
#[derive(Debug)]
#[repr(align(64))]
struct Checks(AtomicU32);

impl<T> Helped<T> {
    pub(crate) fn new(value: T) -> Self {
        Helped { value: TryLock::new(value), checks: Checks(AtomicU32::new(0)) }
    }

    /// Records that the worker runs.
    #[inline]
    pub(crate) fn worker_runs(&self) {
        // Read first: the cache line stays shared while no thread waits.
        if self.checks.0.load(Ordering::Relaxed) != 0 {
            self.checks.0.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a check by a waiting thread; returns true if the worker has shown no sign of running for long.
    #[inline]
    pub(crate) fn check_is_late(&self) -> bool {
        if self.is_late() {
            return true;
        }
        // A count that another thread overwrites only delays the help.
        self.checks.0.store(self.checks.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        false
    }

    /// True if waiting threads have seen no sign of the worker for long.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.checks.0.load(Ordering::Relaxed) >= PATIENCE
    }

    /// Calls `act` with the value, unless another thread works on it.
    #[inline]
    pub(crate) fn work<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.value.try_with(act)
    }

    /// True if there is work, or if another thread works on the value and may leave some.
    pub(crate) fn may_have_work(&self, has_work: impl FnOnce(&T) -> bool) -> bool {
        self.value.try_with(|value| has_work(value)).unwrap_or(true)
    }

    /// Waits until no thread works on the value.
    pub(crate) fn wait_until_free(&self) {
        self.value.with(|_| ());
    }
}
