//! The reorder array: which packets' copies have completed. Any thread that polls marks copies; the virtqueue reads the
//! array in the ring's order.
//!
//! Source of the idea: "Accelerating DPDK Vhost" (Intel), §3.2, and KUPER §6.4: a recording array beside each
//! virtqueue. A slot's word holds the packet's number and the number of its copies still in flight. Nearly all packets
//! have one copy. Its DMA queue is then the only writer of the word until the copy completes, so a mark is a plain
//! store.

use crate::sync::{AtomicU64, Ordering};

/// Bits of a word that count copies; the packet's number occupies the bits above.
const COUNT_BITS: u32 = 16;
/// The most copies of one packet.
pub(crate) const MOST_COPIES: usize = (1 << COUNT_BITS) - 1;

/// One word per packet in flight: its number and the count of its copies in flight.
#[derive(Debug)]
pub(crate) struct ReorderArray {
    words: Box<[AtomicU64]>,
}

impl ReorderArray {
    /// Creates an array for `packets` packets in flight, rounded up to a power of two.
    pub(crate) fn new(packets: usize) -> ReorderArray {
        // All ones is no packet's word: no slot is in use yet.
        ReorderArray { words: (0..packets.next_power_of_two()).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.words.len()
    }

    /// The slot of a packet.
    #[inline]
    pub(crate) fn slot(&self, packet: u64) -> usize {
        // Masked to the number of slots, which is a `usize`.
        usize::try_from(packet & (self.words.len() as u64 - 1)).unwrap_or(0)
    }

    fn word(packet: u64, copies: u64) -> u64 {
        packet << COUNT_BITS | copies
    }

    /// Records that packet number `packet` has `copies` copies in flight. The virtqueue's thread calls it before any
    /// thread can mark a copy, and after the slot's previous packet is complete.
    #[inline]
    pub(crate) fn open(&self, packet: u64, copies: u16) {
        // Relaxed: the thread that marks it received the copy through a DMA queue's lock after this store.
        self.words[self.slot(packet)].store(Self::word(packet, copies.into()), Ordering::Relaxed);
    }

    /// Marks one copy of the packet as complete (or redone): its bytes are written. The owner of the copy calls it
    /// once. A copy belongs to one DMA queue or to its virtqueue, and changes owner under the DMA queue's lock, so a
    /// completed packet is never marked. `only`: the packet has no other copy. No other thread then writes its word,
    /// and a store is enough.
    #[inline]
    pub(crate) fn mark(&self, packet: u64, only: bool) {
        let word = &self.words[self.slot(packet)];
        // Not under loom, where each load is another branch to explore.
        #[cfg(not(loom))]
        {
            let number = word.load(Ordering::Relaxed) >> COUNT_BITS;
            debug_assert_eq!(number, packet & (u64::MAX >> COUNT_BITS), "the packet is in flight");
            debug_assert!(
                self.copies_left(packet) == 1 || !only && self.copies_left(packet) > 0,
                "a copy is marked once"
            );
        }
        // Release, both: pairs with the Acquire in `is_complete`. A thread that sees the count sees the bytes that this
        // thread copied, or that it saw complete.
        if only {
            word.store(Self::word(packet, 0), Ordering::Release);
        } else {
            word.fetch_sub(1, Ordering::Release);
        }
    }

    /// The packet's copies still in flight.
    pub(crate) fn copies_left(&self, packet: u64) -> usize {
        // Relaxed: only a count; no other data is read because of it. At most `MOST_COPIES`.
        usize::try_from(self.words[self.slot(packet)].load(Ordering::Relaxed) & MOST_COPIES as u64)
            .unwrap_or(MOST_COPIES)
    }

    /// Returns whether all copies of the packet are complete.
    #[inline]
    pub(crate) fn is_complete(&self, packet: u64) -> bool {
        // Acquire: pairs with the Release in `mark` of every copy; they form one release sequence.
        self.words[self.slot(packet)].load(Ordering::Acquire) == Self::word(packet, 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_complete_when_its_last_copy_is() {
        let array = ReorderArray::new(3);
        assert_eq!(array.slots(), 4);
        assert!(!array.is_complete(0), "never opened");
        array.open(5, 2);
        assert!(!array.is_complete(5));
        array.mark(5, false);
        assert!(!array.is_complete(5) && array.copies_left(5) == 1);
        array.mark(5, false);
        assert!(array.is_complete(5));
        array.open(6, 0);
        assert!(array.is_complete(6));
        array.open(9, 1);
        assert!(!array.is_complete(5), "its slot belongs to another packet");
        array.mark(9, true);
        assert!(array.is_complete(9) && array.copies_left(9) == 0);
    }
}
