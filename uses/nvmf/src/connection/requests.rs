//! From commands with all their data to replies.

use super::{Connection, Context, Executor, PROTECTION, Phase, REPLY, TaskWait};
use crate::command::{Completion, Submission, admin};
use crate::commands::{Step, Task};
use crate::controller::Answer;
use crate::digest::digest;
use crate::engine::{DoneBy, FinishedJob, Job, JobId, Segment, Segments, Work};
use crate::pdu::{self, CapsuleResp, DataHeader, Kind, LAST, SUCCESS};
use crate::protection::ProtectionWork;
use crate::status::Status;
use crate::storage::{Piece, StorageResult};
use crate::target::host_name;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

impl Connection {
    /// Executes a command whose data is complete.
    pub(super) fn execute(&mut self, index: u32, context: &mut Context<'_>) {
        let generation = self.slots[index as usize].generation;
        let id = JobId { connection: self.number, slot: index, generation, part: 0 };
        let Some(open) = self.open_command(index) else { return };
        if open.fused.is_some() {
            self.fused_ready(index, context);
            return;
        }
        let data = open.take_data();
        let command = open.command;
        let answer = match &open.executor {
            Executor::Io(_) => {
                if let Executor::Io(plan) = std::mem::replace(&mut open.executor, Executor::Task) {
                    self.start(index, Task::new(plan, id, data, None), context);
                }
                return;
            }
            // The execution begins once.
            Executor::Task => return,
            Executor::Connect => self.connect(&command, &bytes_of(&data), context.now),
            Executor::PropertyGet => self.property(&command, None, context.now),
            Executor::PropertySet => self.property(&command, Some(command.long(12)), context.now),
            Executor::Admin if command.opcode == admin::ABORT => return self.abort(index, &command),
            Executor::Admin => self.admin(&command),
        };
        self.answer(index, answer);
    }

    /// Begins an I/O command as soon as the range lock allows it.
    pub(super) fn start(&mut self, index: u32, task: Task, context: &mut Context<'_>) {
        let Some(open) = self.slots.get_mut(index as usize).and_then(|slot| slot.open.as_deref_mut()) else { return };
        // The backend may answer many requests late, so their buffers count before the requests are started.
        open.buffer_bytes = task.buffer_bytes();
        self.buffered += open.buffer_bytes;
        let (_, task) = open.task.insert((TaskWait::Lock, task));
        if task.lock(self.target.loops()) {
            let step = task.begin();
            self.stepped(index, step, context);
        }
    }

    fn connect(&mut self, command: &Submission, data: &[u8], now: u64) -> Answer {
        match self.target.connect(command, data, now) {
            Ok(queue) => {
                let id = queue.controller.id();
                // The queue's head starts at 0, and Connect is its first command. FFFFh tells the host that flow
                // control is off (NVMe over Fabrics 1.1 §3.3).
                self.sq_head = if queue.flow_control { 1 % queue.entries } else { u16::MAX.into() };
                if queue.qid > 0 {
                    queue.controller.aborts().connected(queue.qid, self.number);
                }
                self.queue = Some(queue);
                Answer::result(id.into())
            }
            Err(answer) => {
                if answer.status == Status::INVALID_HOST.do_not_retry() {
                    self.refused_host = host_name(data);
                }
                answer
            }
        }
    }

    fn property(&mut self, command: &Submission, value: Option<u64>, now: u64) -> Answer {
        let Some(queue) = &self.queue else { return Status::SEQUENCE_ERROR.into() };
        let [attributes, ..] = command.dword(10).to_le_bytes();
        let is_long = match attributes & 7 {
            0 => false,
            1 => true,
            _ => return Status::INVALID_FIELD.do_not_retry().into(),
        };
        let offset = command.dword(11);
        let Some(value) = value else { return queue.controller.get_property(offset, is_long) };
        let answer = queue.controller.set_property(offset, is_long, value, now);
        if !queue.controller.is_ready() {
            // A reset drops the waiting requests without an answer.
            for cid in std::mem::take(&mut self.event_requests) {
                self.set_used(cid, false);
            }
            // The I/O queues end, also those that other loops serve.
            self.target.loops().target_changed();
        }
        answer
    }

