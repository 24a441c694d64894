//! A storage target: cores that read from disks for others over TCP, with or without a checksum of the data in every
//! answer (SPDK's NVMe/TCP target; KUPER appendix C).
//!
//! ```text
//! initiator ─► command ─► disk ─► digest: none, core or device ─► send ─► link ─► initiator: the next command
//! ```
//!
//! Each core polls its commands, its disks and its digests. It does other work while a device computes digests. Every
//! initiator keeps a constant number of reads in flight.

use super::{Report, measure};
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::workload::QueueId;
use crate::world::{Core, PendingWork, World};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use telpher_abi::{Descriptor, Opcode};

/// What computes the checksum of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DigestBy {
    /// No checksum.
    None,
    /// The core that sends the answer.
    Core,
    /// Devices, in turn.
    Devices(Vec<QueueId>),
}

/// The target and its initiators.
#[derive(Clone, PartialEq, Debug)]
pub struct Storage {
    /// Bytes of a read.
    pub bytes: u32,
    /// Number of cores of the target.
    pub cores: u32,
    /// What computes checksums.
    pub digest: DigestBy,
    /// Reads in flight, all initiators together.
    pub under_way: u32,
    /// Measured reads; half as many precede them.
    pub reads: u64,
    /// Costs of the work, and rates of disks and links.
    pub costs: StorageCosts,
}

/// Costs of a read, and rates of disks and links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StorageCosts {
    /// Core nanoseconds to receive a command and pass it to the disk.
    pub command_ns: f64,
    /// Core nanoseconds to send an answer, without its bytes.
    pub send_ns: f64,
    /// Core nanoseconds for each KiB sent.
    pub send_kib_ns: f64,
    /// Core nanoseconds around a digest by a device: task, descriptor, completion.
    pub offload_ns: f64,
    /// Gigabytes a second at which a core computes a checksum of cached data; its wait for memory is the machine's.
    pub checksum_gb_s: f64,
    /// Number of disks.
    pub disks: u32,
    /// Gigabytes a second of one disk.
    pub disk_gb_s: f64,
    /// Microseconds until a disk answers.
    pub disk_us: f64,
    /// Gigabytes a second of data on all links to the initiators together.
    pub link_gb_s: f64,
    /// Microseconds from an answer's last byte to the next command's arrival.
    pub initiator_us: f64,
}

impl Default for Storage {
    /// Reads of 16 KiB by four cores, without digests.
    fn default() -> Self {
        Storage {
            bytes: 16 << 10,
            cores: 4,
            digest: DigestBy::None,
            under_way: 512,
            reads: 20_000,
            costs: StorageCosts::default(),
        }
    }
}

impl Default for StorageCosts {
    fn default() -> Self {
        StorageCosts {
            command_ns: 1200.0,
            send_ns: 1800.0,
            send_kib_ns: 40.0,
            offload_ns: 150.0,
            checksum_gb_s: 7.92,
            disks: 16,
            disk_gb_s: 6.5,
            disk_us: 80.0,
            link_gb_s: 23.5,
            initiator_us: 10.0,
        }
    }
}

/// The next stage of a read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Its command has arrived.
    Command,
    /// Its data has arrived.
    Data,
}

/// A read: when its initiator requested it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Read {
    asked: Picos,
}

/// State shared by all cores.
struct Shared {
    /// When each disk, and the link, becomes idle.
    disks: Vec<Picos>,
    link: Picos,
    next_disk: usize,
    next_queue: usize,
    done: u64,
    since: Picos,
    until: Picos,
    latency: Picos,
    busy: Picos,
}

/// Times derived from costs and bytes.
struct Times {
    command: Picos,
    send: Picos,
    offload: Picos,
    checksum: Picos,
    disk: Picos,
    disk_latency: Picos,
    link: Picos,
    initiator: Picos,
}

struct Target {
    app: Rc<Storage>,
    times: Times,
    shared: Rc<RefCell<Shared>>,
    digest: Descriptor,
    /// Future arrivals by time; equal times in the order of insertion.
    coming: BinaryHeap<Reverse<(Picos, u64, Stage, Read)>>,
    put: u64,
    digests: VecDeque<(Vec<Read>, PendingWork)>,
}

/// Most digests that are submitted together.
const MOST_TOGETHER: usize = 32;
/// Interval at which a core polls for a device's digests.
const LOOK: Picos = Picos::from_nanos(100);

impl Target {
    fn put(&mut self, at: Picos, stage: Stage, read: Read) {
        self.put += 1;
        self.coming.push(Reverse((at, self.put, stage, read)));
    }

    async fn works(&self, core: &Core, time: Picos) {
        self.shared.borrow_mut().busy += time;
        core.busy(time).await;
    }

    async fn command(&mut self, core: &Core, read: Read) {
        self.works(core, self.times.command).await;
        let there = {
            let shared = &mut *self.shared.borrow_mut();
            let disk = shared.next_disk;
            shared.next_disk = (disk + 1) % shared.disks.len();
            shared.disks[disk] = shared.disks[disk].max(core.now()) + self.times.disk;
            shared.disks[disk] + self.times.disk_latency
        };
        self.put(there, Stage::Data, read);
    }

