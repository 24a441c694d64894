//! Packets out of the guest: one call that begins new copies and gives back what has landed.
//!
//! Source of the shape: "Accelerating DPDK Vhost" (Intel), §3.3, `rte_vhost_try_dequeue_burst`.

use crate::Piece;
use crate::flight::Way;
use crate::packets::Packets;
use crate::ring::{Burst, Chain, Direction, Used};
use crate::stats::Drop;
use crate::virtqueue::Virtqueue;

impl Virtqueue {
    /// Begins to copy packets that the guest made available, into buffers of `spare`, at most `most`; and appends to `into` those whose copies have
    /// landed, at most `most`, in the guest's order. Returns how many it appended. Those that the polling thread copies land at once.
    ///
    /// Chains without a packet, or with one longer than the pool's buffers, go back and are counted.
    ///
    /// # Panics
    /// If the virtqueue is one that the guest receives on, or a row is of another pool.
    pub fn try_dequeue_burst(&mut self, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        assert_eq!(self.ring.setup().direction, Direction::Transmit, "the guest receives on this virtqueue");
        self.flights.expect_pool(into);
        self.flights.expect_pool(spare);
        let before = into.len();
        let mut burst = self.burst.take().unwrap_or_default();
        burst.clear();
        // A ring that is broken gives none; `broken` says why.
        let _ = self.ring.take(&mut burst, most.min(self.flights.room()).min(spare.len()));
        if let Some(record) = &mut self.record {
            record.taken(&self.ring, &burst);
        }
        let trial = self.begin_trial();
        let plain = self.dequeue_plain(into, spare, &burst);
        for chain in &burst.chains()[plain..] {
            match self.length_of(chain) {
                Ok(len) => {
                    let Some(mut held) = spare.take_last() else { unreachable!("no more chains than spare buffers") };
                    self.flights.resize(&mut held, len);
                    let who = self.who(len);
                    let way = Way::In { header: self.header };
                    if self.lands_at_once(who) {
                        self.flights.copy(&held, way, &burst, std::slice::from_ref(chain));
                        self.back.push(Used::of(chain, 0));
                        into.put_in(held);
                        continue;
                    }
                    self.owed.push_back(Used::of(chain, 0));
                    let note = self.note(1);
                    self.flights.begin(held, way, &burst, std::slice::from_ref(chain), who, note);
                }
                Err(reason) => {
                    self.stats.drop_one(reason);
                    self.owed.push_back(Used::of(chain, 0));
                    self.unclaimed += 1;
                }
            }
        }
        self.burst = Some(burst);
        self.flights.send();
        self.end_trial(trial);
        self.look();
        if self.flights.may_wait_in_vain() {
            self.flights.redo(false);
        }
        while into.len() - before < most
            && let Some((held, note)) = self.flights.land()
        {
            self.go_back(note.chains);
            into.put_in(held);
        }
        self.show();
        into.len() - before
    }

    /// Copies the packets of the first chains, as long as each is one piece with a packet, and the copy this thread's: nearly all are so. They have
    /// landed. Returns how many.
    #[inline]
    fn dequeue_plain(&mut self, into: &mut Packets, spare: &mut Packets, burst: &Burst) -> usize {
        if !burst.has_plain() || !self.nothing_flies() {
            return 0;
        }
        let header = self.header;
        let most = self.rides_from().saturating_sub(1).min(self.flights.longest());
        let packet_of = |piece: &Piece| piece.len().checked_sub(header).filter(|len| (1..=most).contains(len));
        let (mut count, mut bytes) = (0, 0);
        let begun = self.flights.begin_plain();
        for (chain, piece) in burst.plain() {
            let Some(len) = packet_of(piece) else { break };
            let Some(mut held) = spare.take_last() else { unreachable!("no more chains than spare buffers") };
            self.flights.resize(&mut held, len);
            self.flights.copy_plain(&held, Way::In { header }, piece);
            self.back.push(Used::of(chain, 0));
            into.put_in(held);
            (count, bytes) = (count + 1, bytes + u64::from(len));
        }
        self.flights.end_plain(begun, count);
        self.stats.packets += count as u64;
        self.stats.bytes += bytes;
        count
    }

    /// Bytes of the packet in a chain.
    #[inline]
    fn length_of(&self, chain: &Chain) -> Result<u32, Drop> {
        if let Some(reason) = chain.dropped {
            return Err(Drop::Chain(reason));
        }
        match chain.len.checked_sub(self.header) {
            None | Some(0) => Err(Drop::Runt),
            Some(len) if len > self.flights.longest() => Err(Drop::Long),
            Some(len) => Ok(len),
        }
    }
}
