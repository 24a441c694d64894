//! `telpher.Mover`: queues, and the operations that go to them.

use crate::arithmetic::{BlockList, Compute, ListFormat, Numbers};
use crate::batch::Batch;
use crate::dif::Dif;
use crate::durable::DurableFile;
use crate::error::OpenError;
use crate::job::Job;
use crate::operations::{Pattern, ShortPattern, Work, WorkOf, operations};
use crate::result::DifTags;
use crate::view::{CopyViews, View, ViewMut, disjoint, lie};
use crate::window::{Grant, Window};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use telpher_abi::Opcode;
use telpher_device::{DeviceName, OpenOptions, Opened, Runner};
use telpher_mem::StableBuf;
use telpher_mover::{CrcMode, Policy, Tuning};
use telpher_portal::QueueMode;

/// The length from which on the interpreter lock is released while an operation starts, because the CPU may execute it
/// at once. Source: assumed; at 10 GB/s this takes several microseconds, many times the cost of releasing the lock.
const LET_GO: usize = 64 << 10;

/// Moves and transforms memory, with devices where that is faster and with the CPU otherwise.
///
/// `device` is "all" (every hardware queue this process may use, the CPU if there is none), "cpu", "model:spr" or
/// another model, "model:FILE", or "hw:wq0.1". `threaded` makes a modelled device run on threads of its own, or (False)
/// on the submitting thread; None does the latter for up to 256 KiB. Every other keyword is a setting of its
/// policy, as text or number: `threshold="64k"`, `wait="spin"`; `telpher.SETTINGS` lists them all. A tuning file named
/// by the environment variable TELPHER_TUNING is read first.
///
/// Any number of threads may use a mover. It is a context manager, which closes it.
#[pyclass(frozen, weakref, module = "telpher", name = "Mover")]
pub(crate) struct Mover {
    mover: Arc<Opening>,
    device: String,
    skipped: Vec<(String, String)>,
}

/// A mover, `None` once it is closed.
type Opening = Mutex<Option<telpher_mover::Mover>>;

/// Every mover that may still be open.
static OPEN: Mutex<Vec<Weak<Opening>>> = Mutex::new(Vec::new());

/// Stops every notifier, and closes every cache and every mover, while the interpreter still exists: the buffers of
/// abandoned jobs are returned to it, and no device writes them after it is gone.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    crate::notifier::stop_all(py);
    crate::cache::close_all(py);
    let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    open.iter().filter_map(Weak::upgrade).for_each(|mover| close(py, &mover));
}

/// Releases the interpreter lock while it closes, which waits for dropped jobs, but not while it takes the mutex: a
/// fork could copy it locked.
fn close(py: Python<'_>, mover: &Opening) {
    let open = mover.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mover) = open {
        py.detach(|| drop(mover));
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        Python::try_attach(|py| close(py, &self.mover));
    }
}

impl Mover {
    /// A handle of its own, so that the mutex is not held while an operation runs.
    pub(crate) fn open(&self) -> PyResult<telpher_mover::Mover> {
        let mover = self.mover.lock().unwrap_or_else(PoisonError::into_inner);
        mover.clone().ok_or_else(|| PyValueError::new_err("this mover is closed"))
    }

    fn begin<B: Send + 'static>(
        &self,
        py: Python<'_>,
        bytes: usize,
        launch: impl FnOnce(&telpher_mover::Mover) -> telpher_mover::Job<B> + Send,
    ) -> PyResult<Job> {
        let mover = self.open()?;
        let job = if bytes < LET_GO { launch(&mover) } else { py.detach(|| launch(&mover)) };
        Ok(Job::new(Box::new(job), false))
    }

    fn begin_copy(&self, py: Python<'_>, src: View, dst: ViewMut) -> PyResult<Job> {
        let bytes = src.len();
        match lie(src, dst) {
            CopyViews::Apart(src, dst) => self.begin(py, bytes, |mover| mover.copy(src, dst)),
            CopyViews::Over(overlap) => {
                let (from, to) = overlap.course();
                self.begin(py, bytes, |mover| mover.copy_within(overlap, from, to))
            }
        }
    }

    fn begin_apply(&self, py: Python<'_>, delta: &View, dst: ViewMut, size: Option<u32>) -> PyResult<Job> {
        let (record, size) = record(delta, size)?;
        self.begin(py, dst.len(), |mover| mover.apply_delta(record, dst, size))
    }
}

