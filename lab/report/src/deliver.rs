//! Delivers results: to standard output in the requested format, and as a report in a file.

use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The format on standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Columns for a terminal.
    Table,
    /// One JSON object.
    Json,
    /// One line per result; the first line has the names.
    Csv,
}

/// The destinations of a result.
#[derive(Clone, Debug)]
pub struct Output {
    /// The format on standard output.
    pub format: Format,
    /// The file of the HTML report; the command's own name unless given.
    pub html: Option<PathBuf>,
    /// Whether the HTML report is omitted.
    pub no_html: bool,
}

/// The reason why a result could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// The report could not be written.
    #[error("cannot write the report to {}; name another file with --html, or use --no-html", path.display())]
    Html {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

/// Returns the path of the report, unless it is omitted.
fn report_path<'a>(output: &'a Output, default: &'a str) -> Option<&'a Path> {
    (!output.no_html).then(|| output.html.as_deref().unwrap_or(Path::new(default)))
}

/// Checks before the measurement that the report can be written.
pub fn writable(output: &Output, default: &str) -> Result<(), DeliverError> {
    let Some(path) = report_path(output, default) else { return Ok(()) };
    telpher_os::check_writable(path).map_err(|source| DeliverError::Html { path: path.into(), source })
}

/// Prints the result in the requested format and writes the report.
pub fn deliver<T: Serialize>(
    output: &Output,
    default: &str,
    result: &T,
    text: impl FnOnce() -> String,
    csv: impl FnOnce() -> String,
    html: impl FnOnce() -> String,
) -> Result<(), DeliverError> {
    print(match output.format {
        Format::Table => text(),
        Format::Csv => csv(),
        Format::Json => serde_json::to_string_pretty(result).expect("results are plain data with string keys"),
    })?;
    if let Some(path) = report_path(output, default) {
        telpher_os::write_file(path, html().as_bytes())
            .map_err(|source| DeliverError::Html { path: path.into(), source })?;
        eprintln!("Report: {}", path.display());
    }
    Ok(())
}

/// Prints a text; a reader that closes the pipe early is not an error.
pub fn print(mut text: String) -> Result<(), DeliverError> {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(DeliverError::Output),
    }
}
