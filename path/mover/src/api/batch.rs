//! Several operations submitted together, with fences between them.

use crate::api::error::{Expired, JobError};
use crate::api::job::Done;
use crate::api::operation::operations;
use crate::api::outcome::{Outcome, Via};
use crate::inflight::{BatchInFlight, InvalidRequest, Member, OwnedRequest, Shared, boxed, nop};
use crate::wait::time::Moment;
use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use telpher_mem::{StableBuf, StableBufMut};

/// A list of operations that is submitted as one job.
///
/// Members run in no particular order, except that a [`fence`](Batch::fence) holds back the members after it. A queue's
/// limit on batches does not matter: a longer list goes as several batches, one after the other. Copies that continue
/// each other are joined if the policy says so (`Policy::coalesce`). A member that would be split as a job of its own
/// ([`Split`](crate::Split)) is split here too, between the lists.
///
/// Batches are the way to gather small operations (guideline G1 of Kuper et al., ASPLOS 2024, §6.1): a list goes to a
/// device if all of it together is worth it, however small its members are.
///
/// ```
/// use telpher_mover::{Mover, Outcome};
///
/// let mover = Mover::cpu();
/// let mut batch = mover.batch();
/// let copy = batch.copy(vec![7; 4096], vec![0; 4096]);
/// let fill = batch.fence().fill(vec![0; 4096], 0);
/// let mut done = batch.submit().wait();
/// let (result, src, dst) = done.take(copy).into_parts();
/// assert_eq!(result, Ok(Outcome::Done));
/// assert_eq!(src, dst);
/// assert_eq!(done.take(fill).result, Ok(Outcome::Done));
/// ```
#[must_use = "a batch does nothing until it is submitted"]
pub struct Batch {
    shared: Arc<Shared>,
    members: Vec<PendingMember>,
    /// The next member waits for all members before it.
    fence: bool,
    /// Identifies this batch's keys among all keys of the process.
    id: u64,
}

/// A member before submission.
enum PendingMember {
    Valid(OwnedRequest<Box<dyn Any + Send>>, bool),
    /// Its buffers do not fit; it fails when its turn comes.
    Invalid(JobError, Box<dyn Any + Send>, bool),
}

/// Identifies a member of a batch; the type remembers the member's buffers.
pub struct Key<B> {
    batch: u64,
    index: usize,
    buffers: PhantomData<fn() -> B>,
}

impl<B> Key<B> {
    /// Returns the member's index in the batch, from 0; [`JobError::Abandoned`] refers to it.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Batch {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Batch { shared, members: Vec::new(), fence: false, id: crate::sync::unique() }
    }

    /// Returns the number of members so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Puts a fence in front of the next member: it and everything after it begin only when every member before has
    /// succeeded. If a member did not succeed (a failure, a difference that
    /// [`compare_expecting`](Batch::compare_expecting) did not expect, a DIF mismatch), the rest ends with
    /// [`JobError::Abandoned`].
    pub fn fence(&mut self) -> &mut Self {
        self.fence = true;
        self
    }

    /// Adds a no-op; behind a fence it marks that everything before has succeeded.
    pub fn nop(&mut self) -> Key<()> {
        self.add(Ok(nop(Box::new(()))))
    }

    /// Adds a comparison whose unexpected outcome counts as a failure at the next fence. `difference` says whether the
    /// buffers are expected to differ. The member's result is still its outcome.
    pub fn compare_expecting<R: StableBuf, R2: StableBuf>(
        &mut self,
        src: R,
        src2: R2,
        difference: bool,
    ) -> Key<(R, R2)> {
        self.add(boxed::compare(src, src2).map(|request| request.expecting(difference)))
    }

    fn add<B: Send + 'static>(&mut self, request: Result<OwnedRequest<Box<B>>, InvalidRequest<Box<B>>>) -> Key<B> {
        let fence = std::mem::take(&mut self.fence);
        self.members.push(match request {
            Ok(request) => PendingMember::Valid(request.erased(), fence),
            Err(InvalidRequest { error, payload }) => PendingMember::Invalid(error, payload, fence),
        });
        Key { batch: self.id, index: self.members.len() - 1, buffers: PhantomData }
    }

    /// Submits the list. It goes to a device if the sum of all members reaches the lowest threshold among their
    /// operations. Otherwise the CPU does it before this returns.
    pub fn submit(self) -> BatchJob {
        let threshold = |op| self.shared.threshold(op);
        let weights = || {
            self.members.iter().filter_map(|member| match member {
                PendingMember::Valid(request, _) => Some(request.weight()),
                PendingMember::Invalid(..) => None,
            })
        };
        let total: u64 = weights().map(|(_, bytes)| bytes).sum();
        let least = weights().map(|(op, _)| threshold(op)).min().unwrap_or(u64::MAX);
        let worth = total >= least && !self.shared.queues.all().is_empty();
        let device = |request: &OwnedRequest<_>| worth && threshold(request.weight().0) < u64::MAX;
        let members = self.members.iter().map(|member| match member {
            PendingMember::Valid(request, _) => device(request),
            PendingMember::Invalid(..) => false,
        });
        let members: Vec<bool> = members.collect();
        let members = self.members.into_iter().zip(members).map(|(member, device)| match member {
            PendingMember::Valid(request, fence) => Member::new(request, fence, device),
            PendingMember::Invalid(error, payload, fence) => Member::failed_before(error, payload, fence),
        });
        let mut in_flight = BatchInFlight::new(&self.shared, members.collect());
        let state = match in_flight.launch() {
            Poll::Ready(members) => State::Ready(BatchDone::new(members, self.id)),
            Poll::Pending => State::InFlight(in_flight),
        };
        BatchJob { state, id: self.id }
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($buf:ident: $T:ident [$bound:ident]),*)($($arg:ident: $A:ty),*);)*) => {
        /// The operations, each added to the list.
        impl Batch {
            $($(#[$doc])*
            pub fn $name<$($T: $bound),*>(&mut self, $($buf: $T,)* $($arg: $A),*) -> Key<($($T,)*)> {
                self.add(boxed::$name($($buf,)* $($arg),*))
            })*
        }
    };
}
operations!(methods);

