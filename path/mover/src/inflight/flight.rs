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
use super::table::Leg;
use crate::ask::Ask;
use crate::error::JobError;
use crate::outcome::{Outcome, Via};
use crate::policy::Hint;
use crate::recover::{Course, Next};
use crate::time::Moment;
use crate::vigil::Vigil;
use std::task::Poll;
use telpher_abi::{CompletionRecord, Opcode, Status, StatusByte};

/// The state of one request that a device executes in chunks. The caller keeps its memory alive: see [`Op::new`].
#[derive(Debug)]
pub(super) struct Flight {
    course: Course,
    stage: Stage,
    /// The queue to ask next.
    lane: usize,
    /// Number of queues that refused the present descriptor.
    lanes_tried: usize,
    /// Refused offers to this queue.
    offers: u32,
    /// Refused offers to all queues.
    offers_ever: u32,
    /// How long the present descriptor has been in flight.
    vigil: Vigil,
}

/// The stage of an op.
#[derive(Debug)]
enum Stage {
    /// To be offered.
    Ready,
    /// The queue is full; do not offer again before this moment.
    Full(Moment),
    /// A device has it.
    Aloft(Leg),
    /// Its record was read.
    Landed(CompletionRecord),
    /// Ended.
    Over,
}

impl Flight {
    /// An op with nothing in flight.
    ///
    /// # Safety
    ///
    /// From the first `step` on, until `step` returns `Ready` or [`Op::abort`] gives up the slot together with the
    /// memory: every range of `request` is valid for reads, its destinations for writes, and no other code touches
    /// them.
    pub(super) unsafe fn new(shared: &Shared, ask: Ask) -> Self {
        let lane = shared.lanes.first(shared.policy.route, &ask, crate::stripe::mine);
        let course = Course::new(ask);
        Self::at(course, Stage::Ready, lane, 0)
    }

    /// An op whose first queue the caller chose.
    ///
    /// # Safety
    ///
    /// As for [`Flight::new`].
    pub(super) unsafe fn bound_for(lane: usize, ask: Ask) -> Self {
        Self::at(Course::new(ask), Stage::Ready, lane, 0)
    }

    /// Offers an op that has not begun to its queue, once. Returns true if the queue took it; otherwise the op is
    /// unchanged.
    pub(super) fn offer_once(&mut self, shared: &Shared, now: Moment) -> bool {
        let lane = self.lane % shared.lanes.all().len();
        let limits = &shared.lanes.all()[lane].limits;
        let Some(descriptor) = self.course.next(limits) else { return false };
        let writes = self.course.rest().writes();
        let descriptor = crate::route::with_policy_flags(descriptor, limits, &shared.policy, writes);
        // SAFETY: as in `offer`.
        let Some(leg) = (unsafe { shared.take_off(lane, descriptor, now) }) else { return false };
        self.stage = Stage::Aloft(leg);
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
        course: Course,
        on_cpu: bool,
        record: Option<CompletionRecord>,
    ) -> Self {
        let lane = shared.lanes.first(shared.policy.route, course.rest(), crate::stripe::mine);
        let stage = record.map_or(Stage::Ready, Stage::Landed);
        let lanes_tried = if on_cpu { usize::MAX } else { 0 };
        Self::at(course, stage, lane, lanes_tried)
    }

    fn at(course: Course, stage: Stage, lane: usize, lanes_tried: usize) -> Self {
        Flight { course, stage, lane, lanes_tried, offers: 0, offers_ever: 0, vigil: Vigil::default() }
    }

    /// Returns the queue that must be driven for this op to go on.
    pub(super) fn lane(&self) -> Option<usize> {
        match &self.stage {
            Stage::Aloft(leg) => Some(leg.lane),
            Stage::Full(_) => Some(self.lane),
            Stage::Ready | Stage::Landed(_) | Stage::Over => None,
        }
    }

