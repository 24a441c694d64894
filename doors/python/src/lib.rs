//! telpher for Python: the module `telpher._telpher`, which the package `telpher` shows.
//!
//! ```text
//! Mover.copy(src, dst) ──► view (buffer protocol) ──► mover ──► Job ──► result(), await ──► a Python value or an exception
//! ```
#![deny(unsafe_code)]

mod batch;
mod dif;
mod error;
mod job;
mod mover;
mod operations;
mod result;
mod view;

use pyo3::prelude::*;

/// Move and transform memory without the CPU.
#[pymodule(gil_used = true)]
fn _telpher(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
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
    module.add_class::<dif::Dif>()?;
    module.add_class::<result::DifTags>()?;
    module.add_class::<result::DeltaFound>()?;
    module.add_class::<result::DifFound>()
}
