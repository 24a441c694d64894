//! A load in flight together with everything it owns.

use super::flight::Flight;
use super::load::{Held, Load};
use super::shared::Shared;
use crate::error::JobError;
use crate::outcome::{Outcome, Via};
use std::fmt::Debug;
use std::sync::Arc;
use std::task::Poll;

/// A payload, and the flight that uses its memory. The payload comes back only on the ground.
pub(crate) struct Cargo<B: Send + 'static> {
    /// Always there until given back or parked.
    payload: Option<Held<B>>,
    /// Boxed, so that a job which is ready at once stays small.
    voyage: Box<Voyage>,
}

struct Voyage {
    flight: Flight,
    shared: Arc<Shared>,
}

impl<B: Send + 'static> Cargo<B> {
    /// Puts a load on its way; nothing is offered before the first step.
    pub(crate) fn new(shared: &Arc<Shared>, load: Load<B>) -> Self {
        let (payload, ask) = load.into_parts();
        // SAFETY: the ask's ranges lie in the payload's stable buffers (`Load`), the payload is private to `self`, leaves
        // only through `unload` (flight over) or `expire` and `drop` (which park it with the leg), and no method lends it.
        let flight = unsafe { Flight::new(shared, ask) };
        Cargo { payload: Some(payload), voyage: Box::new(Voyage { flight, shared: Arc::clone(shared) }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.voyage.shared
    }

    /// Drives the lane this cargo waits for, then takes one step; on arrival the payload comes back.
    pub(crate) fn step(&mut self) -> Poll<(Result<Outcome, JobError>, Via, B)> {
        let Voyage { flight, shared } = &mut *self.voyage;
        if let Some(lane) = flight.lane() {
            shared.drive_lane(Some(lane));
        }
        let now = shared.now_if(flight.needs_time());
        match flight.step(shared, now) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                let payload = self.payload.take().expect("a payload is there until its flight is over");
                Poll::Ready((result, flight.via(), payload.into_inner()))
            }
        }
    }

    /// The deadline passed: the payload, if no device has it; otherwise it is quarantined.
    pub(crate) fn expire(mut self) -> Option<B> {
        self.leave(true)
    }

    fn leave(&mut self, expired: bool) -> Option<B> {
        match self.voyage.flight.abort() {
            None => self.payload.take().map(Held::into_inner),
            Some(leg) => {
                let payload = self.payload.take();
                self.voyage.shared.park(leg, Box::new(payload), expired);
                None
            }
        }
    }
}

impl<B: Send + 'static> Drop for Cargo<B> {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl<B: Send + 'static> Debug for Cargo<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cargo").field("flight", &self.voyage.flight).finish_non_exhaustive()
    }
}
