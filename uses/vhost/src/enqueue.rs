//! Packets into the guest: one call starts copies and a second one collects them, with time for other work between the
//! two.
//!
//! Source of the shape: "Accelerating DPDK Vhost" (Intel), §3.3, `rte_vhost_submit_enqueue_burst` and
//! `rte_vhost_poll_enqueue_completed`.

use crate::Piece;
use crate::in_flight::CopyDirection;
use crate::layout::Features;
use crate::packets::{OwnedBuffer, Packets};
use crate::ring::{Broken, Burst, Chain, Direction, Used, prefetch_to_write};
use crate::stats::DropReason;
use crate::virtqueue::Virtqueue;
use std::ops::Range;

/// Bytes of a cache line. Source: every x86-64 processor with CLFLUSH reports 64 in CPUID leaf 1.
const LINE_BYTES: u32 = 64;
/// Cache lines of each buffer that are prefetched before the first is written. Source: measured against testpmd: the
/// difference between two, four and eight is smaller than between two runs.
const PREFETCHED_LINES: u32 = 4;

/// Which of the guest's buffers a packet gets.
enum GuestBuffers {
    /// These chains of the burst.
    Chains(Range<usize>),
    /// Not enough buffers yet.
    NotYet,
    /// The chain is too short, and the guest does not merge buffers.
    TooShort,
}

impl Virtqueue {
    /// Starts to copy packets into the guest's buffers, in order, as many as there are buffers and slots in flight.
    /// These packets leave `packets`. Returns how many. The guest sees them, in this order, when
    /// [`poll_enqueue_completed`](Virtqueue::poll_enqueue_completed) finds their copies complete.
    ///
    /// If the guest does not merge buffers and its buffer is too short for a packet, the packet is dropped, counted
    /// ([`DropReason::Short`]) and returned to the pool. It is included in the returned number.
    ///
    /// # Panics
    /// If the guest transmits on this virtqueue, or the packets are of another pool.
    pub fn submit_enqueue_burst(&mut self, packets: &mut Packets) -> usize {
        assert_eq!(self.ring.setup().direction, Direction::Receive, "the guest transmits on this virtqueue");
        self.in_flight.expect_pool(packets);
        let before = packets.len();
        let mut burst = self.burst.take().unwrap_or_default();
        burst.clear();
        // One chain per packet is enough for nearly all packets. A broken ring yields no chains; `broken` reports why.
        let asked = before.min(self.room());
        let short = self.ring.take(&mut burst, asked).unwrap_or(0) < asked;
        // While we wait for the guest, its core is working on these very lines and would have to fetch them back. One
        // burst with enough chains does not mean that the guest is ahead.
        let guest_was_short = std::mem::replace(&mut self.guest_was_short, short);
        let trial = self.begin_trial();
        if !(short || guest_was_short) {
            self.prefetch_buffers(packets, &burst);
        }
        let mut next = self.enqueue_plain(packets, &burst);
        while self.room() > 0
            && let Some(len) = packets.len_of(0)
        {
            match self.chains_for(len, &mut burst, &mut next) {
                GuestBuffers::Chains(chains) => self.begin_enqueue(packets, len, &burst, chains),
                GuestBuffers::NotYet => break,
                GuestBuffers::TooShort => {
                    self.stats.drop_one(DropReason::Short);
                    packets.drop_first();
                }
            }
        }
        self.ring.untake(&mut burst, next);
        if let Some(record) = &mut self.record {
            record.taken(&self.ring, &burst);
        }
        self.in_flight.send();
        self.end_trial(trial);
        self.burst = Some(burst);
        before - packets.len()
    }

    /// Polls for completed copies, shows the guest the completed packets, and appends them to `done`, in order. Returns
    /// how many. The guest sees no packet until the caller calls this.
    ///
    /// # Panics
    /// If `done` is of another pool.
    pub fn poll_enqueue_completed(&mut self, done: &mut Packets) -> usize {
        self.in_flight.expect_pool(done);
        self.poll_copies();
        let before = done.len();
        self.completed.move_to(usize::MAX, done);
        while let Some((held, note)) = self.in_flight.pop_completed() {
            self.mark_writes(note.ranges);
            self.queue_used(note.chains);
            done.put_in(held);
        }
        self.publish_used();
        if self.in_flight.may_be_stalled() && self.in_flight.is_stalled() {
            // The queue could overwrite what the CPU writes now, after the guest has its buffers back.
            self.ring.break_off(Broken::Silent);
        }
        done.len() - before
    }

    /// Prefetches the first lines of the burst's buffers for writing; the guest's core has them. Stores would wait for
    /// their lines one after another, while prefetched lines arrive in parallel. For later lines the order of the
    /// stores is fast enough.
    #[inline]
    fn prefetch_buffers(&self, packets: &mut Packets, burst: &Burst) {
        for (held, piece) in packets.held().iter().zip(burst.all_pieces()) {
            let bytes = held.len() + self.header;
            for line in 0..bytes.div_ceil(LINE_BYTES).min(PREFETCHED_LINES) {
                prefetch_to_write(piece.host() + u64::from(line * LINE_BYTES));
            }
        }
    }

