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

use super::flight::Flight;
use super::load::Held;
use super::memory;
use super::shared::Shared;
use super::table::Leg;
use crate::ask::Ask;
use crate::error::JobError;
use crate::outcome::{Outcome, Via};
use crate::policy::Hint;
use crate::recover::Course;
use crate::split::{BULK, DEPTH, Middle};
use crate::time::Moment;
use std::task::Poll;
use telpher_abi::Opcode;

/// Bytes the CPU does in one step at most, so that a caller with a deadline can check the time. Source: assumed; a
/// millisecond.
const SHIFT: u64 = 8 << 20;

/// A divisible request in parts.
#[derive(Debug)]
pub(super) struct Fleet {
    ask: Ask,
    /// The bytes not handed out yet.
    middle: Middle,
    /// Positions for parts: `DEPTH` for each queue. Position `p` belongs to queue `p` modulo the number of queues.
    ships: Vec<Option<Ship>>,
    /// The queues that get the parts.
    lanes: Vec<usize>,
    /// The longest part, in bytes.
    longest: u64,
    /// The policy lets the waiting thread do parts.
    hybrid: bool,
    /// A thread waits for the transfer.
    attended: bool,
    /// The queues had no room or refused: the CPU does the rest, whichever thread steps.
    grounded: bool,
    verdict: Verdict,
}

/// A part in flight.
#[derive(Debug)]
struct Ship {
    flight: Flight,
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

impl Fleet {
    /// The parts of `request` over these queues, none submitted yet; a part is at most `longest` bytes.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`], except that `abort` gives up several slots instead of one.
    unsafe fn new(ask: Ask, lanes: Vec<usize>, longest: u64, hybrid: bool) -> Self {
        let ships = (0..lanes.len() * DEPTH).map(|_| None).collect();
        let (middle, verdict) = (Middle::of(&ask), Verdict::default());
        Fleet { ask, middle, ships, lanes, longest, hybrid, attended: false, grounded: false, verdict }
    }

    fn is_over(&self) -> bool {
        self.ships.iter().all(Option::is_none) && (self.middle.is_empty() || self.verdict.failed.is_some())
    }

    fn step(&mut self, shared: &Shared, now: Moment) -> Poll<Result<Outcome, JobError>> {
        self.look(shared, now);
        if self.grounded || self.hybrid && self.attended {
            self.lend_a_hand(shared);
        }
        if self.is_over() { Poll::Ready(self.verdict.result(self.ask.opcode())) } else { Poll::Pending }
    }

    /// Takes one step of each op, and submits parts where there is room.
    fn look(&mut self, shared: &Shared, now: Moment) {
        for place in 0..self.ships.len() {
            if let Some(ship) = &mut self.ships[place] {
                let Poll::Ready(result) = ship.flight.step(shared, now) else { continue };
                let (via, start, len) = (ship.flight.via(), ship.start, ship.len);
                self.ships[place] = None;
                self.arrived(via, start, len, result);
            }
            self.send(shared, place, now);
        }
    }

    /// Handles the end of an op.
    fn arrived(&mut self, via: Via, start: u64, len: u64, result: Result<Outcome, JobError>) {
        // The device did not do one byte: the queues have no room, or the device refuses.
        self.grounded |= via == Via::Cpu;
        self.settle(via, start, len, result);
    }

    /// Records the end of a part.
    fn settle(&mut self, via: Via, start: u64, len: u64, result: Result<Outcome, JobError>) {
        self.verdict.by(via);
        self.verdict.ended(start, len, result);
        if let Some(at) = self.verdict.different {
            self.middle.cut_off(at);
        }
    }

    /// Submits the next part at a free position if the queue takes it now. If nothing at all is in flight, it retries
    /// as the policy says.
    fn send(&mut self, shared: &Shared, place: usize, now: Moment) {
        if self.grounded || self.verdict.failed.is_some() {
            return;
        }
        let lane = self.lanes[place % self.lanes.len()];
        let Some((start, len)) = self.middle.take_front(self.lanes.len(), self.longest, self.hybrid) else { return };
        // SAFETY: a part of the request, whose memory is ours by the promise of `new`. Parts of a divisible request
        // share no byte that one of them writes, and the remainder hands out each byte once.
        let mut flight = unsafe { Flight::bound_for(lane, self.ask.part(start, len)) };
        if flight.offer_once(shared, now) {
            self.ships[place] = Some(Ship { flight, start, len });
        } else if self.ships.iter().any(Option::is_some) {
            self.middle.put_back(start);
        } else {
            match flight.step(shared, now) {
                Poll::Pending => self.ships[place] = Some(Ship { flight, start, len }),
                Poll::Ready(result) => self.arrived(flight.via(), start, len, result),
            }
        }
    }

