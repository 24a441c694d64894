//! The memory into which a device writes a completion record, and from which a client reads it.

use crate::sync::{AtomicU64, Ordering};
use telpher_abi::{CompletionRecord, StatusByte};

/// 32 aligned bytes that a device writes once and a client polls.
///
/// The client [`clear`](RecordCell::clear)s it, puts its [`address`](RecordCell::address) into a descriptor, and polls
/// [`status`](RecordCell::status). Two cells share a cache line; waiters that must not disturb each other use every
/// second cell.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct RecordCell {
    words: [AtomicU64; 4],
}

impl Default for RecordCell {
    fn default() -> Self {
        Self::new()
    }
}

impl RecordCell {
    /// Creates an empty record.
    #[must_use]
    pub fn new() -> Self {
        RecordCell { words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Clears the record; also touches its page, so that the device finds the page present.
    #[inline]
    pub fn clear(&self) {
        // Relaxed: the offer that follows publishes it to the executor.
        self.words[0].store(0, Ordering::Relaxed);
    }

    /// Returns the address at which the device writes the record.
    #[inline]
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Returns the status byte if it has been written.
    ///
    /// A caller that sees it also sees everything the device wrote before: data and the other fields of the record.
    #[inline]
    pub fn status(&self) -> Option<StatusByte> {
        // Acquire: pairs with the Release (or the device's own order) of the write of byte 0, which comes last.
        let first = self.words[0].load(Ordering::Acquire);
        let status = StatusByte(first.to_le_bytes()[0]);
        status.is_complete().then_some(status)
    }

    /// Returns the whole record if it has been written.
    #[inline]
    pub fn read(&self) -> Option<CompletionRecord> {
        self.status()?;
        // Relaxed: ordered after the Acquire in `status`.
        Some(CompletionRecord([0, 1, 2, 3].map(|i: usize| self.words[i].load(Ordering::Relaxed))))
    }

    /// Writes the record as a device does: byte 0 becomes visible last. For executors that share this type (mocks,
    /// tests); the model writes by address.
    #[inline]
    pub fn complete(&self, record: &CompletionRecord) {
        for i in 1..4 {
            // Relaxed: the Release below orders them.
            self.words[i].store(record.0[i], Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `status`.
        self.words[0].store(record.0[0], Ordering::Release);
    }
}
