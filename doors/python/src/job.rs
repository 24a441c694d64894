//! An operation in flight, and how a Python thread or task waits for it.

use crate::error::{Error, raised};
use crate::result::{Ended, via};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use telpher_mover::{BatchDone, BatchJob, Done, Key, Notifier, Watchable, Watched};

/// How long a wait lasts before it checks for signals such as Ctrl-C. Source: assumed; too short to notice, longer than
/// nearly every job.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// A job of any operation.
pub(crate) trait PendingJob: Send {
    /// Makes one step, without waiting; returns true if it has ended.
    fn step(&mut self) -> bool;

    /// Waits for at most the given time; returns true if it has ended.
    fn within(&mut self, at_most: Duration) -> bool;

    /// The job's result; only after it has ended.
    fn ended(self: Box<Self>) -> Arc<[Ended]>;
}

impl<B: Send + 'static> PendingJob for telpher_mover::Job<B> {
    fn step(&mut self) -> bool {
        self.is_done()
    }

    fn within(&mut self, at_most: Duration) -> bool {
        self.wait_for(at_most)
    }

    fn ended(self: Box<Self>) -> Arc<[Ended]> {
        let Done { result, via, .. } = self.wait();
        Arc::new([Ended { result, via }])
    }
}

/// Takes one member's result from a batch.
pub(crate) type ResultTaker = Box<dyn FnOnce(&mut BatchDone) -> Ended + Send>;

/// The taker of a member.
pub(crate) fn taker<B: Send + 'static>(key: Key<B>) -> ResultTaker {
    Box::new(move |done| {
        let Done { result, via, .. } = done.take(key);
        Ended { result, via }
    })
}

/// A batch and the functions that take its members' results.
pub(crate) struct Members {
    pub(crate) job: BatchJob,
    pub(crate) takers: Vec<ResultTaker>,
}

impl PendingJob for Members {
    fn step(&mut self) -> bool {
        self.job.is_done()
    }

    fn within(&mut self, at_most: Duration) -> bool {
        self.job.wait_for(at_most)
    }

    fn ended(self: Box<Self>) -> Arc<[Ended]> {
        let mut done = self.job.wait();
        self.takers.into_iter().map(|taker| taker(&mut done)).collect()
    }
}

impl Watchable for Box<dyn PendingJob> {
    fn is_done(&mut self) -> bool {
        (**self).step()
    }
}

/// A job that a notifier watches, and its result once it was asked for. The handle is kept after the end, because the
/// notifier leaves out the ends of dropped handles.
struct WatchedJob {
    watched: Watched<Box<dyn PendingJob>>,
    ended: OnceLock<Arc<[Ended]>>,
}

impl WatchedJob {
    /// The result, if it has ended; waits for at most the given time.
    fn look(&self, at_most: Option<Duration>) -> Option<Arc<[Ended]>> {
        let is_done = at_most.map_or_else(|| self.watched.is_done(), |at_most| self.watched.wait_for(at_most));
        let take = || self.watched.take().expect("it has ended, and was taken nowhere else").ended();
        is_done.then(|| Arc::clone(self.ended.get_or_init(take)))
    }
}

enum State {
    PendingJob(Box<dyn PendingJob>),
    /// A notifier's thread steps it. Shared, so that several threads may wait for it.
    Watched(Arc<WatchedJob>),
    /// Shared, so that the mutex is not held while Python objects are created from the result: that may run any code,
    /// including this job's methods.
    Ended(Arc<[Ended]>),
    /// Another thread waits for it.
    Lent,
}

/// The result of polling a job.
enum Look {
    Pending,
    Ended(Arc<[Ended]>),
    /// Another thread waits for it.
    Lent,
}

impl Drop for Job {
    fn drop(&mut self) {
        // The thread that steps it may wait for the interpreter lock meanwhile.
        let state = std::mem::replace(self.state.get_mut().unwrap_or_else(PoisonError::into_inner), State::Lent);
        if let State::Watched(watched) = state {
            Python::try_attach(|py| py.detach(|| drop(watched)));
        }
    }
}

/// An operation in flight. `await` it or call `result()`. Until it is done the program must not write its buffers, nor
/// read those it writes. Dropping it does not stop the device, and its buffers are kept until the device is done; parts
/// that have not started (a long operation is split) are cancelled.
#[pyclass(frozen, generic, weakref, module = "telpher", name = "Job")]
pub(crate) struct Job {
    state: Mutex<State>,
    /// A batch, whose result is a list.
    many: bool,
}

