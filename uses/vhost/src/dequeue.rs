//! Packets out of the guest: one call starts new copies and returns completed packets.
//!
//! Source of the shape: "Accelerating DPDK Vhost" (Intel), §3.3, `rte_vhost_try_dequeue_burst`.

use crate::Piece;
use crate::in_flight::CopyDirection;
use crate::packets::Packets;
use crate::ring::{Burst, Chain, Direction, Used};
use crate::stats::DropReason;
use crate::virtqueue::Virtqueue;

impl Virtqueue {
    /// Starts to copy up to `most` packets that the guest made available into buffers of `spare`, and appends up to
    /// `most` completed packets to `into`, in the guest's order. Returns how many it appended. Packets that the polling
    /// thread copies itself complete at once.
    ///
    /// Chains without a packet, or with a packet longer than the pool's buffers, are returned and counted.
    ///
    /// # Panics
    /// If the guest receives on this virtqueue, or a `Packets` is of another pool.
    pub fn try_dequeue_burst(&mut self, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        assert_eq!(self.ring.setup().direction, Direction::Transmit, "the guest receives on this virtqueue");
        self.in_flight.expect_pool(into);
        self.in_flight.expect_pool(spare);
        let before = into.len();
        let mut burst = self.burst.take().unwrap_or_default();
        burst.clear();
        // A broken ring yields no chains; `broken` reports why.
        let _ = self.ring.take(&mut burst, most.min(self.in_flight.room()).min(spare.len()));
        if let Some(record) = &mut self.record {
            record.taken(&self.ring, &burst);
        }
        let trial = self.begin_trial();
        let plain = self.dequeue_plain(into, spare, &burst);
        for chain in &burst.chains()[plain..] {
            match self.length_of(chain) {
                Ok(len) => {
                    let Some(mut held) = spare.take_last() else { unreachable!("no more chains than spare buffers") };
                    self.in_flight.resize(&mut held, len);
                    let copy_by = self.copy_by(len);
                    let direction = CopyDirection::FromGuest { header: self.header };
                    if self.completes_at_once(copy_by) {
                        self.in_flight.copy(&held, direction, &burst, std::slice::from_ref(chain));
                        self.used_now.push(Used::of(chain, 0));
                        into.put_in(held);
                        continue;
                    }
                    self.used_in_order.push_back(Used::of(chain, 0));
                    let note = self.note(1);
                    self.in_flight.begin(held, direction, &burst, std::slice::from_ref(chain), copy_by, note);
                }
                Err(reason) => {
                    self.stats.drop_one(reason);
                    self.used_in_order.push_back(Used::of(chain, 0));
                    self.dropped_chains += 1;
                }
            }
        }
        self.burst = Some(burst);
        self.in_flight.send();
        self.end_trial(trial);
        self.poll_copies();
        if self.in_flight.may_be_stalled() {
            self.in_flight.redo(false);
        }
        while into.len() - before < most
            && let Some((held, note)) = self.in_flight.pop_completed()
        {
            self.queue_used(note.chains);
            into.put_in(held);
        }
        self.publish_used();
        into.len() - before
    }

    /// Copies the packets of the first chains with the CPU, as long as each chain is one piece and short enough for the
    /// CPU (nearly all are). These packets are complete. Returns how many.
    #[inline]
    fn dequeue_plain(&mut self, into: &mut Packets, spare: &mut Packets, burst: &Burst) -> usize {
        if !burst.has_plain() || !self.is_idle() {
            return 0;
        }
        let header = self.header;
        let most = self.rides_from().saturating_sub(1).min(self.in_flight.longest());
        let packet_of = |piece: &Piece| piece.len().checked_sub(header).filter(|len| (1..=most).contains(len));
        let (mut count, mut bytes) = (0, 0);
        let begun = self.in_flight.begin_plain();
        for (chain, piece) in burst.plain() {
            let Some(len) = packet_of(piece) else { break };
            let Some(mut held) = spare.take_last() else { unreachable!("no more chains than spare buffers") };
            self.in_flight.resize(&mut held, len);
            self.in_flight.copy_plain(&held, CopyDirection::FromGuest { header }, piece);
            self.used_now.push(Used::of(chain, 0));
            into.put_in(held);
            (count, bytes) = (count + 1, bytes + u64::from(len));
        }
        self.in_flight.end_plain(begun, count);
        self.stats.packets += count as u64;
        self.stats.bytes += bytes;
        count
    }

    /// The length of the packet in a chain, in bytes.
    #[inline]
    fn length_of(&self, chain: &Chain) -> Result<u32, DropReason> {
        if let Some(reason) = chain.dropped {
            return Err(DropReason::Chain(reason));
        }
        match chain.len.checked_sub(self.header) {
            None | Some(0) => Err(DropReason::Runt),
            Some(len) if len > self.in_flight.longest() => Err(DropReason::Long),
            Some(len) => Ok(len),
        }
    }
}
