//! The reorder array: which packets' copies have landed, marked by whoever hears of it, looked at in the ring's order.
//!
//! Source of the idea: "Accelerating DPDK Vhost" (Intel), §3.2, and KUPER §6.4: a recording array beside each virtqueue. A slot's word has the
//! packet's number beside the copies that are still out. Nearly all packets have one copy, and then its lane is the word's only writer
//! until it has landed: a mark is a plain store.

use crate::sync::{AtomicU64, Ordering};

/// Bits of a word that count copies; the packet's number is above them.
const COUNT_BITS: u32 = 16;
/// The most copies of one packet.
pub(crate) const MOST_COPIES: usize = (1 << COUNT_BITS) - 1;

/// One word a packet in flight: its number, and its copies that are out.
#[derive(Debug)]
pub(crate) struct Board {
    words: Box<[AtomicU64]>,
}

impl Board {
    /// For so many packets in flight, rounded up to a power of two.
    pub(crate) fn new(packets: usize) -> Board {
        // All ones is no packet's word: nobody counts so far.
        Board { words: (0..packets.next_power_of_two()).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    /// Packets it has slots for.
    pub(crate) fn slots(&self) -> usize {
        self.words.len()
    }

    /// A packet's place.
    #[inline]
    pub(crate) fn slot(&self, packet: u64) -> usize {
        // Masked to the number of slots, which is a `usize`.
        usize::try_from(packet & (self.words.len() as u64 - 1)).unwrap_or(0)
    }

    fn word(packet: u64, copies: u64) -> u64 {
        packet << COUNT_BITS | copies
    }

    /// Packet number `packet` has so many copies out. By the virtqueue's thread, before anybody can mark one; the slot's packet before
    /// is over.
    #[inline]
    pub(crate) fn open(&self, packet: u64, copies: u16) {
        // Relaxed: whoever marks it was handed the copy through a lane's lock after this.
        self.words[self.slot(packet)].store(Self::word(packet, copies.into()), Ordering::Relaxed);
    }

    /// A copy of the packet has landed, or was redone: its bytes are there. By whoever has the copy, once; a copy is one lane's at a time, or
    /// its virtqueue's, and goes from one to the other under a lane's lock, so that there is no mark for a packet that is over.
    /// `only`: the packet has no other, so that nobody else writes its word meanwhile, and a store is all it takes.
    #[inline]
    pub(crate) fn mark(&self, packet: u64, only: bool) {
        let word = &self.words[self.slot(packet)];
        // Not for loom, to which each look is a branch of its own.
        #[cfg(not(loom))]
        {
            let number = word.load(Ordering::Relaxed) >> COUNT_BITS;
            debug_assert_eq!(number, packet & (u64::MAX >> COUNT_BITS), "it is in flight");
            debug_assert!(self.out(packet) == 1 || !only && self.out(packet) > 0, "a copy is marked once");
        }
        // Release, both: pairs with the Acquire in `has_landed`; whoever sees the count sees the bytes this thread copied or heard of.
        if only {
            word.store(Self::word(packet, 0), Ordering::Release);
        } else {
            word.fetch_sub(1, Ordering::Release);
        }
    }

    /// Copies of a packet in flight that are out.
    pub(crate) fn out(&self, packet: u64) -> usize {
        // Relaxed: a count, by which nothing is read. No more than `MOST_COPIES`.
        usize::try_from(self.words[self.slot(packet)].load(Ordering::Relaxed) & MOST_COPIES as u64)
            .unwrap_or(MOST_COPIES)
    }

    /// All copies of the packet have landed.
    #[inline]
    pub(crate) fn has_landed(&self, packet: u64) -> bool {
        // Acquire: pairs with the Release in `mark`, of every copy: each went on from the one before.
        self.words[self.slot(packet)].load(Ordering::Acquire) == Self::word(packet, 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_landed_when_its_last_copy_has() {
        let board = Board::new(3);
        assert_eq!(board.slots(), 4);
        assert!(!board.has_landed(0), "nobody opened it");
        board.open(5, 2);
        assert!(!board.has_landed(5));
        board.mark(5, false);
        assert!(!board.has_landed(5) && board.out(5) == 1);
        board.mark(5, false);
        assert!(board.has_landed(5));
        board.open(6, 0);
        assert!(board.has_landed(6));
        board.open(9, 1);
        assert!(!board.has_landed(5), "its slot is another's");
        board.mark(9, true);
        assert!(board.has_landed(9) && board.out(9) == 0);
    }
}
