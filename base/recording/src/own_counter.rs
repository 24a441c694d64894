//! Additions to a word that only one thread changes.
#![allow(unsafe_code, reason = "single instructions, so that a signal handler of the thread loses no count")]

use crate::layout::SizeCell;
use crate::sync::AtomicU64;
use std::arch::asm;
use std::mem::offset_of;

/// Adds to a word that only this thread changes; any thread may read it. An atomic addition takes 5 ns, this one less
/// than one, because the instruction has no lock prefix. A signal handler runs before or after it, never in the middle.
///
/// If two threads add at the same time, one of the additions is lost.
#[inline]
pub(crate) fn add(word: &AtomicU64, more: u64) {
    // SAFETY: the reference is to an aligned word that may change while it is shared. The instruction accesses nothing
    // else and keeps the stack; on x86-64 its read and its write of an aligned word are atomic, each for itself.
    unsafe {
        asm!("add qword ptr [{word}], {more}", word = in(reg) word.as_ptr(), more = in(reg) more, options(nostack))
    }
}

/// Adds a call of this length to a cell that only this thread changes, as [`add`] does.
#[inline]
pub(crate) fn add_call(cell: &SizeCell<AtomicU64>, len: u64) {
    // SAFETY: as in `add`, for two words of the cell.
    unsafe {
        asm!(
            "inc qword ptr [{cell} + {calls}]",
            "add qword ptr [{cell} + {bytes}], {len}",
            cell = in(reg) &raw const *cell,
            calls = const offset_of!(SizeCell<AtomicU64>, calls),
            bytes = const offset_of!(SizeCell<AtomicU64>, bytes),
            len = in(reg) len,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn it_adds_and_wraps() {
        let word = AtomicU64::new(u64::MAX - 1);
        add(&word, 5);
        assert_eq!(word.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_call_adds_to_the_first_two_words_only() {
        let word = |value| AtomicU64::new(value);
        let cell = SizeCell { calls: word(1), bytes: word(10), timed_calls: word(100), timed_ticks: word(1000) };
        add_call(&cell, 5);
        let SizeCell { calls, bytes, timed_calls, timed_ticks } = cell;
        assert_eq!([calls, bytes, timed_calls, timed_ticks].map(AtomicU64::into_inner), [2, 15, 100, 1000]);
    }
}
