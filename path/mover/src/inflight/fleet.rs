//! One long operation in several flights at once, and perhaps in the hands of the thread that waits for it.
//!
//! ```text
//!            head ►                                  ◄ tail
//!   │ aloft, done │ aloft │        middle        │ done by the CPU │
//!     lane 0, 1, …          nobody's yet           only while attended
//! ```
//!
//! Each part is a [`Flight`] of its own, with its own faults, retries and recovery, so that everything that holds for one
//! descriptor holds for each part; the whole ends when all its parts have, with the first failure if there was one. A part that
//! failed lets those in the air land and keeps others on the ground.

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

/// Bytes the CPU does in one step at most, so that whoever has a deadline can look at the time. Source: assumed; a millisecond.
const SHIFT: u64 = 8 << 20;

/// A divisible ask in parts.
#[derive(Debug)]
pub(super) struct Fleet {
    ask: Ask,
    /// What nobody has yet.
    middle: Middle,
    /// Places for flights: `DEPTH` for each lane, those of one lane apart by the number of lanes.
    ships: Vec<Option<Ship>>,
    /// Where the parts go.
    lanes: Vec<usize>,
    /// A part's longest, in bytes.
    longest: u64,
    /// Policy lets who waits take part.
    hybrid: bool,
    /// Somebody waits.
    attended: bool,
    /// The queues had no room, or refused: the CPU does the rest, whoever steps.
    grounded: bool,
    verdict: Verdict,
}

/// A part under way.
#[derive(Debug)]
struct Ship {
    flight: Flight,
    start: u64,
    len: u64,
}

/// What is known of the whole so far.
#[derive(Debug, Default)]
struct Verdict {
    /// The failure of the first part that failed, and where that begins.
    failed: Option<(u64, JobError)>,
    /// The first difference a comparison found.
    different: Option<u64>,
    /// Bytes done, in whichever parts.
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

    /// The result of the whole, all of whose parts have ended.
    fn result(&self, op: Opcode) -> Result<Outcome, JobError> {
        match &self.failed {
            // A difference before it makes what comes behind irrelevant.
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
    /// The parts of `ask` over these lanes, all on the ground; a part is at most `longest` bytes.
    ///
    /// # Safety
    ///
    /// As for [`Flight::new`]; in place of one leg, `abort` gives up several.
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

    /// Takes each flight one step, and sends parts out where there is room.
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

    /// A flight has ended.
    fn arrived(&mut self, via: Via, start: u64, len: u64, result: Result<Outcome, JobError>) {
        // Not one byte of it by a device: the queues have no room, or the device refuses.
        self.grounded |= via == Via::Cpu;
        self.settle(via, start, len, result);
    }

    /// A part has ended.
    fn settle(&mut self, via: Via, start: u64, len: u64, result: Result<Outcome, JobError>) {
        self.verdict.by(via);
        self.verdict.ended(start, len, result);
        if let Some(at) = self.verdict.different {
            self.middle.cut_off(at);
        }
    }

    /// Sends the next part out from an empty place, if the queue takes it now; if nothing at all is in the air, as patiently as
    /// policy says.
    fn send(&mut self, shared: &Shared, place: usize, now: Moment) {
        if self.grounded || self.verdict.failed.is_some() {
            return;
        }
        let lane = self.lanes[place % self.lanes.len()];
        let Some((start, len)) = self.middle.take_front(self.lanes.len(), self.longest, self.hybrid) else { return };
        // SAFETY: a part of the ask, whose memory is ours by the promise of `new`; parts of a divisible ask share no byte that
        // one of them writes, and the middle gives each byte once.
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

    /// Does parts of the middle here, as long as there are any, with a look at the devices after each.
    fn lend_a_hand(&mut self, shared: &Shared) {
        let mut done = 0;
        let bulk = self.ask.len() >= BULK;
        let hint = if bulk { Hint::Memory } else { shared.policy.hint };
        while done < SHIFT && self.verdict.failed.is_none() {
            let Some((start, len)) = self.middle.take_back(self.lanes.len(), bulk) else { return };
            let part = Course::new(self.ask.part(start, len));
            // SAFETY: as in `send`; no flight has this part.
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

/// How an ask travels: in one flight, or as a fleet.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the small one is the rare one, and whoever holds a passage boxes it")]
pub(super) enum Passage {
    /// One descriptor after the other.
    One(Flight),
    /// Several at once.
    Many(Box<Fleet>),
}

impl Passage {
    /// A passage that has not begun, in as many flights as policy wants and the queues make sensible.
    ///
    /// # Safety
    ///
    /// As for [`Flight::new`]; [`Passage::leave`] takes the place of its `abort`.
    pub(super) unsafe fn new(shared: &Shared, ask: Ask) -> Self {
        match shared.fleet(&ask, crate::stripe::mine) {
            Some((lanes, longest)) => {
                let hybrid = shared.policy.split.hybrid;
                // SAFETY: the promise of our caller.
                Passage::Many(Box::new(unsafe { Fleet::new(ask, lanes, longest, hybrid) }))
            }
            // SAFETY: the promise of our caller.
            None => Passage::One(unsafe { Flight::new(shared, ask) }),
        }
    }

    /// Whether somebody waits for it, on a thread that has nothing else to do.
    pub(super) fn attend(&mut self, attended: bool) {
        if let Passage::Many(fleet) = self {
            fleet.attended = attended;
        }
    }

    /// Lets executors without a thread do what this passage waits for.
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

    /// True if it goes on when a device, or a queue with room again, is there.
    pub(super) fn waits(&self) -> bool {
        match self {
            Passage::One(flight) => flight.lane().is_some(),
            Passage::Many(_) => true,
        }
    }

    /// Who has done the work so far.
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

    /// One step: see [`Flight::step`]. A fleet takes one with each of its flights, and the CPU's share of one who waits.
    pub(super) fn step(&mut self, shared: &Shared) -> Poll<Result<Outcome, JobError>> {
        match self {
            Passage::One(flight) => {
                let now = shared.now_if(flight.needs_time());
                flight.step(shared, now)
            }
            Passage::Many(fleet) => fleet.step(shared, shared.clock.now()),
        }
    }

    /// Ends it where it is. The payload comes back if no device has any of it; otherwise it stays in the slots of all flights
    /// that are aloft, until the last of them has its record.
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

    /// Ends it where it is; the legs of all flights that are aloft must be parked with the memory.
    pub(super) fn abort(&mut self) -> Vec<Leg> {
        match self {
            Passage::One(flight) => flight.abort().into_iter().collect(),
            Passage::Many(fleet) => fleet.abort(),
        }
    }
}
