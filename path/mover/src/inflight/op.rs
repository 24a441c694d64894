//! The state machine of one operation. It never blocks; the caller passes in the time.
//!
//! A short request takes one descriptor after the other. A long one is split into parts that are ops of their own.
//!
//! ```text
//!   Ready ──offer──► InFlight ──record──► finished | Ready again | the CPU finishes
//!     │  ▲
//!     ▼  │ retry
//!    Full ──every queue asked often enough──► the CPU does it
//!
//!   Split ──every part ended──► finished
//! ```

use super::memory;
use super::shared::Shared;
use super::table::Slot;
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use crate::api::policy::Hint;
use crate::inflight::recover::Next;
use crate::inflight::split_result::SplitResult;
use crate::plan::request::Request;
use crate::plan::split::{BULK, DEPTH, Remainder};
use crate::stats::Work;
use crate::wait::stall_timer::StallTimer;
use crate::wait::time::Moment;
use std::task::Poll;
use telpher_abi::{CompletionRecord, Opcode, Status, StatusByte};
use telpher_metrics::Position;

/// The state of one request that devices execute in chunks. The caller keeps its memory alive: see [`Op::new`].
#[derive(Debug)]
pub(super) struct Op {
    request: Request,
    stage: Stage,
    /// The queue to ask next.
    queue: usize,
    /// Number of queues that refused the present descriptor.
    queues_tried: usize,
    /// Refused offers to this queue.
    offers: u32,
    /// Refused offers to all queues.
    offers_ever: u32,
    /// How long the present descriptor has been in flight.
    stall_timer: StallTimer,
    /// The bytes of the whole request.
    bytes: u64,
    /// When a queue first refused the present descriptor.
    refused_since: Option<Moment>,
}

/// The stage of an op.
#[derive(Debug)]
enum Stage {
    /// To be offered.
    Ready,
    /// The queue is full; do not offer again before this moment.
    Full(Moment),
    /// A device has it.
    InFlight(Slot),
    /// Its record was read.
    Recorded(CompletionRecord),
    /// Its parts are ops of their own.
    Split(Box<SplitOp>),
    /// Ended.
    Over,
}

impl Op {
    /// An op with nothing in flight. The policy and the queues decide whether it is split.
    ///
    /// # Safety
    ///
    /// From the first step on, until a step returns `Ready` or [`Op::abort`] gives up the slots together with the
    /// memory: every range of `request` is valid for reads, its destinations for writes, and no other code touches
    /// them.
    #[inline]
    pub(super) unsafe fn new(shared: &Shared, request: Request) -> Self {
        match shared.split_plan(&request, crate::thread_stripe::of_this_thread) {
            Some((queues, longest)) => {
                let split = SplitOp::new(&request, queues, longest, shared.policy.split.hybrid);
                Self::at(request, Stage::Split(Box::new(split)), 0, 0)
            }
            // SAFETY: our caller's promise.
            None => unsafe { Self::whole(shared, request) },
        }
    }

    /// An op that is not split.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`].
    #[inline]
    pub(super) unsafe fn whole(shared: &Shared, request: Request) -> Self {
        let queue = shared.queues.first(shared.policy.route, &request, crate::thread_stripe::of_this_thread);
        Self::at(request, Stage::Ready, queue, 0)
    }

    /// An op whose first queue the caller chose.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`].
    pub(super) unsafe fn for_queue(queue: usize, request: Request) -> Self {
        Self::at(request, Stage::Ready, queue, 0)
    }

    /// Offers an op that has not begun to its queue, once. Returns true if the queue took it; otherwise the op is
    /// unchanged.
    fn offer_once(&mut self, shared: &Shared, now: Moment) -> bool {
        let queue = self.queue % shared.queues.all().len();
        let limits = &shared.queues.all()[queue].limits;
        let Some(descriptor) = self.request.next(limits) else { return false };
        let writes = self.request.writes();
        let descriptor = crate::plan::flags::with_policy_flags(descriptor, limits, &shared.policy, writes);
        // SAFETY: as in `offer`.
        let Some(slot) = (unsafe { shared.submit(queue, descriptor, now) }) else { return false };
        self.stage = Stage::InFlight(slot);
        true
    }

