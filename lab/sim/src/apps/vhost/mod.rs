//! The core of a software switch between a network port and a virtual machine: DPDK's testpmd with a vhost port. The
//! core or a device copies the packets (white paper; KUPER §6.4).
//!
//! ```text
//! port ─► receive 32 ─► forward ─► enqueue: copy into the guest's buffers ─► virtqueue ─► guest (forwards)
//!   ▲                                                                                        │
//!   └──── send ◄────── forward ◄── dequeue: copy out of them ◄───────────────── virtqueue ◄──┘
//! ```
//!
//! Virtqueues, packets and DMA queues are `telpher-vhost`'s own code; this module simulates their environment. One core
//! does all of the work except the guest's. With a device, a burst's copies are one batch. Completed packets are passed
//! on in ring order, whatever the order of completion, and the core waits for none.

mod guest;
mod host;
mod lines;
mod port;

use super::core_cache::CoreCache;
use super::device_queue::DeviceQueue;
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::scenario::Measure;
use crate::workload::QueueId;
use crate::world::World;
use guest::Guest;
use host::Host;
use lines::CacheLines;
use port::{CHECKSUM, Port};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::{Flags, Opcode};
use telpher_mover::ManualClock;
use telpher_portal::Portal;
use telpher_vhost::{CopyPolicy, QueueOptions, Virtqueue};

/// What copies packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyBy {
    /// The switch's core.
    Core,
    /// A device.
    Device {
        /// Queue for packets to the guest.
        enqueue: QueueId,
        /// Queue for packets from it.
        dequeue: QueueId,
    },
    /// The core below a size, a device from that size on.
    Hybrid {
        /// Smallest packet, in bytes without its checksum, that a device copies.
        from: u32,
        /// Queue for packets to the guest.
        enqueue: QueueId,
        /// Queue for packets from it.
        dequeue: QueueId,
    },
}

/// The switch and its environment.
#[derive(Clone, PartialEq, Debug)]
pub struct Vhost {
    /// Bytes of a packet on the wire, checksum included: 64 to 9728, as in real ports.
    pub packet_bytes: u32,
    /// Most packets taken at a time.
    pub burst: u32,
    /// What copies packets.
    pub copies: CopyBy,
    /// Measured packets.
    pub packets: u64,
    /// Packets before the measurement, so that every buffer has been used.
    pub warm_up: u64,
    /// Offered load of the port, in megabits a second with preambles and gaps.
    pub offered_mbit_s: u64,
    /// Entries of each of the port's receive and transmit rings: 1 to 8192.
    pub port_ring: u32,
    /// Entries of each virtqueue, at most 32768; rounded up to a power of two.
    pub virtqueue: u32,
    /// Clock of both cores, MHz.
    pub clock_mhz: u32,
    /// Bytes of the core's second-level cache.
    pub l2_bytes: u64,
    /// Ways of the second-level cache.
    pub l2_ways: u32,
    /// Costs of the work.
    pub costs: VhostCosts,
}

/// Costs of the switch's work, in cycles of its core.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct VhostCosts {
    /// A round over both directions, independent of the number of packets.
    pub round: f64,
    /// A packet that is forwarded in both directions, without its copies: port, switching and rings.
    pub packet: f64,
    /// One copy, independent of its length.
    pub copy: f64,
    /// A line that is copied twice, to the guest and from it.
    pub line: f64,
    /// A line of a packet that misses the core's cache.
    pub payload_miss: f64,
    /// A line of a buffer's header or of a ring that misses the core's cache.
    pub header_miss: f64,
    /// A copy by a device, without its descriptor (see the profile): its entry in the reorder array, its completion.
    pub offload: f64,
    /// A packet in the guest.
    pub guest: f64,
}

