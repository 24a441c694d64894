//! A lock with a bounded wait. A thread that does not get it leaves its work to the holder, which does that work before
//! it gives the lock back.
//!
//! The lock and the note that work was left are bits of one word, so there is one order of all changes to them. A
//! thread that leaves work sets both bits at once. If the lock was free, the thread has it now. Otherwise the holder
//! finds the note when it tries to give the lock back, and keeps the lock for another round. So work that was submitted
//! before is never left undone, and without contention a round takes two atomic operations and no fence.
#![allow(unsafe_code, reason = "a lock of its own: the word says which thread has the value")]

use crate::sync::{AtomicU32, Ordering, UnsafeCell, yield_now};

/// Tries before a waiting thread yields its core between tries. Source: chosen; about a microsecond, a short copy.
const SPINS: u32 = 64;

/// A thread has the value.
const LOCKED: u32 = 1;
/// Work was left since the last round that was told so.
const LEFT: u32 = 2;

/// A value that one thread at a time works on, for itself and for threads that left work meanwhile.
#[derive(Debug)]
pub(crate) struct Combiner<T> {
    /// [`LOCKED`] and [`LEFT`].
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the value, so it moves between threads and is not shared by them.
unsafe impl<T: Send> Sync for Combiner<T> {}

impl<T> Combiner<T> {
    pub(crate) fn new(value: T) -> Self {
        Combiner { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Calls `act` with the lock; its second argument is true if other threads may have left work. If the lock stays
    /// taken for `tries` more tries, the caller's work is left to the holder. `act` returns whether to continue.
    ///
    /// The wait is bounded, so that a thread that waits for itself continues: in a signal handler, or in a forked child
    /// in which the holder does not exist.
    #[inline]
    pub(crate) fn run(&self, tries: u32, act: impl FnMut(&mut T, bool) -> bool) {
        if let Some(lock) = self.try_lock().or_else(|| self.lock_or_leave(tries)) {
            self.work(lock, act);
        }
    }

    /// As [`run`](Combiner::run), but does nothing if another thread has the lock. A thread that polls leaves no work:
    /// if it did, it would keep the holder at work for as long as it polls.
    #[inline]
    pub(crate) fn run_if_free(&self, act: impl FnMut(&mut T, bool) -> bool) {
        if let Some(lock) = self.try_lock() {
            self.work(lock, act);
        }
    }

    #[inline]
    fn work(&self, mut lock: Lock<'_, T>, mut act: impl FnMut(&mut T, bool) -> bool) {
        // The thread's own work comes first; after that only work that others left, which any holder may do.
        while lock.with(&mut act) {
            // Release: pairs with the Acquire of the next holder.
            if self.word.compare_exchange(LOCKED, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
                std::mem::forget(lock);
                return;
            }
            lock.take_left();
        }
    }

    /// Tries for a while, and then leaves work, unless that gets the lock.
    #[cold]
    fn lock_or_leave(&self, tries: u32) -> Option<Lock<'_, T>> {
        for tried in 0..tries {
            if tried < SPINS {
                std::hint::spin_loop()
            } else {
                yield_now()
            }
            if let Some(lock) = self.try_lock() {
                return Some(lock);
            }
        }
        // Acquire: pairs with the Release of the last holder, if the lock is free. Release: pairs with the Acquire in
        // `take_left`, which makes the work visible.
        if self.word.fetch_or(LOCKED | LEFT, Ordering::AcqRel) & LOCKED != 0 {
            return None;
        }
        let mut lock = Lock { combiner: self, left: false };
        lock.take_left();
        Some(lock)
    }

    #[inline]
    fn try_lock(&self) -> Option<Lock<'_, T>> {
        // Acquire: pairs with the Release of the last holder.
        match self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Lock { combiner: self, left: false }),
            Err(LEFT) => self.try_lock_with_left(),
            Err(_) => None,
        }
    }

    /// Takes a lock that was given back with work left: its holder was told to stop.
    #[cold]
    fn try_lock_with_left(&self) -> Option<Lock<'_, T>> {
        // Acquire: as in `try_lock`, and pairs with the Release in `lock_or_leave`.
        let locked = self.word.compare_exchange(LEFT, LOCKED, Ordering::Acquire, Ordering::Relaxed);
        locked.is_ok().then_some(Lock { combiner: self, left: true })
    }

    /// Waits for the lock, and calls `act` once. Work that is left meanwhile is done by the next
    /// [`run`](Combiner::run).
    pub(crate) fn exclusively<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let mut tried = 0;
        loop {
            // Acquire: pairs with the Release of the last holder.
            if self.word.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0 {
                break;
            }
            if tried < SPINS {
                tried += 1;
                std::hint::spin_loop()
            } else {
                yield_now()
            }
        }
        Lock { combiner: self, left: false }.with(|value, _| act(value))
    }
}

/// The right to the value. Dropped, it gives the lock back, with the note of work that was left: that work may not have
/// been done.
struct Lock<'a, T> {
    combiner: &'a Combiner<T>,
    /// Other threads may have left work.
    left: bool,
}

impl<T> Lock<'_, T> {
    #[inline]
    fn with<R>(&mut self, act: impl FnOnce(&mut T, bool) -> R) -> R {
        // SAFETY: `LOCKED` was not set when this thread set it. No other thread has a `Lock` until this one is dropped
        // or forgotten, and it is borrowed for the call.
        self.combiner.value.with_mut(|value| act(unsafe { &mut *value }, self.left))
    }

    /// Takes over the work that was left.
    #[cold]
    fn take_left(&mut self) {
        // Acquire: pairs with the Release in `lock_or_leave`.
        self.combiner.word.fetch_and(!LEFT, Ordering::Acquire);
        self.left = true;
    }
}

impl<T> Drop for Lock<'_, T> {
    fn drop(&mut self) {
        if self.left {
            // Relaxed: the next holder acquires the word with the change below.
            self.combiner.word.fetch_or(LEFT, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of the next holder.
        self.combiner.word.fetch_and(!LOCKED, Ordering::Release);
    }
}
