//! Delivers results: to standard output or a file in the requested format, and as a report in another file.

use crate::schema::Schema;
use crate::{html, terminal};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The format of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Columns for a terminal.
    Table,
    /// One JSON object.
    Json,
    /// One line per result; the first line has the names.
    Csv,
}

impl Format {
    /// Returns a result as text in this format. `schema` describes its JSON.
    pub fn render<T: Serialize>(
        self,
        schema: Schema,
        result: &T,
        text: impl FnOnce() -> String,
        csv: impl FnOnce() -> String,
    ) -> String {
        match self {
            Format::Table => terminal::folded(&text(), terminal::columns()),
            Format::Csv => csv(),
            Format::Json => schema.pretty(result),
        }
    }
}

/// The destinations of a result.
#[derive(Clone, Debug)]
pub struct Output {
    /// The format of the result.
    pub format: Format,
    /// The file of the result; standard output if `None`.
    pub file: Option<PathBuf>,
    /// The file of the HTML report, if it is wanted.
    pub html: Option<PathBuf>,
}

/// The reason why a result could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// The report could not be written.
    #[error("cannot write the report to {}; name another file with --html", path.display())]
    Html {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of the result cannot be written.
    #[error("cannot write the result to {}; name another file with --output", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

/// Checks before the work that the file of the result can be written. Standard output is not checked.
///
/// # Errors
/// If the file cannot be written.
pub fn check_result(file: Option<&Path>) -> Result<(), DeliverError> {
    let Some(path) = file else { return Ok(()) };
    telpher_os::check_writable(path).map_err(|source| DeliverError::File { path: path.into(), source })
}

/// Checks before the measurement that the result and the report can be written.
///
/// # Errors
/// If one of the files cannot be written.
pub fn writable(output: &Output) -> Result<(), DeliverError> {
    check_result(output.file.as_deref())?;
    let Some(path) = &output.html else { return Ok(()) };
    telpher_os::check_writable(path).map_err(|source| DeliverError::Html { path: path.into(), source })
}

/// Writes the result in the requested format, and the report if it is wanted, with a link to the result as CSV.
///
/// # Errors
/// If one of the files or standard output cannot be written.
pub fn deliver<T: Serialize>(
    output: &Output,
    schema: Schema,
    result: &T,
    text: impl FnOnce() -> String,
    csv: impl Fn() -> String,
    html: impl FnOnce() -> String,
) -> Result<(), DeliverError> {
    if output.file.is_some() {
        terminal::unset();
    }
    write_result(output.file.as_deref(), output.format.render(schema, result, text, &csv))?;
    if let Some(path) = &output.html {
        write_report(path, &html(), &csv()).map_err(|source| DeliverError::Html { path: path.clone(), source })?;
        eprintln!("Report: {}", path.display());
    }
    Ok(())
}

/// Writes a report with a link to its data: a new file takes the name when it is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn write_report(path: &Path, page: &str, csv: &str) -> io::Result<()> {
    let name = path.with_extension("csv");
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    telpher_os::write_file(path, html::with_data(page, &name, csv).as_bytes())
}

/// Prints a text; a reader that closes the pipe early is not an error.
pub fn print(text: String) -> Result<(), DeliverError> {
    write_result(None, text)
}

/// Writes a result to a file, or to standard output without one. A reader that closes the pipe early is not an error.
///
/// # Errors
/// If the file or standard output cannot be written.
pub fn write_result(file: Option<&Path>, text: String) -> Result<(), DeliverError> {
    write_update(file, text).map(drop)
}

/// Writes one of several results, as [`write_result`] does. Returns false if the reader has closed the pipe, so that no
/// further one is needed.
///
/// # Errors
/// If the file or standard output cannot be written.
pub fn write_update(file: Option<&Path>, mut text: String) -> Result<bool, DeliverError> {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if let Some(path) = file {
        return telpher_os::write_file(path, text.as_bytes())
            .map(|()| true)
            .map_err(|source| DeliverError::File { path: path.into(), source });
    }
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).map_err(DeliverError::Output),
    }
}
