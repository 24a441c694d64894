//! The state machine of one operation. It never blocks; the caller passes in the time.
//!
//! ```text
//!   Ready ──offer──► InFlight ──record──► finished | Ready again | the CPU finishes
//!     │  ▲
//!     ▼  │ retry
//!    Full ──every queue asked often enough──► the CPU does it
//! ```

use super::memory;
use super::shared::Shared;
use super::table::Slot;
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use crate::api::policy::Hint;
use crate::inflight::recover::{Next, Progress};
use crate::plan::request::CopyRequest;
use crate::wait::stall_timer::StallTimer;
use crate::wait::time::Moment;
use std::task::Poll;
use telpher_abi::{CompletionRecord, Opcode, Status, StatusByte};

/// The state of one request that a device executes in chunks. The caller keeps its memory alive: see [`Op::new`].
#[derive(Debug)]
pub(super) struct Op {
    progress: Progress,
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
    /// Ended.
    Over,
}

impl Op {
    /// An op with nothing in flight.
    ///
    /// # Safety
    ///
    /// From the first `step` on, until `step` returns `Ready` or [`Op::abort`] gives up the slot together with the
    /// memory: every range of `request` is valid for reads, its destinations for writes, and no other code touches
    /// them.
    pub(super) unsafe fn new(shared: &Shared, request: CopyRequest) -> Self {
        let queue = shared.queues.first(shared.policy.route, &request, crate::stripe::of_this_thread);
        let progress = Progress::new(request);
        Self::at(progress, Stage::Ready, queue, 0)
    }

    /// An op whose first queue the caller chose.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`].
    pub(super) unsafe fn for_queue(queue: usize, request: CopyRequest) -> Self {
        Self::at(Progress::new(request), Stage::Ready, queue, 0)
    }

    /// Offers an op that has not begun to its queue, once. Returns true if the queue took it; otherwise the op is
    /// unchanged.
    pub(super) fn offer_once(&mut self, shared: &Shared, now: Moment) -> bool {
        let queue = self.queue % shared.queues.all().len();
        let limits = &shared.queues.all()[queue].limits;
        let Some(descriptor) = self.progress.next(limits) else { return false };
        let writes = self.progress.rest().writes();
        let descriptor = crate::plan::route::with_policy_flags(descriptor, limits, &shared.policy, writes);
        // SAFETY: as in `offer`.
        let Some(slot) = (unsafe { shared.submit(queue, descriptor, now) }) else { return false };
        self.stage = Stage::InFlight(slot);
        true
    }

    /// An op that continues progress made elsewhere: on the CPU alone if `on_cpu`, and starting with `record` if there
    /// is one.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`], and no device has the memory now.
    pub(super) unsafe fn resumed(
        shared: &Shared,
        progress: Progress,
        on_cpu: bool,
        record: Option<CompletionRecord>,
    ) -> Self {
        let queue = shared.queues.first(shared.policy.route, progress.rest(), crate::stripe::of_this_thread);
        let stage = record.map_or(Stage::Ready, Stage::Recorded);
        let queues_tried = if on_cpu { usize::MAX } else { 0 };
        Self::at(progress, stage, queue, queues_tried)
    }

    fn at(progress: Progress, stage: Stage, queue: usize, queues_tried: usize) -> Self {
        Op { progress, stage, queue, queues_tried, offers: 0, offers_ever: 0, stall_timer: StallTimer::default() }
    }

    /// Returns the queue that must be driven for this op to go on.
    pub(super) fn queue(&self) -> Option<usize> {
        match &self.stage {
            Stage::InFlight(slot) => Some(slot.queue),
            Stage::Full(_) => Some(self.queue),
            Stage::Ready | Stage::Recorded(_) | Stage::Over => None,
        }
    }

