//! `telpher.Cache`: blocks of Python objects' bytes, copied to faster memory ahead of time, and lent to many threads.

use crate::error::told;
use crate::job::SLICE;
use crate::mover::Mover;
use crate::view::{Lent, Source, View};
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
/// `size` is how many bytes of memory it has for copies, on NUMA node `node` if that is given (HBM has one of its own), in huge pages
/// where the system has them if `huge_pages`. At most `in_flight` copies are under way at a time. `eviction` says which entry that
/// nobody uses goes first when memory is needed: "least-recently-used", "first-come" or "largest".
///
/// The objects whose blocks it has are held: a `bytearray` does not grow while the cache or a `Block` has any of it. Their bytes do not
/// change until `invalidate` has returned for them. Any thread may use it. It is a context manager: at its end it is closed.
#[pyclass(frozen, weakref, module = "telpher", name = "Cache")]
pub(crate) struct Cache(Arc<Opening>);

/// Forgets all that all caches have while the interpreter is whole, which lent it.
pub(crate) fn close_all(py: Python<'_>) {
    let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    open.iter().filter_map(Weak::upgrade).for_each(|cache| close(py, &cache));
}

/// As with a mover: the interpreter is let go for the end, but not for the lock.
fn close(py: Python<'_>, cache: &Opening) {
    let open = cache.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(cache) = open {
        py.detach(|| {
            cache.clear();
            drop(cache);
        });
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        Python::try_attach(|py| close(py, &self.0));
    }
}

