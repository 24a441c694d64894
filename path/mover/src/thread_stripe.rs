//! Keeps threads from sharing cache lines: a number for each thread, and padding around values that several threads
//! write.

use std::cell::Cell;
use std::ops::Deref;

/// Number of stripes into which shared data is divided. Source: chosen; more threads share stripes again, which costs
/// only time.
pub(crate) const STRIPES: usize = 8;

/// A value that shares no cache line with other values. 128 bytes: x86 prefetches lines in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Returns the calling thread's number: threads are counted in the order of their first call. Needs no destructor, so
/// it can be called at any time in a thread's life.
#[inline]
pub(crate) fn of_this_thread() -> usize {
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|of_this_thread| {
        if of_this_thread.get() == usize::MAX {
            of_this_thread.set(crate::sync::thread_number());
        }
        of_this_thread.get()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_keeps_a_unique_number() {
        let here = of_this_thread();
        let there = std::thread::spawn(|| (of_this_thread(), of_this_thread())).join().unwrap();
        assert_eq!((there.0, here), (there.1, of_this_thread()));
        assert_ne!(there.0, here);
    }

    #[test]
    fn padded_values_share_no_pair_of_lines() {
        let two = [Padded(1_u8), Padded(2)];
        assert_eq!(two.each_ref().map(|padded| std::ptr::from_ref(padded).addr() % 128), [0; 2]);
        assert_eq!((*two[0], *two[1]), (1, 2));
    }
}