/// A submitted batch: a future that a thread can also wait for. As with a [`Job`](crate::Job), the thread that waits or
/// polls makes it progress. If it is dropped, its buffers are freed after the device is done with them.
#[must_use = "a batch makes no progress until it is awaited or waited for"]
#[derive(Debug)]
pub struct BatchJob {
    state: State,
    id: u64,
}

#[derive(Debug)]
enum State {
    Ready(BatchDone),
    InFlight(BatchInFlight),
    Spent,
}

impl BatchJob {
    fn step(&mut self) -> Poll<BatchDone> {
        if let State::InFlight(in_flight) = &mut self.state {
            return in_flight.step().map(|members| {
                self.state = State::Spent;
                BatchDone::new(members, self.id)
            });
        }
        match std::mem::replace(&mut self.state, State::Spent) {
            State::Ready(done) => Poll::Ready(done),
            State::InFlight(_) | State::Spent => panic!("a batch was polled after its result was taken"),
        }
    }

    fn shared(&self) -> Option<Arc<Shared>> {
        match &self.state {
            State::InFlight(in_flight) => Some(Arc::clone(in_flight.shared())),
            State::Ready(_) | State::Spent => None,
        }
    }

    /// Sets whether the thread that steps it from now on waits for it.
    fn set_waited_for(&mut self, waited_for: bool) {
        if let State::InFlight(in_flight) = &mut self.state {
            in_flight.set_waited_for(waited_for);
        }
    }

    /// Returns true if every member has ended; takes one step otherwise.
    pub fn is_done(&mut self) -> bool {
        if let State::InFlight(_) = self.state
            && let Poll::Ready(done) = self.step()
        {
            self.state = State::Ready(done);
        }
        matches!(self.state, State::Ready(_))
    }

    /// Waits for every member on this thread, for at most `at_most` plus the rest of one step. Returns true if all have
    /// ended. The batch goes on either way.
    pub fn wait_for(&mut self, at_most: Duration) -> bool {
        if self.is_done() {
            return true;
        }
        let Some(shared) = self.shared() else { return true };
        let end = shared.clock.now().after(at_most);
        self.set_waited_for(true);
        let done = shared.wait_until(end, || match self.is_done() {
            true => Poll::Ready(true),
            false if shared.clock.now() >= end => Poll::Ready(false),
            false => Poll::Pending,
        });
        self.set_waited_for(false);
        done
    }

    /// Waits for every member on this thread.
    pub fn wait(mut self) -> BatchDone {
        self.set_waited_for(true);
        match self.shared() {
            Some(shared) => shared.wait(|| self.step()),
            None => match self.step() {
                Poll::Ready(done) => done,
                Poll::Pending => unreachable!("a batch that is not in flight is done"),
            },
        }
    }