    /// Returns true if `step` compares the time that is passed in.
    pub(super) fn needs_time(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Full(_))
    }

    /// Returns whether devices, the CPU or both did the work so far.
    pub(super) fn via(&self) -> Via {
        self.course.via()
    }

    /// Ends the op now. If a device has the memory, the caller must park the returned slot with the memory.
    pub(super) fn abort(&mut self) -> Option<Leg> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Aloft(leg) => Some(leg),
            Stage::Ready | Stage::Full(_) | Stage::Landed(_) | Stage::Over => None,
        }
    }

    /// Takes one step: at most one record read and one descriptor offered. The CPU's share is done in full. Must not be
    /// called again after it was ready.
    pub(super) fn step(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        // The slot stays where `abort` finds it: clocks and portals may panic.
        if let Stage::Aloft(leg) = &self.stage
            && !shared.has_landed(leg)
            && !shared.has_gone_down(leg, &mut self.vigil)
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
            Stage::Aloft(leg) if shared.has_landed(&leg) => {
                let record = shared.land(leg);
                self.onward(shared, &record)
            }
            Stage::Landed(record) => self.onward(shared, &record),
            Stage::Aloft(leg) => self.lost(shared, leg),
            Stage::Over => Poll::Ready(Err(JobError::Unsupported { op: self.course.rest().opcode() })),
        };
        if next.is_ready() {
            self.stage = Stage::Over;
        }
        next
    }

    fn offer(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        let lanes = shared.lanes.all();
        let retry = shared.policy.retry;
        let drain = self.course.rest().opcode() == Opcode::Drain;
        if drain {
            // Each queue in turn; the rest counts them.
            self.lane = lanes.len().saturating_sub(usize::try_from(self.course.rest().len()).unwrap_or(0));
        }
        while self.lanes_tried < lanes.len() {
            let lane = self.lane % lanes.len();
            self.lane = lane;
            let limits = &lanes[lane].limits;
            if lanes[lane].is_out() {
                if drain && self.course.next(limits).is_some() {
                    return self.onward(shared, &drained());
                }
            } else if let Some(descriptor) = self.course.next(limits) {
                let writes = self.course.rest().writes();
                let descriptor = crate::route::with_policy_flags(descriptor, limits, &shared.policy, writes);
                // SAFETY: the descriptor names a part of the request's ranges. `Op::new`'s caller promised that they
                // are valid and exclusive until the slot, kept in `self.stage`, completes or is parked with the memory.
                if let Some(leg) = unsafe { shared.take_off(lane, descriptor, now) } {
                    (self.lanes_tried, self.offers) = (0, 0);
                    self.vigil = Vigil::default();
                    self.stage = Stage::Aloft(leg);
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
            self.lanes_tried += 1;
            self.lane = lane + 1;
        }
        Poll::Ready(self.finish_on_cpu(shared.policy.hint))
    }

    /// Handles a dead queue whose record never comes: what may be done again is done elsewhere.
    fn lost(&mut self, shared: &Shared, leg: Leg) -> Poll<Result<Outcome, JobError>> {
        let why = shared.salvage(leg);
        let op = self.course.rest().opcode();
        if op == Opcode::Drain {
            // Nothing that the queue took is in flight any more, which is what a drain waits for.
            return self.onward(shared, &drained());
        }
        if !self.course.may_be_done_again() {
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
        match self.course.arrived(record, shared.policy.on_fault) {
            Next::Finished(outcome) => Poll::Ready(Ok(outcome)),
            Next::More => Poll::Pending,
            Next::Touch(fault) => match self.course.touchable(&fault) {
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
        if self.course.rest().opcode() == Opcode::Drain && self.course.rest().len() > 0 {
            return Err(match self.offers_ever {
                0 => JobError::Unsupported { op: Opcode::Drain },
                offers => JobError::QueueFull { offers },
            });
        }
        // SAFETY: the request's ranges are ours by `Op::new`'s promise, and nothing is in flight: callers completed it.
        let outcome = unsafe { memory::finish(&self.course, hint) }?;
        self.course.cpu_did_the_rest();
        Ok(outcome)
    }
}

/// The record of a drain of a dead queue.
fn drained() -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success))
}
