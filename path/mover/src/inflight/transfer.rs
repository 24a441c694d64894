//! The transfer of one request: a single op, or a long request split into parts that several ops do at the same time.
//! The thread that waits for the request may do parts as well.
//!
//! ```text
//!            head ►                                       ◄ tail
//!   │ in flight, done │ in flight │     remainder     │ done by the CPU │
//!     queue 0, 1, …                 not handed out       only if a thread waits
//! ```
//!
//! Each part is an [`Op`] of its own, with its own faults, retries and recovery, so everything that holds for one
//! descriptor holds for each part. The whole ends when all its parts have ended, with the first failure if there was
//! one. After a failure, the parts in flight complete and no further part is submitted.

use super::memory;
use super::op::Op;
use super::owned_request::Held;
use super::shared::Shared;
use super::table::Slot;
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use crate::api::policy::Hint;
use crate::inflight::recover::Progress;
use crate::plan::request::CopyRequest;
use crate::plan::split::{BULK, DEPTH, Remainder};
use crate::wait::time::Moment;
use std::task::Poll;
use telpher_abi::Opcode;

/// Bytes the CPU does in one step at most, so that a caller with a deadline can check the time. Source: assumed; a
/// millisecond.
const CPU_STEP_BYTES: u64 = 8 << 20;

/// A divisible request in parts.
#[derive(Debug)]
pub(super) struct SplitTransfer {
    request: CopyRequest,
    /// The bytes not handed out yet.
    remainder: Remainder,
    /// Positions for parts: `DEPTH` for each queue. Position `p` belongs to queue `p` modulo the number of queues.
    parts: Vec<Option<Part>>,
    /// The queues that get the parts.
    queues: Vec<usize>,
    /// The longest part, in bytes.
    longest: u64,
    /// The policy lets the waiting thread do parts.
    hybrid: bool,
    /// A thread waits for the transfer.
    waited_for: bool,
    /// The queues had no room or refused: the CPU does the rest, whichever thread steps.
    cpu_only: bool,
    verdict: Verdict,
}

/// A part in flight.
#[derive(Debug)]
struct Part {
    op: Op,
    start: u64,
    len: u64,
}

/// The result of the whole so far.
#[derive(Debug, Default)]
struct Verdict {
    /// The start and the failure of the first part that failed.
    failed: Option<(u64, JobError)>,
    /// The first difference that a comparison found.
    different: Option<u64>,
    /// Bytes done, in any parts.
    done: u64,
    device: bool,
    cpu: bool,
}

impl Verdict {
    fn ended(&mut self, start: u64, len: u64, result: Result<Outcome, JobError>) {
        match result {
            Ok(Outcome::Different { at }) => {
                let at = start + at;
                self.different = Some(self.different.map_or(at, |first| first.min(at)));
                self.done += len;
            }
            Ok(_) => self.done += len,
            Err(error) => {
                if let JobError::Fault { done, .. } = error {
                    self.done += done;
                }
                if self.failed.as_ref().is_none_or(|(first, _)| start < *first) {
                    self.failed = Some((start, error));
                }
            }
        }
    }

    fn by(&mut self, via: Via) {
        self.device |= via != Via::Cpu;
        self.cpu |= via != Via::Device;
    }

    /// Returns the result of the whole after all its parts have ended.
    fn result(&self, op: Opcode) -> Result<Outcome, JobError> {
        match &self.failed {
            // A difference before the failed part makes everything behind it irrelevant.
            Some((at, _)) if self.different.is_some_and(|different| different < *at) => {}
            Some((_, JobError::Fault { address, write, .. })) => {
                return Err(JobError::Fault { address: *address, write: *write, done: self.done });
            }
            Some((_, error)) => return Err(error.clone()),
            None => {}
        }
        Ok(match (op, self.different) {
            (_, Some(at)) => Outcome::Different { at },
            (Opcode::Compare | Opcode::ComparePattern, None) => Outcome::Equal,
            _ => Outcome::Done,
        })
    }
}

