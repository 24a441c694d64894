//! Threads whose operations a mover executes: on their core, by a device, or by both, according to its policy.
//!
//! `telpher_mover::DryRun`, the mover's own code, decides; a program carries the decisions out.

use super::arrivals::Pace;
use super::forecast::{SLICE, duration, moment, stretch};
use super::program::{Core, Done, PendingWork};
use super::{World, descriptors};
use crate::machine::WaitCosts;
use crate::workload::{MoverSettings, QueueId, Stream, Wait};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use telpher_abi::Descriptor;
use telpher_mover::{DryRun, Expected, Parts, QueueEntry, Retry, Topology};
use telpher_portal::{QueueInfo, QueueMode};

/// The kernel's node distances. Source: ACPI, SLIT: 10 for the node itself; the others as in common firmware.
const DISTANCES: [u32; 3] = [10, 12, 21];

/// The nodes of memory and threads, for the mover's queries.
#[derive(Debug)]
struct NodeMap {
    /// By node.
    sockets: Vec<usize>,
    /// Node of the thread that asks.
    here: AtomicU32,
    /// By the first address of a region.
    memory: Mutex<BTreeMap<u64, u32>>,
}

impl NodeMap {
    fn put(&self, address: u64, node: usize) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.insert(address, u32::try_from(node).unwrap_or(u32::MAX));
    }
}

impl Topology for NodeMap {
    fn nodes(&self) -> u32 {
        u32::try_from(self.sockets.len()).unwrap_or(u32::MAX)
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        let socket = |node: u32| self.sockets.get(node as usize);
        DISTANCES[if from == to { 0 } else { 1 + usize::from(socket(from) != socket(to)) }]
    }

    fn of_this_thread(&self) -> Option<u32> {
        // Relaxed: the simulation runs on one thread.
        Some(self.here.load(Ordering::Relaxed))
    }

    fn of_memory(&self, address: u64) -> Option<u32> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.range(..=address).next_back().map(|(_, node)| *node)
    }
}

/// One mover: its decisions, its queues, and its node map.
#[derive(Debug)]
pub(super) struct MoverState {
    pub(super) counsel: DryRun,
    queues: Vec<QueueId>,
    map: Arc<NodeMap>,
    retry: Retry,
    wait: WaitCosts,
}

/// One descriptor in flight.
struct InFlight {
    ticket: PendingWork,
    queue: usize,
    room: QueueEntry,
    expected: Option<Expected>,
    /// The slot of a split operation that it belongs to.
    place: usize,
}

/// One operation in one.
struct Job {
    done: Done,
    in_flight: Vec<InFlight>,
    parts: Option<Parts>,
}

impl World {
    /// Adds a thread whose operations a mover executes. Returns its number for [`timeline`](World::timeline).
    pub(super) fn add_mover_thread(&mut self, stream: Stream, moves: MoverSettings) -> usize {
        let number = self.add_account(stream);
        let mover = match self.movers.iter().find(|(known, _)| *known == moves) {
            Some((_, mover)) => Rc::clone(mover),
            None => {
                let mover = Rc::new(self.mover_of(&moves, &self.queues()));
                self.movers.push((moves, Rc::clone(&mover)));
                mover
            }
        };
        let (src, dst) = (self.places.add(stream.src), self.places.add(stream.dst));
        mover.map.put(src, stream.src.node);
        mover.map.put(dst, stream.dst.node);
        self.spawn(stream.core, move |core| async move {
            let core = core.with_library(stream.library).with_way(stream.through).with_walk(stream.walk);
            MoverThread { core, mover, stream, thread: number, src, dst }.run(Pace::new(&stream, number)).await;
        });
        number
    }

    /// All queues of all devices.
    fn queues(&self) -> Vec<QueueId> {
        let of = |(device, dsa): (usize, &super::device::Dsa)| -> Vec<QueueId> {
            let queue = |wq: usize| {
                let config = dsa.model.wq_cfg(wq);
                let device = u16::try_from(device).unwrap_or(u16::MAX);
                (config.size() > 0).then_some(QueueId { device, wq, shared: !config.dedicated() })
            };
            (0..self.credits[device].len()).filter_map(queue).collect()
        };
        self.devices.iter().enumerate().flat_map(of).collect()
    }