    fn admin(&mut self, command: &Submission) -> Answer {
        let Some(queue) = &self.queue else { return Status::SEQUENCE_ERROR.into() };
        queue.controller.admin(command, self.local)
    }

    /// Answers a Fabrics or admin command.
    pub(super) fn answer(&mut self, index: u32, answer: Answer) {
        let Some(open) = self.open_command(index) else { return };
        let (cid, len) = (open.command.cid.get(), open.command.sgl_length.get() as usize);
        self.free_slot(index, answer.status);
        match answer.data {
            Some(mut data) if answer.status.is_success() && len > 0 => {
                // The host gets as many bytes as it asked for: Linux takes short data for an error.
                data.resize(len, 0);
                let value = self.digests.data.then(|| digest(&data));
                self.send_data(cid, Segments::from([Segment::whole(data)]), value, answer.result);
            }
            _ => self.respond(cid, answer.status, answer.result),
        }
        self.report_events();
    }

    /// Answers a read that was executed when its capsule came.
    pub(super) fn answer_read(&mut self, command: &Submission, result: StorageResult, context: &mut Context<'_>) {
        let cid = command.cid.get();
        let (mut digest, mut result) = (None, result);
        if let (true, Ok(segments)) = (self.digests.data, &result) {
            digest = Some(context.engine.digest_now(segments));
            self.stats.count_digest(segments.iter().map(Segment::len).sum(), DoneBy::Cpu);
            // The digest of lost pages is that of zeroes.
            if !segments.iter().all(Segment::has_all_pages) {
                result = Err(Status::READ_ERROR);
            }
        }
        let status = result.as_ref().err().copied().unwrap_or(Status::SUCCESS);
        self.stats.completed_io += 1;
        self.reads_at_once += u64::from(self.clock.is_some() && status.is_success());
        match result {
            Ok(segments) => self.send_data(cid, segments, digest, 0),
            Err(status) => self.respond(cid, status, 0),
        }
    }

    /// Goes on after a step of an I/O command.
    pub(super) fn stepped(&mut self, index: u32, step: Step, context: &mut Context<'_>) {
        let (number, generation) = (self.number, self.slots[index as usize].generation);
        let wants_digest = self.digests.data;
        let Some(open) = self.open_command(index) else { return };
        let Some((wait, task)) = &mut open.task else { return };
        let result = match step {
            Step::Ended(result) => result,
            Step::Waiting => {
                *wait = TaskWait::Backend;
                return;
            }
            Step::Yielding => {
                *wait = TaskWait::Backend;
                let id = JobId { connection: number, slot: index, generation, part: 0 };
                self.target.loops().answer(id, Ok(Segments::new()));
                return;
            }
            Step::Computing(work) => {
                *wait = TaskWait::Engine;
                let id = JobId { connection: number, slot: index, generation, part: PROTECTION };
                context.engine.prepare(Job { id, work: Work::Protect(Box::new(work)) });
                return;
            }
        };
        if open.fused.is_some() {
            let last = result.map_or_else(|status| status, |_| Status::SUCCESS);
            let statuses = task.pair_statuses(last);
            self.pair_ended(index, statuses);
            return;
        }
        let cid = open.command.cid.get();
        match result {
            Ok(segments) if task.to_host() > 0 => {
                if wants_digest {
                    open.has_reply = true;
                    let id = JobId { connection: number, slot: index, generation, part: REPLY };
                    context.engine.prepare(Job { id, work: Work::Digest(segments.into_vec()) });
                } else {
                    self.free_slot(index, Status::SUCCESS);
                    self.send_data(cid, segments, None, 0);
                }
            }
            Ok(_) => {
                self.free_slot(index, Status::SUCCESS);
                self.respond(cid, Status::SUCCESS, 0);
            }
            Err(status) => {
                self.stats.protection_errors += u64::from(status.is_protection_error());
                self.free_slot(index, status);
                self.respond(cid, status, 0);
            }
        }
    }

