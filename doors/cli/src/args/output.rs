//! Options that say where a result goes, the same for every command.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use std::path::{Path, PathBuf};
pub(crate) use telpher_report::deliver::Format;
use telpher_report::deliver::{self, DeliverError};
use telpher_report::schema::Schema;
use telpher_report::terminal;

/// The result of a command: its format and its file.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Printed {
    /// Format of the result.
    #[arg(short, long, default_value = "table", value_parser = formats())]
    pub(crate) format: Format,
    /// Write the result to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The result of a command that also writes a report with charts.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    #[command(flatten)]
    pub(crate) printed: Printed,
    /// Write a report with charts to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "no-html")]
    pub(crate) html: Option<PathBuf>,
    /// The default. Earlier versions wrote a report without --html, so scripts may have this flag.
    #[arg(id = "no-html", long, hide = true)]
    _no_html: bool,
}

/// How often a view of running programs is updated, and where it goes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Updates")]
pub(crate) struct Updates {
    /// Seconds between two updates.
    #[arg(long, alias = "interval", value_name = "S", default_value = "1", value_parser = super::values::parse_seconds)]
    pub(crate) every: f64,
    /// Updates before the command ends [default: until no process is left].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print once and exit.
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) printed: Printed,
}

/// Returns the parser of a format's name.
pub(crate) fn formats() -> impl TypedValueParser<Value = Format> {
    let named = [
        ("table", "Text in columns"),
        ("json", "JSON"),
        ("csv", "One line for each result; the first line has the column names"),
    ];
    let values = named.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).map(|name| match name.as_str() {
        "json" => Format::Json,
        "csv" => Format::Csv,
        _ => Format::Table,
    })
}

impl Printed {
    /// Returns the file of the result; standard output if `None`.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    /// Checks before the work that the file can be written.
    pub(crate) fn check(&self) -> Result<(), DeliverError> {
        deliver::check_result(self.file())
    }

    /// Writes the result in the wanted format. `schema` describes its JSON.
    pub(crate) fn deliver<T: Serialize>(
        &self,
        schema: Schema,
        result: &T,
        text: impl FnOnce() -> String,
        csv: impl FnOnce() -> String,
    ) -> Result<(), DeliverError> {
        self.begin();
        self.write(self.format.render(schema, result, text, csv))
    }

    /// A result in a file is not for the terminal, so it has neither its width nor its colours.
    pub(crate) fn begin(&self) {
        if self.output.is_some() {
            terminal::unset();
        }
    }

    /// Writes a text as the result.
    pub(crate) fn write(&self, text: String) -> Result<(), DeliverError> {
        deliver::write_result(self.file(), text)?;
        if let Some(path) = self.file() {
            crate::log::info(|| format!("the result is in {}", path.display()));
        }
        Ok(())
    }
}

impl Output {
    /// Where the result goes.
    pub(crate) fn destination(&self) -> deliver::Output {
        deliver::Output { format: self.printed.format, file: self.printed.output.clone(), html: self.html.clone() }
    }
}
