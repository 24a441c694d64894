//! A thread that keeps commands in flight on some I/O queues.

use super::error::LoadError;
use super::options::End;
use super::plan::{Kind, Plan, Work};
use super::result::{Counts, Latencies};
use super::socket::{HostSocket, READ_BYTES, unexpected};
use crate::command::{Completion, Submission, io};
use crate::initiator::requests;
use crate::initiator::{HostEvent, Transfer};
use crate::status::Status;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the time-outs of commands are checked.
const CHECK: Duration = Duration::from_millis(50);
/// Bytes that one connection may read before others get their turn.
const TURN: usize = 1 << 20;
/// How often a write is sent whose data arrives damaged.
const MOST_ATTEMPTS: u8 = 8;

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    work: Work,
    since: Instant,
    attempts: u8,
}

/// An I/O queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) number: u16,
    pub(super) socket: HostSocket,
    pub(super) plan: Plan,
    pub(super) nsid: u32,
    pub(super) capsule_bytes: u32,
    /// By the command's identifier.
    sent: Vec<Option<Sent>>,
    free_ids: Vec<u16>,
    /// Commands that were sent in this phase, without those that read back.
    started: u64,
    waits_for_space: bool,
    is_done: bool,
    error: Option<LoadError>,
}

/// What all threads of a load share.
#[derive(Debug)]
pub(super) struct Shared {
    /// All threads begin to measure together.
    pub(super) start: Barrier,
    /// An admin queue has failed.
    pub(super) is_stopping: AtomicBool,
    pub(super) patience: Duration,
    pub(super) end: End,
    pub(super) fill: bool,
}

/// What a thread has found.
#[derive(Debug)]
pub(super) struct WorkerResult {
    pub(super) counts: Counts,
    pub(super) latencies: Latencies,
    pub(super) cpu: Duration,
    pub(super) begin: Instant,
    pub(super) end: Instant,
    pub(super) errors: Vec<(u16, LoadError)>,
}

impl Queue {
    /// A queue that keeps `depth` commands in flight.
    pub(super) fn new(number: u16, socket: HostSocket, plan: Plan, nsid: u32, capsule_bytes: u32, depth: u16) -> Queue {
        Queue {
            number,
            socket,
            plan,
            nsid,
            capsule_bytes,
            sent: vec![None; depth.into()],
            free_ids: (0..depth).rev().collect(),
            started: 0,
            waits_for_space: false,
            is_done: false,
            error: None,
        }
    }

    fn is_active(&self) -> bool {
        !self.is_done && self.error.is_none()
    }

    /// Sends commands until the queue is full. After the end, only what was written is read back.
    fn fill(&mut self, limit: u64, is_ending: bool) -> Result<(), LoadError> {
        while let Some(&cid) = self.free_ids.last() {
            let may_start = !is_ending && self.started < limit;
            let work = match self.plan.next_read_back() {
                Some(work) => work,
                None if may_start => {
                    let Some(work) = self.plan.next() else { break };
                    self.started += 1;
                    work
                }
                None => break,
            };
            self.free_ids.pop();
            self.send(cid, Sent { work, since: Instant::now(), attempts: 1 });
        }
        self.is_done = self.free_ids.len() == self.sent.len();
        self.waits_for_space = !self.socket.flush()?;
        Ok(())
    }

    fn send(&mut self, cid: u16, sent: Sent) {
        let work = sent.work;
        self.sent[usize::from(cid)] = Some(sent);
        let blocks = |opcode| requests::blocks(opcode, cid, self.nsid, work.first, work.blocks);
        let (command, transfer) = match work.kind {
            Kind::Read => (blocks(io::READ), Transfer::ToHost(work.blocks * self.plan.block_bytes())),
            Kind::Write => {
                let data = self.plan.data(&work);
                let fits = data.len() <= self.capsule_bytes as usize;
                (blocks(io::WRITE), if fits { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) })
            }
            Kind::Flush => (Submission::new(io::FLUSH, cid, self.nsid), Transfer::None),
        };
        self.socket.host().send(command, transfer);
    }

    fn completed(
        &mut self,
        completion: Completion,
        data: &[u8],
        is_intact: bool,
        totals: &mut (Counts, Latencies),
    ) -> Result<(), LoadError> {
        let cid = completion.cid.get();
        let sent = self.sent.get_mut(usize::from(cid)).and_then(Option::take);
        let Some(Sent { work, since, attempts }) = sent else {
            return Err(LoadError::Unusable(format!("the target completed command {cid}, which was not sent")));
        };
        let (counts, latencies) = totals;
        let status = completion.status();
        if !status.is_success() {
            let is_damaged = status == Status::TRANSIENT_TRANSPORT_ERROR && work.kind == Kind::Write;
            if is_damaged && attempts < MOST_ATTEMPTS {
                counts.repeated_writes += 1;
                self.send(cid, Sent { work, since, attempts: attempts + 1 });
                return Ok(());
            }
            return Err(LoadError::Status { what: name(work.kind), status });
        }
        if !is_intact {
            return Err(LoadError::Damaged { first: work.first, blocks: work.blocks });
        }
        latencies.record(since.elapsed());
        let bytes = u64::from(work.blocks) * u64::from(self.plan.block_bytes());
        match work.kind {
            Kind::Read => (counts.reads, counts.bytes_read) = (counts.reads + 1, counts.bytes_read + bytes),
            Kind::Write => (counts.writes, counts.bytes_written) = (counts.writes + 1, counts.bytes_written + bytes),
            Kind::Flush => counts.flushes += 1,
        }
        let checked = self.plan.finished(work, data)?;
        counts.verified_blocks += checked.verified;
        counts.unknown_blocks += checked.unknown;
        self.free_ids.push(cid);
        Ok(())
    }

    /// Takes what has arrived, for at most one turn.
    fn receive(&mut self, buffer: &mut [u8], totals: &mut (Counts, Latencies)) -> Result<(), LoadError> {
        let mut taken = 0;
        while taken < TURN {
            let count = self.socket.read(buffer)?;
            while let Some(event) = self.socket.host().take_event() {
                let HostEvent::Completed { completion, data, is_intact, .. } = event else {
                    return Err(unexpected(&event));
                };
                self.completed(completion, &data, is_intact, totals)?;
            }
            // A short read has emptied the socket.
            if count < buffer.len() {
                break;
            }
            taken += count;
        }
        Ok(())
    }

    /// The error if a command is open for too long.
    fn check_patience(&self, now: Instant, patience: Duration) -> Result<(), LoadError> {
        let is_late = |sent: &&Sent| now.saturating_duration_since(sent.since) > patience;
        match self.sent.iter().flatten().find(is_late) {
            Some(sent) => Err(LoadError::Late { what: name(sent.work.kind), patience }),
            None => Ok(()),
        }
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "a Read",
        Kind::Write => "a Write",
        Kind::Flush => "a Flush",
    }
}

