//! The state of one in-flight slot: who must free what the device may still touch.
//!
//! ```text
//!           board()           land()  by the owner, record seen
//!   Free ───────────► Aloft ──────────────────────────────────► Free
//!                       │ park()  owner dropped the job, or its deadline passed; buffers lie in the slot
//!                       ▼
//!                     Parked ──claim()──► Claimed ──vacate()──► Free
//!                               one sweeper, record seen
//! ```
//!
//! The owner and any number of sweepers meet here. The record itself is the third party: nobody lands or claims before it
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
        // Release: pairs with the Acquire in `claim`; the sweeper finds the buffers.
        self.0.store(PARKED, Ordering::Release);
    }

    /// True if somebody should look at the record.
    ///
    /// **Staleness**: another sweeper may claim it, or its owner park it, right after; `claim` decides.
    pub(crate) fn is_parked(&self) -> bool {
        // Relaxed: a hint.
        self.0.load(Ordering::Relaxed) == PARKED
    }

    /// One sweeper gets a parked slot; it has seen the record written.
    pub(crate) fn claim(&self) -> bool {
        // Acquire: pairs with the Release in `park`. One exchange, so that only one sweeper wins.
        self.0.compare_exchange(PARKED, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The sweeper freed the buffers.
    pub(crate) fn vacate(&self) {
        // Relaxed: the free list's Release publishes what the sweeper did.
        self.0.store(FREE, Ordering::Relaxed);
    }
}