impl SplitTransfer {
    /// The parts of `request` over these queues, none submitted yet; a part is at most `longest` bytes.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`], except that `abort` gives up several slots instead of one.
    unsafe fn new(request: CopyRequest, queues: Vec<usize>, longest: u64, hybrid: bool) -> Self {
        let parts = (0..queues.len() * DEPTH).map(|_| None).collect();
        let (remainder, verdict) = (Remainder::of(&request), Verdict::default());
        SplitTransfer {
            request,
            remainder,
            parts,
            queues,
            longest,
            hybrid,
            waited_for: false,
            cpu_only: false,
            verdict,
        }
    }

    fn is_over(&self) -> bool {
        self.parts.iter().all(Option::is_none) && (self.remainder.is_empty() || self.verdict.failed.is_some())
    }

    fn step(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        self.step_parts(shared, now);
        if self.cpu_only || self.hybrid && self.waited_for {
            self.work_on_cpu(shared);
        }
        if self.is_over() { Poll::Ready(self.verdict.result(self.request.opcode())) } else { Poll::Pending }
    }

    /// Takes one step of each op, and submits parts where there is room.
    fn step_parts(&mut self, shared: &Shared, now: Moment) {
        for position in 0..self.parts.len() {
            if let Some(part) = &mut self.parts[position] {
                let Poll::Ready(result) = part.op.step(shared, now) else { continue };
                let (via, start, len) = (part.op.via(), part.start, part.len);
                self.parts[position] = None;
                self.arrived(via, start, len, result);
            }
            self.send(shared, position, now);
        }
    }

    /// Handles the end of an op.
    fn arrived(&mut self, via: Via, start: u64, len: u64, result: Result<Outcome, JobError>) {
        // The device did not do one byte: the queues have no room, or the device refuses.
        self.cpu_only |= via == Via::Cpu;
        self.end_part(via, start, len, result);
    }

    /// Records the end of a part.
    fn end_part(&mut self, via: Via, start: u64, len: u64, result: Result<Outcome, JobError>) {
        self.verdict.by(via);
        self.verdict.ended(start, len, result);
        if let Some(at) = self.verdict.different {
            self.remainder.cut_off(at);
        }
    }

    /// Submits the next part at a free position if the queue takes it now. If nothing at all is in flight, it retries
    /// as the policy says.
    fn send(&mut self, shared: &Shared, position: usize, now: Moment) {
        if self.cpu_only || self.verdict.failed.is_some() {
            return;
        }
        let queue = self.queues[position % self.queues.len()];
        let Some((start, len)) = self.remainder.take_front(self.queues.len(), self.longest, self.hybrid) else {
            return;
        };
        // SAFETY: a part of the request, whose memory is ours by the promise of `new`. Parts of a divisible request
        // share no byte that one of them writes, and the remainder hands out each byte once.
        let mut op = unsafe { Op::for_queue(queue, self.request.part(start, len)) };
        if op.offer_once(shared, now) {
            self.parts[position] = Some(Part { op, start, len });
        } else if self.parts.iter().any(Option::is_some) {
            self.remainder.put_back(start);
        } else {
            match op.step(shared, now) {
                Poll::Pending => self.parts[position] = Some(Part { op, start, len }),
                Poll::Ready(result) => self.arrived(op.via(), start, len, result),
            }
        }
    }

    /// Does parts of the remainder on this thread until none are left, and checks the devices after each part.
    fn work_on_cpu(&mut self, shared: &Shared) {
        let mut done = 0;
        let bulk = self.request.len() >= BULK;
        let hint = if bulk { Hint::Memory } else { shared.policy.hint };
        while done < CPU_STEP_BYTES && self.verdict.failed.is_none() {
            let Some((start, len)) = self.remainder.take_back(self.queues.len(), bulk) else { return };
            let part = Progress::new(self.request.part(start, len));
            // SAFETY: as in `send`; no op has this part.
            let result = unsafe { memory::finish(&part, hint) };
            self.end_part(Via::Cpu, start, len, result);
            done += len;
            self.drive(shared);
            self.step_parts(shared, shared.clock.now());
        }
    }

