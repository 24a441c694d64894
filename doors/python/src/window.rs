//! `telpher.Grant` and `telpher.Window`: memory that one process lends to others.

use crate::error::{Error, raised};
use crate::operations::ShortPattern;
use crate::result::via;
use crate::view::{View, ViewMut, descriptors};
use pyo3::exceptions::{PyPermissionError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use telpher_mem::StableBuf;
use telpher_mover::{GrantError, Mover, Outcome, StillInUse, WindowDone, WindowError};

/// A granted buffer.
enum Lent {
    Writable(Box<telpher_mover::Grant<ViewMut>>),
    Readable(Box<telpher_mover::Grant<View>>),
}

impl Lent {
    fn revoke(self, within: Duration) -> Result<(), (Lent, WindowError)> {
        match self {
            Lent::Writable(grant) => match grant.revoke(within) {
                Ok(_) => Ok(()),
                Err(StillInUse { grant, source }) => Err((Lent::Writable(grant), source)),
            },
            Lent::Readable(grant) => match grant.revoke(within) {
                Ok(_) => Ok(()),
                Err(StillInUse { grant, source }) => Err((Lent::Readable(grant), source)),
            },
        }
    }
}

/// A buffer that other processes access by `Mover.open_window`, until it is revoked. It is a context manager, which
/// revokes it. The buffer is held until then: a `bytearray` cannot grow.
#[pyclass(frozen, weakref, module = "telpher", name = "Grant")]
pub(crate) struct Grant(Mutex<State>);

/// What has become of a grant.
enum State {
    /// Other processes may use the buffer.
    Lent(Lent),
    /// A thread waits for the end of their accesses.
    Revoking,
    /// The buffer is its owner's again.
    Revoked,
}

/// A window to memory that another process has granted. Offsets count from the first granted byte.
#[pyclass(frozen, weakref, module = "telpher", name = "Window")]
pub(crate) struct Window(telpher_mover::Window);

/// Converts an error: `ValueError` for a range or a file that does not fit, `PermissionError` for what the grant does
/// not allow, `TimeoutError` for a grant in use.
fn failed(error: &WindowError) -> PyErr {
    let sentence = telpher_os::chain(error);
    match error {
        WindowError::Job(error) => raised(error),
        WindowError::Files { .. }
        | WindowError::Grant(GrantError::Outside { .. } | GrantError::Range { .. } | GrantError::NotAGrant { .. }) => {
            PyValueError::new_err(sentence)
        }
        WindowError::Grant(GrantError::ReadOnly | GrantError::Revoked) => PyPermissionError::new_err(sentence),
        WindowError::Grant(GrantError::InUse { .. }) => PyTimeoutError::new_err(sentence),
        _ => Error::new_err(sentence),
    }
}

/// Grants a buffer, for `Mover.grant`.
pub(crate) fn grant(mover: &Mover, buffer: &Bound<'_, PyAny>, writable: bool) -> PyResult<Grant> {
    let lent = if writable {
        let buffer = buffer.extract::<ViewMut>()?;
        mover.grant(buffer).map(Box::new).map(Lent::Writable).map_err(|refused| failed(&refused.source))?
    } else {
        let buffer = buffer.extract::<View>()?;
        mover.grant_readable(buffer).map(Box::new).map(Lent::Readable).map_err(|refused| failed(&refused.source))?
    };
    Ok(Grant(Mutex::new(State::Lent(lent))))
}

/// Opens a window, for `Mover.open_window`.
pub(crate) fn open(py: Python<'_>, mover: &Mover, files: &[i32]) -> PyResult<Window> {
    let files = descriptors(files)?;
    py.detach(|| mover.open_window(&files)).map(Window).map_err(|error| failed(&error))
}

impl Grant {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&Lent) -> PyResult<T>) -> PyResult<T> {
        match &*self.lock() {
            State::Lent(lent) => act(lent),
            State::Revoking | State::Revoked => Err(PyValueError::new_err("this grant was revoked")),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let lent = std::mem::replace(&mut *self.lock(), State::Revoked);
        // Waits for accesses in progress, while other threads run.
        Python::try_attach(|py| py.detach(|| drop(lent)));
    }
}

#[pymethods]
impl Grant {
    /// The file descriptors to hand to other processes, in the order in which `Mover.open_window` takes them. They stay
    /// open as long as the grant.
    #[getter]
    fn files(&self) -> PyResult<Vec<i32>> {
        self.with(|lent| {
            let files = match lent {
                Lent::Writable(grant) => grant.files(),
                Lent::Readable(grant) => grant.files(),
            };
            Ok(files.iter().map(AsRawFd::as_raw_fd).collect())
        })
    }

