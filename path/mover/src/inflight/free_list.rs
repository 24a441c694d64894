//! A lock-free stack of slot numbers.
//!
//! Treiber's stack (R. K. Treiber, *Systems Programming: Coping with Parallelism*, IBM RJ 5118, 1986) over indices. A
//! counter beside the head detects a head that was popped and pushed again between our read and our exchange.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The free numbers in `0..len`.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Low half: first number plus one, 0 if empty. High half: how often the head changed.
    head: AtomicU64,
    /// For each number in the list, the next one plus one.
    next: Box<[AtomicU32]>,
}

impl FreeList {
    /// All numbers below `len` are free.
    pub(crate) fn new(len: u32) -> Self {
        let next = (0..len).map(|i| AtomicU32::new(if i + 1 == len { 0 } else { i + 2 })).collect();
        FreeList { head: AtomicU64::new(u64::from(len > 0)), next }
    }

    /// Takes a free number.
    pub(crate) fn pop(&self) -> Option<u32> {
        // Acquire: pairs with the Release in `push`; shows what the last holder did with the slot, and its `next`.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = low(head).checked_sub(1)?;
            // Relaxed: a stale value belongs to an older head, and the exchange below detects that by the counter.
            let next = self.next[index as usize].load(Ordering::Relaxed);
            // Acquire on both sides: as above, for the head that is finally taken.
            match self.head.compare_exchange_weak(head, bumped(head, next), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a number back. Only its holder may.
    pub(crate) fn push(&self, index: u32) {
        // Relaxed: the exchange decides, and nothing is read through it.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the Release below.
            self.next[index as usize].store(low(head), Ordering::Relaxed);
            // Release: pairs with the Acquire in `pop`; what we did with the slot happened before its next holder.
            match self.head.compare_exchange_weak(head, bumped(head, index + 1), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "only the low half is wanted")]
fn low(head: u64) -> u32 {
    head as u32
}

/// Returns a head that names `first`, with the counter increased.
fn bumped(head: u64, first: u32) -> u64 {
    (head >> 32).wrapping_add(1) << 32 | u64::from(first)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn hands_out_each_number_once_and_again_after_it_was_put_back() {
        let list = FreeList::new(3);
        assert_eq!([0; 4].map(|_| list.pop()), [Some(0), Some(1), Some(2), None]);
        list.push(1);
        assert_eq!([0; 2].map(|_| list.pop()), [Some(1), None]);
        assert_eq!(FreeList::new(0).pop(), None);
    }
}
