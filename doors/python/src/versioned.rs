//! `telpher.Versioned`: bytes that change, whose readers have the bytes of exactly one version. `telpher.WriteBack`: a
//! block that is modified in fast memory and copied back.

use crate::cache::{Block, Cache, pool};
use crate::error::raised;
use crate::job::SLICE;
use crate::mover::Mover;
use crate::permit::OpenReading;
use crate::view::{FastBlock, FetchFailed, LentBytes, NotSynced, Source, View, ViewMut};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use telpher_cache::{Find, VersionGate, WritePermit};
use telpher_mem::StableBuf as _;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn still_used(what: &str) -> PyErr {
    PyBufferError::new_err(format!("memoryviews or arrays still use the bytes of {what}; it ends when they are freed"))
}

/// Returns whether a block of a `with` statement ended without an exception.
fn is_normal(exception: &Bound<'_, PyTuple>) -> bool {
    exception.get_item(0).is_ok_and(|kind| kind.is_none())
}

/// Bytes that change: of an object with a writable buffer, read in blocks through a cache and written in place. There
/// is any number of readers or one writer, and no reader has bytes of another version than the `version` of its
/// reading.
///
/// The object is held as long as this one: a `bytearray` cannot grow. Nothing but the holder of a `Writing` may write
/// its bytes, and while it does, `Cache.access` and `Cache.prefetch` must not be called for them. Any thread may use
/// it; but a thread that has a reading or a writing must not begin another one, because a waiting writer comes before
/// new readers. The garbage collector does not see what this object and its readings hold.
#[pyclass(frozen, weakref, module = "telpher", name = "Versioned")]
pub(crate) struct Versioned {
    cache: Py<Cache>,
    source: Source,
    /// The same bytes, for writing.
    data: Arc<ViewMut>,
    gate: VersionGate,
}

impl Versioned {
    /// Waits for a permit in slices, between which signals are handled.
    fn permit<T: Send>(
        py: Python<'_>,
        timeout: Option<f64>,
        mut ask: impl FnMut(Duration) -> Option<T> + Send,
    ) -> PyResult<T> {
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        let timeout = timeout.map_err(|_| PyValueError::new_err("a timeout must be a number of seconds, 0 or more"))?;
        let start = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            let at_most = left.map_or(SLICE, |left| left.min(SLICE));
            if let Some(permit) = py.detach(|| ask(at_most)) {
                return Ok(permit);
            }
            py.check_signals()?;
            if let (Some(Duration::ZERO), Some(after)) = (left, timeout) {
                return Err(PyTimeoutError::new_err(format!("other readers or writers had the bytes for {after:?}")));
            }
        }
    }
}

/// A writer's permit. When it is dropped, entries that other code has created meanwhile are removed, before readers can
/// find them.
pub(crate) struct EndWriting {
    cache: telpher_cache::Cache<Source>,
    source: Source,
    _permit: WritePermit,
}

impl Drop for EndWriting {
    fn drop(&mut self) {
        let EndWriting { cache, source, .. } = self;
        // Fails only for a range outside of the source. Copies in flight may release buffers meanwhile.
        let withdraw = || cache.withdraw(source, 0..source.len()).map(drop);
        let _ = Python::try_attach(|py| py.detach(withdraw));
    }
}

#[pymethods]
impl Versioned {
    #[new]
    fn new(cache: Py<Cache>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        cache.get().open()?;
        let (writable, source) = (data.extract::<ViewMut>()?, data.extract::<View>()?);
        if source.len() == 0 {
            return Err(PyValueError::new_err("the object has no bytes"));
        }
        let (source, data) = (Arc::new(source), Arc::new(writable));
        Ok(Versioned { cache, source, data, gate: VersionGate::default() })
    }

    /// How often the bytes were written. A writer may be active; the `version` of a reading holds until it ends.
    #[getter]
    fn version(&self) -> u64 {
        self.gate.version()
    }