    /// Goes on with a command whose tuples were inserted or checked.
    pub(super) fn protection_done(&mut self, index: u32, work: ProtectionWork, context: &mut Context<'_>) {
        if let Some((_, task)) = self.open_command(index).and_then(|open| open.task.as_mut()) {
            let step = task.computed(work);
            self.stepped(index, step, context);
        }
    }

    pub(super) fn reply_digested(&mut self, index: u32, job: FinishedJob) {
        let Some(open) = self.open_command(index) else { return };
        let cid = open.command.cid.get();
        let Work::Digest(segments) = job.work else { return };
        // The digest of lost pages is that of zeroes.
        if segments.iter().all(Segment::has_all_pages) {
            self.free_slot(index, Status::SUCCESS);
            self.send_data(cid, segments.into(), Some(job.digest), 0);
        } else {
            self.free_slot(index, Status::READ_ERROR);
            self.respond(cid, Status::READ_ERROR, 0);
        }
    }

    /// Sends the data of a successful command in one C2HData, and its response.
    fn send_data(&mut self, cid: u16, segments: Segments, digest: Option<u32>, result: u64) {
        let len: usize = segments.iter().map(|segment| segment.len()).sum();
        self.stats.bytes_to_host += len as u64;
        // The flag replaces the response only if the host needs no queue head, and there is no result.
        let has_flow_control = self.queue.as_ref().is_none_or(|queue| queue.flow_control);
        let needs_response = has_flow_control || result != 0;
        let header = DataHeader {
            common: pdu::blank(),
            cccid: U16::new(cid),
            ttag: U16::ZERO,
            datao: U32::ZERO,
            datal: U32::new(u32::try_from(len).expect("at most a transfer")),
            reserved: U32::ZERO,
        };
        let flags = LAST | if needs_response { 0 } else { SUCCESS };
        let (digests, alignment) = (self.digests, self.host_alignment);
        self.output.push_pdu(Kind::C2hData, flags, header.as_bytes(), len, digests, alignment);
        for segment in segments {
            self.output.push_segment(segment, needs_response);
        }
        if let Some(digest) = digest {
            self.output.push(&digest.to_le_bytes());
        }
        if needs_response {
            self.respond(cid, Status::SUCCESS, result);
        }
    }

    /// Advances the head of the submission queue by one command. Without flow control it is not used, and 0.
    pub(super) fn advance_head(&mut self) {
        if let Some(queue) = &self.queue {
            self.sq_head = if queue.flow_control { (self.sq_head + 1) % queue.entries } else { 0 };
        }
    }

    /// Sends a response.
    pub(super) fn respond(&mut self, cid: u16, status: Status, result: u64) {
        if !status.is_success() {
            self.stats.failed_commands += 1;
        }
        let head = u16::try_from(self.sq_head).unwrap_or(0);
        let response = CapsuleResp {
            common: pdu::blank(),
            completion: Completion {
                result: U64::new(result),
                sq_head: U16::new(head),
                sq_id: U16::ZERO,
                cid: U16::new(cid),
                status: U16::new(status.word()),
            },
        };
        self.output.push_pdu(Kind::CapsuleResp, 0, response.as_bytes(), 0, self.digests, 4);
    }

    /// Answers waiting Asynchronous Event Requests, one for each event.
    pub(super) fn report_events(&mut self) {
        if self.phase != Phase::Ready {
            return;
        }
        while let (Some(&cid), Some(queue)) = (self.event_requests.first(), &self.queue) {
            let Some(event) = queue.controller.take_event() else { return };
            self.event_requests.remove(0);
            self.set_used(cid, false);
            self.respond(cid, Status::SUCCESS, u64::from(event as u32));
        }
    }
}

/// The bytes of all pieces, in their order.
fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(Piece::slices).flatten().copied().collect()
}