    fn drive(&self, shared: &Shared) {
        self.parts
            .iter()
            .flatten()
            .filter_map(|part| part.op.queue())
            .for_each(|queue| shared.drive_queue(Some(queue)));
    }

    fn abort(&mut self) -> Vec<Slot> {
        self.remainder.cut_off(0);
        self.parts.iter_mut().filter_map(Option::take).filter_map(|mut part| part.op.abort()).collect()
    }
}

/// How a request is executed: by one op, or split into parts.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the small variant is rare, and the holders of a transfer box it")]
pub(super) enum Transfer {
    /// One descriptor after the other.
    Whole(Op),
    /// Several descriptors at the same time.
    Split(Box<SplitTransfer>),
}

impl Transfer {
    /// A transfer that has not begun. The policy and the queues decide whether it is split.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`]; [`Transfer::leave`] takes the place of its `abort`.
    pub(super) unsafe fn new(shared: &Shared, request: CopyRequest) -> Self {
        match shared.split_plan(&request, crate::stripe::of_this_thread) {
            Some((queues, longest)) => {
                let hybrid = shared.policy.split.hybrid;
                // SAFETY: our caller's promise.
                Transfer::Split(Box::new(unsafe { SplitTransfer::new(request, queues, longest, hybrid) }))
            }
            // SAFETY: our caller's promise.
            None => Transfer::Whole(unsafe { Op::new(shared, request) }),
        }
    }

    /// Sets whether a thread with nothing else to do waits for the transfer.
    pub(super) fn set_waited_for(&mut self, waited_for: bool) {
        if let Transfer::Split(split) = self {
            split.waited_for = waited_for;
        }
    }

    /// Lets executors without a thread do the work that this transfer waits for.
    pub(super) fn drive(&self, shared: &Shared) {
        match self {
            Transfer::Whole(op) => {
                if let Some(queue) = op.queue() {
                    shared.drive_queue(Some(queue));
                }
            }
            Transfer::Split(split) => split.drive(shared),
        }
    }

    /// Returns true if progress depends on a device or on a queue that gets room again.
    pub(super) fn waits(&self) -> bool {
        match self {
            Transfer::Whole(op) => op.queue().is_some(),
            Transfer::Split(_) => true,
        }
    }

    /// Returns whether devices, the CPU or both did the work so far.
    pub(super) fn via(&self) -> Via {
        match self {
            Transfer::Whole(op) => op.via(),
            Transfer::Split(split) => match (split.verdict.device, split.verdict.cpu) {
                (true, false) => Via::Device,
                (true, true) => Via::Both,
                (false, _) => Via::Cpu,
            },
        }
    }

    /// Takes one step: see [`Op::step`]. A split transfer takes one step with each of its ops, and does the CPU's share
    /// if a thread waits.
    pub(super) fn step(&mut self, shared: &Shared) -> Poll<Result<Outcome, JobError>> {
        match self {
            Transfer::Whole(op) => {
                let now = shared.now_if(op.needs_time());
                op.step(shared, now)
            }
            Transfer::Split(split) => split.step(shared, shared.clock.now()),
        }
    }

    /// Ends the transfer now. Returns the payload if no device has any of it. Otherwise the payload stays in the slots
    /// of all ops in flight until the last of them has its record.
    pub(super) fn leave<B: Send + 'static>(
        &mut self,
        shared: &Shared,
        payload: Option<Held<B>>,
        expired: bool,
    ) -> Option<B> {
        let slots = self.abort();
        if slots.is_empty() {
            return payload.map(Held::into_inner);
        }
        shared.park(slots, payload, expired);
        None
    }

    /// Ends the transfer now; the caller must park the slots of all ops in flight with the memory.
    pub(super) fn abort(&mut self) -> Vec<Slot> {
        match self {
            Transfer::Whole(op) => op.abort().into_iter().collect(),
            Transfer::Split(split) => split.abort(),
        }
    }
}