    /// The same batch, given up when `after` has passed from now. If a device has any buffer then, all buffers are
    /// quarantined.
    pub fn deadline(self, after: Duration) -> TimedBatch {
        let end = self.shared().map_or(Moment::default(), |shared| shared.clock.now().after(after));
        TimedBatch { job: Some(self), end }
    }
}

impl Future for BatchJob {
    type Output = BatchDone;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BatchDone> {
        let done = self.step();
        if done.is_pending() {
            context.waker().wake_by_ref();
        }
        done
    }
}

/// A [`BatchJob`] with a deadline.
#[must_use = "a batch makes no progress until it is awaited or waited for"]
#[derive(Debug)]
pub struct TimedBatch {
    job: Option<BatchJob>,
    end: Moment,
}

impl TimedBatch {
    fn step(&mut self) -> Poll<Result<BatchDone, Expired<BatchDone>>> {
        let mut job = self.job.take().expect("a batch was polled after its result was taken");
        if let Poll::Ready(done) = job.step() {
            return Poll::Ready(Ok(done));
        }
        if job.shared().is_some_and(|shared| shared.clock.now() >= self.end) {
            let id = job.id;
            let members = match std::mem::replace(&mut job.state, State::Spent) {
                State::InFlight(in_flight) => in_flight.expire(),
                State::Ready(_) | State::Spent => None,
            };
            return Poll::Ready(Err(Expired { buffers: members.map(|members| BatchDone::new(members, id)) }));
        }
        self.job = Some(job);
        Poll::Pending
    }

    /// Waits for every member or the deadline on this thread.
    ///
    /// # Errors
    ///
    /// [`Expired`] if the deadline passed first; members that had not ended then have
    /// [`JobError::Deadline`] as their result.
    pub fn wait(mut self) -> Result<BatchDone, Expired<BatchDone>> {
        if let Some(job) = &mut self.job {
            job.set_waited_for(true);
        }
        let shared = self.job.as_ref().and_then(BatchJob::shared);
        match (shared, self.step()) {
            (_, Poll::Ready(result)) => result,
            (Some(shared), Poll::Pending) => shared.wait_until(self.end, || self.step()),
            (None, Poll::Pending) => unreachable!("a batch that is not in flight is done"),
        }
    }
}

impl Future for TimedBatch {
    type Output = Result<BatchDone, Expired<BatchDone>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = self.step();
        if result.is_pending() {
            context.waker().wake_by_ref();
        }
        result
    }
}

/// A member's result, how it was executed, and its buffers.
type Ended = (Result<Outcome, JobError>, Via, Box<dyn Any + Send>);

/// The result and the buffers of every member.
pub struct BatchDone {
    /// `None` once taken.
    members: Vec<Option<Ended>>,
    id: u64,
}

impl BatchDone {
    fn new(members: Vec<Member>, id: u64) -> Self {
        BatchDone { members: members.into_iter().map(|member| Some(member.into_parts())).collect(), id }
    }

    /// Iterates over the results that were not taken, with the members' indexes, in order.
    pub fn results(&self) -> impl Iterator<Item = (usize, &Result<Outcome, JobError>)> {
        self.members.iter().enumerate().filter_map(|(i, member)| member.as_ref().map(|(result, ..)| (i, result)))
    }

    /// Returns a member's result and how it was executed, by its index; `None` if there is no such member or it was
    /// taken.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(&Result<Outcome, JobError>, Via)> {
        self.members.get(index)?.as_ref().map(|(result, via, _)| (result, *via))
    }

    /// Takes a member's result and buffers.
    ///
    /// # Panics
    ///
    /// If the key is of another batch.
    pub fn take<B: Send + 'static>(&mut self, key: Key<B>) -> Done<B> {
        assert_eq!(key.batch, self.id, "the key belongs to another batch");
        // A key is not `Clone`, so this member was not taken before; and only `Batch::add` makes keys, with their type.
        let (result, via, buffers) = self.members[key.index].take().expect("a key is used once");
        let buffers = *buffers.downcast().expect("a key remembers its member's type");
        Done { result, via, buffers }
    }
}

impl std::fmt::Debug for BatchDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.results()).finish()
    }
}

impl<B> std::fmt::Debug for Key<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("index", &self.index).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("members", &self.members.len()).finish_non_exhaustive()
    }
}
