//! A storage target: cores that read from disks for two initiators over TCP, with or without a digest of the data in
//! every reply (SPDK's NVMe/TCP target; KUPER appendix C).
//!
//! ```text
//! initiator ─► command ─► disk ─► digest: none, core or device ─► send ─► link ─► initiator: the next command
//! ```
//!
//! Connections, commands, digest jobs and replies are `telpher-nvmf`'s own code; this module simulates their
//! environment: sockets, disks, links and the time of a core. Each core has one loop over its connections, as
//! `telpher_nvmf::Server` does. It polls, and does other work while a device computes digests. Every initiator keeps a
//! constant number of reads in flight.

mod disks;
mod host_queue;
mod target_loop;

use super::device_queue::DeviceQueue;
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::scenario::Measure;
use crate::workload::QueueId;
use crate::world::World;
use disks::Disks;
use host_queue::connect_initiators;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target_loop::{Link, TargetLoop};
use telpher_abi::Opcode;
use telpher_mover::{Channel, ChannelPolicy, ManualClock, Order};
use telpher_nvmf::device_engine::DEFAULT_SHORTEST;
use telpher_nvmf::{CpuEngine, DeviceEngine, DigestEngine};
use telpher_portal::Portal;

/// What computes the digest of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DigestBy {
    /// No digest.
    None,
    /// The core that sends the reply.
    Core,
    /// Devices: each core uses one of the queues.
    Devices(Vec<QueueId>),
}

/// The target and its initiators.
#[derive(Clone, PartialEq, Debug)]
pub struct Storage {
    /// Bytes of a read: 512 to 16 MiB, rounded up to blocks of 512.
    pub bytes: u32,
    /// Number of cores of the target.
    pub cores: u32,
    /// What computes digests.
    pub digest: DigestBy,
    /// Smallest read, in bytes, whose digest a device computes.
    pub threshold: u32,
    /// Reads in flight, all initiators together; at most 1023 for each connection.
    pub under_way: u32,
    /// Measured reads; half as many precede them.
    pub reads: u64,
    /// Costs of the work, and rates of disks and links.
    pub costs: StorageCosts,
}

/// Costs of a read, and rates of disks and links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StorageCosts {
    /// Core nanoseconds of a system call that waits for sockets, receives, or sends, independent of what it moves.
    pub call_ns: f64,
    /// Core nanoseconds to check a command, pass it to the disk, and take the disk's answer.
    pub command_ns: f64,
    /// Core nanoseconds to send a reply, without the call and its bytes.
    pub send_ns: f64,
    /// Core nanoseconds for each KiB sent.
    pub send_kib_ns: f64,
    /// Core nanoseconds around a digest by a device, without the submission: job, descriptor, completion.
    pub offload_ns: f64,
    /// Gigabytes a second of a core's instructions for a digest, in addition to the core's wait for memory. The default
    /// is so high that only the wait counts: instructions and wait overlap.
    pub checksum_gb_s: f64,
    /// Number of disks.
    pub disks: u32,
    /// Gigabytes a second of one disk.
    pub disk_gb_s: f64,
    /// Microseconds until a disk answers.
    pub disk_us: f64,
    /// Gigabytes a second of data on the links to both initiators together.
    pub link_gb_s: f64,
    /// Microseconds from a reply's last byte to the next command's arrival.
    pub initiator_us: f64,
}

impl Default for Storage {
    /// Reads of 16 KiB by four cores, without digests.
    fn default() -> Self {
        Storage {
            bytes: 16 << 10,
            cores: 4,
            digest: DigestBy::None,
            threshold: u32::try_from(DEFAULT_SHORTEST).unwrap_or(u32::MAX),
            under_way: 512,
            reads: 20_000,
            costs: StorageCosts::default(),
        }
    }
}

impl Default for StorageCosts {
    fn default() -> Self {
        StorageCosts {
            call_ns: 400.0,
            command_ns: 300.0,
            send_ns: 2600.0,
            send_kib_ns: 40.0,
            offload_ns: 150.0,
            checksum_gb_s: OVERLAPPED,
            disks: 16,
            disk_gb_s: 6.5,
            disk_us: 80.0,
            link_gb_s: 23.5,
            initiator_us: 10.0,
        }
    }
}

