//! `telpher.Cache`: blocks of Python objects' bytes, copied to faster memory ahead of time, and lent to many threads.

use crate::job::SLICE;
use crate::mover::Mover;
use crate::permit::OpenReading;
use crate::view::{LentBytes, Source, View};
use pyo3::exceptions::{PyMemoryError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use telpher_cache::{AccessError, Config, Eviction, Handle, Priority};
use telpher_mem::{PageSize, Pool, PoolOptions, StableBuf};

type Inner = telpher_cache::Cache<Source>;

/// A cache, `None` once it is closed.
type Opening = Mutex<Option<Inner>>;

/// Every cache that may still be open.
static OPEN: Mutex<Vec<Weak<Opening>>> = Mutex::new(Vec::new());

/// Copies of blocks in fast memory, made by a mover, lent to many threads.
///
/// `size` is the number of bytes of memory for copies, on NUMA node `node` if given (HBM has a node of its own), in
/// huge pages where the system has them if `huge_pages`. At most `in_flight` copies are in flight at a time. `eviction`
/// says which unused entry is removed first when memory is needed: "least-recently-used", "first-come" or "largest".
///
/// The cache holds the objects of its blocks: a `bytearray` cannot grow while the cache or a `Block` uses any of it.
/// Their bytes must not change until `invalidate` has returned for them. Any thread may use it. It is a context
/// manager, which closes it.
#[pyclass(frozen, weakref, module = "telpher", name = "Cache")]
pub(crate) struct Cache(Arc<Opening>);

/// Clears all caches while the interpreter, which owns the buffers, still exists.
pub(crate) fn close_all(py: Python<'_>) {
    let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    open.iter().filter_map(Weak::upgrade).for_each(|cache| close(py, &cache));
}

/// As in a mover: releases the interpreter lock while it closes, but not while it takes the mutex.
fn close(py: Python<'_>, cache: &Opening) {
    let open = cache.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(cache) = open {
        py.detach(|| {
            cache.clear();
            drop(cache);
        });
    }
}

/// Allocates memory for copies.
pub(crate) fn pool(py: Python<'_>, size: usize, node: Option<u32>, huge_pages: bool) -> PyResult<Pool> {
    let pages = if huge_pages { PageSize::Huge } else { PageSize::Small };
    let options = PoolOptions { pages, node, ..PoolOptions::new(size) };
    py.detach(|| Pool::new(options)).map_err(|error| PyMemoryError::new_err(telpher_os::chain(&error)))
}

impl Drop for Cache {
    fn drop(&mut self) {
        Python::try_attach(|py| close(py, &self.0));
    }
}

impl Cache {
    /// A handle of its own, so that the mutex is not held during an operation.
    pub(crate) fn open(&self) -> PyResult<Inner> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clone().ok_or_else(|| PyValueError::new_err("this cache is closed"))
    }

    /// Uses a block while other threads run: the CPU may copy at once.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        block: View,
        act: impl FnOnce(&Inner, &Source, usize) -> Result<T, AccessError> + Send,
    ) -> PyResult<T> {
        let (cache, source) = (self.open()?, Arc::new(block));
        let len = source.len();
        py.detach(move || act(&cache, &source, len)).map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))
    }
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (mover, size, *, node=None, huge_pages=false, in_flight=None, eviction="least-recently-used"))]
    fn new(
        py: Python<'_>,
        mover: &Mover,
        size: usize,
        node: Option<u32>,
        huge_pages: bool,
        in_flight: Option<usize>,
        eviction: &str,
    ) -> PyResult<Self> {
        let mut config = Config::new([pool(py, size, node, huge_pages)?]);
        config.eviction = match eviction {
            "least-recently-used" => Eviction::LeastRecentlyUsed,
            "first-come" => Eviction::FirstCome,
            "largest" => Eviction::Largest,
            other => {
                let wanted = "least-recently-used, first-come or largest";
                return Err(PyValueError::new_err(format!("eviction must be {wanted}, not '{other}'")));
            }
        };
        if in_flight == Some(0) {
            return Err(PyValueError::new_err("in_flight must be 1 or more: with 0 nothing would be copied"));
        }
        config.in_flight = in_flight.unwrap_or(config.in_flight);
        let inner =
            Inner::new(mover.open()?, config).map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))?;
        let cache = Arc::new(Mutex::new(Some(inner)));
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|cache| cache.strong_count() > 0);
        open.push(Arc::downgrade(&cache));
        Ok(Cache(cache))
    }

    /// Accesses a block and returns it as a `Block`: of the entry that contains all of it, otherwise of a new entry,
    /// whose copy starts. Does not wait.
    fn access(&self, py: Python<'_>, block: View) -> PyResult<Block> {
        self.with(py, block, |cache, source, len| cache.access(source, 0..len)).map(Block::of)
    }

    /// Returns the block if an entry contains it, otherwise `None`; copies nothing.
    fn peek(&self, py: Python<'_>, block: View) -> PyResult<Option<Block>> {
        Ok(self.with(py, block, |cache, source, len| cache.peek(source, 0..len))?.map(Block::of))
    }

    /// Announces that a block will be accessed: the higher the priority (0 to 255), the sooner it is copied. Returns a
    /// `Prefetch`, which can cancel it.
    #[pyo3(signature = (block, priority=0))]
    fn prefetch(&self, py: Python<'_>, block: View, priority: u8) -> PyResult<Prefetch> {
        let ahead = self.with(py, block, |cache, source, len| cache.prefetch(source, 0..len, Priority(priority)))?;
        Ok(Prefetch(ahead))
    }

    /// Announces that bytes are about to change: entries that contain any of them are removed, and their `Block`s
    /// become stale. Waits for copies of them in flight. Returns how many entries were removed.
    fn invalidate(&self, py: Python<'_>, block: View) -> PyResult<usize> {
        self.with(py, block, |cache, source, len| cache.withdraw(source, 0..len))
    }

    /// Removes the unused entries, and returns how many.
    fn flush(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.open()?;
        Ok(py.detach(|| cache.flush()))
    }

    /// Removes all entries, and returns how many; `Block`s stay valid.
    fn clear(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.open()?;
        Ok(py.detach(|| cache.clear()))
    }

    /// Starts copies that may start. A program that only prefetches and peeks calls it from time to time.
    fn drive(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.drive());
        Ok(())
    }

    /// The cache's counters and state, by name.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, dict) = (self.open()?.stats(), PyDict::new(py));
        for (metric, value) in stats.values() {
            dict.set_item(metric.field, value)?;
        }
        // The sum over its reasons.
        dict.set_item("fallbacks", stats.fallbacks())?;
        Ok(dict)
    }

    /// Removes all entries and releases the mover. `Block`s stay valid.
    fn close(&self, py: Python<'_>) {
        close(py, &self.0);
    }

    /// True if it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