    /// The description of a queue for its clients.
    pub(crate) fn queue_info(&self, queue: QueueId) -> QueueInfo {
        let dsa = &self.devices[usize::from(queue.device)];
        let (config, capabilities) = (dsa.model.wq_cfg(queue.wq), dsa.model.capabilities());
        QueueInfo {
            name: format!("wq{}.{}", queue.device, queue.wq),
            mode: if queue.shared { QueueMode::Shared } else { QueueMode::Dedicated },
            size: config.size().into(),
            max_transfer: 1 << config.max_transfer_shift(),
            max_batch: 1 << config.max_batch_shift(),
            block_on_fault: config.block_on_fault(),
            gen_cap: capabilities.gen_cap,
            dsa_cap_0: capabilities.dsa_cap_0.with_max_sgl_shift(config.max_sgl_shift()),
            operations: dsa.model.operations_of(queue.wq),
            numa_node: u32::try_from(dsa.node).ok(),
        }
    }

    /// A mover over these queues.
    pub(super) fn mover_of(&self, moves: &MoverSettings, queues: &[QueueId]) -> MoverState {
        let there = |queue: &&QueueId| usize::from(queue.device) < self.devices.len();
        let queues: Vec<QueueId> = queues.iter().filter(there).copied().collect();
        let map = Arc::new(NodeMap {
            sockets: self.machine.nodes.iter().map(|node| node.socket).collect(),
            here: AtomicU32::new(0),
            memory: Mutex::default(),
        });
        let policy = moves.policy();
        let topology = Arc::clone(&map) as Arc<dyn Topology>;
        let counsel = DryRun::new(queues.iter().map(|queue| self.queue_info(*queue)), policy, topology);
        MoverState { counsel, queues, map, retry: policy.retry, wait: self.machine.wait }
    }
}

/// A thread and its mover.
struct MoverThread {
    core: Core,
    mover: Rc<MoverState>,
    stream: Stream,
    thread: usize,
    src: u64,
    dst: u64,
}

impl MoverThread {
    async fn run(self, mut pace: Pace) {
        let mut jobs: VecDeque<Job> = VecDeque::new();
        for _ in 0..self.stream.submissions {
            while jobs.len() >= self.stream.depth.max(1) as usize {
                let Some(oldest) = jobs.pop_front() else { break };
                self.finish(oldest).await;
            }
            let now = self.core.now();
            let arrived = match pace.due(now) {
                Ok(since) => since,
                Err(at) => {
                    self.core.sleep(at.since(now)).await;
                    at
                }
            };
            pace.advance();
            let begun = self.core.now();
            let arrived = if pace.is_open() { arrived } else { begun };
            let done = Done { thread: self.thread, arrived, begun, bytes: pace.size().into() };
            if let Some(job) = self.begin(done).await {
                jobs.push_back(job);
            }
        }
        for job in jobs {
            self.finish(job).await;
        }
    }

    /// The descriptor of a part.
    fn descriptor(&self, start: u64, bytes: u64) -> Descriptor {
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        descriptors::of(&self.stream, self.src + start, self.dst + start, size)
    }

    async fn by_core(&self, bytes: u64) {
        self.core.software(self.stream.op, bytes, self.stream.src, self.stream.dst).await;
    }

    /// Begins an operation; returns the work to wait for.
    async fn begin(&self, done: Done) -> Option<Job> {
        let MoverState { counsel, queues, map, .. } = &*self.mover;
        let Stream { op, .. } = self.stream;
        // Relaxed: the simulation runs on one thread.
        map.here.store(u32::try_from(self.core.node()).unwrap_or(u32::MAX), Ordering::Relaxed);
        let mut job = Job { done, in_flight: Vec::new(), parts: None };
        if !counsel.goes_to_a_device(op, done.bytes) {
            self.by_core(done.bytes).await;
            self.core.done(done);
            return None;
        }
        let whole = self.descriptor(0, done.bytes);
        if let Some(mut parts) = counsel.parts(&whole, done.bytes, self.thread) {
            for place in 0..parts.depth() {
                self.send_part(&mut parts, place, &mut job.in_flight).await;
            }
            job.parts = Some(parts);
            return Some(job);
        }
        let first = counsel.first(&whole, self.thread);
        for turn in 0..queues.len() {
            let queue = (first + turn) % queues.len();
            for _ in 0..=self.mover.retry.attempts {
                if let Some(one) = self.send(queue, 0, done.bytes, 0).await {
                    job.in_flight.push(one);
                    return Some(job);
                }
                self.core.busy(self.mover.wait.look.max(stretch(self.mover.retry.pause))).await;
            }
        }
        // No queue has room: the core executes the operation.
        self.by_core(done.bytes).await;
        self.core.done(done);
        None
    }