    /// An op that continues a request begun elsewhere: on the CPU alone if `on_cpu`, and starting with `record` if
    /// there is one.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`], and no device has the memory now.
    pub(super) unsafe fn resumed(
        shared: &Shared,
        request: Request,
        on_cpu: bool,
        record: Option<CompletionRecord>,
    ) -> Self {
        let queue = shared.queues.first(shared.policy.route, &request, crate::thread_stripe::of_this_thread);
        let stage = record.map_or(Stage::Ready, Stage::Recorded);
        let queues_tried = if on_cpu { usize::MAX } else { 0 };
        Self::at(request, stage, queue, queues_tried)
    }

    #[inline(always)]
    fn at(request: Request, stage: Stage, queue: usize, queues_tried: usize) -> Self {
        let (bytes, stall_timer) = (request.transfer(), StallTimer::default());
        Op { request, stage, queue, queues_tried, offers: 0, offers_ever: 0, stall_timer, bytes, refused_since: None }
    }

    /// Sets whether a thread with nothing else to do waits for the op.
    pub(super) fn set_waited_for(&mut self, waited_for: bool) {
        if let Stage::Split(split) = &mut self.stage {
            split.waited_for = waited_for;
        }
    }

    /// Returns the queue that must be driven for this op to go on; `None` for an op in parts.
    pub(super) fn queue(&self) -> Option<usize> {
        match &self.stage {
            Stage::InFlight(slot) => Some(slot.queue),
            Stage::Full(_) => Some(self.queue),
            Stage::Ready | Stage::Recorded(_) | Stage::Split(_) | Stage::Over => None,
        }
    }

    /// Lets executors without a thread do the work that this op waits for.
    pub(super) fn drive(&self, shared: &Shared) {
        if let Stage::Split(split) = &self.stage {
            split.drive(shared);
        } else if let Some(queue) = self.queue() {
            shared.drive_queue(Some(queue));
        }
    }

    /// Returns true if the op goes on only after a device or a queue that gets room again.
    pub(super) fn waits(&self) -> bool {
        matches!(self.stage, Stage::Split(_)) || self.queue().is_some()
    }

    /// Returns whether devices, the CPU or both did the work; for an op in parts, when it has ended.
    pub(super) fn via(&self) -> Via {
        self.request.via()
    }

    /// Ends the op now; the caller must park the slots of all descriptors in flight with the memory.
    pub(super) fn abort(&mut self) -> Vec<Slot> {
        match &mut self.stage {
            Stage::Split(split) => split.abort(),
            _ => self.abort_one().into_iter().collect(),
        }
    }