/// A block of a cache, with or without its copy. `await` it or call `result()` to wait until there is nothing left to
/// wait for and get its bytes; `location()` returns them at once. Any thread may use it, several at the same time.
#[pyclass(frozen, weakref, module = "telpher", name = "Block")]
pub(crate) struct Block {
    handle: Handle<Source>,
    /// The reading of versioned bytes with which it ends.
    reading: Option<Arc<OpenReading>>,
}

impl Block {
    fn of(handle: Handle<Source>) -> Self {
        Block { handle, reading: None }
    }

    /// A block of versioned bytes.
    pub(crate) fn of_reading(handle: Handle<Source>, reading: Arc<OpenReading>) -> Self {
        Block { handle, reading: Some(reading) }
    }
}

#[pymethods]
impl Block {
    /// True if there is nothing left to wait for, because the copy is complete or the bytes stay in their source;
    /// otherwise makes one step of progress.
    fn done(&self, py: Python<'_>) -> bool {
        self.handle.is_fast() || py.detach(|| self.handle.copy_has_ended())
    }

    /// Waits until there is nothing left to wait for, at most `timeout` seconds if given, and returns `location()`.
    /// Other threads run meanwhile, and signals are handled. After a `TimeoutError` its copy is still in flight.
    #[pyo3(signature = (timeout=None))]
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyMemoryView>> {
        let timeout = timeout
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|_| PyValueError::new_err("a timeout must be a number of seconds, 0 or more"))?;
        let start = Instant::now();
        let mut left = timeout;
        while !self.handle.is_fast()
            && !py.detach(|| self.handle.wait_copy_for(left.map_or(SLICE, |left| left.min(SLICE))))
        {
            py.check_signals()?;
            left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if let (Some(Duration::ZERO), Some(after)) = (left, timeout) {
                return Err(PyTimeoutError::new_err(format!("not done within {after:?}; the copy is still in flight")));
            }
        }
        self.location(py)
    }

    /// The block's bytes as a read-only `memoryview`: of the copy if it is complete, otherwise of the source. It stays
    /// valid even if the block is removed. That of a `Reading`'s block is released when the reading ends.
    fn location<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let permit = self.reading.as_ref().map(|reading| reading.permit()).transpose()?;
        let lent = Bound::new(py, LentBytes::cached(self.handle.clone(), permit))?;
        let view = PyMemoryView::from(lent.as_any())?;
        if let Some(reading) = &self.reading {
            reading.remember(&view)?;
        }
        Ok(view)
    }

    /// True if the copy is complete.
    #[getter]
    fn fast(&self) -> bool {
        self.handle.is_fast()
    }

    /// True if `invalidate` was called for any byte of the entry since: the copy may be outdated.
    #[getter]
    fn stale(&self) -> bool {
        self.handle.is_stale()
    }

    fn __len__(&self) -> usize {
        self.handle.len()
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let drive = slf.py().import("telpher._await")?.getattr("drive")?;
        drive.call1((slf,))?.call_method0("__await__")
    }
}

/// A prefetched block. Dropping this object has no effect on the prefetch.
#[pyclass(frozen, weakref, module = "telpher", name = "Prefetch")]
pub(crate) struct Prefetch(telpher_cache::Prefetch<Source>);

#[pymethods]
impl Prefetch {
    /// True if the copy is complete; otherwise makes one step of progress.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_there())
    }

    /// Cancels the prefetch; true if its copy had not started.
    fn cancel(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.cancel())
    }
}
