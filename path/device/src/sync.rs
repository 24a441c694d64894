//! The only file that uses atomics and locks by name.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// The standard cell with loom's access method.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

#[cfg(not(loom))]
use std::sync::TryLockError;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that callers may fail to get. If a panic in the model has poisoned it, the other threads continue, because a
/// panic must not become a hang.
#[derive(Debug)]
pub(crate) struct TryLock<T> {
    inner: Mutex<T>,
    /// Loom's own `try_lock` never finds its lock taken, it blocks the other thread instead; so under loom this flag is
    /// needed.
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

    /// Calls `act` with the locked value, if no other thread has the lock.
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
            // Acquire and Release, as for a lock.
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
