//! One virtqueue's data path: its ring, its packets in flight, and what goes back to the driver in which order.
//!
//! ```text
//! enqueue   take chains ─► begin: copy now, or hand to a lane ─► … ─► land in order ─► log, put used, publish, call
//! dequeue   take chains ─► begin ─► … ─► land in order ─► put used, publish ─► packets to the caller
//! ```
//!
//! A virtqueue is polled by one thread at a time and never waits. The driver sees its buffers used in the order it made them available,
//! whatever order copies land in, whoever makes them, over however many lanes.

use crate::flight::{Flights, Who};
use crate::inflight::RingRecord;
use crate::learn::Learned;
use crate::log::RingLog;
use crate::ring::{Broken, Burst, Ring, Used};
use crate::stats::Stats;
use crate::{Lane, PacketPool, Packets};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Which packets' copies are handed to a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Hybrid {
    /// None: the polling thread copies all.
    Cpu,
    /// Those of so many bytes or more.
    From(u32),
    /// All.
    Device,
    /// Those for which it costs the polling thread less than to copy them itself, as it finds out while they flow: by bursts that go one way
    /// whole, now and then, ever more seldom as long as they tell the same. With an engine that the thread lends its time to that is none.
    Learned,
}

/// How a virtqueue works.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Which packets ride a lane.
    pub hybrid: Hybrid,
    /// The lanes they ride.
    pub lanes: Vec<Arc<Lane>>,
    /// Packets in flight at most.
    pub in_flight: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions { hybrid: Hybrid::Cpu, lanes: Vec::new(), in_flight: 1024 }
    }
}

/// What a packet in flight has to tell when it has landed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    /// How many chains go back with it, those that were dropped before it among them.
    pub(crate) chains: usize,
    /// How many ranges of guest memory it wrote, while they are logged.
    pub(crate) ranges: usize,
}

/// One virtqueue, from the device's side.
#[derive(Debug)]
pub struct Virtqueue {
    pub(crate) ring: Ring,
    pub(crate) flights: Flights<Note>,
    /// Packets of so many bytes or more ride a lane, unless that is learned.
    from: u32,
    /// What is known, if it is.
    learned: Option<Box<Learned>>,
    /// Bytes of the header before each packet.
    pub(crate) header: u32,
    /// What was taken last; in a box, which is moved out of here and back without its words being touched, as they were just written.
    pub(crate) burst: Option<Box<Burst>>,
    /// Chains that go back, in the ring's order: those of packets in flight, then those that were dropped since.
    pub(crate) owed: VecDeque<Used>,
    /// How many at the end of `owed` are no packet's yet.
    pub(crate) unclaimed: usize,
    /// The guest had fewer chains than the last burst had packets.
    pub(crate) waited: bool,
    /// Packets that have landed and were not polled for: older than those in flight.
    pub(crate) landed: Packets,
    /// What goes back now.
    pub(crate) back: Vec<Used>,
    pub(crate) stats: Stats,
    /// The driver wants to be called, and was not yet.
    pub(crate) call: bool,
    /// Where what is written is marked, if it is.
    pub(crate) log: Option<RingLog>,
    /// What packets in flight write, in their order, while it is logged: guest addresses and bytes.
    pub(crate) writes: VecDeque<(u64, u32)>,
    /// Where what is in flight is recorded, if it is.
    pub(crate) record: Option<RingRecord>,
}

impl Virtqueue {
    /// A virtqueue over its ring, whose packets are of this pool.
    #[must_use]
    pub fn new(ring: Ring, pool: &PacketPool, options: &QueueOptions) -> Virtqueue {
        let header = ring.setup().features.header_bytes();
        let size = usize::from(ring.setup().size);
        let from = match options.hybrid {
            _ if options.lanes.is_empty() => u32::MAX,
            Hybrid::Cpu | Hybrid::Learned => u32::MAX,
            Hybrid::From(bytes) => bytes,
            Hybrid::Device => 0,
        };
        let learns = options.hybrid == Hybrid::Learned && !options.lanes.is_empty();
        let learned = learns.then(|| Box::new(Learned::new(pool.options().longest)));
        Virtqueue {
            flights: Flights::new(options.in_flight.max(1), pool.memory(), &options.lanes),
            from,
            learned,
            header,
            burst: Some(Box::new(Burst::with_capacity(size))),
            owed: VecDeque::with_capacity(size),
            unclaimed: 0,
            waited: false,
            landed: pool.row(size),
            back: Vec::with_capacity(size),
            stats: Stats::default(),
            call: false,
            log: None,
            writes: VecDeque::new(),
            record: None,
            ring,
        }
    }