/// The CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Runs a load's commands on these queues.
pub(super) fn run(mut queues: Vec<Queue>, shared: &Shared) -> Result<WorkerResult, LoadError> {
    let mut totals = <(Counts, Latencies)>::default();
    let filled = if shared.fill { drive(&mut queues, shared, End::Commands(u64::MAX), &mut totals) } else { Ok(()) };
    for queue in &mut queues {
        queue.plan.end_filling();
        (queue.started, queue.is_done) = (0, false);
    }
    totals = <(Counts, Latencies)>::default();
    // All threads come here exactly once, also those whose connections have ended.
    shared.start.wait();
    let (begin, cpu) = (Instant::now(), thread_cpu());
    filled?;
    drive(&mut queues, shared, shared.end, &mut totals)?;
    let (counts, latencies) = totals;
    let cpu = thread_cpu().saturating_sub(cpu);
    let errors = queues.into_iter().filter_map(|queue| queue.error.map(|error| (queue.number, error))).collect();
    Ok(WorkerResult { counts, latencies, cpu, begin, end: Instant::now(), errors })
}

/// Keeps the queues busy until the end, and until all commands have completed.
fn drive(queues: &mut [Queue], shared: &Shared, end: End, totals: &mut (Counts, Latencies)) -> Result<(), LoadError> {
    let (deadline, limit) = match end {
        End::After(time) => (Instant::now().checked_add(time), u64::MAX),
        End::Commands(limit) => (None, limit),
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut events = Vec::with_capacity(64);
    for (index, queue) in (0..).zip(&mut *queues).filter(|(_, queue)| queue.error.is_none()) {
        epoll::add(&epoll, queue.socket.socket(), EventData::new_u64(index), EventFlags::IN)
            .map_err(std::io::Error::from)?;
        queue.error = queue.fill(limit, false).err();
        update(&epoll, index, queue, false);
    }
    let mut next_check = Instant::now() + CHECK;
    while queues.iter().any(Queue::is_active) {
        events.clear();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(CHECK.subsec_nanos()) };
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let now = Instant::now();
        let is_stopping = shared.is_stopping.load(Ordering::Relaxed);
        let is_ending = is_stopping || deadline.is_some_and(|deadline| now >= deadline);
        for event in &events {
            let index = event.data.u64();
            let Some(queue) = usize::try_from(index).ok().and_then(|index| queues.get_mut(index)) else { continue };
            let waited = queue.waits_for_space;
            let result = queue.receive(&mut buffer, totals).and_then(|()| queue.fill(limit, is_ending));
            queue.error = result.err();
            update(&epoll, index, queue, waited);
        }
        if now < next_check {
            continue;
        }
        next_check = now + CHECK;
        for (index, queue) in (0..).zip(&mut *queues).filter(|(_, queue)| queue.is_active()) {
            queue.error = queue.check_patience(now, shared.patience).err();
            update(&epoll, index, queue, queue.waits_for_space);
        }
    }
    Ok(())
}

/// Tells epoll what a queue waits for.
fn update(epoll: &OwnedFd, index: u64, queue: &Queue, waited: bool) {
    if !queue.is_active() {
        let _ = epoll::delete(epoll, queue.socket.socket());
    } else if queue.waits_for_space != waited {
        let interest = if queue.waits_for_space { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ = epoll::modify(epoll, queue.socket.socket(), EventData::new_u64(index), interest);
    }
}