impl Default for Vhost {
    /// 512-byte packets copied by the core, on the white paper's machine (Tables 3 to 7).
    fn default() -> Self {
        Vhost {
            packet_bytes: 512,
            burst: 32,
            copies: CopyBy::Core,
            packets: 20_000,
            warm_up: 10_000,
            offered_mbit_s: 100_000,
            port_ring: 2048,
            virtqueue: 1024,
            clock_mhz: 1800,
            l2_bytes: 2 << 20,
            l2_ways: 16,
            costs: VhostCosts {
                round: 240.0,
                packet: 216.6,
                copy: 7.4,
                line: 7.625,
                payload_miss: 12.57,
                header_miss: 58.65,
                offload: 69.43,
                guest: 120.0,
            },
        }
    }
}

impl CopyBy {
    /// The two dedicated queues of the white paper's Table 7.
    pub const DEVICE: CopyBy = CopyBy::Device {
        enqueue: QueueId { device: 0, wq: 0, shared: false },
        dequeue: QueueId { device: 0, wq: 1, shared: false },
    };
}

/// Most entries of a port's queue, and most bytes of a packet. Source: Intel E810's.
const MOST_PORT: u32 = 8192;
const MOST_BYTES: u32 = 9728;
/// Spare buffers of the pool. Source: DPDK's `mbcache`.
const AT_HAND: u32 = 250;

/// The costs as times.
struct Times {
    round: Picos,
    packet: Picos,
    copy: Picos,
    line: Picos,
    payload_miss: Picos,
    header_miss: Picos,
    offload: Picos,
    guest: Picos,
}

/// State shared by the host's core and the guest's.
struct Shared {
    port: Port,
    guest: Guest,
    lines: CacheLines,
    over: bool,
    tally: Tally,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    forwarded: u64,
    /// Begin and end of the measurement.
    since: Picos,
    until: Picos,
    /// The core's work since then.
    copying: Picos,
    offloading: Picos,
    working: Picos,
    /// Copies that began, and those that DMA queues took.
    begun: u64,
    by_device: u64,
    payload_misses: u64,
    other_misses: u64,
    /// From the first packet on.
    overtaking: u64,
    dropped: u64,
}

impl Vhost {
    /// Bytes of a packet that are copied.
    fn bytes(&self) -> u32 {
        self.packet_bytes - CHECKSUM
    }

    fn times(&self) -> Times {
        let of = |cycles: f64| Picos::from_nanos_f64(cycles * 1e3 / f64::from(self.clock_mhz.max(1)));
        let VhostCosts { round, packet, copy, line, payload_miss, header_miss, offload, guest } = self.costs;
        Times {
            round: of(round),
            packet: of(packet),
            copy: of(copy),
            line: of(line),
            payload_miss: of(payload_miss),
            header_miss: of(header_miss),
            offload: of(offload),
            guest: of(guest),
        }
    }