impl Cache {
    /// A handle of its own, so that nobody holds the lock while something is done.
    fn open(&self) -> PyResult<Inner> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clone().ok_or_else(|| PyValueError::new_err("this cache is closed"))
    }

    /// Does something with a block while other threads run: the CPU may copy there and then.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        block: View,
        act: impl FnOnce(&Inner, &Source, usize) -> Result<T, AccessError> + Send,
    ) -> PyResult<T> {
        let (cache, source) = (self.open()?, Arc::new(block));
        let len = source.len();
        py.detach(move || act(&cache, &source, len)).map_err(|error| PyValueError::new_err(told(&error)))
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
        let pages = if huge_pages { PageSize::Huge } else { PageSize::Small };
        let options = PoolOptions { pages, node, ..PoolOptions::new(size) };
        let pool = py.detach(|| Pool::new(options)).map_err(|error| PyMemoryError::new_err(told(&error)))?;
        let mut config = Config::new([pool]);
        config.eviction = match eviction {
            "least-recently-used" => Eviction::LeastRecentlyUsed,
            "first-come" => Eviction::FirstCome,
            "largest" => Eviction::Largest,
            other => {
                let wanted = "least-recently-used, first-come or largest";
                return Err(PyValueError::new_err(format!("eviction is {wanted}, not '{other}'")));
            }
        };
        if in_flight == Some(0) {
            return Err(PyValueError::new_err("in_flight is 1 or more: with 0 nothing would ever be copied"));
        }
        config.in_flight = in_flight.unwrap_or(config.in_flight);
        let inner = Inner::new(mover.open()?, config).map_err(|error| PyValueError::new_err(told(&error)))?;
        let cache = Arc::new(Mutex::new(Some(inner)));
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|cache| cache.strong_count() > 0);
        open.push(Arc::downgrade(&cache));
        Ok(Cache(cache))
    }

    /// The block, as a `Block`: if an entry has all of it, of that one, else of a new one, whose copy begins. Waits for nothing.
    fn access(&self, py: Python<'_>, block: View) -> PyResult<Block> {
        self.with(py, block, |cache, source, len| cache.access(source, 0..len)).map(Block)
    }

    /// The block if an entry has it, `None` otherwise; nothing is copied.
    fn peek(&self, py: Python<'_>, block: View) -> PyResult<Option<Block>> {
        Ok(self.with(py, block, |cache, source, len| cache.peek(source, 0..len))?.map(Block))
    }

    /// Says that a block will be asked for: the higher the priority (0 to 255), the sooner it is copied. Returns a `Prefetch`, by which
    /// it can be called off.
    #[pyo3(signature = (block, priority=0))]
    fn prefetch(&self, py: Python<'_>, block: View, priority: u8) -> PyResult<Prefetch> {
        let ahead = self.with(py, block, |cache, source, len| cache.prefetch(source, 0..len, Priority(priority)))?;
        Ok(Prefetch(ahead))
    }

    /// Says that bytes are about to change: entries with any of them are forgotten, and their `Block`s stale. Waits for copies of them
    /// that are under way. Returns how many entries are gone.
    fn invalidate(&self, py: Python<'_>, block: View) -> PyResult<usize> {
        self.with(py, block, |cache, source, len| cache.withdraw(source, 0..len))
    }

    /// Forgets the entries nobody uses, and returns how many.
    fn flush(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.open()?;
        Ok(py.detach(|| cache.flush()))
    }

    /// Forgets all entries, and returns how many; `Block`s keep theirs.
    fn clear(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.open()?;
        Ok(py.detach(|| cache.clear()))
    }

    /// Begins copies that may begin. A program that only prefetches and peeks calls it now and then.
    fn drive(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.open()?;
        py.detach(|| cache.drive());
        Ok(())
    }

    /// What it has done and has, by name.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, dict) = (self.open()?.stats(), PyDict::new(py));
        for (name, value) in [
            ("hits", stats.hits),
            ("misses", stats.misses),
            ("weak_misses", stats.weak_misses),
            ("prefetches", stats.prefetches),
            ("cancelled", stats.cancelled),
            ("copies", stats.copies),
            ("bytes_copied", stats.bytes_copied),
            ("fallbacks", stats.fallbacks),
            ("evictions", stats.evictions),
            ("invalidations", stats.invalidations),
            ("entries", stats.entries),
            ("in_flight", stats.in_flight),
            ("waiting", stats.waiting),
            ("bytes", stats.bytes),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Forgets all entries and lets go of the mover. `Block`s stay good.
    fn close(&self, py: Python<'_>) {
        close(py, &self.0);
    }

    /// True once it is closed.
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

/// A block of a cache, wherever it is. `await` it, or call `result()`, for its bytes once there is nothing left to wait for; or
/// `location()` for where they are now. Any thread may use it, several at once.
#[pyclass(frozen, weakref, module = "telpher", name = "Block")]
pub(crate) struct Block(Handle<Source>);

#[pymethods]
impl Block {
    /// True if there is nothing left to wait for, be the copy there or the bytes where they were; lets it take one step otherwise.
    fn done(&self, py: Python<'_>) -> bool {
        self.0.is_fast() || py.detach(|| self.0.is_settled())
    }

    /// Waits until there is nothing left to wait for, at most `timeout` seconds if given, and returns `location()`. Other threads run
    /// meanwhile, and signals are heard. After a `TimeoutError` its copy is still under way.
    #[pyo3(signature = (timeout=None))]
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyMemoryView>> {
        let timeout = timeout
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|_| PyValueError::new_err("a timeout is a number of seconds, 0 or more"))?;
        let begun = Instant::now();
        let mut left = timeout;
        while !self.0.is_fast() && !py.detach(|| self.0.settle_for(left.map_or(SLICE, |left| left.min(SLICE)))) {
            py.check_signals()?;
            left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            if let (Some(Duration::ZERO), Some(after)) = (left, timeout) {
                return Err(PyTimeoutError::new_err(format!("not done within {after:?}; the copy is still under way")));
            }
        }
        self.location(py)
    }

    /// Its bytes where they are at the moment, as a `memoryview` that cannot be written: of the copy if it is there, of the source
    /// otherwise. It stays good, whatever becomes of the block.
    fn location<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let lent = Bound::new(py, Lent::new(self.0.clone()))?;
        PyMemoryView::from(lent.as_any())
    }

    /// True if the copy is there.
    #[getter]
    fn fast(&self) -> bool {
        self.0.is_fast()
    }

    /// True if `invalidate` was called for any byte of the entry since: the copy may be of before.
    #[getter]
    fn stale(&self) -> bool {
        self.0.is_stale()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let drive = slf.py().import("telpher._await")?.getattr("drive")?;
        drive.call1((slf,))?.call_method0("__await__")
    }
}

/// A block that was asked for ahead of time. Dropping it changes nothing.
#[pyclass(frozen, weakref, module = "telpher", name = "Prefetch")]
pub(crate) struct Prefetch(telpher_cache::Prefetch<Source>);

#[pymethods]
impl Prefetch {
    /// True if the copy is there; lets it take one step otherwise.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_there())
    }

    /// Calls it off; true if its copy had not begun.
    fn cancel(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.cancel())
    }
}
