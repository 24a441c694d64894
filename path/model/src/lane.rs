//! The mark of a descriptor in progress, for those who wait for it: drains, disables, aborts, and who asks whether a halted
//! device has come to rest.

use crate::sync::{AtomicU64, Ordering, Word};

/// One place for a descriptor in an engine's hand.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Lane {
    /// Bit 63 in use, bits 55:48 queue, bit 34 PASID valid, bits 19:0 PASID.
    key: AtomicU64,
    position: Word,
}

/// A submitter word's PASID and its valid bit.
const PASID_BITS: u64 = 1 << 34 | 0xf_ffff;

impl Default for Lane {
    fn default() -> Self {
        Lane { key: AtomicU64::new(0), position: Word::default() }
    }
}

impl Lane {
    /// Marks a descriptor of a queue as taken: whose it is (a submitter word), and its position. Caller has the group's turn.
    #[inline]
    pub(crate) fn take(&self, wq: usize, submitter: u64, position: u64) {
        self.position.set(position);
        // Release: pairs with the Acquire in `holds`; with the key goes the position.
        self.key.store(1 << 63 | (wq as u64) << 48 | submitter & PASID_BITS, Ordering::Release);
    }

    /// Takes the mark away, when nothing of the descriptor touches memory any more.
    #[inline]
    pub(crate) fn let_go(&self) {
        // Release: pairs with the Acquire in `holds`; whoever sees the lane free sees the work done.
        self.key.store(0, Ordering::Release);
    }

    /// True if a descriptor of the queue, and of the PASID if one is named, is in here that stands before `end`.
    pub(crate) fn holds(&self, wq: usize, end: u64, pasid: Option<u32>) -> bool {
        // Acquire: pairs with the Release in `take` and `let_go`.
        let key = self.key.load(Ordering::Acquire);
        key >> 63 == 1
            && (key >> 48 & 0xff) as usize == wq
            && self.position.get() < end
            && pasid.is_none_or(|pasid| key & PASID_BITS == 1 << 34 | u64::from(pasid))
    }
}
