//! One TCP connection of the target as a state machine: bytes in, bytes out, and jobs for a digest engine.
//!
//! ```text
//! receive ─► Decoder ─► command ─► (R2T ─► H2CData …) ─► Task ─► C2HData, CapsuleResp ─► outgoing
//!                          │            └ digest job ┘     └ digest job ┘
//!                          └ Fabrics, admin ─► Target, Controller
//! ```
//!
//! The connection has no socket, no clock and no thread. Its caller passes bytes and the time in milliseconds, sends
//! what [`Connection::outgoing`] lists, and returns finished jobs with [`Connection::digest_done`].
//!
//! Source: NVMe/TCP Transport 1.1 §3.

mod abort;
mod fatal;
mod flow;
mod fused;
mod output;
mod received;
mod requests;

use crate::aborts::CONNECTION_SLOT;
use crate::command::{Submission, io};
use crate::commands::{Plan, Task};
pub use crate::decoder::DataBuffer;
use crate::decoder::{Decoder, Event};
use crate::digest::Digests;
use crate::engine::{DigestEngine, FinishedJob, JobId, Work};
use crate::limits::{EVENT_REQUESTS, Limits};
use crate::pdu::{FatalError, Receiver};
use crate::stats::Stats;
use crate::status::Status;
use crate::storage::{Piece, StorageResult};
use crate::target::{Connected, Target};
pub use output::Outgoing;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a call may use: the engine of the calling thread, and the time.
#[derive(Debug)]
pub struct Context<'a> {
    /// Where digests are computed.
    pub engine: &'a mut dyn DigestEngine,
    /// The time in milliseconds; it never goes back.
    pub now: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Waiting for ICReq.
    Initial,
    /// ICResp was sent.
    Ready,
    /// C2HTermReq was sent; the connection closes when the host closes it, or at this time.
    Terminating(u64),
    /// The socket is to be closed.
    Closed,
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The host violated the protocol; it got a C2HTermReq.
    Fatal(FatalError),
    /// The host sent H2CTermReq with this FES.
    TerminatedByHost(u16),
    /// No ICReq, or no Connect, came in time.
    NoConnect,
    /// The controller was reset, or has ended.
    ControllerEnded,
}

/// What a command is executed by.
#[derive(Debug)]
enum Executor {
    Connect,
    PropertyGet,
    PropertySet,
    Admin,
    Io(Plan),
    /// The I/O command is under execution: its plan is in [`OpenCommand::task`].
    Task,
}

/// An accepted command.
#[derive(Debug)]
struct Accepted {
    executor: Executor,
    /// Bytes that the host sends.
    from_host: u32,
}

/// The PDU whose header has been received.
#[derive(Debug)]
enum Incoming {
    None,
    IcReq { host_alignment: usize, digests: Digests, most_r2ts: u32 },
    Capsule { command: Submission, verdict: Result<Accepted, Status> },
    Data { tag: u16, len: u32, is_last: bool },
    TermReq { fes: u16 },
}

/// A part of a command's data whose digest is being computed.
#[derive(Clone, Copy, Debug)]
struct PendingPart {
    part: u32,
    offset: u32,
    digest: u32,
}

/// What a command under execution waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaskWait {
    /// Other commands that use its blocks.
    Lock,
    /// The answer of the backend.
    Backend,
    /// The engine.
    Engine,
}

/// What a command of a fused pair knows of the other one.
#[derive(Clone, Copy, Debug)]
struct FusedCommand {
    /// The slot of the other command; `None` while the second one has not come.
    partner: Option<u32>,
    /// All data has arrived.
    is_ready: bool,
}

/// The first command of a fused pair, whose second one has to come next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FirstOfPair {
    None,
    /// It is in this slot.
    Waiting(u32),
    /// It has failed.
    Failed,
}

