//! A slot of the trace: four words that hold one entry, or none, or are being written.
//!
//! The first word is the stamp: bit 0 says that a thread is writing the entry, bits 1 to 48 are the entry's number plus
//! one, and the other bits are a check of all words. A thread writes the stamp before and after the other words. A
//! slot whose process was killed in between stays marked. The check also finds entries that changed while a file was
//! copied.

use crate::sync::{AtomicU64, Ordering};

/// Set in the stamp while a thread writes the entry.
const BUSY: u64 = 1;
/// Bits of the busy mark and the number.
const NUMBER_BITS: u32 = 49;
/// The number's bits in a stamp.
const NUMBER: u64 = ((1 << NUMBER_BITS) - 1) & !BUSY;

/// The slot in a mapped file.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TraceSlot {
    stamp: AtomicU64,
    words: [AtomicU64; 3],
}

/// What a reader finds in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotContent {
    /// No entry was written.
    Empty,
    /// The entry with this number.
    Entry(u64, [u64; 3]),
    /// An entry that was not completely written, or that was damaged.
    Torn,
}

/// The number and its check, in their places of the stamp. 15 bits of check leave one torn entry in 32768 unnoticed.
fn stamp(number: u64, words: [u64; 3]) -> u64 {
    let number = (number.wrapping_add(1) << 1) & NUMBER;
    // A multiplication spreads a bit to the higher ones only, hence the shift.
    let mix = |sum: u64| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = words.iter().fold(number, |sum, word| mix(sum ^ word) ^ mix(sum ^ word) >> 32);
    (mix(mixed) >> NUMBER_BITS) << NUMBER_BITS | number
}

/// Reads the words of a slot that no thread changes any more, or a copy of them.
pub(crate) fn decode([found, words @ ..]: [u64; 4]) -> SlotContent {
    if found == 0 {
        return SlotContent::Empty;
    }
    let number = (found & NUMBER) >> 1;
    match number.checked_sub(1) {
        Some(number) if found == stamp(number, words) => SlotContent::Entry(number, words),
        _ => SlotContent::Torn,
    }
}

impl TraceSlot {
    /// A slot without an entry, for tests: those of a file are its zeros.
    #[cfg(loom)]
    pub(crate) fn empty() -> TraceSlot {
        TraceSlot { stamp: AtomicU64::new(0), words: [(); 3].map(|()| AtomicU64::new(0)) }
    }

    /// Writes an entry. Returns false, and writes nothing, if another thread is writing the slot's entry, or has
    /// written one with a higher number.
    pub(crate) fn publish(&self, number: u64, words: [u64; 3]) -> bool {
        let done = stamp(number, words);
        // Relaxed: the exchange checks that it is still true.
        let before = self.stamp.load(Ordering::Relaxed);
        if before & BUSY != 0 || before & NUMBER >= done & NUMBER {
            return false;
        }
        // Acquire: pairs with the Release of the entry before, whose words must not arrive after ours. The exchange
        // never waits: in a signal handler, the thread that is writing may be the interrupted one.
        let busy = done | BUSY;
        if self.stamp.compare_exchange(before, busy, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        // Release: a stamp without the mark means that all words are written.
        self.stamp.store(done, Ordering::Release);
        true
    }

    /// Reads a slot as it is now, the stamp first.
    #[cfg(loom)]
    pub(crate) fn read(&self) -> [u64; 4] {
        let stamp = self.stamp.load(Ordering::Acquire);
        let [first, second, third] = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        [stamp, first, second, third]
    }
}
