#![allow(unsafe_code, reason = "lends its bytes to the endpoints")]
//! Buffers of a simulated process: real bytes, so that every message can be checked.

use std::sync::atomic::{AtomicU64, Ordering};
use telpher_fabric::{Buffer, Segments};

/// Bytes of a word.
const WORD: u64 = size_of::<u64>() as u64;

/// A buffer of words.
#[derive(Debug)]
pub(super) struct Words(Vec<AtomicU64>);

impl Words {
    /// `bytes` bytes, rounded up to whole words.
    pub(super) fn new(bytes: u64, value: impl Fn(u64) -> u64) -> Words {
        Words((0..bytes.div_ceil(WORD)).map(|index| AtomicU64::new(value(index))).collect())
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// True if the address is in the buffer.
    pub(super) fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address()).is_some_and(|offset| offset < self.0.len() as u64 * WORD)
    }

    /// Lends `bytes` bytes from byte `offset` to an endpoint; fewer if the buffer ends before.
    pub(super) fn lend(&self, offset: u64, bytes: u64) -> Segments {
        // SAFETY: the only references to the bytes are to atomics, which neither reads nor writes contradict, and all
        // accesses are on the simulator's thread. The process that owns the buffer drops its endpoint first.
        let buffer = unsafe { Buffer::vouch(self.address(), self.0.len() as u64 * WORD) };
        Segments::new(&[buffer.part(offset, bytes)]).expect("one buffer of allocated bytes")
    }

    /// Adds the words of `other` to those from byte `offset` on.
    pub(super) fn add(&self, offset: u64, other: &Words, bytes: u64) {
        for (sum, term) in self.range(offset, bytes).iter().zip(&other.0) {
            // Relaxed: one thread, see `lend`.
            sum.store(sum.load(Ordering::Relaxed).wrapping_add(term.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Sets every word.
    pub(super) fn fill(&self, value: impl Fn(u64) -> u64) {
        for (index, word) in (0..).zip(&self.0) {
            word.store(value(index), Ordering::Relaxed);
        }
    }

    /// Returns how many of the first `bytes` bytes' words have another value.
    pub(super) fn wrong(&self, bytes: u64, value: impl Fn(u64) -> u64) -> u64 {
        let words = (0..).zip(self.range(0, bytes));
        words.filter(|(index, word)| word.load(Ordering::Relaxed) != value(*index)).count() as u64
    }

    fn range(&self, offset: u64, bytes: u64) -> &[AtomicU64] {
        let at = |byte: u64| usize::try_from(byte.div_ceil(WORD)).unwrap_or(usize::MAX).min(self.0.len());
        &self.0[at(offset)..at(offset.saturating_add(bytes))]
    }
}
