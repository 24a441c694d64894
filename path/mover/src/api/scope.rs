//! Operations on borrowed slices; all of them end before the scope does.
#![allow(unsafe_code, reason = "extends borrows for the time of an op, which `run` waits for")]

use crate::api::error::JobError;
use crate::api::job::Done;
use crate::api::operation::operations;
use crate::api::outcome::{Outcome, Via};
use crate::inflight::{
    BorrowedInFlight, InvalidRequest, Meter, OwnedRequest, Shared, extend_lifetime, extend_lifetime_mut, side, tuple,
};
use crate::learn::Choice;
use crate::report::{AbortOnUnwind, say};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use telpher_abi::Opcode;

/// Starts operations on borrowed slices; see [`Mover::scope`](crate::Mover::scope).
///
/// Slices are borrowed until the scope ends, whether or not a thread waits for the operation.
///
/// Each operation is submitted, or done, when it is started; none is held back until others have come. Operations below
/// the threshold cost the CPU less than an entry in a list would. Those above it keep a device busy from the first on.
/// A list of 32 copies of 4 KiB ends 1.15 times as fast as 32 copies started one by one (`telpher bench mover --only
/// shape`, software model, AMD EPYC). A caller that wants this uses a [`Batch`](crate::Batch), and decides itself how
/// long the first operation may wait for the last.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    shared: &'scope Shared,
    /// All operations that were started, in order.
    begun: Mutex<Vec<ScopedOp>>,
    /// Invariant in both, as in `std::thread::scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// One operation of a scope.
#[derive(Debug)]
enum ScopedOp {
    InFlight(Box<BorrowedInFlight>),
    Ended(Result<Outcome, JobError>, Via),
}

impl ScopedOp {
    /// Records that the thread that steps it from now on waits for `among` operations, of which this is one.
    fn set_waited_for(&mut self, shared: &Shared, among: u32) {
        if let ScopedOp::InFlight(in_flight) = self {
            in_flight.set_waited_for(shared, among);
        }
    }

    /// Starts timing the operation, or learns its time if it has ended.
    fn time(&mut self, meter: Meter, shared: &Shared) {
        match self {
            ScopedOp::InFlight(in_flight) => in_flight.time(meter),
            ScopedOp::Ended(..) => meter.ended(shared),
        }
    }

    /// Takes one step; returns true if the operation has ended.
    fn step(&mut self, shared: &Shared) -> bool {
        if let ScopedOp::InFlight(in_flight) = self
            && let Poll::Ready((result, via)) = in_flight.step(shared)
        {
            *self = ScopedOp::Ended(result, via);
        }
        matches!(self, ScopedOp::Ended(..))
    }
}

/// An operation that was started in a scope. Dropping this changes nothing: the scope waits for the operation.
#[derive(Debug)]
pub struct ScopedJob<'scope> {
    shared: &'scope Shared,
    begun: &'scope Mutex<Vec<ScopedOp>>,
    index: usize,
}

impl ScopedJob<'_> {
    /// Returns true if the operation has ended; takes one step otherwise.
    pub fn is_done(&self) -> bool {
        lock(self.begun)[self.index].step(self.shared)
    }

    /// Waits for the operation on this thread.
    pub fn wait(self) -> Done<()> {
        lock(self.begun)[self.index].set_waited_for(self.shared, 1);
        self.shared.wait(|| {
            let mut begun = lock(self.begun);
            if !begun[self.index].step(self.shared) {
                return Poll::Pending;
            }
            match &begun[self.index] {
                ScopedOp::Ended(result, via) => Poll::Ready(Done { result: result.clone(), via: *via, buffers: () }),
                ScopedOp::InFlight(_) => Poll::Pending,
            }
        })
    }
}

