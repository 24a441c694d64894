//! Operations on borrowed slices, all of which end before the scope does.
#![allow(unsafe_code, reason = "lengthens borrows for the time of a flight, which `run` waits for")]

use crate::error::JobError;
use crate::inflight::{Lent, Load, Meter, Shared, Unready, lengthen, lengthen_mut, side, tuple};
use crate::job::Done;
use crate::learn::Choice;
use crate::operation::operations;
use crate::outcome::{Outcome, Via};
use crate::report::{Bomb, say};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use telpher_abi::Opcode;

/// Where operations on borrowed slices are begun; see [`Mover::scope`](crate::Mover::scope).
///
/// Slices are borrowed until the scope ends, whether or not somebody waits for the operation.
///
/// Each operation is sent, or done, as it is begun: none is held back until others have come. Operations below the threshold cost
/// the CPU less than their place in a list would, and those above it keep a device busy from the first on; a list of 32 copies of
/// 4 KiB ends 1.15 times as fast as 32 begun one by one (`telpher bench mover --only shape`, software model, AMD EPYC). Who wants
/// that has a [`Batch`](crate::Batch), and decides itself how long the first may wait for the last.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    shared: &'scope Shared,
    /// Everything begun, in order.
    begun: Mutex<Vec<Begun>>,
    /// Invariant in both, as in `std::thread::scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// One operation of a scope.
#[derive(Debug)]
enum Begun {
    Flying(Box<Lent>),
    Ended(Result<Outcome, JobError>, Via),
}

impl Begun {
    /// Whoever steps it from now on waits for so many, of which it is one.
    fn attend(&mut self, shared: &Shared, among: u32) {
        if let Begun::Flying(flight) = self {
            flight.attend(shared, among);
        }
    }

    /// Its time is taken from now on, or is complete.
    fn time(&mut self, meter: Meter, shared: &Shared) {
        match self {
            Begun::Flying(flight) => flight.time(meter),
            Begun::Ended(..) => meter.ended(shared),
        }
    }

    /// One step; true if it has ended.
    fn step(&mut self, shared: &Shared) -> bool {
        if let Begun::Flying(flight) = self
            && let Poll::Ready((result, via)) = flight.step(shared)
        {
            *self = Begun::Ended(result, via);
        }
        matches!(self, Begun::Ended(..))
    }
}

/// An operation begun in a scope. Dropping it changes nothing: the scope waits.
#[derive(Debug)]
pub struct ScopedJob<'scope> {
    shared: &'scope Shared,
    begun: &'scope Mutex<Vec<Begun>>,
    index: usize,
}

impl ScopedJob<'_> {
    /// True if it has ended; takes one step otherwise.
    pub fn is_done(&self) -> bool {
        lock(self.begun)[self.index].step(self.shared)
    }

    /// Waits for it on this thread.
    pub fn wait(self) -> Done<()> {
        lock(self.begun)[self.index].attend(self.shared, 1);
        self.shared.wait(|| {
            let mut begun = lock(self.begun);
            if !begun[self.index].step(self.shared) {
                return Poll::Pending;
            }
            match &begun[self.index] {
                Begun::Ended(result, via) => Poll::Ready(Done { result: result.clone(), via: *via, buffers: () }),
                Begun::Flying(_) => Poll::Pending,
            }
        })
    }
}

