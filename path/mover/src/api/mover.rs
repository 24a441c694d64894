//! The thread-safe layer: jobs that own their buffers, executed by the CPU or a device as the policy says.

use crate::api::batch::Batch;
use crate::api::error::JobError;
use crate::api::job::Job;
use crate::api::operation::operations;
use crate::api::outcome::Outcome;
use crate::api::policy::Policy;
use crate::api::scope::Scope;
use crate::api::setting::SIZED;
use crate::forks;
use crate::inflight::{Core, Shared, copy_now, copy_whole, drain, nop, tuple};
use crate::learn::Choice;
use crate::learn::tuning::Tuning;
use crate::plan::threshold::Threshold;
use crate::plan::topology::{SystemTopology, Topology};
use crate::stats::Stats;
use crate::thread_stripe;
use crate::wait::time::{Clock, SystemClock};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_mem::{StableBuf, StableBufMut};
use telpher_portal::Portal;

/// Moves and transforms memory, on devices where that is worth it and on the CPU otherwise.
///
/// Cloning is cheap, and every clone uses the same queues. Jobs take their buffers by value and give them back:
///
/// ```
/// use telpher_mover::{Mover, Outcome};
///
/// let mover = Mover::cpu();
/// let (result, src, dst) = mover.copy(vec![7; 64], vec![0; 64]).wait().into_parts();
/// assert_eq!(result, Ok(Outcome::Done));
/// assert_eq!(src, dst);
/// ```
///
/// A copy below the policy's threshold is a `memcpy` behind one comparison: no allocation, no atomic operation, and the
/// job is ready when it is returned.
///
/// # On drop
///
/// When the last clone or job is dropped, the drop waits for jobs that have no waiter, at most [`Policy::linger`].
/// Memory without a completion record by then is leaked with a message on standard error, because the device may still
/// write it.
#[derive(Clone, Debug)]
pub struct Mover {
    /// One handle for each stripe of threads; all refer to the same core.
    stripes: Arc<[Arc<Shared>]>,
}

impl Mover {
    /// A mover over these queues; without any queue, the CPU does everything. A portal that is passed twice counts
    /// once.
    ///
    /// A dedicated queue has **one** client (SPEC §3.3): a full one drops descriptors without an answer. This mover's
    /// own count of credits prevents that. Two movers or channels over the same dedicated queue overfill it, and the
    /// dropped operations never complete. A shared queue may have any number of clients.
    #[must_use]
    pub fn new(portals: impl IntoIterator<Item = Arc<dyn Portal>>, policy: Policy) -> Self {
        Self::with_clock(portals, policy, Arc::new(SystemClock::default()))
    }

    /// Like [`new`](Mover::new), with the caller's clock.
    #[must_use]
    pub fn with_clock(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        policy: Policy,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::over(Shared::new(portals, policy, clock, SystemTopology::shared))
    }

    /// Like [`new`](Mover::new), with the caller's clock and topology.
    #[must_use]
    pub fn with_topology(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        policy: Policy,
        clock: Arc<dyn Clock>,
        topology: Arc<dyn Topology>,
    ) -> Self {
        Self::over(Shared::new(portals, policy, clock, || topology))
    }

    fn over(stripes: Arc<[Arc<Shared>]>) -> Self {
        if !stripes[0].queues.all().is_empty() {
            forks::register(stripes[0].core());
        }
        Mover { stripes }
    }

    /// A mover without a device: the CPU does everything.
    #[must_use]
    pub fn cpu() -> Self {
        Self::new([], Policy::default())
    }

    /// Loads costs that were measured on this machine and replace the published ones. Learning ([`Policy::learning`])
    /// starts from them. The variants of kernels in the file become those of this process. The settings of a tuning
    /// file are in [`Tuning::policy`].
    ///
    /// ```no_run
    /// use telpher_mover::{Mover, Tuning};
    /// # let portals: Vec<std::sync::Arc<dyn telpher_portal::Portal>> = Vec::new();
    ///
    /// let tuning = Tuning::from_environment()?;
    /// let mover = Mover::new(portals, tuning.as_ref().map(Tuning::policy).unwrap_or_default());
    /// if let Some(tuning) = &tuning {
    ///     mover.load_costs(tuning);
    /// }
    /// # Ok::<(), telpher_mover::TuningError>(())
    /// ```
    pub fn load_costs(&self, tuning: &Tuning) {
        tuning.apply_kernels();
        self.core().load_costs(tuning);
    }

