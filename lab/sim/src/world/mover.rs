//! Threads whose operations a mover does: on their core, or by a device, or by both, as its policy says.
//!
//! What it decides, `telpher_mover::Counsel` tells, which is the mover's own code; here it is carried out, as a program.

use super::forecast::{SLICE, duration, moment, stretch};
use super::pace::Pace;
use super::program::{Core, Done, Ticket};
use super::{World, descriptors};
use crate::machine::WaitCosts;
use crate::work::{Lane, Moves, Stream, Wait};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use telpher_abi::Descriptor;
use telpher_mover::{DryRun, Expected, Parts, QueueEntry, Retry, Topology};
use telpher_portal::{QueueInfo, QueueMode};

/// The kernel's distances. Source: ACPI, SLIT: 10 for a node itself; the others as firmware commonly tells them.
const DISTANCES: [u32; 3] = [10, 12, 21];

/// Where memory and threads are, as a mover asks for it.
#[derive(Debug)]
struct Map {
    /// By node.
    sockets: Vec<usize>,
    /// Node of the thread that asks.
    here: AtomicU32,
    /// By the first address of a region.
    memory: Mutex<BTreeMap<u64, u32>>,
}

impl Map {
    fn put(&self, address: u64, node: usize) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.insert(address, u32::try_from(node).unwrap_or(u32::MAX));
    }
}

impl Topology for Map {
    fn nodes(&self) -> u32 {
        u32::try_from(self.sockets.len()).unwrap_or(u32::MAX)
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        let socket = |node: u32| self.sockets.get(node as usize);
        DISTANCES[if from == to { 0 } else { 1 + usize::from(socket(from) != socket(to)) }]
    }

    fn of_this_thread(&self) -> Option<u32> {
        // Relaxed: one thread simulates.
        Some(self.here.load(Ordering::Relaxed))
    }

    fn of_memory(&self, address: u64) -> Option<u32> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.range(..=address).next_back().map(|(_, node)| *node)
    }
}

/// One mover: its decisions, its queues, and its map.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) counsel: DryRun,
    lanes: Vec<Lane>,
    map: Arc<Map>,
    retry: Retry,
    wait: WaitCosts,
}

/// One descriptor under way.
struct Flight {
    ticket: Ticket,
    lane: usize,
    room: QueueEntry,
    expected: Option<Expected>,
    /// Which of the places of a shared out operation it has.
    place: usize,
}

/// One operation under way.
struct Job {
    done: Done,
    flights: Vec<Flight>,
    parts: Option<Parts>,
}

impl World {
    /// Adds a thread whose operations a mover does. What [`timeline`](World::timeline) knows it by.
    pub(super) fn add_moving(&mut self, stream: Stream, moves: Moves) -> usize {
        let number = self.add_account(stream);
        let office = match self.movers.iter().find(|(known, _)| *known == moves) {
            Some((_, office)) => Rc::clone(office),
            None => {
                let office = Rc::new(self.office_of(&moves, &self.lanes()));
                self.movers.push((moves, Rc::clone(&office)));
                office
            }
        };
        let (src, dst) = (self.places.add(stream.src), self.places.add(stream.dst));
        office.map.put(src, stream.src.node);
        office.map.put(dst, stream.dst.node);
        self.spawn(stream.core, move |core| async move {
            let core = core.with_library(stream.library).with_way(stream.through).with_walk(stream.walk);
            Moving { core, office, stream, thread: number, src, dst }.run(Pace::new(&stream, number)).await;
        });
        number
    }

    /// All queues of all devices.
    fn lanes(&self) -> Vec<Lane> {
        let of = |(device, dsa): (usize, &super::device::Dsa)| -> Vec<Lane> {
            let queue = |wq: usize| {
                let config = dsa.model.wq_cfg(wq);
                let device = u16::try_from(device).unwrap_or(u16::MAX);
                (config.size() > 0).then_some(Lane { device, wq, shared: !config.dedicated() })
            };
            (0..self.credits[device].len()).filter_map(queue).collect()
        };
        self.devices.iter().enumerate().flat_map(of).collect()
    }

    /// What a client of a queue is told of it.
    pub(crate) fn queue_info(&self, lane: Lane) -> QueueInfo {
        let dsa = &self.devices[usize::from(lane.device)];
        let (config, capabilities) = (dsa.model.wq_cfg(lane.wq), dsa.model.capabilities());
        QueueInfo {
            name: format!("wq{}.{}", lane.device, lane.wq),
            mode: if lane.shared { QueueMode::Shared } else { QueueMode::Dedicated },
            size: config.size().into(),
            max_transfer: 1 << config.max_transfer_shift(),
            max_batch: 1 << config.max_batch_shift(),
            block_on_fault: config.block_on_fault(),
            gen_cap: capabilities.gen_cap,
            operations: dsa.model.operations_of(lane.wq),
            numa_node: u32::try_from(dsa.node).ok(),
        }
    }