    /// Ends the grant: no access begins any more. Waits at most `timeout` seconds for accesses in progress; after a
    /// `TimeoutError` it can be called again. A second call does nothing.
    #[pyo3(signature = (timeout=10.0))]
    fn revoke(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|_| PyValueError::new_err("a timeout must be a number of seconds, 0 or more"))?;
        let lent = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Revoking) {
                State::Lent(lent) => lent,
                State::Revoking => return Err(Error::new_err("another thread is revoking this grant")),
                State::Revoked => {
                    *state = State::Revoked;
                    return Ok(());
                }
            }
        };
        let ended = py.detach(|| lent.revoke(timeout));
        let (state, result) = match ended {
            Ok(()) => (State::Revoked, Ok(())),
            Err((lent, error)) => (State::Lent(lent), Err(failed(&error))),
        };
        *self.lock() = state;
        result
    }

    /// True once it was revoked.
    #[getter]
    fn revoked(&self) -> bool {
        matches!(*self.lock(), State::Revoked)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.with(|lent| {
            let len = match lent {
                Lent::Writable(grant) => grant.len(),
                Lent::Readable(grant) => grant.len(),
            };
            Ok(usize::try_from(len).unwrap_or(usize::MAX))
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.revoke(py, 10.0)
    }
}

impl Window {
    /// Does one operation while other threads run.
    fn perform(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&telpher_mover::Window) -> Result<WindowDone, WindowError> + Send,
    ) -> PyResult<WindowDone> {
        py.detach(|| act(&self.0)).map_err(|error| failed(&error))
    }
}

fn difference(done: WindowDone) -> Option<u64> {
    match done.outcome {
        Outcome::Different { at } => Some(at),
        _ => None,
    }
}

#[pymethods]
impl Window {
    /// Copies bytes of the window, from offset `at` on, to `into`. Returns what did it: "cpu" or "device".
    fn read(&self, py: Python<'_>, at: u64, mut into: ViewMut) -> PyResult<&'static str> {
        // A private copy: other Python threads may use the buffer meanwhile.
        let mut bytes = vec![0; into.len()];
        let done = self.perform(py, |window| window.read(at, &mut bytes))?;
        into.store(&bytes);
        Ok(via(done.via))
    }

    /// Copies `data` to the window, from offset `at` on. Returns what did it.
    #[allow(clippy::needless_pass_by_value, reason = "a view is held for the call")]
    fn write(&self, py: Python<'_>, at: u64, data: View) -> PyResult<&'static str> {
        let bytes = data.to_vec();
        Ok(via(self.perform(py, |window| window.write(at, &bytes))?.via))
    }

    /// Repeats a pattern (a byte, or 1, 2, 4 or 8 bytes; zero by default) over `size` bytes from offset `at` on.
    /// Returns what did it.
    #[pyo3(signature = (at, size, pattern=ShortPattern(0)))]
    #[allow(clippy::needless_pass_by_value, reason = "as Python passes it")]
    fn fill(&self, py: Python<'_>, at: u64, size: u64, pattern: ShortPattern) -> PyResult<&'static str> {
        Ok(via(self.perform(py, |window| window.fill(at, size, pattern.0))?.via))
    }

    /// The offset in `data` of the first byte that differs from the window's bytes from offset `at` on, or `None`.
    #[allow(clippy::needless_pass_by_value, reason = "a view is held for the call")]
    fn compare(&self, py: Python<'_>, at: u64, data: View) -> PyResult<Option<u64>> {
        let bytes = data.to_vec();
        Ok(difference(self.perform(py, |window| window.compare(at, &bytes))?))
    }

    /// The offset, from `at` on, of the first of `size` bytes that differs from the repeated pattern, or `None`.
    #[pyo3(signature = (at, size, pattern=ShortPattern(0)))]
    #[allow(clippy::needless_pass_by_value, reason = "as Python passes it")]
    fn compare_pattern(&self, py: Python<'_>, at: u64, size: u64, pattern: ShortPattern) -> PyResult<Option<u64>> {
        Ok(difference(self.perform(py, |window| window.compare_pattern(at, size, pattern.0))?))
    }

    /// True if this process may write.
    #[getter]
    fn writable(&self) -> bool {
        self.0.access().writes()
    }

    /// True if a device does long operations.
    #[getter]
    fn has_device(&self) -> bool {
        self.0.has_device()
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }
}
