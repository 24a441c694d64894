//! One request in flight together with everything it owns.

use super::meter::Meter;
use super::op::Op;
use super::owned_request::{Held, OwnedRequest};
use super::shared::Shared;
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use std::fmt::Debug;
use std::sync::Arc;
use std::task::Poll;

/// The payload of a request and the op that uses its memory. The payload comes back only when no descriptor is in
/// flight.
pub(crate) struct InFlight<B: Send + 'static> {
    /// Always present until given back or parked.
    payload: Option<Held<B>>,
    /// Boxed, so that a job which is ready at once stays small.
    op: Box<Op>,
    shared: Arc<Shared>,
    /// Present if the operation is timed. Boxed, because few are.
    meter: Option<Box<Meter>>,
}

impl<B: Send + 'static> InFlight<B> {
    /// Prepares an op; nothing is offered before the first step.
    pub(crate) fn new(shared: &Arc<Shared>, request: OwnedRequest<B>) -> Self {
        let (payload, request) = request.into_parts();
        // SAFETY: the request's ranges lie in the payload's stable buffers (`OwnedRequest`). The payload is private to
        // `self` and leaves only through `step` (all ops over) or `expire` and `drop` (which park it with the slots).
        // No method lends it.
        let op = Box::new(unsafe { Op::new(shared, request) });
        InFlight { payload: Some(payload), op, shared: Arc::clone(shared), meter: None }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts timing the operation.
    pub(crate) fn time(&mut self, meter: Meter) {
        self.meter = Some(Box::new(meter));
    }

    /// Sets whether the thread that steps it from now on waits for it and may do a part of the work.
    pub(crate) fn set_waited_for(&mut self, waited_for: bool) {
        let InFlight { op, shared, meter, .. } = self;
        op.set_waited_for(waited_for);
        if let Some(meter) = meter {
            meter.set_waited_for(shared, waited_for.into());
        }
    }

    /// Drives the queues that this op waits for, then takes one step. Returns the payload when the op has
    /// ended.
    pub(crate) fn step(&mut self) -> Poll<(Result<Outcome, JobError>, Via, B)> {
        let InFlight { payload, op, shared, meter } = self;
        let begun = meter.as_ref().and_then(|meter| meter.step(shared));
        op.drive(shared);
        let step = op.step(shared);
        if let Some(meter) = meter {
            meter.stepped(shared, begun);
        }
        match step {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                if let Some(meter) = meter.take() {
                    meter.ended(shared);
                }
                let payload = payload.take().expect("a payload is present until its op is over");
                Poll::Ready((result, op.via(), payload.into_inner()))
            }
        }
    }

    /// Ends it at its deadline. Returns the payload if no device has it; otherwise quarantines it.
    pub(crate) fn expire(mut self) -> Option<B> {
        self.leave(true)
    }

    /// Ends the op now. Returns the payload if no device has any of it. Otherwise the payload stays in the slots of all
    /// descriptors in flight until the last of them has its record.
    fn leave(&mut self, expired: bool) -> Option<B> {
        let slots = self.op.abort();
        let payload = self.payload.take();
        if slots.is_empty() {
            return payload.map(Held::into_inner);
        }
        self.shared.park(slots, payload, expired);
        None
    }
}

impl<B: Send + 'static> Drop for InFlight<B> {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl<B: Send + 'static> Debug for InFlight<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("op", &self.op).finish_non_exhaustive()
    }
}