fn lock(begun: &Mutex<Vec<ScopedOp>>) -> MutexGuard<'_, Vec<ScopedOp>> {
    // A panic during a step leaves an operation that can be stepped again or has ended.
    begun.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f`, then waits for all operations it started, then returns or resumes the panic.
pub(crate) fn run<'env, F, T>(shared: &Shared, f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope { shared, begun: Mutex::new(Vec::new()), scope: PhantomData, env: PhantomData };
    // The slices borrowed from outside stay borrowed until this function returns or unwinds, both only after `settle`.
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    settle(shared, &scope.begun);
    match result {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

fn settle(shared: &Shared, begun: &Mutex<Vec<ScopedOp>>) {
    // If waiting itself panicked (a bug in a portal or a clock), memory that a device may write would come back to its
    // owner. The process cannot go on from that.
    let mut begun = lock(begun);
    let Some(first) = begun.iter().position(|begun| matches!(begun, ScopedOp::InFlight(_))) else { return };
    let guard = AbortOnUnwind("a panic while a scope waited for its operations; borrowed memory may still be written");
    let late = shared.clock.now().after(shared.policy.linger);
    let mut warned = false;
    let mut next = first;
    let in_flight = begun[first..].iter().filter(|begun| matches!(begun, ScopedOp::InFlight(_))).count();
    let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
    begun[first..].iter_mut().for_each(|begun| begun.set_waited_for(shared, in_flight));
    shared.wait(|| {
        while begun.get_mut(next).is_some_and(|begun| begun.step(shared)) {
            next += 1;
        }
        if next == begun.len() {
            return Poll::Ready(());
        }
        // The operations behind it make progress as well.
        for begun in &mut begun[next + 1..] {
            begun.step(shared);
        }
        if !warned && shared.clock.now() >= late {
            warned = true;
            say(format_args!(
                "a scope has waited for a device for {:?} and goes on waiting; it cannot return, because the device \
                 may still write borrowed memory",
                shared.policy.linger
            ));
        }
        Poll::Pending
    });
    guard.disarm();
}

impl<'scope, 'env> Scope<'scope, 'env> {
    fn begin<P: Send + 'static>(
        &'scope self,
        request: Result<OwnedRequest<P>, InvalidRequest<P>>,
    ) -> ScopedJob<'scope> {
        let choice = match &request {
            Ok(request) => {
                let (op, bytes) = request.weight();
                self.shared.choose(op, bytes)
            }
            Err(_) => Choice::SMALL,
        };
        self.begin_as(request, choice)
    }

    fn begin_as<P: Send + 'static>(
        &'scope self,
        request: Result<OwnedRequest<P>, InvalidRequest<P>>,
        choice: Choice,
    ) -> ScopedJob<'scope> {
        let shared = self.shared;
        let begun_at = choice.timed.then(|| shared.clock.now());
        let mut weight = (Opcode::Nop, 0);
        let begun = match request {
            Err(InvalidRequest { error, .. }) => ScopedOp::Ended(Err(error), Via::Cpu),
            Ok(request) => {
                weight = request.weight();
                if choice.device {
                    // SAFETY: the slices are borrowed for `'scope`, which ends after `run` has waited for every
                    // op in `begun`. Ops are dropped only there, when they are over.
                    ScopedOp::InFlight(Box::new(unsafe { BorrowedInFlight::new(shared, request) }))
                } else {
                    let (result, via, _) = request.run(shared.policy.hint);
                    if result.is_ok() {
                        shared.count(via, weight.1);
                    }
                    if let Some(begun) = begun_at {
                        shared.learn_since(weight.0, weight.1, false, begun);
                    }
                    ScopedOp::Ended(result, via)
                }
            }
        };
        let mut all = lock(&self.begun);
        all.push(begun);
        let index = all.len() - 1;
        // Offered at once, from its final place.
        all[index].step(shared);
        if let (Some(begun), true) = (begun_at, choice.device) {
            all[index].time(Meter::new(shared, weight.0, weight.1, begun), shared);
        }
        drop(all);
        ScopedJob { shared, begun: &self.begun, index }
    }
}

/// Extends one borrow, shared or exclusive.
macro_rules! extended {
    // SAFETY (both): the result is used for an op in `begun`, or at once; see `Scope::begin`.
    (StableBuf, $slice:ident) => {
        // SAFETY: as above.
        unsafe { extend_lifetime($slice) }
    };
    (StableBufMut, $slice:ident) => {
        // SAFETY: as above.
        unsafe { extend_lifetime_mut($slice) }
    };
}

impl<'scope> Scope<'scope, '_> {
    /// A copy for which device or CPU was already chosen.
    pub(crate) fn copy_chosen(
        &'scope self,
        src: &'scope [u8],
        dst: &'scope mut [u8],
        choice: Choice,
    ) -> ScopedJob<'scope> {
        let (src, dst) = (extended!(StableBuf, src), extended!(StableBufMut, dst));
        self.begin_as(tuple::copy(src, dst), choice)
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($buf:ident: $T:ident [$bound:ident]),*)($($arg:ident: $A:ty),*);)*) => {
        /// The operations.
        impl<'scope, 'env> Scope<'scope, 'env> {
            $($(#[$doc])*
            pub fn $name(
                &'scope self,
                $($buf: side!($bound, &'scope [u8], &'scope mut [u8]),)*
                $($arg: $A),*
            ) -> ScopedJob<'scope> {
                $(let $buf = extended!($bound, $buf);)*
                self.begin(tuple::$name($($buf,)* $($arg),*))
            })*
        }
    };
}
operations!(methods);