/// A command that has not completed.
#[derive(Debug)]
struct OpenCommand {
    command: Submission,
    executor: Executor,
    /// Bytes that the host sends.
    from_host: u32,
    /// Bytes that came, or that were asked for by R2T.
    asked: u32,
    /// R2Ts whose data has not completely arrived.
    r2ts: u32,
    /// The command's bytes count in the connection's receive budget.
    is_budgeted: bool,
    /// The command is in the line of those that wait for an R2T.
    is_waiting: bool,
    /// Data whose digest is right or that has none, with its offset.
    pieces: Vec<(u32, Piece)>,
    /// The same for parts below [`SMALL_PART`](crate::limits::SMALL_PART), joined with those before them.
    small_parts: Vec<(u32, Vec<u8>)>,
    /// Data whose digest is being computed.
    pending: Vec<PendingPart>,
    next_part: u32,
    /// The status with which the command ends when all of its data has arrived.
    failure: Option<Status>,
    /// The command under execution. The first command of a fused pair has the task of both.
    task: Option<(TaskWait, Task)>,
    /// The command is one of a fused pair.
    fused: Option<FusedCommand>,
    /// Bytes of the buffers that the execution fills. They count in [`Connection::buffered`] until the command ends.
    buffer_bytes: usize,
    /// The data of a read exists, and its digest is being computed.
    has_reply: bool,
    /// When the capsule was complete, as [`Connection::clock_read`].
    begun: u64,
}

/// The part number of protection information.
const PROTECTION: u32 = u32::MAX - 1;
/// The part number of the data for the host.
const REPLY: u32 = u32::MAX;

/// The place of a command in its connection, used for one command after the other.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    open: Option<Box<OpenCommand>>,
}

/// Completed commands whose memory is kept for the next ones. Source: chosen; it has about 8 KiB.
const SPARE_COMMANDS: usize = 16;

/// An R2T whose data is awaited. Its tag is its index plus 1.
#[derive(Clone, Copy, Debug)]
struct OpenR2t {
    slot: u32,
    /// The command's identifier.
    cid: u16,
    /// The command was aborted. The host may still send the data, which is skipped.
    is_aborted: bool,
    /// The offset of the next byte.
    next: u32,
    /// The offset behind the last byte.
    end: u32,
}

/// One TCP connection of the target.
#[derive(Debug)]
pub struct Connection {
    number: u64,
    target: Arc<Target>,
    local: SocketAddr,
    decoder: Decoder,
    incoming: Incoming,
    phase: Phase,
    ending: Option<Ending>,
    /// ICReq, or Connect, must have come at this time.
    connect_by: u64,
    digests: Digests,
    /// Alignment of data to the host in bytes.
    host_alignment: usize,
    /// R2Ts that the host accepts for one command.
    most_r2ts: u32,
    queue: Option<Connected>,
    sq_head: u32,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Memory for the next commands, so that a command needs no allocation.
    #[allow(clippy::vec_box, reason = "the boxes move between this list and the slots")]
    spare: Vec<Box<OpenCommand>>,
    open_count: u32,
    /// Identifiers of commands that have not completed, one bit each.
    used_ids: Vec<u64>,
    /// Identifiers of waiting Asynchronous Event Requests.
    event_requests: Vec<u16>,
    open_r2ts: Vec<Option<OpenR2t>>,
    /// Open R2Ts of aborted commands.
    aborted_r2ts: usize,
    /// Open R2Ts of other commands.
    active_r2ts: usize,
    /// Slots of commands that wait for an R2T.
    waiting: VecDeque<u32>,
    first_of_pair: FirstOfPair,
    budgeted: u32,
    /// Bytes of the buffers that commands under execution fill.
    buffered: usize,
    output: Outgoing,
    /// Bytes that [`Connection::take_outgoing`] returned and that were not sent.
    taken_output: usize,
    stats: Stats,
    /// Nanoseconds for latencies; without a clock, none are measured.
    clock: Option<fn() -> u64>,
    /// The clock when it was read last: at the beginning and the end of [`Connection::receive`], or when a command
    /// ended.
    clock_read: u64,
    /// Reads that were executed when their capsules came, since the clock was read. Each gets its share of the time
    /// until it is read again, so that a burst of reads needs two readings.
    reads_at_once: u64,
    /// No more commands are taken.
    is_finishing: bool,
    refused_host: Option<String>,
}

