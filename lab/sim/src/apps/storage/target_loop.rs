//! A core of the target: one loop over its connections, in the order of `telpher_nvmf::Server`.
//!
//! Calls of a connection and of the engine take no simulated time. The core is busy afterwards, for the work that they
//! began, before the results become visible.

use super::disks::Disks;
use super::host_queue::HostQueue;
use super::measurement::{Shared, Tally};
use super::parameters::{Storage, Times};
use crate::apps::device_queue::DeviceQueue;
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::world::Core;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use telpher_abi::Opcode;
use telpher_nvmf::engine::{DoneBy, FinishedJob, JobId};
use telpher_nvmf::{Connection, Context, DigestEngine};

/// Slices of one send. Source: `telpher_nvmf::Server`.
const SLICES: usize = 128;
/// Shortest interval at which a core without other work polls for a device's digests: epoll is part of each round.
const SHORTEST_ROUND: Picos = Picos::from_nanos(100);
/// Interval between the first commands of a core. Source: chosen, so that they do not all arrive at once.
const APART: u64 = 100;

/// An I/O queue of an initiator: the target's connection and the initiator's side.
pub(super) struct QueuePair {
    pub(super) connection: Connection,
    pub(super) host: HostQueue,
    /// The disk that it reads, and the link that carries its replies.
    pub(super) disk: usize,
    pub(super) link: usize,
    /// Reads in flight.
    pub(super) reads: u32,
}

/// A core and its queues.
pub(super) struct TargetLoop {
    app: Rc<Storage>,
    times: Times,
    shared: Rc<RefCell<Shared>>,
    disks: Arc<Disks>,
    pairs: Vec<QueuePair>,
    /// The position in `pairs` of each connection, by the connection's number.
    numbers: BTreeMap<u64, usize>,
    engine: Box<dyn DigestEngine>,
    device: Option<DeviceQueue>,
    /// Requests and answers of disks that will arrive, by time; equal times in the order of insertion.
    requests: BTreeMap<(Picos, u64), usize>,
    answers: BTreeMap<(Picos, u64), JobId>,
    inserted: u64,
}

impl TargetLoop {
    pub(super) fn new(
        app: Rc<Storage>,
        shared: Rc<RefCell<Shared>>,
        disks: Arc<Disks>,
        pairs: Vec<QueuePair>,
        engine: Box<dyn DigestEngine>,
        device: Option<DeviceQueue>,
    ) -> TargetLoop {
        let numbers = pairs.iter().enumerate().map(|(index, pair)| (pair.connection.number(), index)).collect();
        let times = app.times();
        let (requests, answers) = (BTreeMap::new(), BTreeMap::new());
        TargetLoop { app, times, shared, disks, pairs, numbers, engine, device, requests, answers, inserted: 0 }
    }

    /// Serves until enough reads are done, or none can ever come.
    pub(super) async fn run(mut self, core: Core) {
        let most = self.pairs.iter().map(|pair| pair.reads).max().unwrap_or(0);
        for number in 0..most {
            for index in 0..self.pairs.len() {
                if number < self.pairs[index].reads {
                    self.inserted += 1;
                    self.requests.insert((Picos::from_nanos(self.inserted * APART), self.inserted), index);
                }
            }
        }
        let all = self.app.reads + self.app.reads / 2;
        while self.shared.borrow().done < all {
            let received = self.receive(&core).await;
            let answered = self.answer(&core).await;
            let finished = self.finish_jobs(&core).await;
            if received || answered || finished {
                continue;
            }
            let next = [self.requests.keys().next(), self.answers.keys().next()].into_iter().flatten().min();
            let round = (self.engine.pending() > 0).then(|| self.times.call.max(SHORTEST_ROUND));
            let next = next.map(|(at, _)| at.since(core.now()));
            let Some(idle) = [round, next].into_iter().flatten().min() else { return };
            core.sleep(idle).await;
        }
    }

