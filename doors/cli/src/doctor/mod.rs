//! `telpher doctor`: finds out why a device does not come up or is slow.
//!
//! ```text
//! this machine ──► record ─┐                      ┌─► report: text, JSON
//!                          ├─► Bundle ─► Patient ─► checks ─► Findings
//! --bundle FILE ───────────┘   answers   values     by stage  evidence, cause, remedy
//! ```
//!
//! An examination never reads the machine directly. It reads a recording, which was made by running the same reads on
//! the machine. So this machine and a recorded one are examined in the same way, and every test is a file.

mod bundle;
mod causes;
mod checks;
mod finding;
mod patient;
mod record;
mod report;

use crate::args::{Doctor, ListFormat};
use bundle::{Bundle, BundleError};
use finding::Severity;
use patient::Patient;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit code if the worst finding is a warning; 0 means none or notes, 1 means that the doctor failed.
pub(crate) const WARNINGS: u8 = 2;
/// Exit code if there are errors.
pub(crate) const ERRORS: u8 = 3;

/// Why the doctor failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    /// A bundle cannot be read or written.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Standard output cannot be written.
    #[error("cannot write the result")]
    Output(#[source] io::Error),
}

/// Examines, records or lists causes; returns the exit code.
///
/// # Errors
/// If a bundle cannot be read or written, or standard output is closed.
pub(crate) fn run(args: &Doctor) -> Result<ExitCode, DoctorError> {
    if args.causes {
        write(&report::causes(args.format))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.record {
        let bundle = record::here();
        bundle.save(path)?;
        eprintln!(
            "telpher: recorded {} answers of this machine in {path}; examine them with `telpher doctor --bundle {path}`",
            bundle.answers(),
            path = path.display(),
        );
        return Ok(ExitCode::SUCCESS);
    }
    let bundle = match &args.bundle {
        Some(path) => Bundle::load(path)?,
        None => record::here(),
    };
    let examination = checks::examine(&Patient::of(&bundle, &bundle));
    write(&match args.format {
        ListFormat::Json => {
            serde_json::to_string_pretty(&examination).expect("an examination is plain data with string keys") + "\n"
        }
        ListFormat::Text => report::text(&examination),
    })?;
    Ok(match examination.worst {
        None | Some(Severity::Note) => ExitCode::SUCCESS,
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Error) => ExitCode::from(ERRORS),
    })
}

fn write(text: &str) -> Result<(), DoctorError> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(DoctorError::Output),
    }
}