    /// Copies the first packets with the CPU, one chain each, as long as the chain is one piece, long enough, and the
    /// packet short enough for the CPU (nearly all are). These packets are complete. Returns how many.
    #[inline]
    fn enqueue_plain(&mut self, packets: &mut Packets, burst: &Burst) -> usize {
        if !burst.has_plain() || self.log.is_some() || !self.is_idle() {
            return 0;
        }
        let (from, header) = (self.rides_from(), self.header);
        let fits = |held: &OwnedBuffer, piece: &Piece| {
            held.len() < from && u64::from(piece.len()) >= u64::from(held.len()) + u64::from(header)
        };
        let (mut count, mut bytes) = (0, 0);
        let begun = self.in_flight.begin_plain();
        for (held, (chain, piece)) in packets.held().iter().zip(burst.plain()) {
            if !fits(held, piece) {
                break;
            }
            self.in_flight.copy_plain(held, CopyDirection::ToGuest { header, buffers: 1 }, piece);
            self.used_now.push(Used::of(chain, held.len() + header));
            (count, bytes) = (count + 1, bytes + u64::from(held.len()));
        }
        self.in_flight.end_plain(begun, count);
        packets.move_to(count, &mut self.completed);
        self.stats.packets += count as u64;
        self.stats.bytes += bytes;
        count
    }

    /// Finds chains for a packet of `len` bytes from `next` on, and moves `next` behind the chains used.
    #[inline]
    fn chains_for(&mut self, len: u32, burst: &mut Burst, next: &mut usize) -> GuestBuffers {
        let merge = self.ring.setup().features.contains(Features::MRG_RXBUF);
        let need = u64::from(len) + u64::from(self.header);
        // Nearly all packets find one chain that is long enough.
        if let Some(Chain { dropped: None, len, .. }) = burst.chains().get(*next)
            && u64::from(*len) >= need
        {
            *next += 1;
            return GuestBuffers::Chains(*next - 1..*next);
        }
        let (mut first, mut room) = (*next, 0);
        while room < need {
            if *next == burst.chains().len() && !self.ring.take(burst, 1).is_ok_and(|taken| taken > 0) {
                *next = first;
                return GuestBuffers::NotYet;
            }
            let chain = &burst.chains()[*next];
            *next += 1;
            let runt = (chain.len < self.header).then_some(DropReason::Runt);
            if let Some(reason) = chain.dropped.map(DropReason::Chain).or(runt) {
                // The chains of one packet must be adjacent, so the ones before this chain are returned with it.
                // Otherwise it would stay at the head for ever.
                self.stats.drop_one(reason);
                let used_now = &burst.chains()[first..*next];
                self.used_in_order.extend(used_now.iter().map(|chain| Used::of(chain, 0)));
                self.dropped_chains += used_now.len();
                (first, room) = (*next, 0);
                continue;
            }
            room += u64::from(chain.len);
            if !merge && room < need {
                *next = first;
                return GuestBuffers::TooShort;
            }
        }
        GuestBuffers::Chains(first..*next)
    }

    #[inline]
    fn begin_enqueue(&mut self, packets: &mut Packets, len: u32, burst: &Burst, chains: Range<usize>) {
        let Some(held) = packets.take_first() else { unreachable!("it has a length") };
        let chains = &burst.chains()[chains];
        let copy_by = self.copy_by(len);
        let direction =
            CopyDirection::ToGuest { header: self.header, buffers: u16::try_from(chains.len()).unwrap_or(u16::MAX) };
        if self.completes_at_once(copy_by) {
            self.in_flight.copy(&held, direction, burst, chains);
            if self.log.is_some() {
                let ranges = self.expect_writes(burst, chains, len + self.header);
                self.mark_writes(ranges);
            }
            match chains {
                [chain] => self.used_now.push(Used::of(chain, len + self.header)),
                _ => self.used_now.extend(fill(chains, len + self.header)),
            }
            return self.completed.put_in(held);
        }
        self.used_in_order.extend(fill(chains, len + self.header));
        let mut note = self.note(chains.len());
        if self.log.is_some() {
            note.ranges = self.expect_writes(burst, chains, len + self.header);
        }
        self.in_flight.begin(held, direction, burst, chains, copy_by, note);
    }
}

/// Distributes `bytes` written bytes over chains, from the first on.
#[inline]
fn fill(chains: &[Chain], mut bytes: u32) -> impl Iterator<Item = Used> {
    chains.iter().map(move |chain| {
        let written = chain.len.min(bytes);
        bytes -= written;
        Used::of(chain, written)
    })
}