fn lock(begun: &Mutex<Vec<Begun>>) -> MutexGuard<'_, Vec<Begun>> {
    // A panic while stepping leaves a flight that can be stepped again or has ended.
    begun.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f`, then waits for everything it began, then returns or goes on panicking.
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

fn settle(shared: &Shared, begun: &Mutex<Vec<Begun>>) {
    // If waiting itself panicked (a portal's or clock's bug), memory that a device may write would come back to its owner:
    // there is no way on from that.
    let mut begun = lock(begun);
    let Some(first) = begun.iter().position(|begun| matches!(begun, Begun::Flying(_))) else { return };
    let bomb = Bomb("a panic while a scope waited for its operations; borrowed memory may still be written");
    let late = shared.clock.now().after(shared.policy.linger);
    let mut warned = false;
    let mut next = first;
    let flying = begun[first..].iter().filter(|begun| matches!(begun, Begun::Flying(_))).count();
    let flying = u32::try_from(flying).unwrap_or(u32::MAX);
    begun[first..].iter_mut().for_each(|begun| begun.attend(shared, flying));
    shared.wait(|| {
        while begun.get_mut(next).is_some_and(|begun| begun.step(shared)) {
            next += 1;
        }
        if next == begun.len() {
            return Poll::Ready(());
        }
        // The ones behind go on as well.
        for begun in &mut begun[next + 1..] {
            begun.step(shared);
        }
        if !warned && shared.clock.now() >= late {
            warned = true;
            say(format_args!(
                "a scope still waits for a device after {:?}; it cannot return, because the device may write borrowed \
                 memory",
                shared.policy.linger
            ));
        }
        Poll::Pending
    });
    bomb.defuse();
}

impl<'scope, 'env> Scope<'scope, 'env> {
    fn begin<P: Send + 'static>(&'scope self, load: Result<Load<P>, Unready<P>>) -> ScopedJob<'scope> {
        let choice = match &load {
            Ok(load) => {
                let (op, bytes) = load.weight();
                self.shared.choose(op, bytes)
            }
            Err(_) => Choice::SMALL,
        };
        self.begin_as(load, choice)
    }

    fn begin_as<P: Send + 'static>(
        &'scope self,
        load: Result<Load<P>, Unready<P>>,
        choice: Choice,
    ) -> ScopedJob<'scope> {
        let shared = self.shared;
        let begun_at = choice.timed.then(|| shared.clock.now());
        let mut weight = (Opcode::Nop, 0);
        let begun = match load {
            Err(Unready { error, .. }) => Begun::Ended(Err(error), Via::Cpu),
            Ok(load) => {
                weight = load.weight();
                if choice.device {
                    // SAFETY: the slices are borrowed for `'scope`, which ends after `run` has waited for every flight in
                    // `begun`; only there are flights dropped, when they are over.
                    Begun::Flying(Box::new(unsafe { Lent::new(shared, load) }))
                } else {
                    let (result, via, _) = load.run(shared.policy.hint);
                    if let Some(begun) = begun_at {
                        shared.learn_since(weight.0, weight.1, false, begun);
                    }
                    Begun::Ended(result, via)
                }
            }
        };
        let mut all = lock(&self.begun);
        all.push(begun);
        let index = all.len() - 1;
        // Offered at once, from where it stays.
        all[index].step(shared);
        if let (Some(begun), true) = (begun_at, choice.device) {
            all[index].time(Meter::new(shared, weight.0, weight.1, begun), shared);
        }
        drop(all);
        ScopedJob { shared, begun: &self.begun, index }
    }
}

/// Lengthens one borrow by its side.
macro_rules! lengthened {
    // SAFETY (both): what is made of it is a flight in `begun`, or done at once; see `Scope::begin`.
    (StableBuf, $slice:ident) => {
        // SAFETY: as above.
        unsafe { lengthen($slice) }
    };
    (StableBufMut, $slice:ident) => {
        // SAFETY: as above.
        unsafe { lengthen_mut($slice) }
    };
}

impl<'scope> Scope<'scope, '_> {
    /// A copy of which it was chosen who does it.
    pub(crate) fn copy_chosen(
        &'scope self,
        src: &'scope [u8],
        dst: &'scope mut [u8],
        choice: Choice,
    ) -> ScopedJob<'scope> {
        let (src, dst) = (lengthened!(StableBuf, src), lengthened!(StableBufMut, dst));
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
                $(let $buf = lengthened!($bound, $buf);)*
                self.begin(tuple::$name($($buf,)* $($arg),*))
            })*
        }
    };
}
operations!(methods);
