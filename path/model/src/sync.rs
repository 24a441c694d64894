//! The only file that uses atomics by name.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that is read and written as a whole without ordering other accesses: configuration, counters, statistics.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Default for Word {
    fn default() -> Self {
        Word(AtomicU64::new(0))
    }
}

impl Word {
    // Relaxed throughout: where accesses to a `Word` need an order, a protocol provides it (a queue's sequence, a
    // group's lock, a command's active bit).
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Reads a word written by [`publish`](Word::publish), and sees everything written before that.
    pub(crate) fn observe(&self) -> u64 {
        // Acquire: pairs with the Release in `publish`.
        self.0.load(Ordering::Acquire)
    }

    /// Writes the word after everything written before.
    pub(crate) fn publish(&self, value: u64) {
        // Release: pairs with the Acquire in `observe`.
        self.0.store(value, Ordering::Release);
    }

    /// Replaces the word by the result of `change` in one step; returns `false` if `change` leaves it alone.
    pub(crate) fn update(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    pub(crate) fn add(&self, value: u64) -> u64 {
        self.0.fetch_add(value, Ordering::Relaxed)
    }

    pub(crate) fn or(&self, bits: u64) -> u64 {
        self.0.fetch_or(bits, Ordering::Relaxed)
    }

    pub(crate) fn and(&self, bits: u64) -> u64 {
        self.0.fetch_and(bits, Ordering::Relaxed)
    }

    pub(crate) fn swap(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }
}

/// Reads consecutive words.
pub(crate) fn load<const N: usize>(words: &[Word; N]) -> [u64; N] {
    std::array::from_fn(|i| words[i].get())
}

/// Writes consecutive words.
pub(crate) fn store<const N: usize>(words: &[Word; N], values: &[u64; N]) {
    for (word, value) in words.iter().zip(values) {
        word.set(*value);
    }
}

/// Puts a value on a cache line of its own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct CacheLine<T>(pub(crate) T);

/// A lock for acting on a group (or a command). Holding it orders everything done under it.
///
/// It never waits: a thread that does not get the lock does something else and tries again later.
#[derive(Debug)]
pub(crate) struct TryLock(AtomicU64);

impl Default for TryLock {
    fn default() -> Self {
        TryLock(AtomicU64::new(0))
    }
}

impl TryLock {
    /// Runs `act` if the lock is free; returns `None` if another thread holds it.
    #[inline]
    pub(crate) fn try_with<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        // Acquire: pairs with the Release below; the previous holder's writes are visible.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let _held = Guard(self);
        Some(act())
    }
}

/// Releases the lock, even if the code under it panics.
struct Guard<'a>(&'a TryLock);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_with`.
        self.0.0.store(0, Ordering::Release);
    }
}
