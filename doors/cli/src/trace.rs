//! `telpher trace`: filters and sums a trace of `telpher run`.

use crate::args::{Format, Trace};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use telpher_report::deliver::DeliverError;
use telpher_report::{csv, schema};
use telpher_vdev::summary::Summary;
use telpher_vdev::trace::{COLUMNS, Line, ReadError, Reader};

/// Why a trace could not be processed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not a trace.
    #[error("{} is not a trace of `telpher run`", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        #[source]
        source: ReadError,
    },
    /// The result cannot be written.
    #[error(transparent)]
    Write(#[from] DeliverError),
}

/// Writes the lines that pass the filters, or their summary.
///
/// # Errors
/// If the file is not a trace, or cannot be read.
pub(crate) fn run(args: &Trace) -> Result<(), TraceError> {
    let input: Box<dyn BufRead> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.file);
        Box::new(BufReader::new(file.map_err(|source| TraceError::Read { path: args.file.clone(), source })?))
    };
    if args.summary {
        args.printed.check()?;
        let mut summary = Summary::default();
        for_each(args, input, |line| {
            summary.add_line(line);
            Ok(true)
        })?;
        return Ok(args.printed.deliver(
            schema::TRACE_SUMMARY,
            &summary,
            || summary.to_string(),
            || summary_csv(&summary),
        )?);
    }
    let failed = |source| match args.printed.file() {
        Some(path) => DeliverError::File { path: path.into(), source },
        None => DeliverError::Output(source),
    };
    let output: Box<dyn Write> = match args.printed.file() {
        Some(path) => Box::new(telpher_os::create_file(path).map_err(failed)?),
        None => Box::new(io::stdout().lock()),
    };
    let mut output = BufWriter::new(output);
    // A reader that closes the pipe wants no more lines.
    let mut write = |text: &str| match writeln!(output, "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).map_err(failed),
    };
    if args.printed.format == Format::Csv {
        write(&COLUMNS.join(","))?;
    }
    for_each(args, input, |line| write(&text(line, args.printed.format)))?;
    match output.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error).into()),
        _ => Ok(()),
    }
}

/// Passes on the lines that pass the filters, until `take` wants no more.
fn for_each(
    args: &Trace,
    input: impl BufRead,
    mut take: impl FnMut(&Line) -> Result<bool, DeliverError>,
) -> Result<(), TraceError> {
    let path = || args.file.clone();
    let (filter, mut reader) = (args.filter(), Reader::new(input));
    loop {
        match reader.next_line() {
            Ok(Some(line)) if filter.passes(&line) && !take(&line)? => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(ReadError::Read(source)) => return Err(TraceError::Read { path: path(), source }),
            Err(source) => return Err(TraceError::Parse { path: path(), source }),
        }
    }
    if reader.is_torn() {
        eprintln!("telpher: the last line of {} is incomplete", args.file.display());
    }
    Ok(())
}

/// Returns a line in the wanted format.
fn text(line: &Line, format: Format) -> String {
    match format {
        Format::Table => line.to_string(),
        Format::Csv => line.fields().iter().map(|field| csv::field(field)).collect::<Vec<_>>().join(","),
        Format::Json => line.json(),
    }
}

/// Returns one line for each operation of a summary.
fn summary_csv(summary: &Summary) -> String {
    let mut all = serde_json::to_value(summary).expect("a summary is plain data with string keys");
    let operations = all["operations"].take();
    let rows = operations.as_object().into_iter().flatten().map(|(name, counts)| {
        let mut row = counts.clone();
        row["operation"] = name.clone().into();
        row
    });
    csv::rows(&rows.collect::<Vec<_>>())
}
