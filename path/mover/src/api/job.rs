//! One operation in flight: a future that a thread can also wait for.

use crate::api::error::{Expired, JobError};
use crate::api::outcome::{Outcome, Via};
use crate::inflight::{InFlight, InvalidRequest, Meter, OwnedRequest, Shared};
use crate::learn::Choice;
use crate::wait::time::Moment;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A job that has ended: its result and its buffers, whether it failed or not.
#[derive(Debug)]
pub struct Done<B> {
    /// The outcome, or why there is none.
    pub result: Result<Outcome, JobError>,
    /// Whether a device or the CPU did the work.
    pub via: Via,
    /// The buffers as they were passed in: a tuple in the operation's order.
    pub buffers: B,
}

macro_rules! into_parts {
    ($($($T:ident $at:tt),+;)*) => {$(
        impl<$($T),+> Done<($($T,)+)> {
            /// Returns the result and each buffer.
            #[inline]
            pub fn into_parts(self) -> (Result<Outcome, JobError>, $($T),+) {
                (self.result, $(self.buffers.$at),+)
            }
        }
    )*};
}
into_parts! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
}

/// An operation in flight. `.await` it, [`wait`](Job::wait) for it, or give it a [`deadline`](Job::deadline).
///
/// # Which thread makes progress
///
/// A mover has no thread of its own: a job makes progress only when a thread polls it. [`wait`](Job::wait) polls from
/// the calling thread. A poll by an executor takes one step (it lets an inline device work, reads the record,
/// resubmits). If the job is not done then, the poll wakes its own task at once. So an executor keeps polling, in turn
/// with its other tasks. A poll never blocks and never loops, one job takes one step in each round of its executor, and
/// no job can starve another.
///
/// The cost is that the executor's thread is never idle while jobs are in flight. In return no record is read late and
/// no thread must be woken, which is cheaper for operations of microseconds. A program that wants idle executors waits
/// for jobs on a thread of its own, with [`Wait::Sleep`](crate::Wait::Sleep).
///
/// # When the device does not answer
///
/// If a record is missing for longer than [`Policy::patience`](crate::Policy::patience), the thread that waits for it
/// asks the queue whether it still works. If the queue has stopped (halted, disabled, reset), nothing it took touches
/// memory any more. The mover does not use the queue from then on, and the job goes on with another queue or the CPU.
/// Work that may be half done is done again, with the same result. The exception is a move whose ranges overlap: it
/// ends with [`JobError::Stopped`], unless the device had it in chunks that do not overlap in themselves.
///
/// A queue that reports that it works and does not answer is given up at [`Policy::limit`](crate::Policy::limit): a
/// real queue is closed, and then it has stopped. A portal that cannot be given up keeps the buffers, and
/// [`wait`](Job::wait) does not return. A [`deadline`](Job::deadline) ends the wait without the buffers.
///
/// # On drop
///
/// Dropping a job that is in flight does not stop it. Its buffers move to the mover and are freed after the device has
/// written its completion record. Forgetting a job (`mem::forget`) leaks them.
#[must_use = "a job does nothing until it is awaited or waited for"]
#[derive(Debug)]
pub struct Job<B: Send + 'static>(State<B>);

#[derive(Debug)]
enum State<B: Send + 'static> {
    /// The CPU did it, with the outcome `Done`. A variant of its own, because moving a whole result through memory
    /// costs more than a small copy.
    Small(B),
    /// Ended before the first wait or poll.
    Ready(Done<B>),
    /// In flight.
    InFlight(InFlight<B>),
    /// The result was taken.
    Spent,
}

