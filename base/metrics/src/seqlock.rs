//! A sequence lock: readers see either all words of a writer's change or none, and never stop the writer.
//!
//! The sequence number is odd while a writer changes the words. A reader that sees an odd number, or another number
//! after reading than before, reads again. (Boehm, "Can seqlocks get along with programming language memory models?",
//! MSPC 2012, figure 6.)

use crate::sync::{AtomicU64, Ordering, fence, pause};

/// Looks at an odd number before a thread gives up: its writer may have died in the middle of a change. Source: chosen;
/// a change takes some microseconds, these looks a millisecond.
const MOST_LOOKS: usize = if cfg!(loom) { 2 } else { 20_000 };
/// Reads of all words before a reader gives up. Source: chosen; changes are rare, so more of them are an attack on the
/// reader's time.
const MOST_READS: usize = 100;

/// Changes the words that `sequence` guards. There is one writer at a time.
#[inline]
pub(crate) fn write<T>(sequence: &AtomicU64, change: impl FnOnce() -> T) -> T {
    // Relaxed: only this writer changes it.
    let before = sequence.load(Ordering::Relaxed) & !1;
    sequence.store(before.wrapping_add(1), Ordering::Relaxed);
    finish(sequence, before, change)
}

/// Like [`write()`], for words with several writers; `None` if another writer stays in the middle of a change.
pub(crate) fn write_among_others<T>(sequence: &AtomicU64, change: impl FnOnce() -> T) -> Option<T> {
    for _ in 0..MOST_LOOKS {
        let before = sequence.load(Ordering::Relaxed);
        // Acquire: sees the change of the writer before us. A failed exchange sees nothing.
        let exchange = |before: u64| {
            sequence.compare_exchange(before, before.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
        };
        if before.is_multiple_of(2) && exchange(before).is_ok() {
            return Some(finish(sequence, before, change));
        }
        pause();
    }
    None
}

#[inline]
fn finish<T>(sequence: &AtomicU64, before: u64, change: impl FnOnce() -> T) -> T {
    // Pairs with the fence in `read`: a reader that sees any store of `change` sees the odd number as well.
    fence(Ordering::Release);
    let value = change();
    // Release: a reader that sees this number sees all stores of `change`.
    sequence.store(before.wrapping_add(2), Ordering::Release);
    value
}

/// Reads the words that `sequence` guards. The second value is false if a writer stayed in the middle of a change or
/// changed them at every read; the words may then be of different changes.
pub(crate) fn read<T>(sequence: &AtomicU64, mut read: impl FnMut() -> T) -> (T, bool) {
    let mut reads = 0;
    for _ in 0..MOST_LOOKS {
        let before = sequence.load(Ordering::Acquire);
        if before.is_multiple_of(2) {
            let value = read();
            // See `finish`.
            fence(Ordering::Acquire);
            if sequence.load(Ordering::Relaxed) == before {
                return (value, true);
            }
            reads += 1;
            if reads == MOST_READS {
                return (value, false);
            }
        }
        pause();
    }
    (read(), false)
}