    async fn data(&mut self, core: &Core, read: Read) {
        // Disks write so much that the data is evicted before its turn comes.
        let there = BufferPlacement { lines: LineLocation::Memory, ..BufferPlacement::on(core.node()) };
        let app = self.app.clone();
        match &app.digest {
            DigestBy::Devices(queues) if !queues.is_empty() => {
                // All other data that has arrived is submitted with it.
                let mut reads = vec![read];
                while reads.len() < MOST_TOGETHER
                    && let Some(Reverse((at, _, Stage::Data, other))) = self.coming.peek().copied()
                    && at <= core.now()
                {
                    self.coming.pop();
                    reads.push(other);
                }
                self.works(core, self.times.offload * reads.len() as u64).await;
                let queue = {
                    let next = &mut self.shared.borrow_mut().next_queue;
                    *next = (*next + 1) % queues.len();
                    queues[*next]
                };
                let begun = core.now();
                let ticket = core.submit_batch(queue, &vec![self.digest; reads.len()]).await;
                self.shared.borrow_mut().busy += core.now().since(begun);
                self.digests.push_back((reads, ticket));
                return;
            }
            DigestBy::Core => {
                let begun = core.now();
                core.software(Opcode::CrcGeneration, app.bytes.into(), there, there).await;
                self.shared.borrow_mut().busy += core.now().since(begun);
                self.works(core, self.times.checksum).await;
            }
            _ => {}
        }
        self.send(core, read).await;
    }

    async fn send(&mut self, core: &Core, read: Read) {
        self.works(core, self.times.send).await;
        let half = self.app.reads / 2;
        let answered = {
            let shared = &mut *self.shared.borrow_mut();
            shared.link = shared.link.max(core.now()) + self.times.link;
            shared.done += 1;
            if shared.done == half {
                (shared.since, shared.busy) = (shared.link, Picos::ZERO);
            }
            if shared.done > half {
                shared.latency += shared.link.since(read.asked);
                shared.until = shared.link;
            }
            shared.link
        };
        let asked = answered + self.times.initiator;
        self.put(asked, Stage::Command, Read { asked });
    }

    async fn run(mut self, core: Core, reads: u32) {
        for number in 0..reads {
            self.put(Picos::from_nanos(u64::from(number) * 100), Stage::Command, Read { asked: Picos::ZERO });
        }
        let all = self.app.reads + self.app.reads / 2;
        while self.shared.borrow().done < all {
            let now = core.now();
            if self.digests.front().is_some_and(|(_, ticket)| ticket.is_done()) {
                for read in self.digests.pop_front().into_iter().flat_map(|(reads, _)| reads) {
                    self.send(&core, read).await;
                }
                continue;
            }
            let Some(Reverse((at, _, stage, read))) = self.coming.peek().copied() else {
                if self.digests.is_empty() {
                    // This core has no work.
                    return;
                }
                core.sleep(LOOK).await;
                continue;
            };
            if at > now {
                let idle = at.since(now);
                core.sleep(if self.digests.is_empty() { idle } else { idle.min(LOOK) }).await;
                continue;
            }
            self.coming.pop();
            match stage {
                Stage::Command => self.command(&core, read).await,
                Stage::Data => self.data(&core, read).await,
            }
        }
    }
}

impl Storage {
    fn times(&self) -> Times {
        let bytes = f64::from(self.bytes);
        let costs = &self.costs;
        let at = |gb_s: f64| Picos::from_nanos_f64(bytes / gb_s.max(1e-3));
        Times {
            command: Picos::from_nanos_f64(costs.command_ns),
            send: Picos::from_nanos_f64(costs.send_ns + costs.send_kib_ns * bytes / 1024.0),
            offload: Picos::from_nanos_f64(costs.offload_ns),
            checksum: at(costs.checksum_gb_s),
            disk: at(costs.disk_gb_s),
            disk_latency: Picos::from_nanos_f64(costs.disk_us * 1e3),
            link: at(costs.link_gb_s),
            initiator: Picos::from_nanos_f64(costs.initiator_us * 1e3),
        }
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = Rc::new(Storage { cores: self.cores.max(1), bytes: self.bytes.max(1), ..self.clone() });
        let shared = Rc::new(RefCell::new(Shared {
            disks: vec![Picos::ZERO; app.costs.disks.clamp(1, 1024) as usize],
            link: Picos::ZERO,
            next_disk: 0,
            next_queue: 0,
            done: 0,
            since: Picos::ZERO,
            until: Picos::ZERO,
            latency: Picos::ZERO,
            busy: Picos::ZERO,
        }));
        let data = world.places.add(BufferPlacement::on(0));
        for core in 0..app.cores {
            let target = Target {
                app: app.clone(),
                times: app.times(),
                shared: shared.clone(),
                digest: World::descriptor(Opcode::CrcGeneration, data, data, app.bytes),
                coming: BinaryHeap::new(),
                put: 0,
                digests: VecDeque::new(),
            };
            // Initiators' reads, distributed over cores as evenly as possible.
            let reads = app.under_way / app.cores + u32::from(core < app.under_way % app.cores);
            world.spawn(0, |core| target.run(core, reads));
        }
        Box::new(move |_| {
            let shared = shared.borrow();
            #[allow(clippy::cast_precision_loss, reason = "for display")]
            let reads = shared.done.saturating_sub(app.reads / 2) as f64;
            let seconds = shared.until.since(shared.since).as_secs_f64().max(1e-12);
            let latency = shared.latency.as_nanos_f64() / reads.max(1.0) / 1e3;
            vec![
                measure("reads", reads / seconds / 1e3, "thousand/s"),
                measure("bytes read", reads / seconds * f64::from(app.bytes) / 1e9, "GB/s"),
                measure("mean latency", latency, "us"),
                measure("cores busy", shared.busy.as_secs_f64() / seconds / f64::from(app.cores) * 100.0, "%"),
            ]
        })
    }
}
