//! Packets into the guest: two calls, with time for other work between them.
//!
//! Source of the shape: "Accelerating DPDK Vhost" (Intel), §3.3, `rte_vhost_submit_enqueue_burst` and `rte_vhost_poll_enqueue_completed`.

use crate::Piece;
use crate::flight::Way;
use crate::packets::{Held, Packets};
use crate::ring::{Broken, Burst, Chain, Direction, Used, prefetch_to_write};
use crate::stats::Drop;
use crate::virtqueue::Virtqueue;
use crate::words::Features;
use std::ops::Range;

/// Bytes of a cache line. Source: every x86-64 processor with CLFLUSH reports 64 in CPUID leaf 1.
const LINE_BYTES: u32 = 64;
/// Lines of each buffer that are asked for before the first is written. Source: measured beside testpmd: two, four and eight differ by less
/// than two runs do.
const EXPECTED_LINES: u32 = 4;

/// What the guest has for a packet.
enum Room {
    /// These chains of the burst.
    Chains(Range<usize>),
    /// Not enough yet.
    NotYet,
    /// A chain that is too short, and it merges none.
    Never,
}

impl Virtqueue {
    /// Begins to copy packets into buffers of the guest, from the first on, as many as there are buffers and places in flight for; they leave the
    /// row. Returns how many. The guest sees them when [`poll_enqueue_completed`](Virtqueue::poll_enqueue_completed) has found their copies
    /// landed, in this order.
    ///
    /// A packet for which a guest that does not merge buffers has too short a one is dropped and counted ([`Drop::Short`]), and goes back to
    /// the pool; it counts as one that left.
    ///
    /// # Panics
    /// If the virtqueue is one that the guest transmits on, or the packets are of another pool.
    pub fn submit_enqueue_burst(&mut self, packets: &mut Packets) -> usize {
        assert_eq!(self.ring.setup().direction, Direction::Receive, "the guest transmits on this virtqueue");
        self.flights.expect_pool(packets);
        let before = packets.len();
        let mut burst = self.burst.take().unwrap_or_default();
        burst.clear();
        // A chain each is what nearly all packets need. A ring that is broken gives none; `broken` says why.
        let asked = before.min(self.room());
        let short = self.ring.take(&mut burst, asked).unwrap_or(0) < asked;
        // While the guest is waited for its core is at these very lines, and would have to fetch them back; a burst that comes whole now and then does
        // not mean that it is ahead.
        let waited = std::mem::replace(&mut self.waited, short);
        let trial = self.begin_trial();
        if !(short || waited) {
            self.expect_to_write(packets, &burst);
        }
        let mut next = self.enqueue_plain(packets, &burst);
        while self.room() > 0
            && let Some(len) = packets.len_of(0)
        {
            match self.room_for(len, &mut burst, &mut next) {
                Room::Chains(chains) => self.begin_enqueue(packets, len, &burst, chains),
                Room::NotYet => break,
                Room::Never => {
                    self.stats.drop_one(Drop::Short);
                    packets.drop_first();
                }
            }
        }
        self.ring.untake(&mut burst, next);
        if let Some(record) = &mut self.record {
            record.taken(&self.ring, &burst);
        }
        self.flights.send();
        self.end_trial(trial);
        self.burst = Some(burst);
        before - packets.len()
    }

    /// Finds out which copies have landed, shows the guest the packets that are there whole, and appends them to `done`, in their order. Returns
    /// how many. Whoever does not call it leaves the guest waiting.
    ///
    /// # Panics
    /// If `done` is of another pool.
    pub fn poll_enqueue_completed(&mut self, done: &mut Packets) -> usize {
        self.flights.expect_pool(done);
        self.look();
        let before = done.len();
        self.landed.move_to(usize::MAX, done);
        while let Some((held, note)) = self.flights.land() {
            self.mark_writes(note.ranges);
            self.go_back(note.chains);
            done.put_in(held);
        }
        self.show();
        if self.flights.may_wait_in_vain() && self.flights.waits_in_vain() {
            // What the CPU put there now, the queue could write over when the guest has its buffers back.
            self.ring.break_off(Broken::Silent);
        }
        done.len() - before
    }

    /// Asks for the first lines of the burst's buffers, which the guest's core has: stores wait for their lines one after another, in their
    /// order, and these come together. For those behind them the stores' own order is quick enough.
    #[inline]
    fn expect_to_write(&self, packets: &mut Packets, burst: &Burst) {
        for (held, piece) in packets.held().iter().zip(burst.all_pieces()) {
            let bytes = held.len() + self.header;
            for line in 0..bytes.div_ceil(LINE_BYTES).min(EXPECTED_LINES) {
                prefetch_to_write(piece.host() + u64::from(line * LINE_BYTES));
            }
        }
    }

