//! Operations on borrowed slices, all of which end before the scope does.
#![allow(unsafe_code, reason = "lengthens borrows for the time of a flight, which `run` waits for")]

use crate::error::JobError;
use crate::inflight::{Lent, Load, Shared, Unready, lengthen, lengthen_mut, side, tuple};
use crate::job::Done;
use crate::operation::operations;
use crate::outcome::{Outcome, Via};
use crate::report::{Bomb, say};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// Where operations on borrowed slices are begun; see [`Mover::scope`](crate::Mover::scope).
///
/// Slices are borrowed until the scope ends, whether or not somebody waits for the operation.
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
    /// Whoever steps it from now on waits for it.
    fn attend(&mut self) {
        if let Begun::Flying(flight) = self {
            flight.attend();
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
        lock(self.begun)[self.index].attend();
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
    begun[first..].iter_mut().for_each(Begun::attend);
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
        let shared = self.shared;
        let begun = match load {
            Err(Unready { error, .. }) => Begun::Ended(Err(error), Via::Cpu),
            Ok(load) => {
                let (op, bytes) = load.weight();
                if shared.lanes.all().is_empty() || bytes < shared.policy.threshold.of(op) {
                    let (result, via, _) = load.run(shared.policy.hint);
                    Begun::Ended(result, via)
                } else {
                    // SAFETY: the slices are borrowed for `'scope`, which ends after `run` has waited for every flight in
                    // `begun`; only there are flights dropped, when they are over.
                    Begun::Flying(Box::new(unsafe { Lent::new(shared, load) }))
                }
            }
        };
        let mut all = lock(&self.begun);
        all.push(begun);
        let index = all.len() - 1;
        // Offered at once, from where it stays.
        all[index].step(shared);
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
