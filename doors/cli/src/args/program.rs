//! Options of the commands that run a program and print a summary at its end.

use super::output::{Format, formats};
use super::values::parse_grace;
use crate::screen;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use telpher_report::schema::Schema;
use telpher_report::terminal;

/// The program, and where the summary goes.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Print no summary at the end.
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
    /// Format of the summary.
    #[arg(short, long, help_heading = "Output", default_value = "table", value_parser = formats())]
    pub(crate) format: Format,
    /// Write the summary to this file instead of standard error.
    #[arg(short, long, help_heading = "Output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Seconds to wait for the program and its children after the first SIGTERM.
    #[arg(long, help_heading = "Program", value_name = "S", default_value = "5", value_parser = parse_grace)]
    grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(help_heading = "Program", required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}; name another file", path.display())]
pub(crate) struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl WriteError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
        let path = path.into();
        |source| WriteError { path, source }
    }
}

/// Checks before a program runs that a file can be written.
///
/// # Errors
/// If it cannot.
pub(crate) fn check_writable(path: &Path) -> Result<(), WriteError> {
    telpher_os::check_writable(path).map_err(WriteError::at(path))
}

/// Writes a file.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), WriteError> {
    telpher_os::write_file(path, text.as_bytes()).map_err(WriteError::at(path))
}

/// Writes a report with a link to its data.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_report(path: &Path, page: &str, csv: &str) -> Result<(), WriteError> {
    telpher_report::deliver::write_report(path, page, csv).map_err(WriteError::at(path))
}

impl ProgramArgs {
    /// Returns how long to wait after the first SIGTERM.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs_f64(self.grace)
    }

    /// Checks before the program runs that the summary can be written.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn check(&self) -> Result<(), WriteError> {
        self.output.as_deref().map_or(Ok(()), check_writable)
    }

    /// Prints the summary, or writes it to the file. `schema` describes its JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn summarise<T: Serialize>(
        &self,
        schema: Schema,
        result: &T,
        text: impl FnOnce() -> String,
        csv: impl FnOnce() -> String,
    ) -> Result<(), WriteError> {
        // The summary goes to another stream than results do. A file has neither a terminal's width nor its colours.
        match self.output {
            Some(_) => terminal::unset(),
            None => screen::show_on(&io::stderr()),
        }
        self.deliver(&self.format.render(schema, result, text, csv))
    }

    /// Prints a text at the end, or writes it to the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn deliver(&self, text: &str) -> Result<(), WriteError> {
        match &self.output {
            Some(path) => write(path, text)?,
            None if self.quiet => {}
            None => eprint!("{text}"),
        }
        Ok(())
    }

    /// Returns the file that the user names for what is printed.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.output.as_deref()
    }
}
