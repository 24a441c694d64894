//! A lock for a library inside another program's process: one word and a futex, without the C library.
//!
//! While a thread holds the lock, the program's signal handlers are deferred, so a handler that calls this library
//! never finds the lock held by the thread it interrupted. A fork takes all of these locks, so that the data they
//! protect is consistent in the child.
#![allow(unsafe_code, reason = "futex, and references to the guarded value")]

use crate::sync::{AtomicU32, Ordering};
use crate::sys;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use telpher_interpose::signals::{self, Deferral};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and other threads may be sleeping until it is free.
const WAITED_FOR: u32 = 2;

/// Data that one thread at a time uses.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    inner: UnsafeCell<T>,
}

// SAFETY: `inner` is accessed only by the holder of the lock.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// The lock is held; dropping this releases it.
pub(crate) struct Held<'a, T> {
    lock: &'a Lock<T>,
    _deferred: Deferral,
}

impl<T> Lock<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Lock { word: AtomicU32::new(FREE), inner: UnsafeCell::new(inner) }
    }

    /// Waits for the lock.
    pub(crate) fn hold(&self) -> Held<'_, T> {
        let deferred = signals::defer();
        self.take();
        Held { lock: self, _deferred: deferred }
    }

    /// Takes the lock for the duration of a fork; see [`give`](Lock::give).
    pub(crate) fn take(&self) {
        // Acquire: pairs with the Release in `give`, here and below.
        if self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
                sys::futex_wait(&self.word, WAITED_FOR);
            }
        }
    }

    /// Releases it: called by the thread that took it, or in its child.
    pub(crate) fn give(&self) {
        // Release: pairs with the Acquire in `take`.
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            sys::futex_wake(&self.word);
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.inner.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.lock.inner.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.lock.give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let mut count = COUNT.hold();
                        *count += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.hold(), 200_000);
    }
}
