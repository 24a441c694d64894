//! Marks a descriptor in progress, for code that waits for it: drains, disables, aborts, and the check whether a halted
//! device is at rest.

use crate::sync::{AtomicU64, Ordering, Word};

/// A slot for one descriptor in progress in an engine.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EngineLane {
    /// Bit 63 in use, bit 62 a Batch, bits 55:48 queue, bit 34 PASID valid, bits 19:0 PASID.
    key: AtomicU64,
    position: Word,
}

/// The PASID and its valid bit in a submitter word.
const PASID_BITS: u64 = 1 << 34 | 0xf_ffff;

impl Default for EngineLane {
    fn default() -> Self {
        EngineLane { key: AtomicU64::new(0), position: Word::default() }
    }
}

impl EngineLane {
    /// Marks a descriptor as in progress: its queue, its submitter word, its position, and whether it is a Batch. The
    /// caller holds the group's lock.
    #[inline]
    pub(crate) fn take(&self, wq: usize, submitter: u64, position: u64, is_batch: bool) {
        self.position.set(position);
        let bits = 1 << 63 | u64::from(is_batch) << 62 | (wq as u64) << 48;
        // Release: pairs with the Acquire in `holds`, and publishes the position with the key.
        self.key.store(bits | submitter & PASID_BITS, Ordering::Release);
    }

    /// Removes the mark, once nothing accesses memory for the descriptor any more.
    #[inline]
    pub(crate) fn release(&self) {
        // Release: pairs with the Acquire in `holds`; a thread that sees the lane free sees the work done.
        self.key.store(0, Ordering::Release);
    }

    /// True if the lane holds a descriptor.
    pub(crate) fn is_taken(&self) -> bool {
        // Acquire: pairs with the Release in `take` and `release`.
        self.key.load(Ordering::Acquire) != 0
    }

    /// True if the lane holds a Batch.
    pub(crate) fn is_taken_by_batch(&self) -> bool {
        // Acquire: pairs with the Release in `take` and `release`.
        self.key.load(Ordering::Acquire) >> 62 == 0b11
    }

    /// True if the lane holds a descriptor of the queue at a position before `end`, of this PASID if one is given.
    pub(crate) fn holds(&self, wq: usize, end: u64, pasid: Option<u32>) -> bool {
        // Acquire: pairs with the Release in `take` and `release`.
        let key = self.key.load(Ordering::Acquire);
        key >> 63 == 1
            && (key >> 48 & 0xff) as usize == wq
            && self.position.get() < end
            && pasid.is_none_or(|pasid| key & PASID_BITS == 1 << 34 | u64::from(pasid))
    }
}
