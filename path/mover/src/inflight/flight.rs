//! One operation in flight: a non-blocking state machine that is told the time.
//!
//! ```text
//!   Ready ──offer──► Aloft ──record──► finished | Ready again | the CPU finishes
//!     │  ▲
//!     ▼  │ retry
//!    Full ──every lane asked often enough──► the CPU does it
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

/// An ask on its way to, at, or back from a device. Its memory is somebody else's to keep: see [`Flight::new`].
#[derive(Debug)]
pub(super) struct Flight {
    course: Course,
    stage: Stage,
    /// The lane to ask next.
    lane: usize,
    /// Lanes asked in vain for the present descriptor.
    lanes_tried: usize,
    /// Offers to this lane in vain.
    offers: u32,
    /// Offers in vain altogether.
    offers_ever: u32,
    /// How long the present leg has been out.
    vigil: Vigil,
}

/// Where a flight is.
#[derive(Debug)]
enum Stage {
    /// To be offered.
    Ready,
    /// No room; not before this moment again.
    Full(Moment),
    /// A device has it.
    Aloft(Leg),
    /// Its record is here.
    Landed(CompletionRecord),
    /// Ended.
    Over,
}

impl Flight {
    /// A flight on the ground.
    ///
    /// # Safety
    ///
    /// From the first `step` on, until `step` returns `Ready` or [`Flight::abort`] gives up the leg to a slot together with
    /// the memory: every range of `ask` is valid for reads, its destinations for writes, and nobody else touches them.
    pub(super) unsafe fn new(shared: &Shared, ask: Ask) -> Self {
        let lane = shared.lanes.first(shared.policy.route, &ask, crate::stripe::mine);
        let course = Course::new(ask);
        Self::at(course, Stage::Ready, lane, 0)
    }

    /// The same with the lane to ask first.
    ///
    /// # Safety
    ///
    /// As for [`Flight::new`].
    pub(super) unsafe fn bound_for(lane: usize, ask: Ask) -> Self {
        Self::at(Course::new(ask), Stage::Ready, lane, 0)
    }

    /// Offers a flight that has not begun to its lane, once; true if it was taken. If not, it is as it was.
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

    /// A flight that goes on with a course begun elsewhere: on the CPU alone if told so, and with a record already there if
    /// one is given.
    ///
    /// # Safety
    ///
    /// As for [`Flight::new`], and no device has the memory now.
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

    /// The lane that must be driven for this flight to go on.
    pub(super) fn lane(&self) -> Option<usize> {
        match &self.stage {
            Stage::Aloft(leg) => Some(leg.lane),
            Stage::Full(_) => Some(self.lane),
            Stage::Ready | Stage::Landed(_) | Stage::Over => None,
        }
    }

    /// True if `step` compares the time it is told.
    pub(super) fn needs_time(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Full(_))
    }

    /// Who has done the work so far.
    pub(super) fn via(&self) -> Via {
        self.course.via()
    }

    /// Ends it where it is; the leg, if a device has the memory, must be parked with the memory.
    pub(super) fn abort(&mut self) -> Option<Leg> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Aloft(leg) => Some(leg),
            Stage::Ready | Stage::Full(_) | Stage::Landed(_) | Stage::Over => None,
        }
    }

    /// One step: at most one record read and one descriptor offered; the CPU's share is done in full. Must not be called
    /// again after it was ready.
    pub(super) fn step(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        // With the leg where `abort` finds it: clocks and portals may panic.
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
            // Each lane in turn; what is left counts them.
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
                // SAFETY: the descriptor names a part of the ask's ranges, whose validity and exclusiveness `Flight::new`
                // was promised until the leg, kept in `self.stage`, lands or is parked with the memory.
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

    /// The queue is out and its record never comes: what may be done again is, elsewhere.
    fn lost(&mut self, shared: &Shared, leg: Leg) -> Poll<Result<Outcome, JobError>> {
        let why = shared.salvage(leg);
        let op = self.course.rest().opcode();
        if op == Opcode::Drain {
            // Nothing that the queue took is under way any more, which is all that was asked.
            return self.onward(shared, &drained());
        }
        if !self.course.may_be_done_again() {
            return Poll::Ready(Err(JobError::Stopped { op, why }));
        }
        self.offer(shared, shared.clock.now())
    }

    /// After a record: to the end, or on the way again in the same step.
    fn onward(&mut self, shared: &Shared, record: &CompletionRecord) -> Poll<Result<Outcome, JobError>> {
        match self.arrived(shared, record) {
            // Looks at the clock itself: whoever waited for the record had no time to tell.
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
                    // SAFETY: the range is a part of the ask's own, ours by `Flight::new`'s promise, and no leg is aloft.
                    unsafe { memory::touch(&range) };
                    Poll::Pending
                }
                // Not our memory at all: the device is wrong, and what is ours is valid.
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
        // SAFETY: the ask's ranges are ours by `Flight::new`'s promise, and no leg is aloft: callers took it down.
        let outcome = unsafe { memory::finish(&self.course, hint) }?;
        self.course.cpu_did_the_rest();
        Ok(outcome)
    }
}

/// The record of a drain of a queue that is out.
fn drained() -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success))
}
