//! Additions to a word that only one thread changes.
#![allow(unsafe_code, reason = "one instruction, so that a signal handler of the thread loses no count")]

use crate::sync::AtomicU64;
use std::arch::asm;

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
}
