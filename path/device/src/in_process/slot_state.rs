//! Which device counts in a slot. One word: how often the slot was taken, and a phase.
//!
//! ```text
//! FREE ──take──► CHANGING ──open──► OPEN ──close──► FREE
//! ```
//!
//! Only devices of one process take its slots. A reader in another process sees the same OPEN word before and after it
//! has read the other words, or reads again: then no device took the slot meanwhile.

use crate::sync::{AtomicU64, Ordering};

const PHASE_BITS: u32 = 2;
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const OPEN: u64 = 2;

/// The state of a slot.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct SlotState(AtomicU64);

impl SlotState {
    /// Takes the slot for a device if it is free; the caller may change all of its words until [`open`](Self::open).
    pub(super) fn take(&self) -> bool {
        // Relaxed: the exchange decides.
        let word = self.0.load(Ordering::Relaxed);
        // It cannot overflow: a slot is taken less often than 2^61 times.
        let taken = ((word >> PHASE_BITS) + 1) << PHASE_BITS | CHANGING;
        // Acquire: pairs with the Release in `close` and `put_back`; all that the last device has counted is seen.
        let exchange = || self.0.compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed);
        word & PHASE == FREE && exchange().is_ok()
    }

    /// Lets the device count in the slot that was taken.
    pub(super) fn open(&self) {
        self.change(OPEN);
    }

    /// Frees the slot; nothing counts in it any more.
    pub(super) fn close(&self) {
        self.change(FREE);
    }

    /// Frees a slot that was taken and is not used after all.
    pub(super) fn put_back(&self) {
        // Relaxed: only the caller changes the word of a taken slot.
        let word = self.0.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        self.0.store(((word >> PHASE_BITS) - 1) << PHASE_BITS | FREE, Ordering::Release);
    }

    fn change(&self, phase: u64) {
        // Relaxed: only the caller changes the word of a slot that is not free.
        let word = self.0.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        self.0.store(word & !PHASE | phase, Ordering::Release);
    }

    /// True if a device has taken the slot before.
    pub(super) fn was_used(&self) -> bool {
        // Relaxed: the caller has taken the slot, so that the word does not change.
        self.0.load(Ordering::Relaxed) >> PHASE_BITS > 1
    }
}

const PHASE: u64 = (1 << PHASE_BITS) - 1;

/// The state of a slot as a reader sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotWord(pub(super) u64);

impl SlotWord {
    /// True if a device counts in the slot now.
    pub(super) fn is_open(self) -> bool {
        self.0 & PHASE == OPEN
    }

    /// The devices that were closed.
    pub(super) fn closed(self) -> u64 {
        // A slot that is being taken counts the coming device already.
        (self.0 >> PHASE_BITS).saturating_sub(u64::from(self.0 & PHASE != FREE))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_belongs_to_one_device_at_a_time_and_counts_those_that_were_closed() {
        let state = SlotState::default();
        let seen = || SlotWord(state.0.load(Ordering::Relaxed));
        for closed in 0..3 {
            assert!(!seen().is_open() && seen().closed() == closed);
            assert!(state.take() && !state.take());
            assert_eq!((seen().is_open(), seen().closed(), state.was_used()), (false, closed, closed > 0));
            state.put_back();
            assert_eq!(seen().closed(), closed);
            assert!(state.take());
            state.open();
            assert!(!state.take() && seen().is_open() && seen().closed() == closed);
            state.close();
        }
    }
}
