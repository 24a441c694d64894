//! `telpher.DurableFile`: a file whose bytes survive.

use crate::error::{Error, raised};
use crate::result::via;
use crate::view::View;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_mover::{DurableFileError, Mover, Persistence, StoreError};

/// A file whose bytes survive once `Mover.store` has returned: the end of this process and, as far as the system and
/// the CPU promise it, a loss of power (no test has tried that). It is locked until it is closed, and a context
/// manager, which closes it. `create` makes a file of `size` zero bytes, `open` opens one.
#[pyclass(frozen, weakref, module = "telpher", name = "DurableFile")]
pub(crate) struct DurableFile(Mutex<State>);

enum State {
    Open(telpher_mover::DurableFile),
    /// Another thread stores bytes in it.
    Lent,
    Closed,
}

fn failed(error: &DurableFileError) -> PyErr {
    let sentence = telpher_os::chain(error);
    match error {
        DurableFileError::System { source, .. } => match source.raw_os_error() {
            Some(errno) => PyOSError::new_err((errno, sentence)),
            None => PyOSError::new_err(sentence),
        },
        _ => Error::new_err(sentence),
    }
}

fn not_stored(error: &StoreError) -> PyErr {
    match error {
        StoreError::Outside { .. } => PyValueError::new_err(telpher_os::chain(error)),
        StoreError::Copy(error) => raised(error),
        StoreError::Persist(error) => failed(error),
        _ => Error::new_err(telpher_os::chain(error)),
    }
}

impl DurableFile {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(opened: Result<telpher_mover::DurableFile, DurableFileError>) -> PyResult<DurableFile> {
        opened.map(|file| DurableFile(Mutex::new(State::Open(file)))).map_err(|error| failed(&error))
    }

    fn with<T>(&self, act: impl FnOnce(&telpher_mover::DurableFile) -> PyResult<T>) -> PyResult<T> {
        match &*self.lock() {
            State::Open(file) => act(file),
            State::Lent => {
                Err(Error::new_err("another thread stores bytes in this file; one thread may do so at a time"))
            }
            State::Closed => Err(PyValueError::new_err("this file is closed")),
        }
    }
}

/// Stores bytes, for `Mover.store`. The mutex is not held while the interpreter lock is released.
pub(crate) fn store(py: Python<'_>, mover: &Mover, data: &View, file: &DurableFile, at: u64) -> PyResult<&'static str> {
    let bytes = data.to_vec();
    file.with(|_| Ok(()))?;
    let State::Open(mut opened) = std::mem::replace(&mut *file.lock(), State::Lent) else {
        return Err(Error::new_err("another thread stores bytes in this file; one thread may do so at a time"));
    };
    let stored = py.detach(|| mover.store(&bytes, &mut opened, at));
    let mut state = file.lock();
    // A close in between has to wait: the file is closed here.
    if matches!(*state, State::Lent) {
        *state = State::Open(opened);
    }
    drop(state);
    stored.map(via).map_err(|error| not_stored(&error))
}

#[pymethods]
impl DurableFile {
    /// Creates a file, with its blocks on the disk. It is an error if it exists.
    #[staticmethod]
    fn create(py: Python<'_>, path: PathBuf, size: u64) -> PyResult<DurableFile> {
        DurableFile::of(py.detach(|| telpher_mover::DurableFile::create(&path, size)))
    }

    /// Opens a file.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<DurableFile> {
        DurableFile::of(py.detach(|| telpher_mover::DurableFile::open(&path)))
    }

    /// A copy of `size` bytes from offset `at` on.
    fn read<'py>(&self, py: Python<'py>, at: usize, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|file| {
            let bytes = file.bytes().get(at..at.saturating_add(size));
            bytes.map(|bytes| PyBytes::new(py, bytes)).ok_or_else(|| {
                let len = file.len();
                PyValueError::new_err(format!("{size} bytes at offset {at} do not lie in the file of {len} bytes"))
            })
        })
    }

    /// What makes its bytes durable: "lines" (cache lines written back to persistent memory) or "pages" (msync).
    #[getter]
    fn persistence(&self) -> PyResult<&'static str> {
        self.with(|file| {
            Ok(match file.persistence() {
                Persistence::Lines => "lines",
                Persistence::Pages => "pages",
            })
        })
    }

    /// Closes it and releases the lock. A second call does nothing.
    fn close(&self) {
        *self.lock() = State::Closed;
    }

    /// True once it is closed.
    #[getter]
    fn closed(&self) -> bool {
        matches!(*self.lock(), State::Closed)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.with(|file| Ok(file.len()))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }
}