    /// Begins to read, and returns a `Reading`. Waits while a writer writes or waits, at most `timeout` seconds if
    /// given: writers that follow each other without a pause keep readers away.
    #[pyo3(signature = (timeout=None))]
    fn read(slf: Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Reading> {
        let gate = &slf.get().gate;
        let permit = Versioned::permit(slf.py(), timeout, |at_most| gate.read(Some(at_most)))?;
        Ok(Reading { version: permit.version(), open: OpenReading::new(permit), of: slf.unbind() })
    }

    /// Begins to write, and returns a `Writing`. Waits for readers, at most `timeout` seconds if given, and then for
    /// copies of the bytes in flight.
    #[pyo3(signature = (timeout=None))]
    fn write(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Writing> {
        let cache = self.cache.get().open()?;
        // It keeps its place between the slices.
        let mut writer = Some(self.gate.register_writer());
        let permit = Versioned::permit(py, timeout, |at_most| match writer.take()?.wait(Some(at_most)) {
            Ok(permit) => Some(permit),
            Err(waiting) => {
                writer = Some(waiting);
                None
            }
        })?;
        let withdrawn = py.detach(|| cache.withdraw(&self.source, 0..self.source.len()));
        withdrawn.map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))?;
        let source = Arc::clone(&self.source);
        let permit = Arc::new(EndWriting { cache, source, _permit: permit });
        let is_active = Arc::downgrade(&permit);
        let lent = Bound::new(py, LentBytes::written(&self.data, permit))?;
        let view = PyMemoryView::from(lent.as_any())?;
        Ok(Writing { permit: is_active, view: Mutex::new(Some(view.unbind())) })
    }

    fn __len__(&self) -> usize {
        self.source.len()
    }
}

/// A reader's access to `Versioned` bytes, which do not change before it ends. It is a context manager, which closes
/// it.
#[pyclass(frozen, weakref, module = "telpher", name = "Reading")]
pub(crate) struct Reading {
    of: Py<Versioned>,
    version: u64,
    open: Arc<OpenReading>,
}

#[pymethods]
impl Reading {
    /// How often the bytes were written before.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// Accesses the bytes from `start` up to `stop`, as `Cache.access` does, and returns a `Block`. It ends with the
    /// reading, and so do its `memoryview`s.
    fn access(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<Block> {
        let Versioned { cache, source, .. } = self.of.get();
        let cache = cache.get().open()?;
        // Keeps writers away while the access begins.
        let permit = self.open.permit()?;
        let handle = py.detach(|| cache.access(source, start..stop));
        drop(permit);
        let handle = handle.map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))?;
        Ok(Block::of_reading(handle, Arc::clone(&self.open)))
    }

    /// Ends reading, and releases the `memoryview`s of its blocks. Raises `BufferError` if arrays or other
    /// `memoryview`s that were made from these still use the bytes: no writer begins before they are freed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.open.end(py) { Ok(()) } else { Err(still_used("this reading")) }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let closed = self.close(py);
        if is_normal(exception) { closed } else { Ok(()) }
    }
}

/// The writer's access to `Versioned` bytes, which have a new version when it ends. It is a context manager, whose
/// value is a writable `memoryview` of all bytes, and which closes it.
#[pyclass(frozen, weakref, module = "telpher", name = "Writing")]
pub(crate) struct Writing {
    /// The permit, as long as anything uses the bytes.
    permit: Weak<EndWriting>,
    view: Mutex<Option<Py<PyMemoryView>>>,
}

#[pymethods]
impl Writing {
    /// Ends writing, and releases the `memoryview`. Raises `BufferError` if arrays or other `memoryview`s that were
    /// made from it still use the bytes: no reader begins before they are freed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let view = lock(&self.view).take();
        if let Some(view) = view {
            // Fails if an array or the like uses it; then the permit is left.
            let _ = view.call_method0(py, "release");
        }
        if self.permit.strong_count() == 0 { Ok(()) } else { Err(still_used("this writing")) }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyMemoryView>> {
        let view = lock(&self.view).as_ref().map(|view| view.clone_ref(py));
        view.ok_or_else(|| PyValueError::new_err("this writing has ended"))
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let closed = self.close(py);
        if is_normal(exception) { closed } else { Ok(()) }
    }
}

/// Memory for the blocks of `WriteBack`: `size` bytes, on NUMA node `node` if given, in huge pages where the system has
/// them if `huge_pages`.
#[pyclass(frozen, weakref, module = "telpher", name = "Pool")]
pub(crate) struct Pool(telpher_mem::Pool);

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (size, *, node=None, huge_pages=false))]
    fn new(py: Python<'_>, size: usize, node: Option<u32>, huge_pages: bool) -> PyResult<Self> {
        pool(py, size, node, huge_pages).map(Pool)
    }
}