    /// Copies the first packets into a chain each, as long as that is one piece and long enough, and the copy this thread's: nearly all are so. They have
    /// landed. Returns how many.
    #[inline]
    fn enqueue_plain(&mut self, packets: &mut Packets, burst: &Burst) -> usize {
        if !burst.has_plain() || self.log.is_some() || !self.nothing_flies() {
            return 0;
        }
        let (from, header) = (self.rides_from(), self.header);
        let fits = |held: &Held, piece: &Piece| {
            held.len() < from && u64::from(piece.len()) >= u64::from(held.len()) + u64::from(header)
        };
        let (mut count, mut bytes) = (0, 0);
        let begun = self.flights.begin_plain();
        for (held, (chain, piece)) in packets.held().iter().zip(burst.plain()) {
            if !fits(held, piece) {
                break;
            }
            self.flights.copy_plain(held, Way::Out { header, buffers: 1 }, piece);
            self.back.push(Used::of(chain, held.len() + header));
            (count, bytes) = (count + 1, bytes + u64::from(held.len()));
        }
        self.flights.end_plain(begun, count);
        packets.move_to(count, &mut self.landed);
        self.stats.packets += count as u64;
        self.stats.bytes += bytes;
        count
    }

    /// Chains for a packet of `len` bytes from `next` on, which is moved behind those that are used up.
    #[inline]
    fn room_for(&mut self, len: u32, burst: &mut Burst, next: &mut usize) -> Room {
        let merge = self.ring.setup().features.contains(Features::MRG_RXBUF);
        let need = u64::from(len) + u64::from(self.header);
        // One that is long enough by itself is what nearly all packets find.
        if let Some(Chain { dropped: None, len, .. }) = burst.chains().get(*next)
            && u64::from(*len) >= need
        {
            *next += 1;
            return Room::Chains(*next - 1..*next);
        }
        let (mut first, mut room) = (*next, 0);
        while room < need {
            if *next == burst.chains().len() && !self.ring.take(burst, 1).is_ok_and(|taken| taken > 0) {
                *next = first;
                return Room::NotYet;
            }
            let chain = &burst.chains()[*next];
            *next += 1;
            let runt = (chain.len < self.header).then_some(Drop::Runt);
            if let Some(reason) = chain.dropped.map(Drop::Chain).or(runt) {
                // A packet's chains are neighbours: those before this one go back with it, or it would stay at the head for ever.
                self.stats.drop_one(reason);
                let back = &burst.chains()[first..*next];
                self.owed.extend(back.iter().map(|chain| Used::of(chain, 0)));
                self.unclaimed += back.len();
                (first, room) = (*next, 0);
                continue;
            }
            room += u64::from(chain.len);
            if !merge && room < need {
                *next = first;
                return Room::Never;
            }
        }
        Room::Chains(first..*next)
    }

    #[inline]
    fn begin_enqueue(&mut self, packets: &mut Packets, len: u32, burst: &Burst, chains: Range<usize>) {
        let Some(held) = packets.take_first() else { unreachable!("it has a length") };
        let chains = &burst.chains()[chains];
        let who = self.who(len);
        let way = Way::Out { header: self.header, buffers: u16::try_from(chains.len()).unwrap_or(u16::MAX) };
        if self.lands_at_once(who) {
            self.flights.copy(&held, way, burst, chains);
            if self.log.is_some() {
                let ranges = self.expect_writes(burst, chains, len + self.header);
                self.mark_writes(ranges);
            }
            match chains {
                [chain] => self.back.push(Used::of(chain, len + self.header)),
                _ => self.back.extend(fill(chains, len + self.header)),
            }
            return self.landed.put_in(held);
        }
        self.owed.extend(fill(chains, len + self.header));
        let mut note = self.note(chains.len());
        if self.log.is_some() {
            note.ranges = self.expect_writes(burst, chains, len + self.header);
        }
        self.flights.begin(held, way, burst, chains, who, note);
    }
}

/// Chains with so many bytes written to them, from the first on.
#[inline]
fn fill(chains: &[Chain], mut bytes: u32) -> impl Iterator<Item = Used> {
    chains.iter().map(move |chain| {
        let written = chain.len.min(bytes);
        bytes -= written;
        Used::of(chain, written)
    })
}