    /// Sends one descriptor to a queue, if it has room.
    async fn send(&self, queue: usize, start: u64, bytes: u64, place: usize) -> Option<InFlight> {
        let counsel = &self.mover.counsel;
        let room = counsel.enter(queue)?;
        let at = self.core.now();
        let Some(ticket) = self.core.try_submit(self.mover.queues[queue], self.descriptor(start, bytes)).await else {
            counsel.leave(queue, room);
            return None;
        };
        let expected = (self.stream.wait == Wait::Sleep)
            .then(|| counsel.expect(queue, self.stream.op, bytes, moment(at)))
            .flatten();
        Some(InFlight { ticket, queue, room, expected, place })
    }

    /// Sends the next part to the queue of a slot; returns false if there is no part or no room.
    async fn send_part(&self, parts: &mut Parts, place: usize, in_flight: &mut Vec<InFlight>) -> bool {
        let queue = parts.queue(place);
        let is_busy = in_flight.iter().any(|one| one.queue == queue);
        let Some((start, bytes)) = parts.next_for_device(is_busy) else { return false };
        match self.send(queue, start, bytes, place).await {
            Some(one) => in_flight.push(one),
            None => {
                parts.put_back(start);
                return false;
            }
        }
        true
    }

    /// Waits for an operation, and executes the thread's parts of it.
    async fn finish(&self, mut job: Job) {
        loop {
            let completed: Vec<InFlight> = job.in_flight.extract_if(.., |one| one.ticket.is_done()).collect();
            for one in completed {
                self.mover.counsel.leave(one.queue, one.room);
                if let Some(parts) = &mut job.parts {
                    self.send_part(parts, one.place, &mut job.in_flight).await;
                }
            }
            let by_thread = match &mut job.parts {
                Some(parts) if job.in_flight.is_empty() => parts.next_for_cpu(),
                Some(parts) => parts.next_for_waiting_thread(),
                None => None,
            };
            if let Some((_, bytes)) = by_thread {
                self.by_core(bytes).await;
            } else if job.in_flight.is_empty() {
                break;
            } else {
                self.wait(&job.in_flight).await;
            }
        }
        self.core.done(job.done);
    }

    /// Waits until one of several descriptors completes.
    async fn wait(&self, in_flight: &[InFlight]) {
        let first = in_flight.iter().min_by_key(|one| one.expected.map(|expected| expected.due()));
        match (self.stream.wait, first) {
            (Wait::Sleep, Some(InFlight { ticket, expected: Some(expected), .. })) => {
                self.sleep(ticket, expected).await
            }
            _ => {
                let tickets: Vec<&PendingWork> = in_flight.iter().map(|one| &one.ticket).collect();
                self.core.wait_any(&tickets, self.stream.wait).await;
            }
        }
    }

    /// Sleeps and polls until a record is written.
    async fn sleep(&self, ticket: &PendingWork, expected: &Expected) {
        let (counsel, wake_up) = (&self.mover.counsel, self.mover.wait.wake_up);
        let mut waiting = counsel.wait();
        while !self.core.look(ticket).await {
            match counsel.nap(&mut waiting, expected, moment(self.core.now())) {
                Some(nap) => {
                    self.core.sleep(stretch(nap) + wake_up).await;
                    counsel.woke(duration(wake_up));
                }
                None if self.core.poll(ticket, SLICE).await => break,
                None => {}
            }
        }
        counsel.arrived(&waiting, expected, moment(self.core.now()));
    }
}
