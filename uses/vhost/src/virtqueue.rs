//! One virtqueue's data path: its ring, its packets in flight, and the order in which chains return to the driver.
//!
//! ```text
//! enqueue   take chains ─► begin: copy now, or hand to a DMA queue ─► … ─► complete in order ─► log, put used,
//! publish, call
//! dequeue   take chains ─► begin ─► … ─► complete in order ─► put used, publish ─► packets to the caller
//! ```
//!
//! A virtqueue is polled by one thread at a time and never waits. The driver sees its buffers used in the order in
//! which it made them available, whatever the order of completions, over any number of DMA queues.

use crate::in_flight::{CopyBy, InFlight};
use crate::inflight_fd::RingRecord;
use crate::learn::LearnedThreshold;
use crate::log::RingLog;
use crate::ring::{Broken, Burst, Ring, Used};
use crate::stats::Stats;
use crate::{DmaQueue, PacketPool, Packets};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Which packets' copies are handed to a DMA queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CopyPolicy {
    /// None: the polling thread makes all copies.
    Cpu,
    /// Packets of at least this many bytes.
    From(u32),
    /// All packets.
    Device,
    /// Packets for which a DMA queue costs the polling thread less than copying them itself. This is learned while
    /// packets flow: from time to time a whole burst takes one path, less and less often while the results agree. With
    /// an engine that the polling thread itself runs, no packet goes to the queue.
    Learned,
}

/// The options of a virtqueue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Which packets go to a DMA queue.
    pub hybrid: CopyPolicy,
    /// The DMA queues to use.
    pub dma_queues: Vec<Arc<DmaQueue>>,
    /// The most packets in flight.
    pub in_flight: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions { hybrid: CopyPolicy::Cpu, dma_queues: Vec::new(), in_flight: 1024 }
    }
}

/// What is needed when a packet in flight completes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    /// How many chains are returned with it, including chains dropped before it.
    pub(crate) chains: usize,
    /// How many ranges of guest memory it wrote, while they are logged.
    pub(crate) ranges: usize,
}

/// One virtqueue, from the device's side.
#[derive(Debug)]
pub struct Virtqueue {
    pub(crate) ring: Ring,
    pub(crate) in_flight: InFlight<Note>,
    /// Packets of at least this many bytes go to a DMA queue, unless the threshold is learned.
    from: u32,
    /// The learned threshold, if it is learned.
    learned: Option<Box<LearnedThreshold>>,
    /// Bytes of the header before each packet.
    pub(crate) header: u32,
    /// The chains taken last. Boxed, so that it can be moved out of here and back without touching its contents.
    pub(crate) burst: Option<Box<Burst>>,
    /// Used chains in the ring's order: those of packets in flight, then chains dropped since.
    pub(crate) used_in_order: VecDeque<Used>,
    /// How many chains at the end of `used_in_order` belong to no packet yet.
    pub(crate) dropped_chains: usize,
    /// The guest had fewer chains than the last burst had packets.
    pub(crate) guest_was_short: bool,
    /// Completed packets that were not polled for yet: older than those in flight.
    pub(crate) completed: Packets,
    /// The chains that the next `publish_used` returns.
    pub(crate) used_now: Vec<Used>,
    pub(crate) stats: Stats,
    /// The driver wants a call and has not been called yet.
    pub(crate) call: bool,
    /// The log in which writes are marked, if any.
    pub(crate) log: Option<RingLog>,
    /// The ranges that packets in flight write, in order, while writes are logged: guest addresses and bytes.
    pub(crate) writes: VecDeque<(u64, u32)>,
    /// The inflight record, if there is one.
    pub(crate) record: Option<RingRecord>,
}

impl Virtqueue {
    /// Creates a virtqueue over its ring, with packets of this pool.
    #[must_use]
    pub fn new(ring: Ring, pool: &PacketPool, options: &QueueOptions) -> Virtqueue {
        let header = ring.setup().features.header_bytes();
        let size = usize::from(ring.setup().size);
        let from = match options.hybrid {
            _ if options.dma_queues.is_empty() => u32::MAX,
            CopyPolicy::Cpu | CopyPolicy::Learned => u32::MAX,
            CopyPolicy::From(bytes) => bytes,
            CopyPolicy::Device => 0,
        };
        let learns = options.hybrid == CopyPolicy::Learned && !options.dma_queues.is_empty();
        let learned = learns.then(|| Box::new(LearnedThreshold::new(pool.options().longest)));
        Virtqueue {
            in_flight: InFlight::new(options.in_flight.max(1), pool.memory(), &options.dma_queues),
            from,
            learned,
            header,
            burst: Some(Box::new(Burst::with_capacity(size))),
            used_in_order: VecDeque::with_capacity(size),
            dropped_chains: 0,
            guest_was_short: false,
            completed: pool.empty(size),
            used_now: Vec::with_capacity(size),
            stats: Stats::default(),
            call: false,
            log: None,
            writes: VecDeque::new(),
            record: None,
            ring,
        }
    }