impl StorageCosts {
    /// All costs of sockets times `factor`: calls, replies and bytes.
    #[must_use]
    pub fn with_sockets(self, factor: f64) -> StorageCosts {
        StorageCosts {
            call_ns: self.call_ns * factor,
            send_ns: self.send_ns * factor,
            send_kib_ns: self.send_kib_ns * factor,
            ..self
        }
    }
}

/// A rate of instructions that takes no time.
const OVERLAPPED: f64 = 1e6;
/// Initiators. Source: KUPER appendix C.
const INITIATORS: u32 = 2;
/// Bytes of a block of the namespaces.
const BLOCK: u32 = 512;
/// Most bytes of a read.
const MOST_BYTES: u32 = 16 << 20;
/// Most reads of a connection: a queue of 1024 entries has room for one less.
const MOST_READS: u32 = 1023;
/// Digests of one core that its channel holds. Source: chosen; more than all reads in flight by default. With 128, a
/// single core would compute half of the digests itself: so many reads are ready at once.
const CHANNEL_SLOTS: u32 = 1024;

/// The link to an initiator.
#[derive(Clone, Copy, Default)]
struct Wire {
    /// When it becomes idle.
    idle: Picos,
    /// Begin of the measurement, and the end of its last reply.
    since: Picos,
    until: Picos,
    /// Replies in between.
    replies: u64,
}

/// What happened since the measurement began.
#[derive(Clone, Copy, Default)]
struct Tally {
    replies: u64,
    latency: Picos,
    busy: Picos,
    /// Work in digests, or in their submission.
    digesting: Picos,
    sends: u64,
    /// System calls that wait, receive or send.
    calls: u64,
    by_device: u64,
    by_core: u64,
    /// By the core because the channel was full.
    fallbacks: u64,
    submissions: u64,
    submitted: u64,
}

/// State shared by all cores.
struct Shared {
    /// When each disk becomes idle.
    disks: Vec<Picos>,
    /// By initiator.
    wires: Vec<Wire>,
    /// Replies from the beginning on.
    done: u64,
    /// Begin and end of the measurement.
    since: Picos,
    until: Picos,
    /// From the beginning on: replies with a wrong digest.
    wrong: u64,
    tally: Tally,
}

/// Times derived from costs and bytes.
struct Times {
    call: Picos,
    command: Picos,
    send: Picos,
    send_kib: f64,
    offload: Picos,
    checksum: Picos,
    disk: Picos,
    disk_latency: Picos,
    wire_gb_s: f64,
    initiator: Picos,
}

impl Storage {
    fn times(&self) -> Times {
        let bytes = f64::from(self.bytes);
        let costs = &self.costs;
        let at = |gb_s: f64| Picos::from_nanos_f64(bytes / gb_s.max(1e-3));
        Times {
            call: Picos::from_nanos_f64(costs.call_ns),
            command: Picos::from_nanos_f64(costs.command_ns),
            send: Picos::from_nanos_f64(costs.send_ns),
            send_kib: costs.send_kib_ns,
            offload: Picos::from_nanos_f64(costs.offload_ns),
            checksum: if costs.checksum_gb_s < OVERLAPPED { at(costs.checksum_gb_s) } else { Picos::ZERO },
            disk: at(costs.disk_gb_s),
            disk_latency: Picos::from_nanos_f64(costs.disk_us * 1e3),
            wire_gb_s: costs.link_gb_s.max(1e-3) / f64::from(INITIATORS),
            initiator: Picos::from_nanos_f64(costs.initiator_us * 1e3),
        }
    }

