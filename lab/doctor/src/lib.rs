//! Finds out why a device does not come up, or why it is slow.
//!
//! ```text
//! this machine ──► record ─┐                      ┌─► report: text, JSON
//!                          ├─► Bundle ─► ExaminedMachine ─► checks ─► Findings
//! --bundle FILE ───────────┘   answers   values     by stage  evidence, cause, remedy
//! ```
//!
//! An examination reads a recording and never the machine itself; `record` reads everything that an examination reads.
//! So the examination of a local machine and of a bundle are the same, and every test is a file.
#![deny(unsafe_code)]

mod bundle;
mod causes;
mod checks;
mod dml_library;
mod examined_machine;
mod finding;
mod mapping;
mod record;
mod report;

use bundle::Bundle;
use examined_machine::ExaminedMachine;
use std::path::Path;
use telpher_report::schema::{DOCTOR, DOCTOR_CAUSES, List};

pub use bundle::BundleError;
pub use checks::Examination;
pub use finding::Severity;

/// Examines this machine and the libraries of a process, or what was recorded in a file.
///
/// # Errors
/// If the file cannot be read or is no recording.
pub fn examine(bundle: Option<&Path>, program: Option<u32>) -> Result<Examination, BundleError> {
    let bundle = match bundle {
        Some(path) => Bundle::load(path)?,
        None => record::here(program),
    };
    Ok(checks::examine(&ExaminedMachine::of(&bundle, &bundle)))
}

/// Writes this machine's answers, and those about a process, to a file; returns how many there are.
///
/// # Errors
/// If the file cannot be written.
pub fn record(path: &Path, program: Option<u32>) -> Result<usize, BundleError> {
    let bundle = record::here(program);
    bundle.save(path)?;
    Ok(bundle.answers())
}

/// Returns the examination as text.
#[must_use]
pub fn text(examination: &Examination) -> String {
    report::text(examination)
}

/// Returns the examination as JSON.
///
/// # Panics
/// Never: an examination is plain data with string keys.
#[must_use]
pub fn json(examination: &Examination) -> String {
    DOCTOR.pretty(examination)
}

/// Returns the findings of the examination as CSV, one line each.
#[must_use]
pub fn csv(examination: &Examination) -> String {
    report::csv(examination)
}

/// Returns the list of all causes as text.
#[must_use]
pub fn causes_text() -> String {
    report::causes()
}

/// Returns the list of all causes as JSON.
///
/// # Panics
/// Never: causes are plain data with string keys.
#[must_use]
pub fn causes_json() -> String {
    DOCTOR_CAUSES.pretty(&List { name: "causes", elements: causes::ALL })
}

/// Returns the list of all causes as CSV, one line each.
#[must_use]
pub fn causes_csv() -> String {
    telpher_report::csv::rows(causes::ALL)
}
