//! A load of borrowed slices in flight: a scope keeps it until it is over.

use super::fleet::Passage;
use super::flight::Flight;
use super::load::{Held, Load};
use super::meter::Meter;
use super::shared::Shared;
use crate::error::JobError;
use crate::outcome::{Outcome, Via};
use crate::report::Bomb;
use std::fmt::Debug;
use std::task::Poll;

/// Flights over memory that outlives them only because somebody waits.
pub(crate) struct Lent {
    passage: Passage,
    /// There if it is timed.
    meter: Option<Meter>,
    /// Keeps nothing alive; holds what the slices were, so that nobody else derives pointers from them.
    _payload: Box<dyn std::any::Any + Send>,
}

/// Lengthens a borrow for the time of a flight.
///
/// # Safety
///
/// Nothing made of the result outlives the borrow.
pub(crate) unsafe fn lengthen<'a>(slice: &'a [u8]) -> &'static [u8] {
    // SAFETY: the same slice; its lifetime is our caller's care.
    unsafe { std::mem::transmute::<&'a [u8], &'static [u8]>(slice) }
}

/// Lengthens an exclusive borrow for the time of a flight.
///
/// # Safety
///
/// As for [`lengthen`].
pub(crate) unsafe fn lengthen_mut<'a>(slice: &'a mut [u8]) -> &'static mut [u8] {
    // SAFETY: as in `lengthen`.
    unsafe { std::mem::transmute::<&'a mut [u8], &'static mut [u8]>(slice) }
}

impl Lent {
    /// Puts a load on its way.
    ///
    /// # Safety
    ///
    /// Whoever owns the slices stays away from them until `step` was ready, and the result is neither dropped nor forgotten
    /// before, unless nobody ever touches them again.
    pub(crate) unsafe fn new<P: Send + 'static>(shared: &Shared, load: Load<P>) -> Self {
        let (payload, ask) = load.into_parts();
        // SAFETY: the ranges lie in the payload's slices, which our caller keeps away from others.
        Lent { passage: unsafe { Passage::new(shared, ask) }, meter: None, _payload: Box::new(Kept(payload)) }
    }

    /// Times it from now on.
    pub(crate) fn time(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// Whoever steps it from now on waits for so many operations of which this is one, and may do a part of the work.
    pub(crate) fn attend(&mut self, shared: &Shared, among: u32) {
        self.passage.attend(true);
        if let Some(meter) = &mut self.meter {
            meter.attend(shared, among);
        }
    }

    /// Drives the lanes it waits for, then takes one step.
    pub(crate) fn step(&mut self, shared: &Shared) -> Poll<(Result<Outcome, JobError>, Via)> {
        let begun = self.meter.as_ref().and_then(|meter| meter.step(shared));
        self.passage.drive(shared);
        let step = self.passage.step(shared);
        if let Some(meter) = &mut self.meter {
            meter.stepped(shared, begun);
        }
        step.map(|result| {
            if let Some(meter) = self.meter.take() {
                meter.ended(shared);
            }
            (result, self.passage.via())
        })
    }
}

/// Copies between equally long slices and waits: one flight on the stack, no allocation and no lock, so that signal handlers
/// may. `None`, with nothing done, if policy or the queues want it in parts.
pub(crate) fn copy_whole(shared: &Shared, src: &[u8], dst: &mut [u8]) -> Option<Result<Outcome, JobError>> {
    let len = src.len() as u64;
    if len >= shared.policy.split.above || len > shared.lanes.max_transfer() {
        return None;
    }
    // SAFETY: both are used for `ask` only, whose flight is over when this returns; and if it unwinds, the process ends.
    let (mut src, mut dst) = unsafe { (lengthen(src), lengthen_mut(dst)) };
    let ask = match crate::operation::copy(&mut src, &mut dst) {
        Ok(ask) => ask,
        Err(error) => return Some(Err(error)),
    };
    // SAFETY: the slices are borrowed for this call, the destination exclusively, and nobody uses `src` and `dst` below.
    let mut flight = unsafe { Flight::new(shared, ask) };
    let bomb = Bomb("a panic while a copy waited for its device; borrowed memory may still be written");
    let result = shared.wait(|| {
        // Without a sweep: what others left is dropped by code of theirs, which may do anything.
        if let Some(lane) = flight.lane().and_then(|lane| shared.lanes.all().get(lane)) {
            lane.drive();
        }
        let now = shared.now_if(flight.needs_time());
        flight.step(shared, now)
    });
    bomb.defuse();
    Some(result)
}

/// A payload nobody opens again.
struct Kept<P>(#[allow(dead_code, reason = "held, not read")] Held<P>);

impl Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("passage", &self.passage).finish_non_exhaustive()
    }
}
