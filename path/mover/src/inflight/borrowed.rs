//! A request over borrowed slices in flight: a scope keeps it until it is over.

use super::meter::Meter;
use super::op::Op;
use super::owned_request::{Held, OwnedRequest};
use super::shared::Shared;
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use crate::plan::request::Request;
use crate::report::AbortOnUnwind;
use std::fmt::Debug;
use std::task::Poll;
use telpher_abi::{Descriptor, Opcode, WindowFlags};

/// An op over borrowed memory. The memory outlives it only because a thread waits for it.
pub(crate) struct BorrowedInFlight {
    op: Op,
    /// Present if the operation is timed.
    meter: Option<Meter>,
    /// Keeps no memory alive. It holds the slices, so that no other code derives pointers from them.
    _payload: Box<dyn std::any::Any + Send>,
}

/// Extends a borrow for the time of an op.
///
/// # Safety
///
/// Nothing made from the result outlives the borrow.
pub(crate) unsafe fn extend_lifetime<'a>(slice: &'a [u8]) -> &'static [u8] {
    // SAFETY: the same slice; our caller ensures that its lifetime is not exceeded.
    unsafe { std::mem::transmute::<&'a [u8], &'static [u8]>(slice) }
}

/// Extends an exclusive borrow for the time of an op.
///
/// # Safety
///
/// As for [`extend_lifetime`].
pub(crate) unsafe fn extend_lifetime_mut<'a>(slice: &'a mut [u8]) -> &'static mut [u8] {
    // SAFETY: as in `extend_lifetime`.
    unsafe { std::mem::transmute::<&'a mut [u8], &'static mut [u8]>(slice) }
}

impl BorrowedInFlight {
    /// Prepares an op.
    ///
    /// # Safety
    ///
    /// The owner of the slices does not touch them until `step` was ready. The result is neither dropped nor forgotten
    /// before, unless the slices are never touched again.
    pub(crate) unsafe fn new<P: Send + 'static>(shared: &Shared, request: OwnedRequest<P>) -> Self {
        let (payload, request) = request.into_parts();
        BorrowedInFlight {
            // SAFETY: the ranges lie in the payload's slices, which our caller keeps away from other code.
            op: unsafe { Op::new(shared, request) },
            meter: None,
            _payload: Box::new(Kept(payload)),
        }
    }

    /// Starts timing the operation.
    pub(crate) fn time(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// Records that the thread that steps it from now on waits for `among` operations, of which this is one, and may do
    /// a part of the work.
    pub(crate) fn set_waited_for(&mut self, shared: &Shared, among: u32) {
        self.op.set_waited_for(true);
        if let Some(meter) = &mut self.meter {
            meter.set_waited_for(shared, among);
        }
    }

    /// Drives the queues that the op waits for, then takes one step.
    pub(crate) fn step(&mut self, shared: &Shared) -> Poll<(Result<Outcome, JobError>, Via)> {
        let begun = self.meter.as_ref().and_then(|meter| meter.step(shared));
        self.op.drive(shared);
        let step = self.op.step(shared);
        if let Some(meter) = &mut self.meter {
            meter.stepped(shared, begun);
        }
        step.map(|result| {
            if let Some(meter) = self.meter.take() {
                meter.ended(shared);
            }
            (result, self.op.via())
        })
    }
}

/// Copies between equally long slices and waits: one op on the stack, no allocation and no lock, so signal handlers may
/// call it. Returns `None`, with nothing done, if the policy or the queues require parts.
pub(crate) fn copy_whole(shared: &Shared, src: &[u8], dst: &mut [u8]) -> Option<Result<Outcome, JobError>> {
    let len = src.len() as u64;
    if len >= shared.policy.split.above || len > shared.queues.max_transfer() {
        return None;
    }
    // SAFETY: both are used for `request` only, whose op is over when this returns; if it unwinds, the process ends.
    let (mut src, mut dst) = unsafe { (extend_lifetime(src), extend_lifetime_mut(dst)) };
    let request = match crate::api::operation::copy(&mut src, &mut dst) {
        Ok(request) => request,
        Err(error) => return Some(Err(error)),
    };
    // SAFETY: the slices are borrowed for this call, the destination exclusively, and no code below uses `src` and
    // `dst`.
    let mut op = unsafe { Op::whole(shared, request) };
    let guard = AbortOnUnwind("a panic while a copy waited for its device; borrowed memory may still be written");
    let result = shared.wait(|| {
        // Without a sweep: dropping parked payloads runs other code, which may do anything.
        if let Some(queue) = op.queue().and_then(|queue| shared.queues.all().get(queue)) {
            queue.drive();
        }
        op.step(shared)
    });
    guard.disarm();
    Some(result)
}

