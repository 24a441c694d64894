//! Converts errors to exceptions: what was attempted, and what the machine reported.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use telpher_mover::JobError;

create_exception!(telpher, Error, PyException, "What telpher could not do; the base of its other exceptions.");
create_exception!(telpher, OpenError, Error, "A device or its queue could not be opened; the sentence says why.");
create_exception!(telpher, JobFailed, Error, "An operation ended without a result; the sentence says why.");

/// The error and its sources, in one sentence.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Converts a job's error: `ValueError` for buffers that do not fit the operation, [`JobFailed`] for failures of the
/// operation.
pub(crate) fn raised(error: &JobError) -> PyErr {
    let sentence = told(error);
    match error {
        JobError::Lengths { .. } | JobError::Unit { .. } | JobError::TooLong { .. } => PyValueError::new_err(sentence),
        JobError::Deadline { .. } => PyTimeoutError::new_err(sentence),
        _ => JobFailed::new_err(sentence),
    }
}