    /// The virtqueue's ring.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The virtqueue's counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The number of packets in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.completed.len()
    }

    /// How many more packets may start.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.in_flight.room().saturating_sub(self.completed.len())
    }

    /// Why nothing is taken any more; `None` if it is not broken. See [`Ring::broken`].
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.ring.broken()
    }

    /// Returns whether the driver wants a call for the chains returned since the last query. If so, the caller writes
    /// to its `callfd`.
    pub fn wants_call(&mut self) -> bool {
        let call = std::mem::take(&mut self.call);
        self.stats.calls += u64::from(call);
        call
    }

    /// Packets of at least this many bytes in the current burst go to a DMA queue; no packet is `u32::MAX` bytes long.
    #[inline]
    pub(crate) fn rides_from(&self) -> u32 {
        self.learned.as_ref().map_or(self.from, |learned| learned.from())
    }

    /// What copies a packet of `len` bytes; also counts the packet.
    #[inline]
    pub(crate) fn copy_by(&mut self, len: u32) -> CopyBy {
        let copy_by = if len >= self.rides_from() { CopyBy::DmaQueue } else { CopyBy::Cpu };
        self.stats.packets += 1;
        self.stats.bytes += u64::from(len);
        if copy_by == CopyBy::DmaQueue {
            self.stats.by_device += 1;
            self.stats.bytes_by_device += u64::from(len);
        }
        copy_by
    }

    /// Starts a burst. If it is timed, returns the start time and the counters so far.
    #[inline]
    pub(crate) fn begin_trial(&mut self) -> Option<(Instant, Stats)> {
        self.learned.as_mut()?.begin().then(|| (Instant::now(), self.stats))
    }

    /// Ends the submission of the burst.
    #[inline]
    pub(crate) fn end_trial(&mut self, trial: Option<(Instant, Stats)>) {
        if let (Some((begun, before)), Some(learned)) = (trial, &mut self.learned) {
            let (packets, bytes) = (self.stats.packets - before.packets, self.stats.bytes - before.bytes);
            learned.submitted(packets, bytes, begun.elapsed(), self.in_flight.next());
        }
    }

    /// Polls for completed copies.
    #[inline]
    pub(crate) fn poll_copies(&mut self) {
        match &mut self.learned {
            Some(learned) if learned.trial_in_flight() => {
                let start = Instant::now();
                self.in_flight.poll();
                learned.polled(start.elapsed(), self.in_flight.first_incomplete());
            }
            _ => self.in_flight.poll(),
        }
    }

    /// The note of a packet that starts now, whose chains were just appended to `used_in_order`.
    #[inline]
    pub(crate) fn note(&mut self, chains: usize) -> Note {
        Note { chains: chains + std::mem::take(&mut self.dropped_chains), ranges: 0 }
    }

    /// Moves the first `chains` chains to the next [`publish_used`](Virtqueue::publish_used).
    #[inline]
    pub(crate) fn queue_used(&mut self, chains: usize) {
        self.used_now.extend(self.used_in_order.drain(..chains));
    }

    /// Returns whether a packet copied by this thread completes at once, because nothing is in flight before it. Chains
    /// dropped before it are returned first.
    #[inline]
    pub(crate) fn completes_at_once(&mut self, copy_by: CopyBy) -> bool {
        copy_by == CopyBy::Cpu && self.is_idle()
    }

    /// Returns whether nothing is in flight. If so, chains dropped so far are returned.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        let nothing = self.in_flight.len() == 0;
        if nothing && !self.used_in_order.is_empty() {
            self.dropped_chains = 0;
            self.queue_used(self.used_in_order.len());
        }
        nothing
    }

    /// Returns the used chains to the driver.
    #[inline]
    pub(crate) fn publish_used(&mut self) {
        self.stats.clocked = self.in_flight.clocked();
        self.stats.fallbacks = self.in_flight.fallbacks();
        if self.in_flight.len() == 0 {
            // No packet is in flight that the dropped chains would have to wait for.
            self.dropped_chains = 0;
            self.queue_used(self.used_in_order.len());
        }
        if !self.used_now.is_empty() {
            if let Some(record) = &mut self.record {
                record.goes_back(&self.used_now, self.ring.base());
            }
            self.ring.put(&self.used_now);
            self.call |= self.ring.publish();
            if let Some(record) = &mut self.record {
                record.went_back(&self.used_now, self.ring.base());
            }
            self.used_now.clear();
            self.mark_ring();
        }
    }
}