    /// A mover over these queues.
    pub(super) fn office_of(&self, moves: &Moves, lanes: &[Lane]) -> Office {
        let there = |lane: &&Lane| usize::from(lane.device) < self.devices.len();
        let lanes: Vec<Lane> = lanes.iter().filter(there).copied().collect();
        let map = Arc::new(Map {
            sockets: self.machine.nodes.iter().map(|node| node.socket).collect(),
            here: AtomicU32::new(0),
            memory: Mutex::default(),
        });
        let policy = moves.policy();
        let topology = Arc::clone(&map) as Arc<dyn Topology>;
        let counsel = DryRun::new(lanes.iter().map(|lane| self.queue_info(*lane)), policy, topology);
        Office { counsel, lanes, map, retry: policy.retry, wait: self.machine.wait }
    }
}

/// A thread and its mover.
struct Moving {
    core: Core,
    office: Rc<Office>,
    stream: Stream,
    thread: usize,
    src: u64,
    dst: u64,
}

impl Moving {
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

    /// Begins an operation; what is left to wait for.
    async fn begin(&self, done: Done) -> Option<Job> {
        let Office { counsel, lanes, map, .. } = &*self.office;
        let Stream { op, .. } = self.stream;
        // Relaxed: one thread simulates.
        map.here.store(u32::try_from(self.core.node()).unwrap_or(u32::MAX), Ordering::Relaxed);
        let mut job = Job { done, flights: Vec::new(), parts: None };
        if !counsel.goes_to_a_device(op, done.bytes) {
            self.by_core(done.bytes).await;
            self.core.done(done);
            return None;
        }
        let whole = self.descriptor(0, done.bytes);
        if let Some(mut parts) = counsel.parts(&whole, done.bytes, self.thread) {
            for place in 0..parts.depth() {
                self.send_part(&mut parts, place, &mut job.flights).await;
            }
            job.parts = Some(parts);
            return Some(job);
        }
        let first = counsel.first(&whole, self.thread);
        for turn in 0..lanes.len() {
            let lane = (first + turn) % lanes.len();
            for _ in 0..=self.office.retry.attempts {
                if let Some(flight) = self.send(lane, 0, done.bytes, 0).await {
                    job.flights.push(flight);
                    return Some(job);
                }
                self.core.busy(self.office.wait.look.max(stretch(self.office.retry.pause))).await;
            }
        }
        // No queue has room: the core is not patient.
        self.by_core(done.bytes).await;
        self.core.done(done);
        None
    }

    /// Sends one descriptor to a queue, if it has room.
    async fn send(&self, lane: usize, start: u64, bytes: u64, place: usize) -> Option<Flight> {
        let counsel = &self.office.counsel;
        let room = counsel.enter(lane)?;
        let at = self.core.now();
        let Some(ticket) = self.core.try_submit(self.office.lanes[lane], self.descriptor(start, bytes)).await else {
            counsel.leave(lane, room);
            return None;
        };
        let expected = (self.stream.wait == Wait::Sleep)
            .then(|| counsel.expect(lane, self.stream.op, bytes, moment(at)))
            .flatten();
        Some(Flight { ticket, lane, room, expected, place })
    }

    /// Sends the next part to the queue of a place; whether there was one and it had room.
    async fn send_part(&self, parts: &mut Parts, place: usize, flights: &mut Vec<Flight>) -> bool {
        let Some((start, bytes)) = parts.next_for_device() else { return false };
        match self.send(parts.queue(place), start, bytes, place).await {
            Some(flight) => flights.push(flight),
            None => {
                parts.put_back(start);
                return false;
            }
        }
        true
    }

    /// Waits for an operation, and does of it what falls to the thread.
    async fn finish(&self, mut job: Job) {
        loop {
            let landed: Vec<Flight> = job.flights.extract_if(.., |flight| flight.ticket.is_done()).collect();
            for flight in landed {
                self.office.counsel.leave(flight.lane, flight.room);
                if let Some(parts) = &mut job.parts {
                    self.send_part(parts, flight.place, &mut job.flights).await;
                }
            }
            let by_thread = match &mut job.parts {
                Some(parts) if job.flights.is_empty() => parts.next_for_cpu(),
                Some(parts) => parts.next_for_waiting_thread(),
                None => None,
            };
            if let Some((_, bytes)) = by_thread {
                self.by_core(bytes).await;
            } else if job.flights.is_empty() {
                break;
            } else {
                self.wait(&job.flights).await;
            }
        }
        self.core.done(job.done);
    }

    /// Waits until one of several has landed.
    async fn wait(&self, flights: &[Flight]) {
        let first = flights.iter().min_by_key(|flight| flight.expected.map(|expected| expected.due()));
        match (self.stream.wait, first) {
            (Wait::Sleep, Some(Flight { ticket, expected: Some(expected), .. })) => self.sleep(ticket, expected).await,
            _ => {
                let tickets: Vec<&Ticket> = flights.iter().map(|flight| &flight.ticket).collect();
                self.core.wait_any(&tickets, self.stream.wait).await;
            }
        }
    }

    /// Sleeps and looks until a record is there.
    async fn sleep(&self, ticket: &Ticket, expected: &Expected) {
        let (counsel, wake_up) = (&self.office.counsel, self.office.wait.wake_up);
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