    /// Like [`abort`](Op::abort), for an op that is not split.
    fn abort_one(&mut self) -> Option<Slot> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::InFlight(slot) => Some(slot),
            Stage::Ready | Stage::Full(_) | Stage::Recorded(_) | Stage::Split(_) | Stage::Over => None,
        }
    }

    /// Takes one step: at most one record read and one descriptor offered, in each part if it has parts. The CPU's
    /// share is done in full. Must not be called again after it was ready.
    #[inline]
    pub(super) fn step(&mut self, shared: &Shared) -> Poll<Result<Outcome, JobError>> {
        let needs_time = matches!(self.stage, Stage::Ready | Stage::Full(_) | Stage::Split(_));
        let step = self.step_at(shared, shared.now_if(needs_time));
        if let Poll::Ready(Ok(_)) = &step {
            shared.count(self.via(), self.bytes);
        }
        step
    }

    fn step_at(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        // The slots stay where `abort` finds them: clocks and portals may panic.
        match &mut self.stage {
            Stage::InFlight(slot) => {
                if !shared.is_complete(slot) && !shared.is_dead(slot, &mut self.stall_timer) {
                    return Poll::Pending;
                }
            }
            Stage::Split(_) => return self.step_parts(shared, now),
            Stage::Ready | Stage::Full(_) | Stage::Recorded(_) | Stage::Over => {}
        }
        let next = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Ready => self.offer(shared, now),
            Stage::Full(until) if now < until => {
                self.stage = Stage::Full(until);
                Poll::Pending
            }
            Stage::Full(_) => self.offer(shared, now),
            Stage::InFlight(slot) if shared.is_complete(&slot) => {
                let record = shared.complete(slot);
                self.onward(shared, &record)
            }
            Stage::Recorded(record) => self.onward(shared, &record),
            Stage::InFlight(slot) => self.lost(shared, slot),
            Stage::Split(_) | Stage::Over => Poll::Ready(Err(JobError::Unsupported { op: self.request.opcode() })),
        };
        if next.is_ready() {
            self.stage = Stage::Over;
        }
        next
    }

    /// Takes one step of each part. Kept out of line, so that short copies stay fast.
    #[inline(never)]
    fn step_parts(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        let Stage::Split(split) = &mut self.stage else { unreachable!("the caller has checked the stage") };
        // SAFETY: our creator's promise, and `request` is the one that `split` was made for.
        let Poll::Ready(result) = (unsafe { split.step(&self.request, shared, now) }) else { return Poll::Pending };
        self.request.was_done_by(split.result.via());
        self.stage = Stage::Over;
        Poll::Ready(result)
    }

    fn offer(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        let queues = shared.queues.all();
        let retry = shared.policy.retry;
        let drain = self.request.opcode() == Opcode::Drain;
        if drain {
            // Each queue in turn; the rest counts them.
            self.queue = queues.len().saturating_sub(usize::try_from(self.request.len()).unwrap_or(0));
        }
        while self.queues_tried < queues.len() {
            let queue = self.queue % queues.len();
            self.queue = queue;
            let limits = &queues[queue].limits;
            if queues[queue].is_dead() {
                if drain && self.request.next(limits).is_some() {
                    return self.onward(shared, &drained());
                }
            } else if let Some(descriptor) = self.request.next(limits) {
                let writes = self.request.writes();
                let descriptor = crate::plan::flags::with_policy_flags(descriptor, limits, &shared.policy, writes);
                // SAFETY: the descriptor names a part of the request's ranges. `Op::new`'s caller promised that they
                // are valid and exclusive until the slot, kept in `self.stage`, completes or is parked with the memory.
                if let Some(slot) = unsafe { shared.submit(queue, descriptor, now) } {
                    (self.queues_tried, self.offers) = (0, 0);
                    self.count_waiting(shared, now);
                    self.stall_timer = StallTimer::default();
                    self.stage = Stage::InFlight(slot);
                    return Poll::Pending;
                }
                self.offers_ever = self.offers_ever.saturating_add(1);
                self.refused_since.get_or_insert(now);
                if self.offers < retry.attempts {
                    self.offers += 1;
                    self.stage = Stage::Full(now.after(retry.pause));
                    return Poll::Pending;
                }
            }
            if drain || self.request.is_bound_to_queue() {
                break;
            }
            self.offers = 0;
            self.queues_tried += 1;
            self.queue = queue + 1;
        }
        self.count_waiting(shared, now);
        if queues.is_empty() || self.queues_tried == usize::MAX {
            // No fallback: there is no device, or the creator chose the CPU.
            return Poll::Ready(self.finish_on_cpu(shared.policy.hint));
        }
        let why = if self.offers_ever > 0 { Work::AT.queues_full } else { Work::AT.no_queue };
        Poll::Ready(self.fall_back(shared, why))
    }

    /// Counts the time in which queues refused the present descriptor.
    fn count_waiting(&mut self, shared: &Shared, now: Moment) {
        if let Some(since) = self.refused_since.take() {
            shared.counts.add(Work::AT.waiting, now.nanos.saturating_sub(since.nanos));
        }
    }

    /// Handles a dead queue whose record never comes: what may be done again is done elsewhere.
    fn lost(&mut self, shared: &Shared, slot: Slot) -> Poll<Result<Outcome, JobError>> {
        let why = shared.release_dead(slot);
        let op = self.request.opcode();
        if op == Opcode::Drain {
            // Nothing that the queue took is in flight any more, which is what a drain waits for.
            return self.onward(shared, &drained());
        }
        if !self.request.may_be_done_again() {
            return Poll::Ready(Err(JobError::Stopped { op, why }));
        }
        self.offer(shared, shared.clock.now())
    }

    /// Handles a record: ends the op, or offers the next descriptor in the same step.
    fn onward(&mut self, shared: &Shared, record: &CompletionRecord) -> Poll<Result<Outcome, JobError>> {
        match self.arrived(shared, record) {
            // Reads the clock itself: a caller that waited for the record did not pass the time.
            Poll::Pending => self.offer(shared, shared.clock.now()),
            ready => ready,
        }
    }

    fn arrived(&mut self, shared: &Shared, record: &CompletionRecord) -> Poll<Result<Outcome, JobError>> {
        if record.status().is_page_fault() {
            shared.counts.add(Work::AT.page_faults, 1);
        }
        match self.request.arrived(record, shared.policy.on_fault) {
            Next::Finished(outcome) => Poll::Ready(Ok(outcome)),
            Next::More => Poll::Pending,
            Next::Touch(fault) => match self.request.touchable(&fault) {
                Some(range) => {
                    // SAFETY: the range is a part of the request's own, ours by `Op::new`'s promise, and nothing is in
                    // flight.
                    unsafe { memory::touch(&range) };
                    Poll::Pending
                }
                // Not our memory at all: the device is wrong, and our memory is valid.
                None => Poll::Ready(self.fall_back(shared, Work::AT.page_fault)),
            },
            Next::OnCpu(_, Some(_)) => Poll::Ready(self.fall_back(shared, Work::AT.page_fault)),
            Next::OnCpu(_, None) => Poll::Ready(self.fall_back(shared, Work::AT.refused)),
            // No fallback: the device finds no exact difference.
            Next::Refine(_) => Poll::Ready(self.finish_on_cpu(shared.policy.hint)),
            Next::Failed(failure) => Poll::Ready(Err(failure.into())),
        }
    }

    /// Lets the CPU do what a device should have done.
    fn fall_back(&mut self, shared: &Shared, why: Position<Work>) -> Result<Outcome, JobError> {
        let outcome = self.finish_on_cpu(shared.policy.hint)?;
        shared.counts.add(why, 1);
        Ok(outcome)
    }

    fn finish_on_cpu(&mut self, hint: Hint) -> Result<Outcome, JobError> {
        if self.request.opcode() == Opcode::Drain && self.request.len() > 0 {
            return Err(match self.offers_ever {
                0 => JobError::Unsupported { op: Opcode::Drain },
                offers => JobError::QueueFull { offers },
            });
        }
        // SAFETY: the request's ranges are ours by `Op::new`'s promise, and nothing is in flight: callers completed it.
        let outcome = unsafe { memory::finish(&self.request, hint) }?;
        self.request.cpu_did_the_rest();
        Ok(outcome)
    }
}

