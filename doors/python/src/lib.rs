//! telpher for Python: the module `telpher._telpher`, which the package `telpher` re-exports.
//!
//! ```text
//! Mover.copy(src, dst) ──► view (buffer protocol) ──► mover ──► Job ──► result(), await ──► a Python value or an
//! exception
//! ```
#![deny(unsafe_code)]

mod arithmetic;
mod batch;
mod cache;
mod dif;
mod durable;
mod error;
mod job;
mod mover;
mod notifier;
mod operations;
mod permit;
mod result;
mod versioned;
mod view;
mod window;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use std::sync::OnceLock;

/// The first interpreter's `sys` module, which identifies the interpreter.
static HOME: OnceLock<usize> = OnceLock::new();

/// Refuses all interpreters of the process but the first. The thread that sees a job end releases its buffers, and it
/// attaches to the main interpreter, whichever interpreter the buffers belong to.
fn stay_at_home(py: Python<'_>) -> PyResult<()> {
    let here = py.import("sys")?.as_ptr().addr();
    if *HOME.get_or_init(|| here) == here {
        return Ok(());
    }
    Err(PyImportError::new_err("telpher supports one interpreter per process, and another one has already imported it"))
}

/// Move and transform memory without the CPU.
#[pymodule(gil_used = true)]
fn _telpher(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    stay_at_home(py)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("SETTINGS", mover::settings(py)?)?;
    module.add("Error", py.get_type::<error::Error>())?;
    module.add("OpenError", py.get_type::<error::OpenError>())?;
    module.add("JobFailed", py.get_type::<error::JobFailed>())?;
    let close_all = wrap_pyfunction!(mover::_close_all, module)?;
    py.import("atexit")?.call_method1("register", (close_all,))?;
    module.add_class::<mover::Mover>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<job::Job>()?;
    module.add_class::<notifier::Notifier>()?;
    module.add_class::<cache::Cache>()?;
    module.add_class::<cache::Block>()?;
    module.add_class::<cache::Prefetch>()?;
    module.add_class::<versioned::Versioned>()?;
    module.add_class::<versioned::Reading>()?;
    module.add_class::<versioned::Writing>()?;
    module.add_class::<versioned::Pool>()?;
    module.add_class::<versioned::WriteBack>()?;
    module.add_class::<window::Grant>()?;
    module.add_class::<window::Window>()?;
    module.add_class::<durable::DurableFile>()?;
    module.add_class::<arithmetic::Numbers>()?;
    module.add_class::<dif::Dif>()?;
    module.add_class::<result::DifTags>()?;
    module.add_class::<result::DeltaFound>()?;
    module.add_class::<result::DifFound>()
}
