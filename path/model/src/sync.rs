//! The only file that names an atomic.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that is read and written whole, without ordering anything else: configuration, counters, statistics.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Default for Word {
    fn default() -> Self {
        Word(AtomicU64::new(0))
    }
}

impl Word {
    // Relaxed throughout: whoever needs an order around a `Word` gets it from the protocol it stands in (a queue's
    // sequence, a group's turn, a command's active bit).
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Reads what a [`publish`](Word::publish) wrote, and sees everything before it.
    pub(crate) fn observe(&self) -> u64 {
        // Acquire: pairs with the Release in `publish`.
        self.0.load(Ordering::Acquire)
    }

    /// Writes behind everything written before.
    pub(crate) fn publish(&self, value: u64) {
        // Release: pairs with the Acquire in `observe`.
        self.0.store(value, Ordering::Release);
    }

    /// Replaces the word by what `change` makes of it, as one step; `false` if it leaves it alone.
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

/// Keeps neighbours on cache lines of their own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// Who may act for a group (or a command) right now. Holding it orders everything done under it.
///
/// A try-lock without waiting: who does not get the turn does something else and comes back.
#[derive(Debug)]
pub(crate) struct Turn(AtomicU64);

impl Default for Turn {
    fn default() -> Self {
        Turn(AtomicU64::new(0))
    }
}

impl Turn {
    /// Runs `act` if the turn is free; `None` if another has it.
    #[inline]
    pub(crate) fn try_with<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        // Acquire: pairs with the Release below; what the previous holder wrote is seen.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let _held = Held(self);
        Some(act())
    }
}

/// Ends a turn, also when what was done under it panics.
struct Held<'a>(&'a Turn);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_with`.
        self.0.0.store(0, Ordering::Release);
    }
}