impl Connection {
    /// A connection that was accepted at the address `local`.
    #[must_use]
    pub fn new(target: &Arc<Target>, local: SocketAddr, now: u64) -> Connection {
        Connection {
            number: target.next_connection(),
            target: Arc::clone(target),
            local,
            decoder: Decoder::new(Receiver::Controller),
            incoming: Incoming::None,
            phase: Phase::Initial,
            ending: None,
            connect_by: now.saturating_add(target.limits().connect_ms),
            digests: Digests::default(),
            host_alignment: 4,
            most_r2ts: 1,
            queue: None,
            sq_head: 0,
            slots: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            open_count: 0,
            used_ids: Vec::new(),
            event_requests: Vec::with_capacity(EVENT_REQUESTS),
            open_r2ts: Vec::new(),
            aborted_r2ts: 0,
            active_r2ts: 0,
            waiting: VecDeque::new(),
            first_of_pair: FirstOfPair::None,
            budgeted: 0,
            buffered: 0,
            output: Outgoing::default(),
            taken_output: 0,
            stats: Stats::default(),
            clock: None,
            clock_read: 0,
            reads_at_once: 0,
            is_finishing: false,
            refused_host: None,
        }
    }

    /// Measures latencies with a clock of nanoseconds that does not go back.
    pub fn measure_latency(&mut self, clock: fn() -> u64) {
        self.clock = Some(clock);
    }

    /// Takes no more commands: those that arrive from now on get no answer, so that the host sends them again after it
    /// has connected again. Commands that were accepted before still complete.
    pub fn finish(&mut self) {
        self.is_finishing = true;
    }