impl Job {
    pub(crate) fn new(flying: Box<dyn PendingJob>, many: bool) -> Self {
        Job { state: Mutex::new(State::PendingJob(flying)), many }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the mutex was held left it `Lent`, which raises an exception.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for at most the given time, or makes one step; returns the result if the job has ended. The mutex is not
    /// held while the interpreter lock is released.
    fn look(&self, py: Python<'_>, at_most: Option<Duration>) -> Look {
        // A statement of its own: inside the match the guard would live longer.
        let state = std::mem::replace(&mut *self.lock(), State::Lent);
        let mut flying = match state {
            State::PendingJob(flying) => flying,
            State::Watched(watched) => {
                *self.lock() = State::Watched(Arc::clone(&watched));
                // The thread that steps the job may wait for the interpreter lock, so that is released.
                return py.detach(|| watched.look(at_most)).map_or(Look::Pending, Look::Ended);
            }
            State::Lent => return Look::Lent,
            State::Ended(ended) => {
                *self.lock() = State::Ended(Arc::clone(&ended));
                return Look::Ended(ended);
            }
        };
        let done = match at_most {
            None => flying.step(),
            Some(at_most) => py.detach(|| flying.within(at_most)),
        };
        if !done {
            *self.lock() = State::PendingJob(flying);
            return Look::Pending;
        }
        let ended = flying.ended();
        *self.lock() = State::Ended(Arc::clone(&ended));
        Look::Ended(ended)
    }

    /// Lets a notifier step the job and report its end. False if the job has ended, another notifier watches it, a
    /// thread waits for it, or the notifier has no thread: in a fork, and at the end of the interpreter.
    pub(crate) fn watch(&self, py: Python<'_>, notifier: &Notifier, token: u64) -> bool {
        let mut state = self.lock();
        if !notifier.is_running() || !matches!(*state, State::PendingJob(_)) {
            return false;
        }
        let State::PendingJob(flying) = std::mem::replace(&mut *state, State::Lent) else { return false };
        let (watched, prepared) = notifier.prepare(flying, token);
        *state = State::Watched(Arc::new(WatchedJob { watched, ended: OnceLock::new() }));
        drop(state);
        // It makes a step, see `look`.
        py.detach(|| drop(prepared));
        true
    }

    /// Makes one step; returns the result if the job has ended.
    fn peek(&self, py: Python<'_>) -> Option<Arc<[Ended]>> {
        match self.look(py, None) {
            Look::Ended(ended) => Some(ended),
            Look::Pending | Look::Lent => None,
        }
    }

    /// Waits, handling signals, until it has ended or the time is over.
    fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Option<Arc<[Ended]>>> {
        let (mut at_most, mut begun) = (None, None);
        loop {
            match self.look(py, at_most) {
                Look::Ended(ended) => return Ok(Some(ended)),
                Look::Pending => {}
                Look::Lent => {
                    return Err(Error::new_err(
                        "another thread is waiting for this job; only one thread may wait at a time",
                    ));
                }
            }
            py.check_signals()?;
            let start = begun.get_or_insert_with(Instant::now);
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            at_most = Some(left.map_or(SLICE, |left| left.min(SLICE)));
        }
    }

    /// Waits for the end and returns the value.
    pub(crate) fn finish(mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        // No other thread has it, so a result that is ready at once needs no mutex.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::PendingJob(flying) = state
            && flying.step()
            && let State::PendingJob(flying) = std::mem::replace(state, State::Lent)
        {
            return self.value(py, &flying.ended());
        }
        let ended = self.wait(py, None)?.expect("a wait without end has one only when the job has");
        self.value(py, &ended)
    }

    fn value(&self, py: Python<'_>, ended: &[Ended]) -> PyResult<Py<PyAny>> {
        match (ended, self.many) {
            ([one], false) => one.value(py),
            (members, _) => {
                let values = members.iter().map(|member| match &member.result {
                    // A batch's failures are elements of its list.
                    Err(error) => Ok(raised(error).into_value(py).into_any()),
                    Ok(_) => member.value(py),
                });
                Ok(PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind())
            }
        }
    }
}

#[pymethods]
impl Job {
    /// True if it has ended; otherwise makes one step of progress. Never blocks.
    fn done(&self, py: Python<'_>) -> bool {
        self.peek(py).is_some()
    }

    /// Waits for the result, at most `timeout` seconds if given, and returns or raises it. Other threads run meanwhile,
    /// and signals are handled. After a `TimeoutError` the job is still in flight and may be waited for again. One
    /// thread at a time may wait; a second one gets `Error`.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = timeout
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|_| PyValueError::new_err("a timeout must be a number of seconds, 0 or more"))?;
        if let Some(ended) = self.wait(py, timeout)? {
            return self.value(py, &ended);
        }
        let after = timeout.unwrap_or_default();
        Err(PyTimeoutError::new_err(format!("not done within {after:?}; the job is still in flight")))
    }

    /// What executed it: "cpu", "device", or "both"; `None` while it is in flight; for a batch, a tuple.
    #[getter]
    fn via(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(ended) = self.peek(py) else { return Ok(py.None()) };
        Ok(match (&*ended, self.many) {
            ([one], false) => via(one.via).into_pyobject(py)?.into_any().unbind(),
            (members, _) => PyTuple::new(py, members.iter().map(|member| via(member.via)))?.into_any().unbind(),
        })
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let drive = slf.py().import("telpher._await")?.getattr("drive")?;
        drive.call1((slf,))?.call_method0("__await__")
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let failed = |ended: &[Ended]| {
            ended.iter().find_map(|one| one.result.as_ref().err().map(|error| telpher_os::chain(error)))
        };
        let state = match self.peek(py) {
            None => "in flight".to_owned(),
            Some(ended) => failed(&ended).unwrap_or_else(|| "done".to_owned()),
        };
        format!("<telpher.Job: {state}>")
    }
}