    fn tally(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.shared.borrow_mut().tally);
    }

    async fn works(&self, core: &Core, time: Picos) {
        self.tally(|tally| tally.busy += time);
        core.busy(time).await;
    }

    /// Receives the commands that have arrived, one connection after the other.
    async fn receive(&mut self, core: &Core) -> bool {
        let mut ready: Vec<(usize, u64)> = Vec::new();
        while let Some(entry) = self.requests.first_entry()
            && entry.key().0 <= core.now()
        {
            let ((at, _), index) = entry.remove_entry();
            self.pairs[index].host.request(at);
            match ready.iter_mut().find(|(ready, _)| *ready == index) {
                Some((_, commands)) => *commands += 1,
                None => ready.push((index, 1)),
            }
        }
        if ready.is_empty() {
            return false;
        }
        // epoll.
        self.tally(|tally| tally.calls += 1);
        self.works(core, self.times.call).await;
        for (index, commands) in ready {
            let accepted = self.deliver(index);
            self.tally(|tally| tally.calls += 1);
            self.works(core, self.times.call + self.times.command * commands).await;
            self.start_reads(accepted, core.now());
        }
        true
    }

    /// Passes received bytes to a connection, as far as it takes them. Returns the reads that it accepted.
    fn deliver(&mut self, index: usize) -> Vec<JobId> {
        let QueuePair { connection, host, .. } = &mut self.pairs[index];
        host.deliver(connection, &mut Context { engine: &mut *self.engine, now: 0 });
        // At once: other cores use the same backend.
        self.disks.take_accepted()
    }

    /// Passes accepted reads to the disks.
    fn start_reads(&mut self, accepted: Vec<JobId>, now: Picos) {
        for id in accepted {
            let Some(&index) = self.numbers.get(&id.connection) else { continue };
            let at = {
                let idle = &mut self.shared.borrow_mut().disks[self.pairs[index].disk];
                *idle = (*idle).max(now) + self.times.disk;
                *idle + self.times.disk_latency
            };
            self.inserted += 1;
            self.answers.insert((at, self.inserted), id);
        }
    }

    /// Returns the disks' answers to their connections, and sends the replies that need no digest.
    async fn answer(&mut self, core: &Core) -> bool {
        let mut touched = Vec::new();
        while let Some(entry) = self.answers.first_entry()
            && entry.key().0 <= core.now()
        {
            let id = entry.remove();
            let Some(&index) = self.numbers.get(&id.connection) else { continue };
            let mut context = Context { engine: &mut *self.engine, now: 0 };
            self.pairs[index].connection.storage_done(id, self.disks.answer(), &mut context);
            if touched.last() != Some(&index) {
                touched.push(index);
            }
        }
        let has_answers = !touched.is_empty();
        self.send_to(core, touched).await;
        has_answers
    }

    /// Submits digest jobs, returns finished ones to their connections, and sends the replies.
    async fn finish_jobs(&mut self, core: &Core) -> bool {
        let mut touched = Vec::new();
        let mut finished = Vec::new();
        loop {
            self.engine.submit();
            self.submit(core).await;
            self.engine.completed(&mut finished);
            if finished.is_empty() {
                break;
            }
            for job in finished.drain(..) {
                let Some(&index) = self.numbers.get(&job.id.connection) else { continue };
                self.charge(core, &job).await;
                let mut context = Context { engine: &mut *self.engine, now: 0 };
                self.pairs[index].connection.digest_done(job, &mut context);
                if touched.last() != Some(&index) {
                    touched.push(index);
                }
            }
        }
        let has_finished = !touched.is_empty();
        self.send_to(core, touched).await;
        has_finished
    }

    /// Submits to the device what the engine has offered, and executes what the device has done.
    async fn submit(&mut self, core: &Core) {
        let Some(device) = &mut self.device else { return };
        let start = core.now();
        let (submissions, descriptors) = device.submit(core).await;
        core.busy(self.times.offload * descriptors).await;
        device.look();
        let time = core.now().since(start);
        self.tally(|tally| {
            tally.submissions += submissions;
            tally.submitted += descriptors;
            tally.busy += time;
            tally.digesting += time;
        });
    }

    /// Charges the time of a digest that the core has computed.
    async fn charge(&self, core: &Core, job: &FinishedJob) {
        match job.by {
            DoneBy::Device => return self.tally(|tally| tally.by_device += 1),
            DoneBy::Cpu => self.tally(|tally| tally.by_core += 1),
            DoneBy::Fallback(_) => self.tally(|tally| tally.fallbacks += 1),
        }
        let start = core.now();
        // Disks write so much that the data is evicted before its turn comes.
        let there = BufferPlacement { lines: LineLocation::Memory, ..BufferPlacement::on(core.node()) };
        core.software(Opcode::CrcGeneration, job.work.len() as u64, there, there).await;
        core.busy(self.times.checksum).await;
        let time = core.now().since(start);
        self.tally(|tally| {
            tally.busy += time;
            tally.digesting += time;
        });
    }

    /// Sends what waits in these connections.
    async fn send_to(&mut self, core: &Core, indices: Vec<usize>) {
        for index in indices {
            loop {
                while self.pairs[index].connection.outgoing_len() > 0 {
                    self.send(core, index).await;
                }
                // A connection takes no commands while too many replies wait.
                let accepted = self.deliver(index);
                if accepted.is_empty() {
                    break;
                }
                self.start_reads(accepted, core.now());
            }
        }
    }

    /// One send: the replies of a connection, at most as many slices as a call takes.
    async fn send(&mut self, core: &Core, index: usize) {
        let QueuePair { connection, host, .. } = &mut self.pairs[index];
        let mut bytes = 0;
        // The reads that end, and the bytes up to the end of each of them.
        let mut ended = Vec::new();
        for slice in connection.outgoing(SLICES) {
            bytes += slice.len();
            ended.extend(host.receive(slice).into_iter().map(|requested| (requested, bytes)));
        }
        connection.sent(bytes);
        let wrong = host.take_wrong();
        #[allow(clippy::cast_precision_loss, reason = "bytes of a send")]
        let bytes_ns = bytes as f64 / 1024.0 * self.times.send_kib;
        let time = self.times.call + self.times.send * ended.len() as u64 + Picos::from_nanos_f64(bytes_ns);
        self.works(core, time).await;
        let half = self.app.reads / 2;
        let number = self.pairs[index].link;
        let shared = &mut *self.shared.borrow_mut();
        shared.wrong += wrong;
        shared.tally.sends += 1;
        shared.tally.calls += 1;
        let begin = shared.links[number].idle.max(core.now());
        #[allow(clippy::cast_precision_loss, reason = "bytes of a send")]
        let after = |bytes: usize| begin + Picos::from_nanos_f64(bytes as f64 / self.times.link_gb_s);
        for (requested, bytes) in ended {
            let arrived = after(bytes);
            let link = &mut shared.links[number];
            (link.idle, link.until, link.replies) = (arrived, arrived, link.replies + 1);
            shared.done += 1;
            shared.tally.replies += 1;
            shared.tally.latency += arrived.since(requested);
            shared.until = core.now();
            if shared.done == half {
                shared.begin(core.now());
            }
            self.inserted += 1;
            self.requests.insert((arrived + self.times.initiator, self.inserted), index);
        }
        shared.links[number].idle = after(bytes);
    }
}

impl Drop for TargetLoop {
    fn drop(&mut self) {
        // The engine's channel waits for its descriptors in flight.
        if let Some(device) = &self.device {
            device.gate.open();
        }
    }
}