/// A private copy of a delta record: the kernels make decisions based on its bytes, so they must not change meanwhile.
pub(crate) fn record(delta: &View, size: Option<u32>) -> PyResult<(Vec<u8>, u32)> {
    let record = delta.to_vec();
    let size = size.map_or_else(|| u32::try_from(record.len()), Ok);
    let size = size.map_err(|_| PyValueError::new_err("a delta record must be shorter than 4 GiB"))?;
    Ok((record, size))
}

/// The tuning file's policy, if there is one, overridden by these settings.
fn policy(tuning: Option<&Tuning>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Policy> {
    let mut policy = tuning.map(Tuning::policy).unwrap_or_default();
    for (name, value) in settings.into_iter().flatten() {
        let name: String = name.extract()?;
        let value = value.str()?.to_string();
        policy
            .set(&name.replace('_', "-"), &value)
            .map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))?;
    }
    Ok(policy)
}

macro_rules! mover_methods {
    ($(
        $(#[$doc:meta])*
        $name:ident, $name_async:ident ($first:ident: $First:ty $(, $arg:ident: $Arg:ty)*)
            = ($($signature:tt)*), reads [$($read:ident),*], writes [$($write:ident),*], |$front:ident| $call:expr;
    )*) => {
        #[pymethods]
        impl Mover {
            #[new]
            #[pyo3(signature = (device="all", *, threaded=None, **settings))]
            fn new(device: &str, threaded: Option<bool>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
                let name: DeviceName = device.parse().map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))?;
                let tuning = Tuning::from_environment().map_err(|error| PyValueError::new_err(telpher_os::chain(&error)))?;
                let policy = policy(tuning.as_ref(), settings)?;
                let runner = match threaded {
                    None => Runner::Auto,
                    Some(true) => Runner::Threaded,
                    Some(false) => Runner::Inline,
                };
                let opened = telpher_device::open(&name, OpenOptions { runner });
                let Opened { portals, skipped } = opened.map_err(|error| OpenError::new_err(telpher_os::chain(&error)))?;
                let mover = telpher_mover::Mover::new(portals, policy);
                if let Some(tuning) = &tuning {
                    mover.load_costs(tuning);
                }
                let mover = Arc::new(Mutex::new(Some(mover)));
                let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
                open.retain(|mover| mover.strong_count() > 0);
                open.push(Arc::downgrade(&mover));
                let skipped = skipped.into_iter().map(|skipped| (skipped.queue, skipped.why)).collect();
                Ok(Mover { mover, device: device.to_owned(), skipped })
            }

            /// Copies `src` to `dst`, which must have the same length; the two may overlap.
            fn copy(&self, py: Python<'_>, src: View, dst: ViewMut) -> PyResult<Py<PyAny>> {
                self.begin_copy(py, src, dst)?.finish(py)
            }

            /// Starts `copy` and returns its `Job`.
            fn copy_async(&self, py: Python<'_>, src: View, dst: ViewMut) -> PyResult<Job> {
                self.begin_copy(py, src, dst)
            }

            /// True if two buffers of the same length have the same bytes.
            fn equal(&self, py: Python<'_>, a: View, b: View) -> PyResult<bool> {
                let job = self.begin(py, a.len(), |mover| mover.compare(a, b))?;
                Ok(job.finish(py)?.is_none(py))
            }

            /// Applies the first `size` bytes of a delta record (all of them by default) to `dst`.
            #[pyo3(signature = (delta, dst, size=None))]
            #[allow(clippy::needless_pass_by_value, reason = "a view is held for the call")]
            fn apply_delta(&self, py: Python<'_>, delta: View, dst: ViewMut, size: Option<u32>) -> PyResult<Py<PyAny>> {
                self.begin_apply(py, &delta, dst, size)?.finish(py)
            }

            /// Starts `apply_delta` and returns its `Job`.
            #[pyo3(signature = (delta, dst, size=None))]
            #[allow(clippy::needless_pass_by_value, reason = "a view is held for the call")]
            fn apply_delta_async(&self, py: Python<'_>, delta: View, dst: ViewMut, size: Option<u32>) -> PyResult<Job> {
                self.begin_apply(py, &delta, dst, size)
            }

            /// A list of operations that are submitted together.
            fn batch(&self) -> PyResult<Batch> {
                Ok(Batch::new(&self.open()?))
            }

            /// Returns when everything that the queues accepted before has ended.
            fn drain(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.begin(py, 0, telpher_mover::Mover::drain)?.finish(py)
            }

            /// Releases the queues. Jobs in flight end normally; abandoned jobs are waited for, up to the setting
            /// `linger`. A closed mover starts no operations.
            fn close(&self, py: Python<'_>) {
                close(py, &self.mover);
            }

            /// True if it is closed.
            #[getter]
            fn closed(&self) -> bool {
                self.mover.lock().unwrap_or_else(PoisonError::into_inner).is_none()
            }

            /// The device's name, as given.
            #[getter]
            fn device(&self) -> &str {
                &self.device
            }

            /// Queues that were found and cannot be used, each with the reason.
            #[getter]
            fn skipped(&self) -> Vec<(String, String)> {
                self.skipped.clone()
            }

            /// Its queues, one dict each: name, mode, size, limits, operations, NUMA node. With no queue the CPU
            /// executes everything.
            #[getter]
            fn queues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
                let list = PyList::empty(py);
                for portal in self.open()?.portals() {
                    let info = portal.info();
                    let queue = PyDict::new(py);
                    queue.set_item("name", &info.name)?;
                    queue.set_item("mode", match info.mode {
                        QueueMode::Dedicated => "dedicated",
                        QueueMode::Shared => "shared",
                    })?;
                    queue.set_item("size", info.size)?;
                    queue.set_item("max_transfer", info.max_transfer)?;
                    queue.set_item("max_batch", info.max_batch)?;
                    queue.set_item("block_on_fault", info.block_on_fault)?;
                    queue.set_item("numa_node", info.numa_node)?;
                    let able = Opcode::ALL.iter().filter(|op| info.operations.contains(**op)).map(|op| op.name());
                    queue.set_item("operations", able.collect::<Vec<_>>())?;
                    list.append(queue)?;
                }
                Ok(list)
            }

            /// Abandoned jobs whose buffers are kept because the device may still write them: dropped jobs, and jobs
            /// whose deadline passed.
            #[getter]
            fn kept(&self) -> PyResult<usize> {
                let mover = self.open()?;
                mover.drive();
                Ok(mover.orphaned() + mover.quarantined())
            }

            /// Lets other processes access a buffer, and returns the `Grant`. Hand its `files` to them.
            #[pyo3(signature = (buffer, *, writable=true))]
            fn grant(&self, buffer: &Bound<'_, PyAny>, writable: bool) -> PyResult<Grant> {
                crate::window::grant(&self.open()?, buffer, writable)
            }

            /// Opens a `Window` to memory of another process by the file descriptors of its `Grant`.
            #[allow(clippy::needless_pass_by_value, reason = "as Python passes it")]
            fn open_window(&self, py: Python<'_>, files: Vec<i32>) -> PyResult<Window> {
                crate::window::open(py, &self.open()?, &files)
            }

            /// Copies `data` to a `DurableFile` from offset `at` on, and returns when it survives. Returns what copied
            /// it: "cpu", "device" or "both".
            #[pyo3(signature = (data, file, at=0))]
            #[allow(clippy::needless_pass_by_value, reason = "a view is held for the call")]
            fn store(&self, py: Python<'_>, data: View, file: &DurableFile, at: u64) -> PyResult<&'static str> {
                crate::durable::store(py, &self.open()?, &data, file, at)
            }

            fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
                self.close(py);
            }

            fn __repr__(&self) -> String {
                let closed = if self.closed() { ", closed" } else { "" };
                format!("<telpher.Mover on '{}'{closed}>", self.device)
            }

            $(
                $(#[$doc])*
                #[pyo3(signature = ($($signature)*))]
                #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
                fn $name(&self, py: Python<'_>, $first: $First $(, $arg: $Arg)*) -> PyResult<Py<PyAny>> {
                    self.$name_async(py, $first $(, $arg)*)?.finish(py)
                }

                #[doc = concat!("Begins `", stringify!($name), "` and returns its `Job`.")]
                #[pyo3(signature = ($($signature)*))]
                #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
                fn $name_async(&self, py: Python<'_>, $first: $First $(, $arg: $Arg)*) -> PyResult<Job> {
                    disjoint(&[$(&$read),*], &[$(&$write),*])?;
                    let mut work = Work::default();
                    $first.add_to(&mut work);
                    $($arg.add_to(&mut work);)*
                    self.begin(py, work.bytes(), |$front| $call)
                }
            )*
        }
    };
}
operations!(mover_methods);

/// The settings a mover takes, each with its values and its effect.
pub(crate) fn settings(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let settings = PyDict::new(py);
    for setting in Policy::SETTINGS {
        settings.set_item(setting.name.replace('-', "_"), format!("{}: {}", setting.takes, setting.about))?;
    }
    Ok(settings)
}
