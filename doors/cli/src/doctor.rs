//! `telpher doctor`: examines this machine or a recorded one, records, or lists the causes it knows.

use crate::args::{Doctor, ListFormat};
use std::process::ExitCode;
use telpher_doctor::{BundleError, Severity};
use telpher_report::deliver::{DeliverError, print};

/// Exit code when the worst finding is a warning; 0 stands for none or notes, 1 for a doctor that could not work.
const WARNINGS: u8 = 2;
/// Exit code when there are errors.
const ERRORS: u8 = 3;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DoctorError {
    /// A bundle cannot be read or written.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Standard output is closed.
    #[error(transparent)]
    Output(#[from] DeliverError),
}

/// Examines, records or lists; the exit code says how bad the worst finding is.
///
/// # Errors
/// If a bundle cannot be read or written, or standard output is closed.
pub(crate) fn run(args: &Doctor) -> Result<ExitCode, DoctorError> {
    let as_json = args.format == ListFormat::Json;
    if args.causes {
        print(telpher_doctor::list_causes(as_json))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.record {
        let answers = telpher_doctor::record(path)?;
        eprintln!(
            "telpher: {answers} answers of this machine are in {path}; `telpher doctor --bundle {path}` reads them \
             anywhere",
            path = path.display(),
        );
        return Ok(ExitCode::SUCCESS);
    }
    let examination = telpher_doctor::examine(args.bundle.as_deref())?;
    print(if as_json { telpher_doctor::json(&examination) } else { telpher_doctor::text(&examination) })?;
    Ok(match examination.worst {
        None | Some(Severity::Note) => ExitCode::SUCCESS,
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Error) => ExitCode::from(ERRORS),
    })
}
