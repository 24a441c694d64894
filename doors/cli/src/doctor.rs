//! `telpher doctor`: examines this machine or a recorded one, records, or lists the causes it knows.

use crate::args::{Doctor, Format};
use crate::log;
use std::process::ExitCode;
use telpher_doctor::{BundleError, Severity};
use telpher_report::deliver::DeliverError;

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
    args.printed.check()?;
    args.printed.begin();
    if args.causes {
        args.printed.write(match args.printed.format {
            Format::Table => telpher_doctor::causes_text(),
            Format::Json => telpher_doctor::causes_json(),
            Format::Csv => telpher_doctor::causes_csv(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.record {
        let answers = telpher_doctor::record(path, args.process)?;
        eprintln!(
            "telpher: {answers} answers of this machine are in {path}; `telpher doctor --bundle {path}` reads them \
             anywhere",
            path = path.display(),
        );
        return Ok(ExitCode::SUCCESS);
    }
    log::info(|| match &args.bundle {
        Some(path) => format!("examines the machine recorded in {}", path.display()),
        None => "examines this machine".into(),
    });
    let examination = telpher_doctor::examine(args.bundle.as_deref(), args.process)?;
    args.printed.write(match args.printed.format {
        Format::Table => telpher_doctor::text(&examination),
        Format::Json => telpher_doctor::json(&examination),
        Format::Csv => telpher_doctor::csv(&examination),
    })?;
    log::debug(|| format!("the worst finding is {:?}", examination.worst));
    Ok(match examination.worst {
        None | Some(Severity::Note) => ExitCode::SUCCESS,
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Error) => ExitCode::from(ERRORS),
    })
}
