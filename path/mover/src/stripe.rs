//! Keeping threads off each other's cache lines: a number for each thread, and room around what several write.

use std::cell::Cell;
use std::ops::Deref;

/// Parts into which what threads share is divided. Source: chosen; threads beyond it share again, which costs them time only.
pub(crate) const STRIPES: usize = 8;

/// A value that shares no cache line with others. 128 bytes: x86 prefetches lines in pairs.
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

/// A number of the calling thread's own: threads are counted as they first ask. Needs no destructor, so it can be asked at any
/// time in a thread's life.
#[inline]
pub(crate) fn mine() -> usize {
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(crate::sync::thread_number());
        }
        mine.get()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_number_and_no_other_has_it() {
        let here = mine();
        let there = std::thread::spawn(|| (mine(), mine())).join().unwrap();
        assert_eq!((there.0, here), (there.1, mine()));
        assert_ne!(there.0, here);
    }

    #[test]
    fn neighbours_share_no_pair_of_lines() {
        let two = [Padded(1_u8), Padded(2)];
        assert_eq!(two.each_ref().map(|padded| std::ptr::from_ref(padded).addr() % 128), [0; 2]);
        assert_eq!((*two[0], *two[1]), (1, 2));
    }
}