    /// Its ring.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Packets in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len() + self.landed.len()
    }

    /// Packets that may begin.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.flights.room().saturating_sub(self.landed.len())
    }

    /// Why nothing is taken any more, if so; see [`Ring::broken`].
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.ring.broken()
    }

    /// Whether the driver wants to be called for what went back since this was asked last: whoever polls writes to its `callfd` then.
    pub fn wants_call(&mut self) -> bool {
        let call = std::mem::take(&mut self.call);
        self.stats.calls += u64::from(call);
        call
    }

    /// From how many bytes on packets of the burst at hand ride a lane. No packet has as many as the most of them.
    #[inline]
    pub(crate) fn rides_from(&self) -> u32 {
        self.learned.as_ref().map_or(self.from, |learned| learned.from())
    }

    /// Who copies a packet of so many bytes; counts it.
    #[inline]
    pub(crate) fn who(&mut self, len: u32) -> Who {
        let who = if len >= self.rides_from() { Who::Lane } else { Who::Cpu };
        self.stats.packets += 1;
        self.stats.bytes += u64::from(len);
        if who == Who::Lane {
            self.stats.by_lane += 1;
            self.stats.bytes_by_lane += u64::from(len);
        }
        who
    }

    /// A burst's packets begin: since when that is, and what had been counted by then, if it is timed.
    #[inline]
    pub(crate) fn begin_trial(&mut self) -> Option<(Instant, Stats)> {
        self.learned.as_mut()?.begin().then(|| (Instant::now(), self.stats))
    }

    /// They were submitted.
    #[inline]
    pub(crate) fn end_trial(&mut self, trial: Option<(Instant, Stats)>) {
        if let (Some((begun, before)), Some(learned)) = (trial, &mut self.learned) {
            let (packets, bytes) = (self.stats.packets - before.packets, self.stats.bytes - before.bytes);
            learned.submitted(packets, bytes, begun.elapsed(), self.flights.next());
        }
    }

    /// Looks which copies have landed.
    #[inline]
    pub(crate) fn look(&mut self) {
        match &mut self.learned {
            Some(learned) if learned.is_out() => {
                let begun = Instant::now();
                self.flights.poll();
                learned.looked(begun.elapsed(), self.flights.landed());
            }
            _ => self.flights.poll(),
        }
    }

    /// The note of a packet that begins now, whose chains were just appended to `owed`.
    #[inline]
    pub(crate) fn note(&mut self, chains: usize) -> Note {
        Note { chains: chains + std::mem::take(&mut self.unclaimed), ranges: 0 }
    }

    /// So many chains go back with the next [`show`](Virtqueue::show).
    #[inline]
    pub(crate) fn go_back(&mut self, chains: usize) {
        self.back.extend(self.owed.drain(..chains));
    }

    /// A packet that this thread copies lands at once, and need not wait for its turn: nothing is in flight before it. What was dropped goes
    /// back before it.
    #[inline]
    pub(crate) fn lands_at_once(&mut self, who: Who) -> bool {
        who == Who::Cpu && self.nothing_flies()
    }

    /// Nothing is in flight, and what was dropped so far goes back.
    #[inline]
    pub(crate) fn nothing_flies(&mut self) -> bool {
        let nothing = self.flights.len() == 0;
        if nothing && !self.owed.is_empty() {
            self.unclaimed = 0;
            self.go_back(self.owed.len());
        }
        nothing
    }

    /// Gives the driver what goes back.
    #[inline]
    pub(crate) fn show(&mut self) {
        self.stats.clocked = self.flights.clocked();
        if self.flights.len() == 0 {
            // Nothing is in flight that those without a packet would have to wait for.
            self.unclaimed = 0;
            self.go_back(self.owed.len());
        }
        if !self.back.is_empty() {
            if let Some(record) = &mut self.record {
                record.goes_back(&self.back, self.ring.base());
            }
            self.ring.put(&self.back);
            self.call |= self.ring.publish();
            if let Some(record) = &mut self.record {
                record.went_back(&self.back, self.ring.base());
            }
            self.back.clear();
            self.mark_ring();
        }
    }
}