/// The record of a drain of a dead queue.
fn drained() -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success))
}

/// Bytes the CPU does in one step at most, so that a caller with a deadline can check the time. Source: assumed; a
/// millisecond.
const CPU_STEP_BYTES: u64 = 8 << 20;

/// The parts of a divisible request that several ops do at the same time. The thread that waits for the request may do
/// parts as well.
///
/// ```text
///            head ►                                       ◄ tail
///   │ in flight, done │ in flight │     remainder     │ done by the CPU │
///     queue 0, 1, …                 not handed out       only if a thread waits
/// ```
///
/// Each part is an [`Op`] of its own, with its own faults, retries and recovery, so everything that holds for one
/// descriptor holds for each part. The whole ends when all its parts have ended, with the first failure if there was
/// one. After a failure, the parts in flight complete and no further part is submitted.
#[derive(Debug)]
struct SplitOp {
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
    /// A thread waits for the request.
    waited_for: bool,
    /// The first step, that of the submission, is over. Until then it is not known whether a thread will wait.
    has_begun: bool,
    /// The queues had no room or refused: the CPU does the rest, whichever thread steps.
    cpu_only: bool,
    result: SplitResult,
}

/// A part in flight.
#[derive(Debug)]
struct Part {
    op: Op,
    start: u64,
    len: u64,
}

impl SplitOp {
    /// The parts of `request` over these queues, none submitted yet; a part is at most `longest` bytes.
    fn new(request: &Request, queues: Vec<usize>, longest: u64, hybrid: bool) -> Self {
        let parts = (0..queues.len() * DEPTH).map(|_| None).collect();
        let (remainder, result) = (Remainder::of(request), SplitResult::default());
        let (waited_for, has_begun, cpu_only) = (false, false, false);
        SplitOp { remainder, parts, queues, longest, hybrid, waited_for, has_begun, cpu_only, result }
    }

