//! One request in flight together with everything it owns.

use super::meter::Meter;
use super::owned_request::{Held, OwnedRequest};
use super::shared::Shared;
use super::transfer::Transfer;
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use std::fmt::Debug;
use std::sync::Arc;
use std::task::Poll;

/// The payload of a request and the transfer that uses its memory. The payload comes back only when no descriptor is in
/// flight.
pub(crate) struct InFlight<B: Send + 'static> {
    /// Always present until given back or parked.
    payload: Option<Held<B>>,
    /// Boxed, so that a job which is ready at once stays small.
    inner: Box<Inner>,
}

struct Inner {
    transfer: Transfer,
    shared: Arc<Shared>,
    /// Present if the operation is timed.
    meter: Option<Meter>,
}

impl<B: Send + 'static> InFlight<B> {
    /// Prepares a transfer; nothing is offered before the first step.
    pub(crate) fn new(shared: &Arc<Shared>, request: OwnedRequest<B>) -> Self {
        let (payload, request) = request.into_parts();
        // SAFETY: the request's ranges lie in the payload's stable buffers (`OwnedRequest`). The payload is private to
        // `self` and leaves only through `step` (all ops over) or `expire` and `drop` (which park it with the slots).
        // No method lends it.
        let transfer = unsafe { Transfer::new(shared, request) };
        InFlight {
            payload: Some(payload),
            inner: Box::new(Inner { transfer, shared: Arc::clone(shared), meter: None }),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Starts timing the operation.
    pub(crate) fn time(&mut self, meter: Meter) {
        self.inner.meter = Some(meter);
    }

    /// Sets whether the thread that steps it from now on waits for it and may do a part of the work.
    pub(crate) fn set_waited_for(&mut self, waited_for: bool) {
        let Inner { transfer, shared, meter } = &mut *self.inner;
        transfer.set_waited_for(waited_for);
        if let Some(meter) = meter {
            meter.set_waited_for(shared, waited_for.into());
        }
    }

    /// Drives the queues that this transfer waits for, then takes one step. Returns the payload when the transfer has
    /// ended.
    pub(crate) fn step(&mut self) -> Poll<(Result<Outcome, JobError>, Via, B)> {
        let Inner { transfer, shared, meter } = &mut *self.inner;
        let begun = meter.as_ref().and_then(|meter| meter.step(shared));
        transfer.drive(shared);
        let step = transfer.step(shared);
        if let Some(meter) = meter {
            meter.stepped(shared, begun);
        }
        match step {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                if let Some(meter) = meter.take() {
                    meter.ended(shared);
                }
                let payload = self.payload.take().expect("a payload is present until its transfer is over");
                Poll::Ready((result, transfer.via(), payload.into_inner()))
            }
        }
    }

    /// Ends it at its deadline. Returns the payload if no device has it; otherwise quarantines it.
    pub(crate) fn expire(mut self) -> Option<B> {
        self.leave(true)
    }

    fn leave(&mut self, expired: bool) -> Option<B> {
        let Inner { transfer, shared, .. } = &mut *self.inner;
        transfer.leave(shared, self.payload.take(), expired)
    }
}

impl<B: Send + 'static> Drop for InFlight<B> {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl<B: Send + 'static> Debug for InFlight<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("transfer", &self.inner.transfer).finish_non_exhaustive()
    }
}
