//! A lock for a library inside another program's process: one word and a futex, without the C library.
//!
//! While a thread holds the lock, the program's signal handlers are deferred, so a handler that calls the library
//! never finds the lock held by the thread it interrupted. A fork takes all of these locks, so that the data they
//! protect is consistent in the child.
#![allow(unsafe_code, reason = "references to the guarded value")]

use crate::kernel::{futex_wait, futex_wake};
use crate::signals::{self, Deferral};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and other threads may be sleeping until it is free.
const WAITED_FOR: u32 = 2;

/// Data that one thread at a time uses.
pub struct Lock<T> {
    word: AtomicU32,
    /// Taken by [`take`](Lock::take): no reference to the data exists.
    for_fork: AtomicBool,
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
#[derive(Debug)]
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
    _deferred: Deferral,
}

impl<T> Lock<T> {
    /// Creates a free lock.
    pub const fn new(inner: T) -> Self {
        Lock { word: AtomicU32::new(FREE), for_fork: AtomicBool::new(false), inner: UnsafeCell::new(inner) }
    }

    /// Waits for the lock.
    pub fn hold(&self) -> Held<'_, T> {
        let deferred = signals::defer();
        self.acquire();
        Held { lock: self, _deferred: deferred }
    }

    /// Takes the lock for the duration of a fork; see [`give`](Lock::give).
    pub fn take(&self) {
        self.acquire();
        // Relaxed, here and below: written and read by the lock's holder, or by its forked child.
        self.for_fork.store(true, Ordering::Relaxed);
    }

    /// Releases the lock in parent and child after a fork. Does nothing unless [`take`](Lock::take) has taken it.
    pub fn give(&self) {
        if self.for_fork.swap(false, Ordering::Relaxed) {
            self.release();
        }
    }

    fn acquire(&self) {
        // Acquire: pairs with the Release in `release`, here and below.
        if self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
                futex_wait(&self.word, WAITED_FOR);
            }
        }
    }

    fn release(&self) {
        // Release: pairs with the Acquire in `acquire`.
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            futex_wake(&self.word);
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
        self.lock.release();
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

    #[test]
    fn only_a_lock_taken_for_a_fork_can_be_given() {
        let lock = Lock::new(());
        let is_free = || lock.word.load(Ordering::Relaxed) == FREE;
        let held = lock.hold();
        lock.give();
        assert!(!is_free());
        drop(held);
        lock.take();
        assert!(!is_free());
        lock.give();
        assert!(is_free());
    }
}