    /// The calling thread's handle to the shared core.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.stripes[thread_stripe::of_this_thread() % self.stripes.len()]
    }

    /// The shared core, for a thread that outlives this handle.
    pub(crate) fn shared_core(&self) -> &Arc<Core> {
        self.shared().core()
    }

    /// The shared core, for callers that only read.
    #[inline(always)]
    fn core(&self) -> &Core {
        &self.stripes[0]
    }

    /// The policy this mover was created with.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.core().policy
    }

    /// The portals of this mover's queues.
    pub fn portals(&self) -> impl Iterator<Item = &Arc<dyn Portal>> {
        self.core().queues.all().iter().map(|queue| &queue.portal)
    }

    /// Copies `src` to `dst`, which must be equally long. The outcome is [`Done`](Outcome::Done).
    #[inline(always)]
    pub fn copy<R: StableBuf, W: StableBufMut>(&self, src: R, mut dst: W) -> Job<(R, W)> {
        let len = src.len();
        let choice = self.core().choose(Opcode::MemoryMove, len as u64);
        if choice == Choice::SMALL && len == dst.len() {
            copy_now(&src, &mut dst, self.core().policy.hint);
            return Job::small((src, dst));
        }
        Job::launch_chosen(self.shared(), tuple::copy(src, dst), choice)
    }

    /// Copies between plain slices and waits. Below the threshold this is `memcpy` behind one comparison.
    ///
    /// # In signal handlers
    ///
    /// A signal handler may call this whatever it has interrupted, including this function or another one of the mover:
    /// if the interrupted code was inside a portal, the CPU copies. Nothing is allocated and no lock is taken as long
    /// as the copy is shorter than [`Split::above`](crate::Split::above), [`Policy::learning`] is off, and the queue
    /// works. A full queue or a page fault costs the same as elsewhere. The other functions of the mover allocate and
    /// must not be called in handlers. A portal that is driven without a mover or a channel is not detected.
    ///
    /// # Errors
    ///
    /// [`JobError`], if the lengths differ or a device failed in a way the CPU cannot correct.
    #[inline]
    pub fn copy_slices(&self, src: &[u8], dst: &mut [u8]) -> Result<Outcome, JobError> {
        // Called on the slice types: `StableBuf::len` would require `'static` slices.
        let (len, room) = (<[u8]>::len(src), <[u8]>::len(dst));
        let choice = self.core().choose(Opcode::MemoryMove, len as u64);
        if choice == Choice::SMALL && len == room {
            telpher_ops::copy(src, dst, self.core().policy.hint);
            return Ok(Outcome::Done);
        }
        self.copy_slices_slowly(src, dst, choice)
    }

    /// Kept out of line, so that small copies stay small.
    #[inline(never)]
    fn copy_slices_slowly(&self, src: &[u8], dst: &mut [u8], choice: Choice) -> Result<Outcome, JobError> {
        let (len, room) = (<[u8]>::len(src), <[u8]>::len(dst));
        if len != room {
            return Err(JobError::Lengths { first: len as u64, second: room as u64 });
        }
        if crate::reentrancy::is_in_portal() {
            // In a handler that has interrupted a portal.
            telpher_ops::copy(src, dst, self.core().policy.hint);
            return Ok(Outcome::Done);
        }
        let start = choice.timed.then(|| self.core().clock.now());
        let whole = if choice.device {
            copy_whole(self.shared(), src, dst)
        } else {
            telpher_ops::copy(src, dst, self.core().policy.hint);
            Some(Ok(Outcome::Done))
        };
        if let Some(result) = whole {
            if let Some(start) = start {
                self.core().learn_since(Opcode::MemoryMove, len as u64, choice.device, start);
            }
            return result;
        }
        self.scope(|scope| scope.copy_chosen(src, dst, choice).wait().result)
    }

    /// The sizes from which operations go to a device: the policy's threshold, or what the mover has learned since
    /// ([`Policy::learning`]). If a device is better only for some sizes, this is the smallest of them.
    ///
    /// **Staleness**: other threads learn meanwhile.
    #[must_use]
    pub fn threshold(&self) -> Threshold {
        SIZED.into_iter().fold(self.core().policy.threshold, |all, op| all.with(op, self.core().threshold(op)))
    }

    /// Executes a no-op, on a device if there is one. The outcome is [`Done`](Outcome::Done).
    pub fn nop(&self) -> Job<()> {
        Job::launch(self.shared(), Ok(nop(())))
    }

    /// Ends when everything the queues took before has ended; sends one Drain to each queue. The outcome is
    /// [`Done`](Outcome::Done). If a queue does not support Drain, the error is [`JobError::Unsupported`].
    pub fn drain(&self) -> Job<()> {
        Job::launch(self.shared(), Ok(drain((), self.core().queues.all().len())))
    }

    /// Creates an empty list of operations that are submitted together.
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(self.shared()))
    }

    /// Runs `f` with a scope in which operations borrow plain slices. Every operation started in the scope has ended
    /// when this returns, also if `f` panics or forgets handles, like [`std::thread::scope`].
    ///
    /// Borrowed memory cannot be quarantined. If a device does not answer, this reports it on standard error after
    /// [`Policy::linger`]. It returns when the queue has been given up, at [`Policy::limit`].
    ///
    /// ```
    /// use telpher_mover::Mover;
    ///
    /// let mover = Mover::cpu();
    /// let (src, mut a, mut b) = ([7; 100], [0; 100], [0; 100]);
    /// mover.scope(|scope| {
    ///     scope.copy(&src, &mut a);
    ///     scope.copy(&src, &mut b);
    /// });
    /// assert_eq!((a, b), (src, src));
    /// ```
    pub fn scope<'env, F, T>(&self, f: F) -> T
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
    {
        crate::api::scope::run(self.shared(), f)
    }

    /// Calls `look` until it is ready, and rests between the calls as [`Policy::wait`] says. For callers that wait for
    /// something that jobs of this mover bring about, and that check the jobs themselves ([`Job::is_done`]).
    ///
    /// ```
    /// use std::task::Poll;
    ///
    /// # let mover = telpher_mover::Mover::cpu();
    /// let mut jobs = [mover.copy(vec![7; 64], vec![0; 64]), mover.copy(vec![8; 64], vec![0; 64])];
    /// mover.wait(|| if jobs.iter_mut().all(|job| job.is_done()) { Poll::Ready(()) } else { Poll::Pending });
    /// ```
    pub fn wait<T>(&self, look: impl FnMut() -> Poll<T>) -> T {
        self.shared().wait(look)
    }

    /// Like [`wait`](Mover::wait), but for at most `at_most` plus the rest of one call; `None` if `look` was not ready
    /// by then.
    ///
    /// ```
    /// use std::task::Poll;
    /// use std::time::Duration;
    ///
    /// # let mover = telpher_mover::Mover::cpu();
    /// assert_eq!(mover.wait_for(Duration::from_micros(10), || Poll::<()>::Pending), None);
    /// ```
    pub fn wait_for<T>(&self, at_most: Duration, mut look: impl FnMut() -> Poll<T>) -> Option<T> {
        let shared = self.shared();
        let end = shared.clock.now().after(at_most);
        shared.wait_until(end, || match look() {
            Poll::Ready(found) => Poll::Ready(Some(found)),
            Poll::Pending if shared.clock.now() >= end => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
    }

    /// Lets executors without a thread work. Frees the buffers of jobs that were dropped or expired and whose
    /// completion record has been written since, or whose queue has stopped or was given up ([`Policy::limit`]).
    /// Waiting and polling do this too; a program that does neither may call it now and then.
    pub fn drive(&self) {
        self.core().drive();
    }

    /// Like [`drive`](Mover::drive), but checks every slot instead of a few. For callers that need the memory at once.
    /// The time grows with [`Policy::capacity`]: some microseconds for the default.
    pub fn reclaim(&self) {
        self.core().reclaim();
    }

    /// Returns how many jobs' buffers it keeps.
    ///
    /// **Staleness**: other threads change it meanwhile.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (orphaned, quarantined) = self.core().parked();
        Stats { orphaned: orphaned.into(), quarantined: quarantined.into() }
    }

    /// Number of jobs whose deadline passed and whose buffers are kept until the device has written its record. A split
    /// job counts once for each of its descriptors in flight.
    ///
    /// **Staleness**: other threads change it meanwhile.
    #[must_use]
    pub fn quarantined(&self) -> usize {
        self.core().parked().1 as usize
    }

    /// Number of jobs that were dropped and whose buffers are kept until the device has written its record. A split job
    /// counts once for each of its descriptors in flight.
    ///
    /// **Staleness**: other threads change it meanwhile.
    #[must_use]
    pub fn orphaned(&self) -> usize {
        self.core().parked().0 as usize
    }
}

macro_rules! methods {
    (
        $(#[$first_doc:meta])* copy($($first_bufs:tt)*)();
        $($(#[$doc:meta])* $name:ident($($buf:ident: $T:ident [$bound:ident]),*)($($arg:ident: $A:ty),*);)*
    ) => {
        /// The other operations.
        impl Mover {
            $($(#[$doc])*
            pub fn $name<$($T: $bound),*>(&self, $($buf: $T,)* $($arg: $A),*) -> Job<($($T,)*)> {
                Job::launch(self.shared(), tuple::$name($($buf,)* $($arg),*))
            })*
        }
    };
}
operations!(methods);
