//! The ends of jobs for an event loop of Python, as a file descriptor.

use crate::job::Job;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use telpher_mover::{DEFAULT_PAUSES, Mover, Policy, Wait};

/// How long its thread sleeps between two looks. Source: chosen; a thread of Python waits about as long for the
/// interpreter lock when another one runs.
const SLEEP: Duration = Duration::from_micros(50);

/// Reports the ends of watched jobs by a descriptor that is readable meanwhile. For `telpher._await`.
#[pyclass(frozen, module = "telpher._telpher", name = "_Notifier")]
pub(crate) struct Notifier(Arc<telpher_mover::Notifier>);

/// The notifiers that may have a thread; `None` once the interpreter ends.
static RUNNING: Mutex<Option<Vec<Weak<telpher_mover::Notifier>>>> = Mutex::new(Some(Vec::new()));

/// Stops the thread of each notifier, and lets no other one begin. A job's buffers return to the interpreter on such a
/// thread, so none may run when the interpreter has ended.
pub(crate) fn stop_all(py: Python<'_>) {
    let running = lock().take().into_iter().flatten();
    let running: Vec<_> = running.filter_map(|notifier| notifier.upgrade()).collect();
    // A thread may wait for the interpreter lock.
    py.detach(|| running.iter().for_each(|notifier| notifier.stop()));
}

/// Never held while the interpreter lock is released: a fork could copy it locked.
fn lock() -> MutexGuard<'static, Option<Vec<Weak<telpher_mover::Notifier>>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // Jobs that it watches go on when they are looked at. The thread may wait for the interpreter lock.
        Python::try_attach(|py| py.detach(|| self.0.stop()));
    }
}

#[pymethods]
impl Notifier {
    #[new]
    fn new() -> PyResult<Self> {
        let wait = Wait::Sleep { pauses: DEFAULT_PAUSES, interval: SLEEP };
        // Its thread waits as this mover does, which needs no device.
        let mut running = lock();
        let Some(running) = &mut *running else {
            return Err(PyOSError::new_err("the interpreter ends, and no thread can begin"));
        };
        let notifier = Mover::new([], Policy { wait, ..Policy::default() }).notifier();
        let notifier = notifier.map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))?;
        let notifier = Arc::new(notifier);
        running.retain(|notifier| notifier.strong_count() > 0);
        running.push(Arc::downgrade(&notifier));
        Ok(Notifier(notifier))
    }

    /// The descriptor. It belongs to the notifier.
    fn fileno(&self) -> i32 {
        self.0.as_fd().as_raw_fd()
    }

    /// Watches a job, whose end is reported as `token`. False if it has ended, is watched elsewhere, a thread waits for
    /// it, this process is a fork of the notifier's, or the interpreter ends.
    fn watch(&self, py: Python<'_>, job: &Job, token: u64) -> bool {
        job.watch(py, &self.0, token)
    }

    /// The tokens of the jobs that have ended since the last call.
    fn ended(&self, py: Python<'_>) -> Vec<u64> {
        py.detach(|| self.0.take_ended(usize::MAX))
    }
}
