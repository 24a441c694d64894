//! Jobs without their types: one operation, or a batch of operations.

use crate::c_structs::OpResult;
use crate::failure::{Failure, Refusal};
use crate::raw::{Request, dispatch};
use std::sync::OnceLock;
use std::time::Duration;
use telpher_mover::{BatchJob, Job as MoverJob, JobError, Mover, Notifier, Outcome, Prepared, Via, Watchable, Watched};

/// The result of an operation, and what executed it.
pub(crate) type Ended = (Result<Outcome, JobError>, Via);

/// A job that ends once. Its buffers belong to the caller, so returning them is a no-op.
trait Pending: Send {
    /// Makes one step; returns true if it has ended.
    fn is_done(&mut self) -> bool;
    /// Waits for at most the given time; returns true if it has ended.
    fn wait_for(&mut self, at_most: Duration) -> bool;
    /// The results, once it has ended.
    fn results(self: Box<Self>) -> Vec<Ended>;
}

impl<B: Send + 'static> Pending for MoverJob<B> {
    fn is_done(&mut self) -> bool {
        MoverJob::is_done(self)
    }
    fn wait_for(&mut self, at_most: Duration) -> bool {
        MoverJob::wait_for(self, at_most)
    }
    fn results(self: Box<Self>) -> Vec<Ended> {
        vec![ended(*self)]
    }
}

impl Pending for BatchJob {
    fn is_done(&mut self) -> bool {
        BatchJob::is_done(self)
    }
    fn wait_for(&mut self, at_most: Duration) -> bool {
        BatchJob::wait_for(self, at_most)
    }
    fn results(self: Box<Self>) -> Vec<Ended> {
        let done = self.wait();
        (0..).map_while(|index| done.get(index).map(|(result, via)| (result.clone(), via))).collect()
    }
}

/// A job that had ended when it was created.
struct AlreadyEnded(Vec<Ended>);

impl Pending for AlreadyEnded {
    fn is_done(&mut self) -> bool {
        true
    }
    fn wait_for(&mut self, _: Duration) -> bool {
        true
    }
    fn results(self: Box<Self>) -> Vec<Ended> {
        self.0
    }
}

impl Watchable for Box<dyn Pending> {
    fn is_done(&mut self) -> bool {
        (**self).is_done()
    }
}

fn ended<B: Send + 'static>(job: MoverJob<B>) -> Ended {
    let done = job.wait();
    (done.result, done.via)
}

/// An operation or a batch in flight, or its results.
///
/// Used by one thread at a time; may be passed from thread to thread.
pub struct Job(State);

enum State {
    Pending(Box<dyn Pending>),
    Ended(Vec<Ended>),
    Watched(WatchedJob),
}

/// A job that the notifier of its mover watches, and its results once they were asked for.
struct WatchedJob {
    watched: Watched<Box<dyn Pending>>,
    results: OnceLock<Vec<Ended>>,
}

impl WatchedJob {
    /// The results, if it has ended.
    fn results(&self) -> Option<&Vec<Ended>> {
        let take = || self.watched.take().expect("it has ended, and was taken nowhere else").results();
        self.watched.is_done().then(|| self.results.get_or_init(take))
    }
}

/// How long one step of an unlimited wait lasts.
const LONG: Duration = Duration::from_secs(3600);

impl Job {
    /// Starts one operation.
    pub(crate) fn start(mover: &Mover, request: Request) -> Job {
        fn kept<B: Send + 'static>(job: MoverJob<B>) -> Job {
            Job::of(job)
        }
        dispatch!(request, mover, kept, { Request::Nop => kept(mover.nop()), Request::Drain => kept(mover.drain()) })
    }

    /// Executes one operation and waits for it.
    pub(crate) fn run(mover: &Mover, request: Request) -> Ended {
        dispatch!(request, mover, ended, { Request::Nop => ended(mover.nop()), Request::Drain => ended(mover.drain()) })
    }

    /// A submitted batch.
    pub(crate) fn batch(job: BatchJob) -> Job {
        Job::of(job)
    }

    fn of(mut job: impl Pending + 'static) -> Job {
        // Most operations executed by the CPU have ended already.
        let done = job.is_done();
        let job = Box::new(job);
        Job(if done { State::Ended(job.results()) } else { State::Pending(job) })
    }

    /// Lets the notifier of its mover report its end as `token`, from the drop of the result on. Then another thread
    /// may use and free this job.
    pub(crate) fn watch<'a>(&mut self, notifier: &'a Notifier, token: u64) -> Option<Prepared<'a>> {
        let job: Box<dyn Pending> = match std::mem::replace(&mut self.0, State::Ended(Vec::new())) {
            State::Pending(job) => job,
            State::Ended(results) => Box::new(AlreadyEnded(results)),
            watched @ State::Watched(_) => {
                self.0 = watched;
                return None;
            }
        };
        let (watched, prepared) = notifier.prepare(job, token);
        self.0 = State::Watched(WatchedJob { watched, results: OnceLock::new() });
        Some(prepared)
    }

    fn settle(&mut self, look: impl FnOnce(&mut dyn Pending) -> bool) -> bool {
        let State::Pending(job) = &mut self.0 else { return true };
        if !look(&mut **job) {
            return false;
        }
        if let State::Pending(job) = std::mem::replace(&mut self.0, State::Ended(Vec::new())) {
            self.0 = State::Ended(job.results());
        }
        true
    }

    /// Makes one step; returns true if it has ended.
    pub(crate) fn is_done(&mut self) -> bool {
        match &self.0 {
            State::Watched(job) => job.watched.is_done(),
            State::Pending(_) | State::Ended(_) => self.settle(|job| job.is_done()),
        }
    }

    /// Waits for at most the given time, or without limit; returns true if it has ended.
    pub(crate) fn wait(&mut self, at_most: Option<Duration>) -> bool {
        if let State::Watched(job) = &self.0 {
            while !job.watched.wait_for(at_most.unwrap_or(LONG)) {
                if at_most.is_some() {
                    return false;
                }
            }
            return true;
        }
        self.settle(|job| match at_most {
            Some(at_most) => job.wait_for(at_most),
            None => {
                while !job.wait_for(LONG) {}
                true
            }
        })
    }

    /// The result of an operation of a job.
    pub(crate) fn result(&self, index: u64) -> Result<&Ended, Failure> {
        let Some(results) = self.known() else {
            return Err(Failure::NotYet(libc::EAGAIN, "the job has not ended; wait for it first"));
        };
        let found = usize::try_from(index).ok().and_then(|index| results.get(index));
        Ok(found.ok_or(Refusal::Index { what: "result", index, count: results.len() as u64 })?)
    }

    /// The number of results: 0 while it is in flight.
    pub(crate) fn results(&self) -> usize {
        self.known().map_or(0, Vec::len)
    }

    fn known(&self) -> Option<&Vec<Ended>> {
        match &self.0 {
            State::Ended(results) => Some(results),
            State::Pending(_) => None,
            State::Watched(job) => job.results(),
        }
    }
}

/// Converts a result for C; also returns the failure to report, if it is one.
pub(crate) fn for_c((result, via): &Ended) -> (OpResult, Option<Failure>) {
    (OpResult::of(result, *via), result.as_ref().err().cloned().map(Failure::Job))
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.0 {
            State::Pending(_) => "in flight",
            State::Ended(_) => "ended",
            State::Watched(_) => "watched",
        };
        f.debug_tuple("Job").field(&state).finish()
    }
}