    /// The engine of one core, and the device's queue behind it.
    fn engine(&self, world: &mut World, core: u32) -> (Box<dyn DigestEngine>, Option<DeviceQueue>) {
        let queues = match &self.digest {
            DigestBy::Devices(queues) if !queues.is_empty() => queues,
            _ => return (Box::new(CpuEngine::default()), None),
        };
        let data = world.places.add(BufferPlacement { lines: LineLocation::Memory, ..BufferPlacement::on(0) });
        let digest = World::descriptor(Opcode::CrcGeneration, data, data, self.bytes);
        let device = DeviceQueue::new(world, queues[core as usize % queues.len()], digest);
        let portal = Arc::clone(&device.gate) as Arc<dyn Portal>;
        let policy = ChannelPolicy { order: Order::Arrival, ..ChannelPolicy::default() };
        // A clock that does not advance: a slow simulation makes no digest late.
        let clock = Arc::new(ManualClock::new(Duration::ZERO));
        let channel = Channel::with_clock(portal, CHANNEL_SLOTS, policy, clock).expect("it has slots");
        (Box::new(DeviceEngine::new(channel, self.threshold as usize)), Some(device))
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let disks = self.costs.disks.clamp(1, 1024);
        let app = Rc::new(Storage {
            cores: self.cores.max(1),
            bytes: self.bytes.clamp(1, MOST_BYTES).next_multiple_of(BLOCK),
            costs: StorageCosts { disks, ..self.costs },
            ..self.clone()
        });
        let backend = Arc::new(Disks::new(app.bytes));
        let (admin, queues) = connect_initiators(&app, &backend);
        let connections = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        let mut links: Vec<Vec<Link>> = (0..app.cores).map(|_| Vec::new()).collect();
        for (number, (connection, host)) in (0..).zip(queues) {
            let reads = app.under_way / connections + u32::from(number < app.under_way % connections);
            let (wire, disk) = ((number / disks) as usize, (number % disks) as usize);
            let link = Link { connection, host, disk, wire, reads: reads.min(MOST_READS) };
            links[(number % app.cores) as usize].push(link);
        }
        let shared = Rc::new(RefCell::new(Shared {
            disks: vec![Picos::ZERO; disks as usize],
            wires: vec![Wire::default(); INITIATORS as usize],
            done: 0,
            since: Picos::ZERO,
            until: Picos::ZERO,
            wrong: 0,
            tally: Tally::default(),
        }));
        for (core, links) in (0..).zip(links) {
            let (engine, device) = app.engine(world, core);
            let target = TargetLoop::new(app.clone(), shared.clone(), backend.clone(), links, engine, device);
            world.spawn(0, |core| target.run(core));
        }
        Box::new(move |_| {
            // A controller ends with its admin queue.
            drop(admin);
            shared.borrow().measures(&app)
        })
    }
}

impl Shared {
    /// The measurement begins.
    fn begin(&mut self, now: Picos) {
        (self.since, self.tally) = (now, Tally::default());
        for wire in &mut self.wires {
            *wire = Wire { idle: wire.idle, since: wire.idle.max(now), until: Picos::ZERO, replies: 0 };
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn measures(&self, app: &Storage) -> Vec<Measure> {
        let tally = &self.tally;
        let replies = tally.replies as f64;
        // Each link by itself: its replies arrive one after the other, so a full link has exactly its rate.
        let of = |wire: &Wire| wire.replies as f64 / wire.until.since(wire.since).as_secs_f64().max(1e-12);
        let rate = self.wires.iter().map(of).sum::<f64>();
        let seconds = self.until.since(self.since).as_secs_f64().max(1e-12);
        let over = |count: u64, of: u64| count as f64 / (of as f64).max(1.0);
        let share = |time: Picos| time.as_secs_f64() / seconds / f64::from(app.cores) * 100.0;
        let digests = tally.by_device + tally.by_core + tally.fallbacks;
        vec![
            measure("reads", rate / 1e3, "thousand/s"),
            measure("bytes read", rate * f64::from(app.bytes) / 1e9, "GB/s"),
            measure("mean latency", tally.latency.as_nanos_f64() / replies.max(1.0) / 1e3, "us"),
            measure("cores busy", share(tally.busy), "%"),
            measure("cores busy with digests", share(tally.digesting), "%"),
            measure("replies sent at once", over(tally.replies, tally.sends), "replies"),
            measure("system calls", over(tally.calls, tally.replies), "per read"),
            measure("digests by the device", over(tally.by_device, digests) * 100.0, "%"),
            measure("digests by the core in its place", over(tally.fallbacks, digests) * 100.0, "%"),
            measure("digests submitted at once", over(tally.submitted, tally.submissions), "digests"),
            measure("wrong digests", self.wrong as f64, "digests"),
        ]
    }
}