impl<B: Send + 'static> Job<B> {
    #[inline(always)]
    pub(crate) fn ready(result: Result<Outcome, JobError>, via: Via, buffers: B) -> Self {
        Job(State::Ready(Done { result, via, buffers }))
    }

    /// A job that the CPU did at once, with the outcome [`Done`](Outcome::Done).
    #[inline(always)]
    pub(crate) fn small(buffers: B) -> Self {
        Job(State::Small(buffers))
    }

    /// Executes the request on the CPU at once if the policy says so, or offers it to a queue before this returns, if
    /// the queue has room.
    #[inline(never)]
    pub(crate) fn launch(shared: &Arc<Shared>, request: Result<OwnedRequest<B>, InvalidRequest<B>>) -> Self {
        match request {
            Ok(request) => {
                let (op, bytes) = request.weight();
                Self::launch_as(shared, request, shared.choose(op, bytes))
            }
            Err(InvalidRequest { error, payload }) => Self::ready(Err(error), Via::Cpu, payload),
        }
    }

    /// Like [`launch`](Job::launch), when device or CPU was already chosen.
    #[inline(never)]
    pub(crate) fn launch_chosen(
        shared: &Arc<Shared>,
        request: Result<OwnedRequest<B>, InvalidRequest<B>>,
        choice: Choice,
    ) -> Self {
        match request {
            Ok(request) => Self::launch_as(shared, request, choice),
            Err(InvalidRequest { error, payload }) => Self::ready(Err(error), Via::Cpu, payload),
        }
    }

    fn launch_as(shared: &Arc<Shared>, request: OwnedRequest<B>, choice: Choice) -> Self {
        let (op, bytes) = request.weight();
        let start = choice.timed.then(|| shared.clock.now());
        if !choice.device {
            let (result, via, buffers) = request.run(shared.policy.hint);
            if result.is_ok() {
                shared.count(via, bytes);
            }
            if let Some(start) = start {
                shared.learn_since(op, bytes, false, start);
            }
            return Self::ready(result, via, buffers);
        }
        let mut in_flight = InFlight::new(shared, request);
        let step = in_flight.step();
        let meter = start.map(|start| Meter::new(shared, op, bytes, start));
        match (step, meter) {
            (Poll::Ready((result, via, buffers)), meter) => {
                if let Some(meter) = meter {
                    meter.ended(shared);
                }
                Self::ready(result, via, buffers)
            }
            (Poll::Pending, meter) => {
                if let Some(meter) = meter {
                    in_flight.time(meter);
                }
                Job(State::InFlight(in_flight))
            }
        }
    }

    /// Takes one step. Must not be called after it was ready.
    fn step(&mut self) -> Poll<Done<B>> {
        if let State::InFlight(in_flight) = &mut self.0 {
            return match in_flight.step() {
                Poll::Pending => Poll::Pending,
                Poll::Ready((result, via, buffers)) => {
                    self.0 = State::Spent;
                    Poll::Ready(Done { result, via, buffers })
                }
            };
        }
        match std::mem::replace(&mut self.0, State::Spent) {
            State::Small(buffers) => Poll::Ready(Done { result: Ok(Outcome::Done), via: Via::Cpu, buffers }),
            State::Ready(done) => Poll::Ready(done),
            State::InFlight(_) | State::Spent => panic!("a job was polled after its result was taken"),
        }
    }

    /// Sets whether the thread that steps the job waits for it and may do a part of the work.
    fn set_waited_for(&mut self, waited_for: bool) {
        if let State::InFlight(in_flight) = &mut self.0 {
            in_flight.set_waited_for(waited_for);
        }
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.0 {
            State::InFlight(in_flight) => Some(in_flight.shared()),
            State::Small(_) | State::Ready(_) | State::Spent => None,
        }
    }

    /// Returns true if the result is ready; takes one step otherwise.
    pub fn is_done(&mut self) -> bool {
        if let State::InFlight(_) = self.0
            && let Poll::Ready(done) = self.step()
        {
            self.0 = State::Ready(done);
        }
        matches!(self.0, State::Small(_) | State::Ready(_))
    }

    /// Waits for the result on this thread, as the mover's [`Wait`](crate::Wait) policy says.
    ///
    /// A queue that does not answer is given up at the policy's limit; see [`deadline`](Job::deadline) for an earlier
    /// end.
    #[inline(always)]
    pub fn wait(self) -> Done<B> {
        match self.0 {
            State::Small(buffers) => Done { result: Ok(Outcome::Done), via: Via::Cpu, buffers },
            State::Ready(done) => done,
            in_flight => Job(in_flight).wait_in_flight(),
        }
    }

    /// Kept out of line for jobs that are ready at once.
    #[inline(never)]
    fn wait_in_flight(mut self) -> Done<B> {
        self.set_waited_for(true);
        match self.shared().map(Arc::clone) {
            Some(shared) => shared.wait(|| self.step()),
            None => match self.step() {
                Poll::Ready(done) => done,
                Poll::Pending => unreachable!("a job that is not in flight is done"),
            },
        }
    }

    /// Waits for the result on this thread, for at most `at_most` plus the rest of one step. Returns true if the result
    /// is ready. The job goes on either way.
    ///
    /// ```
    /// # let mover = telpher_mover::Mover::cpu();
    /// let mut job = mover.copy(vec![7; 64], vec![0; 64]);
    /// while !job.wait_for(std::time::Duration::from_millis(10)) {
    ///     println!("still copying");
    /// }
    /// assert!(job.wait().result.is_ok());
    /// ```
    pub fn wait_for(&mut self, at_most: Duration) -> bool {
        // Before the first look, so that this thread gets its share of a split operation.
        self.set_waited_for(true);
        if self.is_done() {
            return true;
        }
        let Some(shared) = self.shared().map(Arc::clone) else { return true };
        let end = shared.clock.now().after(at_most);
        let done = shared.wait_until(end, || match self.is_done() {
            true => Poll::Ready(true),
            false if shared.clock.now() >= end => Poll::Ready(false),
            false => Poll::Pending,
        });
        self.set_waited_for(false);
        done
    }

    /// The same job, given up when `after` has passed from now.
    pub fn deadline(self, after: Duration) -> Timed<B> {
        let end = self.shared().map_or(Moment::default(), |shared| shared.clock.now().after(after));
        Timed { job: Some(self), end }
    }
}