    fn is_over(&self) -> bool {
        self.parts.iter().all(Option::is_none) && (self.remainder.is_empty() || self.result.failed.is_some())
    }

    /// Takes one step of each part of `request`, the request this was made for.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`], from the first call until the result or `abort`.
    unsafe fn step(&mut self, request: &Request, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        // SAFETY: our caller's promise.
        unsafe { self.step_parts(request, shared, now) };
        self.has_begun = true;
        if self.cpu_only || self.hybrid && self.waited_for {
            // SAFETY: our caller's promise.
            unsafe { self.work_on_cpu(request, shared) };
        }
        if self.is_over() { Poll::Ready(self.result.result(request.opcode())) } else { Poll::Pending }
    }

    /// Takes one step of each op, and submits parts where there is room.
    ///
    /// # Safety
    ///
    /// As for [`SplitOp::step`].
    unsafe fn step_parts(&mut self, request: &Request, shared: &Shared, now: Moment) {
        for position in 0..self.parts.len() {
            if let Some(part) = &mut self.parts[position] {
                let Poll::Ready(result) = part.op.step_at(shared, now) else { continue };
                let (via, start, len) = (part.op.via(), part.start, part.len);
                self.parts[position] = None;
                self.arrived(via, start, len, result);
            }
            // SAFETY: our caller's promise.
            unsafe { self.send(request, shared, position, now) };
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
        self.result.by(via);
        self.result.ended(start, len, result);
        if let Some(at) = self.result.different {
            self.remainder.cut_off(at);
        }
    }

    /// Submits the next part at a free position if the queue takes it now. If nothing at all is in flight, it retries
    /// as the policy says.
    ///
    /// # Safety
    ///
    /// As for [`SplitOp::step`].
    unsafe fn send(&mut self, request: &Request, shared: &Shared, position: usize, now: Moment) {
        if self.cpu_only || self.result.failed.is_some() {
            return;
        }
        let queue = self.queues[position % self.queues.len()];
        let queues = self.queues.len();
        let next = if self.hybrid && (self.waited_for || !self.has_begun) {
            let is_busy = self.parts.iter().skip(position % queues).step_by(queues).any(Option::is_some);
            self.remainder.take_shared(queues, self.longest, is_busy)
        } else {
            // A thread that only polls does no part, so the device gets the last one, too.
            self.remainder.take_front(queues, self.longest, self.hybrid)
        };
        let Some((start, len)) = next else { return };
        // SAFETY: a part of the request, whose memory is ours by our caller's promise. Parts of a divisible request
        // share no byte that one of them writes, and the remainder hands out each byte once.
        let mut op = unsafe { Op::for_queue(queue, request.part(start, len)) };
        if op.offer_once(shared, now) {
            self.parts[position] = Some(Part { op, start, len });
        } else if self.parts.iter().any(Option::is_some) {
            self.remainder.put_back(start);
        } else {
            match op.step_at(shared, now) {
                Poll::Pending => self.parts[position] = Some(Part { op, start, len }),
                Poll::Ready(result) => self.arrived(op.via(), start, len, result),
            }
        }
    }

    /// Does parts of the remainder on this thread until none are left, and checks the devices after each part.
    ///
    /// # Safety
    ///
    /// As for [`SplitOp::step`].
    unsafe fn work_on_cpu(&mut self, request: &Request, shared: &Shared) {
        let mut done = 0;
        let bulk = request.len() >= BULK;
        let hint = if bulk { Hint::Memory } else { shared.policy.hint };
        while done < CPU_STEP_BYTES && self.result.failed.is_none() {
            let Some((start, len)) = self.remainder.take_back(self.queues.len(), bulk) else { return };
            let part = request.part(start, len);
            // SAFETY: as in `send`; no op has this part.
            let result = unsafe { memory::finish(&part, hint) };
            self.end_part(Via::Cpu, start, len, result);
            done += len;
            self.drive(shared);
            // SAFETY: our caller's promise.
            unsafe { self.step_parts(request, shared, shared.clock.now()) };
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
        self.parts.iter_mut().filter_map(Option::take).filter_map(|mut part| part.op.abort_one()).collect()
    }
}
