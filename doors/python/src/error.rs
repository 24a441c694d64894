//! Converts errors to exceptions: what was attempted, and what the machine reported.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use telpher_mover::JobError;
use telpher_os::chain;

create_exception!(telpher, Error, PyException, "What telpher could not do; the base of its other exceptions.");
create_exception!(telpher, OpenError, Error, "A device or its queue could not be opened; the sentence says why.");
create_exception!(telpher, JobFailed, Error, "An operation ended without a result; the sentence says why.");

/// Converts a job's error: `ValueError` for buffers that do not fit the operation, [`JobFailed`] for failures of the
/// operation.
pub(crate) fn raised(error: &JobError) -> PyErr {
    let sentence = chain(error);
    match error {
        JobError::Lengths { .. }
        | JobError::Unit { .. }
        | JobError::TooLong { .. }
        | JobError::Options { .. }
        | JobError::Outside { .. } => PyValueError::new_err(sentence),
        JobError::Deadline { .. } => PyTimeoutError::new_err(sentence),
        _ => JobFailed::new_err(sentence),
    }
}
