//! The state of one slot: which thread must free the memory that the device may still touch.
//!
//! ```text
//!           acquire()        release()  by the owner, record seen
//!   Free ───────────► InFlight ─────────────────────────────────► Free
//!                       │ park()  owner dropped the job, or its deadline passed; buffers are in the slot
//!                       ▼
//!                     Parked ──claim_if()──► Claimed ──vacate()──► Free
//!                       ▲     record seen       │  one sweeper
//!                       └───────────────────────┘
//!                        the record belongs to an earlier job
//! ```
//!
//! The owner and any number of sweepers use this state. No thread releases or vacates a slot in flight before the
//! record is written. The slot's number returns to the free list only after `release` or `vacate`.

use crate::sync::{AtomicU8, Ordering};

const FREE: u8 = 0;
const IN_FLIGHT: u8 = 1;
const PARKED: u8 = 2;
const CLAIMED: u8 = 3;

/// One slot's state.
#[derive(Debug)]
pub(crate) struct SlotState(AtomicU8);

impl SlotState {
    pub(crate) fn new() -> Self {
        SlotState(AtomicU8::new(FREE))
    }

    /// Marks the slot as in flight. A descriptor is about to be offered; the caller took the slot's number from the
    /// free list.
    pub(crate) fn acquire(&self) {
        // Relaxed: sweepers skip slots that are not parked.
        self.0.store(IN_FLIGHT, Ordering::Relaxed);
    }

    /// Frees the slot: the owner saw the record (or the queue took nothing) and does not use the slot any more.
    pub(crate) fn release(&self) {
        // Relaxed: the free list's Release publishes what the owner did.
        self.0.store(FREE, Ordering::Relaxed);
    }

    /// Parks the slot: the owner has put the buffers into it and leaves.
    pub(crate) fn park(&self) {
        // Release: pairs with the Acquire in `claim_if`; the sweeper finds the buffers.
        self.0.store(PARKED, Ordering::Release);
    }

    /// Claims a parked slot whose record is written, for one sweeper; `written` checks the record.
    ///
    /// Between a check and the exchange another sweeper may free the slot and a new owner may park in it. Then the
    /// check saw the record of a job that is over. So the record is checked again after the exchange, when no other
    /// thread can free the slot. If it is missing, the new owner's buffers stay.
    pub(crate) fn claim_if(&self, written: impl Fn() -> bool) -> bool {
        // Relaxed: a hint, so that slots which are not parked cost one load.
        if self.0.load(Ordering::Relaxed) != PARKED || !written() {
            return false;
        }
        // Acquire: pairs with the Release in `park`; the sweeper finds the buffers, and the record as their owner
        // cleared it. One exchange, so that only one sweeper wins.
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

    /// Returns true if a descriptor may be in flight.
    ///
    /// **Staleness**: other threads submit and complete meanwhile.
    pub(crate) fn is_used(&self) -> bool {
        // Relaxed: a hint; only the record is read after it.
        matches!(self.0.load(Ordering::Relaxed), IN_FLIGHT | PARKED)
    }

    /// Returns true if the owner has left and the buffers are not freed yet.
    ///
    /// **Staleness**: other threads park and sweep meanwhile.
    pub(crate) fn is_parked(&self) -> bool {
        // Relaxed: a hint; the parked memory is behind its lock.
        self.0.load(Ordering::Relaxed) == PARKED
    }

    /// Frees the slot after the sweeper has freed the buffers.
    pub(crate) fn vacate(&self) {
        // Relaxed: the free list's Release publishes what the sweeper did.
        self.0.store(FREE, Ordering::Relaxed);
    }
}
