//! The ends of jobs for an event loop of Python, as a file descriptor.

use crate::job::Job;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use telpher_mover::{DEFAULT_PAUSES, Mover, Policy, Wait};

/// How long its thread sleeps between two looks. Source: chosen; a thread of Python waits about as long for the
/// interpreter lock when another one runs.
const SLEEP: Duration = Duration::from_micros(50);

/// Reports the ends of watched jobs by a descriptor that is readable meanwhile. For `telpher._await`.
#[pyclass(frozen, module = "telpher._telpher", name = "_Notifier")]
pub(crate) struct Notifier(telpher_mover::Notifier);

#[pymethods]
impl Notifier {
    #[new]
    fn new() -> PyResult<Self> {
        let wait = Wait::Sleep { pauses: DEFAULT_PAUSES, interval: SLEEP };
        // Its thread waits as this mover does, which needs no device.
        let notifier = Mover::new([], Policy { wait, ..Policy::default() }).notifier();
        notifier.map(Notifier).map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))
    }

    /// The descriptor. It belongs to the notifier.
    fn fileno(&self) -> i32 {
        self.0.as_fd().as_raw_fd()
    }

    /// Watches a job, whose end is reported as `token`. False if it has ended, is watched elsewhere, a thread waits for
    /// it, or this process is a fork of the notifier's.
    fn watch(&self, py: Python<'_>, job: &Job, token: u64) -> bool {
        job.watch(py, &self.0, token)
    }

    /// The tokens of the jobs that have ended since the last call.
    fn ended(&self, py: Python<'_>) -> Vec<u64> {
        py.detach(|| self.0.take_ended(usize::MAX))
    }
}
