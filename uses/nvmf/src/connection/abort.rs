//! Abort: ends a command that has had no effect.
//!
//! | the command | |
//! |---|---|
//! | waits for its turn to get an R2T | aborted |
//! | waits for data that an R2T asked for | aborted; the host may still send the data, which is skipped |
//! | its digests are being computed, or its tuples for the backend | aborted; the engine returns the buffers later |
//! | is the first of a fused pair, or a pair waits for data or for its blocks | aborted, and the other one ends, too |
//! | waits for another one that must be alone on its blocks | aborted |
//! | waits in a backend that has not begun it, and takes it back | aborted |
//! | is being executed, or its data is being sent | not aborted |
//! | an Asynchronous Event Request | aborted |
//! | any other admin command, or no such command | not aborted: it ends at once |
//!
//! The tag of an R2T is not used again until the host has sent its data. A host may know that the command has ended,
//! and never send it, so these tags are limited to [`MOST_DRAINING_R2TS`] of a connection.
//!
//! Source: NVMe Base 2.0 §5.1.

use super::{Connection, Context, Executor, OpenCommand, Slot, TaskWait};
use crate::command::{Submission, admin};
use crate::controller::Answer;
use crate::engine::{JobId, Segments};
use crate::limits::MOST_DRAINING_R2TS;
use crate::status::Status;

/// Dword 0 of the completion of an Abort: bit 0 is set if the command was not aborted.
fn answer_of(is_aborted: bool) -> Answer {
    Answer::result(u64::from(!is_aborted))
}

impl Connection {
    /// Executes an Abort of the admin queue.
    pub(super) fn abort(&mut self, index: u32, command: &Submission) {
        let [a, b, c, d] = command.dword(10).to_le_bytes();
        let (qid, cid) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        if qid == 0 {
            let is_aborted = self.abort_event_request(cid);
            self.answer(index, answer_of(is_aborted));
            return;
        }
        let generation = self.slots[index as usize].generation;
        let id = JobId { connection: self.number, slot: index, generation, part: 0 };
        let Some(queue) = &self.queue else { return };
        let aborts = queue.controller.aborts();
        let is_asked = match aborts.ask(qid, cid, id) {
            // If the connection has just ended, either it has answered, or the request is taken back.
            Some(wakes) => self.target.loops().answer(wakes, Ok(Segments::new())) || !aborts.take_back(id),
            None => false,
        };
        if !is_asked {
            self.answer(index, answer_of(false));
        }
    }

    /// The connection of an I/O queue has answered an Abort.
    pub(super) fn abort_answered(&mut self, index: u32, is_aborted: bool) {
        let is_abort =
            |open: &mut OpenCommand| matches!(open.executor, Executor::Admin) && open.command.opcode == admin::ABORT;
        if self.open_command(index).is_some_and(is_abort) {
            self.answer(index, answer_of(is_aborted));
        }
    }

    fn abort_event_request(&mut self, cid: u16) -> bool {
        let Some(place) = self.event_requests.iter().position(|&waiting| waiting == cid) else { return false };
        self.event_requests.remove(place);
        self.set_used(cid, false);
        self.respond(cid, Status::ABORTED, 0);
        true
    }

    /// Looks at the aborts of commands of this connection.
    pub(super) fn take_aborts(&mut self, context: &mut Context<'_>) {
        let Some(queue) = &self.queue else { return };
        for request in queue.controller.clone().aborts().take(self.number) {
            let is_aborted = self.abort_command(request.cid, context);
            let result = if is_aborted { Ok(Segments::new()) } else { Err(Status::SEQUENCE_ERROR) };
            self.target.loops().answer(request.asked_by, result);
        }
    }

    /// The connection ends: the aborts that it has not looked at are answered.
    pub(super) fn drop_aborts(&self) {
        let Some(queue) = self.queue.as_ref().filter(|queue| queue.qid > 0) else { return };
        for request in queue.controller.aborts().disconnected(queue.qid, self.number) {
            self.target.loops().answer(request.asked_by, Err(Status::SEQUENCE_ERROR));
        }
    }

    /// Ends a command that has had no effect. Returns whether it was aborted.
    fn abort_command(&mut self, cid: u16, context: &mut Context<'_>) -> bool {
        let of_cid = |slot: &Slot| slot.open.as_ref().is_some_and(|open| open.command.cid.get() == cid);
        let Some(index) = self.slots.iter().position(of_cid).and_then(|index| u32::try_from(index).ok()) else {
            return false;
        };
        if !self.may_abort(index) {
            return false;
        }
        for r2t in self.open_r2ts.iter_mut().flatten().filter(|r2t| r2t.slot == index && !r2t.is_aborted) {
            r2t.is_aborted = true;
            self.active_r2ts -= 1;
            self.aborted_r2ts += 1;
        }
        let partner = self.open_command(index).and_then(|open| open.fused).and_then(|fused| fused.partner);
        for index in std::iter::once(index).chain(partner) {
            if let Some(open) = self.open_command(index) {
                open.task = None;
            }
        }
        let Some(open) = self.open_command(index) else { return false };
        open.r2ts = 0;
        open.pending.clear();
        open.failure = Some(Status::ABORTED);
        self.proceed(index, context);
        // Other commands may wait for the tags.
        self.ask_for_data();
        true
    }

    /// Returns whether a command has had no effect, and can have none any more.
    fn may_abort(&mut self, index: u32) -> bool {
        let aborted_r2ts = self.aborted_r2ts;
        let Some(open) = self.open_command(index) else { return false };
        if open.has_reply || aborted_r2ts + open.r2ts as usize > usize::from(MOST_DRAINING_R2TS) {
            return false;
        }
        // The first command of a fused pair has the task of both.
        let is_pair = open.fused.is_some();
        let partner = open.fused.and_then(|fused| fused.partner);
        let mut tasks = std::iter::once(index).chain(partner);
        let task = tasks.find_map(|index| self.slots.get(index as usize)?.open.as_ref()?.task.as_ref());
        match task {
            None => true,
            Some((TaskWait::Lock, _)) => true,
            Some((TaskWait::Engine, task)) => task.is_unstarted() && !is_pair,
            Some((TaskWait::Backend, task)) => task.cancel(),
        }
    }
}