    /// Does parts of the remainder on this thread until none are left, and checks the devices after each part.
    fn lend_a_hand(&mut self, shared: &Shared) {
        let mut done = 0;
        let bulk = self.ask.len() >= BULK;
        let hint = if bulk { Hint::Memory } else { shared.policy.hint };
        while done < SHIFT && self.verdict.failed.is_none() {
            let Some((start, len)) = self.middle.take_back(self.lanes.len(), bulk) else { return };
            let part = Course::new(self.ask.part(start, len));
            // SAFETY: as in `send`; no op has this part.
            let result = unsafe { memory::finish(&part, hint) };
            self.settle(Via::Cpu, start, len, result);
            done += len;
            self.drive(shared);
            self.look(shared, shared.clock.now());
        }
    }

    fn drive(&self, shared: &Shared) {
        self.ships
            .iter()
            .flatten()
            .filter_map(|ship| ship.flight.lane())
            .for_each(|lane| shared.drive_lane(Some(lane)));
    }

    fn abort(&mut self) -> Vec<Leg> {
        self.middle.cut_off(0);
        self.ships.iter_mut().filter_map(Option::take).filter_map(|mut ship| ship.flight.abort()).collect()
    }
}

/// How a request is executed: by one op, or split into parts.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the small one is the rare one, and whoever holds a passage boxes it")]
pub(super) enum Passage {
    /// One descriptor after the other.
    One(Flight),
    /// Several descriptors at the same time.
    Many(Box<Fleet>),
}

impl Passage {
    /// A transfer that has not begun. The policy and the queues decide whether it is split.
    ///
    /// # Safety
    ///
    /// As for [`Op::new`]; [`Transfer::leave`] takes the place of its `abort`.
    pub(super) unsafe fn new(shared: &Shared, ask: Ask) -> Self {
        match shared.fleet(&ask, crate::stripe::mine) {
            Some((lanes, longest)) => {
                let hybrid = shared.policy.split.hybrid;
                // SAFETY: our caller's promise.
                Passage::Many(Box::new(unsafe { Fleet::new(ask, lanes, longest, hybrid) }))
            }
            // SAFETY: our caller's promise.
            None => Passage::One(unsafe { Flight::new(shared, ask) }),
        }
    }

    /// Sets whether a thread with nothing else to do waits for the transfer.
    pub(super) fn attend(&mut self, attended: bool) {
        if let Passage::Many(fleet) = self {
            fleet.attended = attended;
        }
    }

    /// Lets executors without a thread do the work that this transfer waits for.
    pub(super) fn drive(&self, shared: &Shared) {
        match self {
            Passage::One(flight) => {
                if let Some(lane) = flight.lane() {
                    shared.drive_lane(Some(lane));
                }
            }
            Passage::Many(fleet) => fleet.drive(shared),
        }
    }

    /// Returns true if progress depends on a device or on a queue that gets room again.
    pub(super) fn waits(&self) -> bool {
        match self {
            Passage::One(flight) => flight.lane().is_some(),
            Passage::Many(_) => true,
        }
    }

    /// Returns whether devices, the CPU or both did the work so far.
    pub(super) fn via(&self) -> Via {
        match self {
            Passage::One(flight) => flight.via(),
            Passage::Many(fleet) => match (fleet.verdict.device, fleet.verdict.cpu) {
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
            Passage::One(flight) => {
                let now = shared.now_if(flight.needs_time());
                flight.step(shared, now)
            }
            Passage::Many(fleet) => fleet.step(shared, shared.clock.now()),
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
        let legs = self.abort();
        if legs.is_empty() {
            return payload.map(Held::into_inner);
        }
        shared.park(legs, payload, expired);
        None
    }

    /// Ends the transfer now; the caller must park the slots of all ops in flight with the memory.
    pub(super) fn abort(&mut self) -> Vec<Leg> {
        match self {
            Passage::One(flight) => flight.abort().into_iter().collect(),
            Passage::Many(fleet) => fleet.abort(),
        }
    }
}