// A job never hands out a pinned reference to its buffers.
impl<B: Send + 'static> Unpin for Job<B> {}

impl<B: Send + 'static> Future for Job<B> {
    type Output = Done<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done<B>> {
        let done = self.step();
        if done.is_pending() {
            context.waker().wake_by_ref();
        }
        done
    }
}

/// A [`Job`] with a deadline. Ends with the result, or with [`Expired`]. In the second case, buffers that a device may
/// still write are quarantined in the mover until the device has written its record.
#[must_use = "a job does nothing until it is awaited or waited for"]
#[derive(Debug)]
pub struct Timed<B: Send + 'static> {
    /// `None` once the result was given.
    job: Option<Job<B>>,
    end: Moment,
}

impl<B: Send + 'static> Timed<B> {
    fn step(&mut self) -> Poll<Result<Done<B>, Expired<B>>> {
        let job = self.job.as_mut().expect("a job was polled after its result was taken");
        if job.is_done() {
            let done = self.job.take().map(Job::wait).expect("checked two lines above");
            return Poll::Ready(Ok(done));
        }
        // A job that is not done is in flight, so it has a clock.
        if job.shared().is_some_and(|shared| shared.clock.now() >= self.end) {
            let buffers = match self.job.take().map(|job| job.0) {
                Some(State::InFlight(in_flight)) => in_flight.expire(),
                _ => None,
            };
            return Poll::Ready(Err(Expired { buffers }));
        }
        Poll::Pending
    }

    /// Waits for the result or the deadline on this thread.
    ///
    /// # Errors
    ///
    /// [`Expired`] if the deadline passed first.
    pub fn wait(mut self) -> Result<Done<B>, Expired<B>> {
        if let Some(job) = &mut self.job {
            job.set_waited_for(true);
        }
        let shared = self.job.as_ref().and_then(Job::shared).map(Arc::clone);
        match (shared, self.step()) {
            (_, Poll::Ready(result)) => result,
            (Some(shared), Poll::Pending) => shared.wait_until(self.end, || self.step()),
            (None, Poll::Pending) => unreachable!("a job that is not done is in flight"),
        }
    }
}

impl<B: Send + 'static> Unpin for Timed<B> {}

impl<B: Send + 'static> Future for Timed<B> {
    type Output = Result<Done<B>, Expired<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = self.step();
        if result.is_pending() {
            context.waker().wake_by_ref();
        }
        result
    }
}
