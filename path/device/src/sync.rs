//! The only file that names an atomic or a lock.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

#[cfg(not(loom))]
use std::sync::TryLockError;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock for those who can do without. A poisoned one is a panic in the model, which must not turn into a hang: the others
/// go on.
#[derive(Debug)]
pub(crate) struct TryLock<T> {
    inner: Mutex<T>,
    /// Loom's own `try_lock` never finds its lock taken, it blocks the other thread instead; so the model has this flag.
    #[cfg(loom)]
    taken: AtomicU32,
}

impl<T> TryLock<T> {
    pub(crate) fn new(inner: T) -> Self {
        TryLock {
            inner: Mutex::new(inner),
            #[cfg(loom)]
            taken: AtomicU32::new(0),
        }
    }

    /// Calls `act` with what is locked, if nobody else has it.
    #[inline]
    pub(crate) fn try_with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        #[cfg(not(loom))]
        let mut inner: MutexGuard<'_, T> = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        #[cfg(loom)]
        let mut inner: MutexGuard<'_, T> = {
            // Acquire and Release, as a lock's.
            self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
            self.inner.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let result = act(&mut inner);
        drop(inner);
        #[cfg(loom)]
        self.taken.store(0, Ordering::Release);
        Some(result)
    }

    /// Waits for the lock.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