    /// Returns true if `step` compares the time that is passed in.
    pub(super) fn needs_time(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Full(_))
    }

    /// Returns whether devices, the CPU or both did the work so far.
    pub(super) fn via(&self) -> Via {
        self.progress.via()
    }

    /// Ends the op now. If a device has the memory, the caller must park the returned slot with the memory.
    pub(super) fn abort(&mut self) -> Option<Slot> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::InFlight(slot) => Some(slot),
            Stage::Ready | Stage::Full(_) | Stage::Recorded(_) | Stage::Over => None,
        }
    }

    /// Takes one step: at most one record read and one descriptor offered. The CPU's share is done in full. Must not be
    /// called again after it was ready.
    pub(super) fn step(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        // The slot stays where `abort` finds it: clocks and portals may panic.
        if let Stage::InFlight(slot) = &self.stage
            && !shared.is_complete(slot)
            && !shared.is_dead(slot, &mut self.stall_timer)
        {
            return Poll::Pending;
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
            Stage::Over => Poll::Ready(Err(JobError::Unsupported { op: self.progress.rest().opcode() })),
        };
        if next.is_ready() {
            self.stage = Stage::Over;
        }
        next
    }

    fn offer(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        let queues = shared.queues.all();
        let retry = shared.policy.retry;
        let drain = self.progress.rest().opcode() == Opcode::Drain;
        if drain {
            // Each queue in turn; the rest counts them.
            self.queue = queues.len().saturating_sub(usize::try_from(self.progress.rest().len()).unwrap_or(0));
        }
        while self.queues_tried < queues.len() {
            let queue = self.queue % queues.len();
            self.queue = queue;
            let limits = &queues[queue].limits;
            if queues[queue].is_dead() {
                if drain && self.progress.next(limits).is_some() {
                    return self.onward(shared, &drained());
                }
            } else if let Some(descriptor) = self.progress.next(limits) {
                let writes = self.progress.rest().writes();
                let descriptor = crate::plan::route::with_policy_flags(descriptor, limits, &shared.policy, writes);
                // SAFETY: the descriptor names a part of the request's ranges. `Op::new`'s caller promised that they
                // are valid and exclusive until the slot, kept in `self.stage`, completes or is parked with the memory.
                if let Some(slot) = unsafe { shared.submit(queue, descriptor, now) } {
                    (self.queues_tried, self.offers) = (0, 0);
                    self.stall_timer = StallTimer::default();
                    self.stage = Stage::InFlight(slot);
                    return Poll::Pending;
                }
                self.offers_ever = self.offers_ever.saturating_add(1);
                if self.offers < retry.attempts {
                    self.offers += 1;
                    self.stage = Stage::Full(now.after(retry.pause));
                    return Poll::Pending;
                }
            }
            if drain {
                break;
            }
            self.offers = 0;
            self.queues_tried += 1;
            self.queue = queue + 1;
        }
        Poll::Ready(self.finish_on_cpu(shared.policy.hint))
    }

    /// Handles a dead queue whose record never comes: what may be done again is done elsewhere.
    fn lost(&mut self, shared: &Shared, slot: Slot) -> Poll<Result<Outcome, JobError>> {
        let why = shared.release_dead(slot);
        let op = self.progress.rest().opcode();
        if op == Opcode::Drain {
            // Nothing that the queue took is in flight any more, which is what a drain waits for.
            return self.onward(shared, &drained());
        }
        if !self.progress.may_be_done_again() {
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
        match self.progress.arrived(record, shared.policy.on_fault) {
            Next::Finished(outcome) => Poll::Ready(Ok(outcome)),
            Next::More => Poll::Pending,
            Next::Touch(fault) => match self.progress.touchable(&fault) {
                Some(range) => {
                    // SAFETY: the range is a part of the request's own, ours by `Op::new`'s promise, and nothing is in
                    // flight.
                    unsafe { memory::touch(&range) };
                    Poll::Pending
                }
                // Not our memory at all: the device is wrong, and our memory is valid.
                None => Poll::Ready(self.finish_on_cpu(shared.policy.hint)),
            },
            Next::OnCpu(..) | Next::Refine(_) => Poll::Ready(self.finish_on_cpu(shared.policy.hint)),
            Next::Failed(failure) => Poll::Ready(Err(failure.into())),
        }
    }

    fn finish_on_cpu(&mut self, hint: Hint) -> Result<Outcome, JobError> {
        if self.progress.rest().opcode() == Opcode::Drain && self.progress.rest().len() > 0 {
            return Err(match self.offers_ever {
                0 => JobError::Unsupported { op: Opcode::Drain },
                offers => JobError::QueueFull { offers },
            });
        }
        // SAFETY: the request's ranges are ours by `Op::new`'s promise, and nothing is in flight: callers completed it.
        let outcome = unsafe { memory::finish(&self.progress, hint) }?;
        self.progress.cpu_did_the_rest();
        Ok(outcome)
    }
}

/// The record of a drain of a dead queue.
fn drained() -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success))
}