/// An operation of one queue with a window of another process, named by a handle of that queue and an address in it.
/// Its other operand is lent for the call.
#[derive(Debug)]
pub(crate) enum WindowOperation<'a> {
    /// Copies out of the window.
    Read(&'a mut [u8]),
    /// Copies into the window.
    Write(&'a [u8]),
    /// Repeats a pattern over this many bytes of the window.
    Fill(u64, u64),
    /// Compares the window with other bytes.
    Compare(&'a [u8]),
    /// Compares this many bytes of the window with a repeated pattern. A difference is a lower bound.
    ComparePattern(u64, u64),
    /// Takes all permissions away from a window of this process, which begins at the address and has this many bytes.
    /// Ends when no descriptor uses them any more.
    Close(u64),
}

impl WindowOperation<'_> {
    /// Returns the operation within one memory that it resembles, and the bytes, to compare with a threshold.
    pub(crate) fn weight(&self) -> (Opcode, u64) {
        match self {
            WindowOperation::Read(into) => (Opcode::MemoryMove, into.len() as u64),
            WindowOperation::Write(from) => (Opcode::MemoryMove, from.len() as u64),
            WindowOperation::Fill(_, len) => (Opcode::Fill, *len),
            WindowOperation::Compare(with) => (Opcode::Compare, with.len() as u64),
            WindowOperation::ComparePattern(_, len) => (Opcode::ComparePattern, *len),
            WindowOperation::Close(_) => (Opcode::UpdateWindow, 0),
        }
    }

    /// True if it writes bytes of the window.
    pub(crate) fn writes_window(&self) -> bool {
        matches!(self, WindowOperation::Write(_) | WindowOperation::Fill(..))
    }

    /// True if its outcome is whether bytes are equal.
    pub(crate) fn compares(&self) -> bool {
        matches!(self, WindowOperation::Compare(_) | WindowOperation::ComparePattern(..))
    }
}

/// Executes an operation with a window, and waits. An operation that the queue cannot do, or does not get to its end,
/// is an error: the CPU does not take over.
pub(crate) fn run_in_window(
    shared: &Shared,
    queue: usize,
    handle: u16,
    address: u64,
    operation: &mut WindowOperation<'_>,
) -> Result<Outcome, JobError> {
    // The addresses of slices that are borrowed for this call; no code below uses the slices themselves.
    let (descriptor, len) = match operation {
        WindowOperation::Read(into) => {
            let (to, len) = (into.as_mut_ptr().expose_provenance() as u64, into.len() as u64);
            (Descriptor::inter_domain_copy(address, Some(handle), to, None, 0), len)
        }
        WindowOperation::Write(from) => {
            let (from, len) = (from.as_ptr().expose_provenance() as u64, from.len() as u64);
            (Descriptor::inter_domain_copy(from, None, address, Some(handle), 0), len)
        }
        WindowOperation::Fill(pattern, len) => (Descriptor::inter_domain_fill(*pattern, address, handle, 0), *len),
        WindowOperation::Compare(with) => {
            let (with, len) = (with.as_ptr().expose_provenance() as u64, with.len() as u64);
            (Descriptor::inter_domain_compare(address, Some(handle), with, None, 0), len)
        }
        WindowOperation::ComparePattern(pattern, len) => {
            (Descriptor::inter_domain_compare_pattern(address, handle, *pattern, 0), *len)
        }
        WindowOperation::Close(size) => (Descriptor::update_window(handle, address, *size, WindowFlags::ENABLE), 0),
    };
    // SAFETY: the request's own ranges are the borrowed slice, the destination exclusively, until this returns; if it
    // unwinds, the process ends. Memory of other processes belongs to no code of this one.
    let mut op = unsafe { Op::for_queue(queue, Request::new(descriptor, len)) };
    let guard = AbortOnUnwind("a panic while a copy waited for its device; borrowed memory may still be written");
    let result = shared.wait(|| {
        op.drive(shared);
        op.step(shared)
    });
    guard.disarm();
    result
}

/// A payload that is only held.
struct Kept<P>(#[allow(dead_code, reason = "held, not read")] Held<P>);

impl Debug for BorrowedInFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BorrowedInFlight").field("op", &self.op).finish_non_exhaustive()
    }
}
