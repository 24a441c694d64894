//! The state of one in-flight slot: who must free what the device may still touch.
//!
//! ```text
//!           board()           land()  by the owner, record seen
//!   Free ───────────► Aloft ──────────────────────────────────► Free
//!                       │ park()  owner dropped the job, or its deadline passed; buffers lie in the slot
//!                       ▼
//!                     Parked ──claim_if()──► Claimed ──vacate()──► Free
//!                       ▲     record seen       │  one sweeper
//!                       └───────────────────────┘
//!                        not this owner's record
//! ```
//!
//! The owner and any number of sweepers meet here. The record itself is the third party: nobody lands or vacates before it
//! is written. The slot's number returns to the free list only after `land` or `vacate`.

use crate::sync::{AtomicU8, Ordering};

const FREE: u8 = 0;
const ALOFT: u8 = 1;
const PARKED: u8 = 2;
const CLAIMED: u8 = 3;

/// One slot's state.
#[derive(Debug)]
pub(crate) struct SlotState(AtomicU8);

impl SlotState {
    pub(crate) fn new() -> Self {
        SlotState(AtomicU8::new(FREE))
    }

    /// A descriptor is about to be offered; the caller took the slot's number from the free list.
    pub(crate) fn board(&self) {
        // Relaxed: sweepers pass by anything that is not parked.
        self.0.store(ALOFT, Ordering::Relaxed);
    }

    /// The owner saw the record (or nothing was taken) and is done with the slot.
    pub(crate) fn land(&self) {
        // Relaxed: the free list's Release publishes what the owner did.
        self.0.store(FREE, Ordering::Relaxed);
    }

    /// The owner has put the buffers into the slot and leaves.
    pub(crate) fn park(&self) {
        // Release: pairs with the Acquire in `claim_if`; the sweeper finds the buffers.
        self.0.store(PARKED, Ordering::Release);
    }

    /// One sweeper gets a parked slot whose record is written; `written` looks at the record.
    ///
    /// Between a look and the exchange another sweeper may free the slot and a new owner park in it: what was seen then is
    /// the record of a job that is over. So the record is looked at again behind the exchange, where nobody else can free
    /// the slot; if it is not there, the new owner's buffers stay.
    pub(crate) fn claim_if(&self, written: impl Fn() -> bool) -> bool {
        // Relaxed: a hint, so that slots which are not parked cost one load.
        if self.0.load(Ordering::Relaxed) != PARKED || !written() {
            return false;
        }
        // Acquire: pairs with the Release in `park`; the sweeper finds the buffers, and the record as their owner cleared
        // it. One exchange, so that only one sweeper wins.
        if self.0.compare_exchange(PARKED, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        if written() {
            return true;
        }
        // The owner's own state again, published once more for the next sweeper.
        self.park();
        false
    }

    /// True if a descriptor may be under way.
    ///
    /// **Staleness**: others board and land meanwhile.
    pub(crate) fn is_used(&self) -> bool {
        // Relaxed: a hint; nothing is read behind it but the record.
        matches!(self.0.load(Ordering::Relaxed), ALOFT | PARKED)
    }

    /// True if its owner has left, and nobody has freed the buffers yet.
    ///
    /// **Staleness**: others park and sweep meanwhile.
    pub(crate) fn is_parked(&self) -> bool {
        // Relaxed: a hint; what was left is behind its lock.
        self.0.load(Ordering::Relaxed) == PARKED
    }

    /// The sweeper freed the buffers.
    pub(crate) fn vacate(&self) {
        // Relaxed: the free list's Release publishes what the sweeper did.
        self.0.store(FREE, Ordering::Relaxed);
    }
}