/// A copy, in memory of a pool, of an object with a writable buffer (the home). Reads and writes use the copy; the home
/// is unchanged until `sync`, and is held until `close`. Other threads may write the home meanwhile: bytes that they
/// write during the copy to the pool are old or new in it. A sync copies whole pages of 4096 bytes, counted from the
/// home's start. It overwrites what other threads wrote in these, and writes no other page. It is a context manager,
/// which syncs and closes it; after an exception it only closes it, and bytes that were not synced are lost.
#[pyclass(frozen, weakref, module = "telpher", name = "WriteBack")]
pub(crate) struct WriteBack(Mutex<Option<Arc<FastBlock>>>);

impl WriteBack {
    fn open(&self) -> PyResult<Arc<FastBlock>> {
        lock(&self.0).clone().ok_or_else(closed)
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("this block is closed")
}

#[pymethods]
impl WriteBack {
    #[new]
    fn new(py: Python<'_>, mover: &Mover, pool: &Pool, home: ViewMut) -> PyResult<Self> {
        if home.len() == 0 {
            return Err(PyValueError::new_err("the object has no bytes"));
        }
        let mover = mover.open()?;
        let fetched = py.detach(|| FastBlock::fetch(&mover, &pool.0, home));
        let block = fetched.map_err(|error| match error {
            FetchFailed::NoRoom(why) => PyMemoryError::new_err(why),
            FetchFailed::Job(error) => raised(&error),
        })?;
        Ok(WriteBack(Mutex::new(Some(block))))
    }

    /// The bytes as a read-only `memoryview`.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(Bound::new(py, self.open()?.bytes())?.as_any())
    }

    /// Returns the bytes from `start` up to `stop` as a writable `memoryview`; the next sync copies their pages back.
    /// Release it before: use it in a `with` statement.
    fn write<'py>(&self, py: Python<'py>, start: usize, stop: usize) -> PyResult<Bound<'py, PyMemoryView>> {
        let block = self.open()?;
        let size = block.size();
        if start > stop || stop > size {
            return Err(PyValueError::new_err(format!(
                "bytes {start} to {stop} are not inside the block of {size} bytes"
            )));
        }
        let bytes = py.detach(|| block.write(&(start..stop))).ok_or_else(closed)?;
        PyMemoryView::from(Bound::new(py, bytes)?.as_any())
    }

    /// How many bytes a sync has to check, in whole pages except for the last.
    #[getter]
    fn unsynced(&self, py: Python<'_>) -> PyResult<usize> {
        let block = self.open()?;
        Ok(py.detach(|| block.unsynced()))
    }

    /// Updates the home, and returns how many bytes were compared and how many were copied. `find` says which pages are
    /// copied: "written" (those that `write` returned since the last sync), "differing" (of these, those that differ)
    /// or "anywhere" (all that differ, also where other code has changed the home).
    #[pyo3(signature = (find="written"))]
    fn sync(&self, py: Python<'_>, find: &str) -> PyResult<(usize, usize)> {
        let find = match find {
            "written" => Find::Written,
            "differing" => Find::Differing,
            "anywhere" => Find::Anywhere,
            other => {
                let why = format!("find must be written, differing or anywhere, not '{other}'");
                return Err(PyValueError::new_err(why));
            }
        };
        let block = self.open()?;
        let synced = py.detach(|| block.sync(find)).map_err(|error| match error {
            NotSynced::InUse => {
                PyBufferError::new_err("a memoryview for writing the block exists; release it before the sync")
            }
            NotSynced::Closed => closed(),
            NotSynced::Job(error) => raised(&error),
        })?;
        Ok((synced.compared, synced.copied))
    }

    /// Releases the home; bytes that were not synced are lost. The memory is given back when no `memoryview` is left.
    fn close(&self, py: Python<'_>) {
        let block = lock(&self.0).take();
        if let Some(block) = block {
            py.detach(|| block.close());
        }
    }

    /// True once it is closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.0).is_none()
    }

    fn __len__(&self) -> PyResult<usize> {
        self.open().map(|block| block.size())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        if is_normal(exception) && !self.closed() {
            self.sync(py, "written")?;
        }
        self.close(py);
        Ok(())
    }
}