    /// Returns whether all accepted commands have completed and all replies were sent. The first command of a fused
    /// pair does not count while its second one has not come: it is not executed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let waits_for_second = matches!(self.first_of_pair, FirstOfPair::Waiting(_));
        self.open_count == u32::from(waits_for_second) && self.output.is_empty() && self.taken_output == 0
    }

    /// The digests that the host asked for in ICReq.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Takes the NQN of the host whose Connect was refused because it may not use the subsystem.
    pub fn take_refused_host(&mut self) -> Option<String> {
        self.refused_host.take()
    }

    /// Its number, which [`JobId`]s carry.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The queue that the host connected, if it has.
    #[must_use]
    pub fn queue(&self) -> Option<&Connected> {
        self.queue.as_ref()
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Why it has ended, if it has.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns whether the socket is to be closed now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Returns whether the connection takes more bytes now. It takes none while replies that wait for the host, and
    /// buffers of commands under execution, have too many bytes.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let waiting = self.output.len() + self.taken_output + self.buffered;
        self.phase != Phase::Closed && waiting < self.limits().send_bytes
    }

    fn limits(&self) -> &Limits {
        self.target.limits()
    }

    /// The number of commands that have not completed, without Asynchronous Event Requests.
    #[must_use]
    pub fn open_commands(&self) -> u32 {
        self.open_count
    }

    /// Takes received bytes. Returns how many were taken; the others are to be passed again when
    /// [`Connection::wants_input`] says so. Jobs are prepared only: the caller submits them, best after a burst.
    pub fn receive(&mut self, bytes: &[u8], context: &mut Context<'_>) -> usize {
        let mut input = bytes;
        self.read_clock();
        while self.wants_input() {
            if let Phase::Terminating(_) = self.phase {
                input = &[];
                break;
            }
            match self.decoder.next(&mut input) {
                Ok(None) => break,
                Ok(Some(event)) => {
                    if let Err(error) = self.event(event, context) {
                        self.terminate(error, context.now);
                    }
                }
                Err(error) => self.terminate(error, context.now),
            }
        }
        if self.reads_at_once > 0 {
            self.read_clock();
        }
        bytes.len() - input.len()
    }

    /// Where the caller may read data of the current PDU directly from the socket.
    pub fn data_space(&mut self) -> Option<&mut [u8]> {
        if self.wants_input() { self.decoder.data_space() } else { None }
    }

    /// `count` bytes were read into [`Connection::data_space`].
    ///
    /// # Panics
    /// If the space is smaller.
    pub fn data_filled(&mut self, count: usize, context: &mut Context<'_>) {
        self.decoder.data_filled(count);
        self.receive(&[], context);
    }

    fn read_clock(&mut self) -> u64 {
        let now = self.clock.map_or(0, |clock| clock());
        let since = now.saturating_sub(std::mem::replace(&mut self.clock_read, now));
        let reads = std::mem::take(&mut self.reads_at_once);
        if let Some(share) = since.checked_div(reads) {
            self.stats.count_latencies(io::READ, share, reads);
        }
        now
    }

    /// Takes the place of the current PDU's data out, if at least `least` bytes of it are missing. It must come back
    /// with [`Connection::data_received`] before any other bytes.
    pub fn take_data_space(&mut self, least: usize) -> Option<DataBuffer> {
        if self.wants_input() { self.decoder.take_data_space(least) } else { None }
    }

    /// `count` bytes were read into [`DataBuffer::space`].
    ///
    /// # Panics
    /// If the space is smaller.
    pub fn data_received(&mut self, buffer: DataBuffer, count: usize, context: &mut Context<'_>) {
        // A connection that has ended in the meantime needs no data.
        if self.decoder.put_data_space(buffer) {
            self.data_filled(count, context);
        }
    }

    fn event(&mut self, event: Event, context: &mut Context<'_>) -> Result<(), FatalError> {
        match event {
            Event::Header(layout) => self.header(layout, context.now),
            Event::Whole { data, digest, .. } => match std::mem::replace(&mut self.incoming, Incoming::None) {
                Incoming::None => Ok(()),
                Incoming::IcReq { host_alignment, digests, most_r2ts } => {
                    self.initialise(host_alignment, digests, most_r2ts, context.now);
                    Ok(())
                }
                Incoming::Capsule { command, verdict } => self.capsule(command, verdict, data, digest, context),
                Incoming::Data { tag, len, is_last } => {
                    self.data(tag, len, is_last, data, digest, context);
                    Ok(())
                }
                Incoming::TermReq { fes } => {
                    self.close(Ending::TerminatedByHost(fes));
                    Ok(())
                }
            },
        }
    }

    /// Takes a job that the engine has finished. Jobs of commands that no longer exist are dropped.
    pub fn digest_done(&mut self, job: FinishedJob, context: &mut Context<'_>) {
        match &job.work {
            Work::Protect(work) => self.stats.count_protection(work.is_device_wrong(), job.by),
            work => self.stats.count_digest(work.len(), job.by),
        }
        let Some(index) = self.slot_of(job.id) else { return };
        if let Work::Protect(work) = job.work {
            self.protection_done(index, *work, context);
        } else if job.id.part == REPLY {
            self.reply_digested(index, job);
        } else {
            self.part_digested(index, job, context);
        }
    }

    /// Takes the backend's answer to a request that it had not answered at once, or the news that a command may begin.
    pub fn storage_done(&mut self, id: JobId, result: StorageResult, context: &mut Context<'_>) {
        if id.slot == CONNECTION_SLOT {
            self.take_aborts(context);
            return;
        }
        let Some(index) = self.slot_of(id) else {
            self.target.loops().release(id);
            return;
        };
        let Some(open) = self.open_command(index) else { return };
        let step = match &mut open.task {
            Some((TaskWait::Backend, task)) => task.resume(result),
            // The lock was given to the command.
            Some((TaskWait::Lock, task)) => task.begin(),
            Some((TaskWait::Engine, _)) => return,
            // The connection of an I/O queue has answered an Abort.
            None => return self.abort_answered(index, result.is_ok()),
        };
        self.stepped(index, step, context);
    }

    /// The slot of a job, if its command still exists.
    fn slot_of(&self, id: JobId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize)?;
        let is_current = id.connection == self.number && slot.generation == id.generation && slot.open.is_some();
        is_current.then_some(id.slot)
    }

    /// The command in a slot that has not completed.
    fn open_command(&mut self, index: u32) -> Option<&mut OpenCommand> {
        self.slots.get_mut(index as usize)?.open.as_deref_mut()
    }

    /// Does what depends on time and on other connections: time-outs, resets, asynchronous events.
    pub fn poll(&mut self, now: u64) {
        match self.phase {
            Phase::Closed => return,
            Phase::Terminating(until) => {
                if now >= until {
                    self.phase = Phase::Closed;
                }
                return;
            }
            Phase::Initial | Phase::Ready => {}
        }
        let Some(queue) = &self.queue else {
            if now >= self.connect_by {
                self.close(Ending::NoConnect);
            }
            return;
        };
        queue.controller.check_expiry(now);
        let is_reset = queue.qid > 0 && queue.controller.epoch() != queue.epoch;
        if is_reset || queue.controller.ended().is_some() {
            self.close(Ending::ControllerEnded);
            return;
        }
        self.report_events();
    }

    /// The time at which [`Connection::poll`] has to be called at the latest, if there is one.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        match (self.phase, &self.queue) {
            (Phase::Closed, _) => None,
            (Phase::Terminating(until), _) => Some(until),
            (_, None) => Some(self.connect_by),
            (_, Some(queue)) => queue.controller.expires_at(),
        }
    }

    /// The bytes to send next, in their order; at most `most` slices.
    pub fn outgoing(&self, most: usize) -> impl Iterator<Item = &[u8]> {
        self.output.slices().take(most)
    }

    /// The number of bytes to send.
    #[must_use]
    pub fn outgoing_len(&self) -> usize {
        self.output.len()
    }

    /// Takes all bytes to send, for a caller that sends them while the connection goes on. `spare` has no bytes; its
    /// memory is used for the next ones. The bytes count as waiting until [`Connection::taken_sent`].
    ///
    /// # Panics
    /// If `spare` has bytes.
    pub fn take_outgoing(&mut self, spare: Outgoing) -> Outgoing {
        assert!(spare.is_empty(), "bytes of `spare` would be sent twice");
        self.taken_output += self.output.len();
        std::mem::replace(&mut self.output, spare)
    }

    /// Call before each send of `outgoing`, which came from [`Connection::take_outgoing`]. Replies from a file that has
    /// lost pages get an error instead of data that no host wrote. Returns false if that is not possible: then the
    /// connection is to be closed.
    pub fn check_lost_of(&mut self, outgoing: &mut Outgoing) -> bool {
        !outgoing.has_lost() || self.fail_lost_of(outgoing)
    }

    /// The same before each send of [`Connection::outgoing`].
    pub fn check_lost(&mut self) -> bool {
        !self.output.has_lost() || self.fail_lost()
    }

    /// The kernel could not read bytes of `outgoing`, which came from [`Connection::take_outgoing`]: see
    /// [`Connection::fail_lost`].
    pub fn fail_lost_of(&mut self, outgoing: &mut Outgoing) -> bool {
        outgoing.fail_lost(self.digests, Status::READ_ERROR)
    }

    /// The kernel could not read bytes of [`Connection::outgoing`], because another program has truncated the file in
    /// which they are. Ends the commands whose data they are with an error. Returns false if that is not possible: then
    /// the connection is to be closed.
    pub fn fail_lost(&mut self) -> bool {
        self.output.fail_lost(self.digests, Status::READ_ERROR)
    }

    /// `count` bytes that [`Connection::take_outgoing`] returned were sent.
    pub fn taken_sent(&mut self, count: usize) {
        self.taken_output = self.taken_output.saturating_sub(count);
    }

    /// `count` bytes of [`Connection::outgoing`] were sent.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, count: usize) {
        self.output.sent(count);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.drop_commands();
        self.target.loops().forget(self.number);
        self.drop_aborts();
        if let Some(queue) = &self.queue {
            self.target.disconnected(queue);
        }
    }
}