    /// The DMA queues of the switch for each of the device's queues, and how they are used.
    fn ways(&self, world: &mut World) -> (CopyPolicy, Vec<DeviceQueue>) {
        let (hybrid, dma_queues) = match self.copies {
            CopyBy::Core => (CopyPolicy::Cpu, vec![]),
            CopyBy::Device { enqueue, dequeue } => (CopyPolicy::Device, vec![enqueue, dequeue]),
            CopyBy::Hybrid { from, enqueue, dequeue } => (CopyPolicy::From(from), vec![enqueue, dequeue]),
        };
        let way = |dma_queue: QueueId| {
            let (src, dst) = (world.places.add(BufferPlacement::on(0)), world.places.add(BufferPlacement::on(0)));
            // A DMA queue's copies go to the cache.
            let copy = World::descriptor(Opcode::MemoryMove, src, dst, 1).and_flags(Flags::CACHE_CONTROL_1);
            DeviceQueue::new(world, dma_queue, copy)
        };
        (hybrid, dma_queues.into_iter().map(way).collect())
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = Vhost {
            burst: self.burst.clamp(1, 1024),
            packet_bytes: self.packet_bytes.clamp(64, MOST_BYTES),
            port_ring: self.port_ring.clamp(1, MOST_PORT),
            virtqueue: self.virtqueue.clamp(1, 1 << 15).next_power_of_two(),
            ..self.clone()
        };
        let (times, bytes, clock) = (app.times(), u64::from(app.bytes()), f64::from(app.clock_mhz));
        let (hybrid, ways) = app.ways(world);
        let port = Port::new(app.packet_bytes, app.offered_mbit_s, app.port_ring, 2 * app.virtqueue + AT_HAND);
        let guest = Guest::new(u16::try_from(app.virtqueue).unwrap_or(1 << 15), app.bytes());
        let pool = port.pool().clone();
        let mut number = 0;
        let queues = guest.rings().map(|ring| {
            // A clock that does not advance: a slow simulation makes no queue late.
            let clock = Arc::new(ManualClock::new(Duration::ZERO));
            let dma_queue = ways.get(number).map(|way: &DeviceQueue| {
                let portal = Arc::clone(&way.gate) as Arc<dyn Portal>;
                Arc::new(telpher_vhost::DmaQueue::with_clock(portal, app.virtqueue, clock).expect("rings have entries"))
            });
            number += 1;
            let options =
                QueueOptions { hybrid, dma_queues: dma_queue.into_iter().collect(), in_flight: app.virtqueue as usize };
            Virtqueue::new(ring, &pool, &options)
        });
        let lines = CacheLines::new(CoreCache::new(app.l2_bytes, app.l2_ways));
        let shared = Rc::new(RefCell::new(Shared { port, guest, lines, over: false, tally: Tally::default() }));
        let (burst, per_packet) = (app.burst as usize, times.guest);
        let bell = world.signal(0);
        let host = Host::new(app, times, shared.clone(), queues, ways, bell, &pool);
        world.spawn(0, |core| host.run(core));
        world.spawn(0, |core| guest::forward(core, shared.clone(), bell, burst, per_packet));
        Box::new(move |_| shared.borrow().measures(bytes, clock))
    }
}

impl Tally {
    /// The measurement begins.
    fn begin(&mut self, now: Picos) {
        *self = Tally { since: now, ..Tally::default() };
    }
}

impl Shared {
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn measures(&self, bytes: u64, clock_mhz: f64) -> Vec<Measure> {
        let Tally { since, until, copying, offloading, working, .. } = self.tally;
        let forwarded = self.tally.forwarded as f64;
        let each = |misses: u64| misses as f64 / forwarded.max(1.0);
        let rate = forwarded / until.since(since).as_secs_f64().max(1e-12);
        let share = |time: Picos| time.as_secs_f64() / working.as_secs_f64().max(1e-12) * 100.0;
        let seen = [self.guest.seen, self.port.seen];
        let count = |of: fn(&port::Seen) -> u64| seen.iter().map(of).sum::<u64>() as f64;
        vec![
            measure("forwarding rate", rate / 1e6, "Mpps"),
            measure("cycles per packet", clock_mhz * 1e6 / rate.max(1e-12), "cycles"),
            measure("core cycles in copies", share(copying), "%"),
            measure("core cycles in offloading", share(offloading), "%"),
            measure(
                "copies by the device",
                self.tally.by_device as f64 / (self.tally.begun as f64).max(1.0) * 100.0,
                "%",
            ),
            measure("payload lines not in the core's cache", each(self.tally.payload_misses), "per packet"),
            measure("other lines not in the core's cache", each(self.tally.other_misses), "per packet"),
            measure("bytes copied", 2.0 * bytes as f64 * rate / 1e9, "GB/s"),
            measure("batches that overtook another", self.tally.overtaking as f64, "batches"),
            measure("packets out of order", count(|seen| seen.disordered), "packets"),
            measure("packets not whole", count(|seen| seen.torn), "packets"),
            measure("chains dropped", self.tally.dropped as f64, "chains"),
        ]
    }
}
