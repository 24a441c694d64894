//! `telpher trace`: filters and sums a trace of `telpher run`.

use crate::args::{Format, Trace};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use telpher_report::csv;
use telpher_vdev::summary::Summary;
use telpher_vdev::trace::{Line, ParseError, ReadError, Reader};

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
        source: ParseError,
    },
    /// A line is too long.
    #[error("{} is not a trace of `telpher run`: {why}", path.display())]
    Long {
        /// The file.
        path: PathBuf,
        /// Which line, and how long a line may be.
        why: ReadError,
    },
    /// The file of the result cannot be created.
    #[error("cannot write the result to {}; name another file with --output", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The result cannot be written.
    #[error("cannot write the result")]
    Output(#[source] io::Error),
}

impl TraceError {
    /// Adds the file to an error of the reader.
    fn of(path: &Path, error: ReadError) -> TraceError {
        let path = path.to_owned();
        match error {
            ReadError::Read(source) => TraceError::Read { path, source },
            ReadError::Parse(source) => TraceError::Parse { path, source },
            why => TraceError::Long { path, why },
        }
    }
}

/// Writes the lines that pass the filters, or their summary, to standard output.
///
/// # Errors
/// If the file is not a trace, or cannot be read.
pub(crate) fn run(args: &Trace) -> Result<(), TraceError> {
    let read = |source| TraceError::Read { path: args.file.clone(), source };
    let input: Box<dyn BufRead> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(&args.file).map_err(read)?))
    };
    let output: Box<dyn Write> = match args.printed.file() {
        Some(path) => {
            let file = telpher_os::create_file(path);
            Box::new(file.map_err(|source| TraceError::Write { path: path.into(), source })?)
        }
        None => Box::new(io::stdout().lock()),
    };
    match filter(args, input, BufWriter::new(output)) {
        // The reader closed the pipe.
        Err(TraceError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn filter(args: &Trace, input: impl BufRead, mut out: impl Write) -> Result<(), TraceError> {
    let mut summary = Summary::default();
    if args.printed.format == Format::Csv && !args.summary {
        writeln!(out, "{}", COLUMNS.join(",")).map_err(TraceError::Output)?;
    }
    let (filter, mut reader) = (args.filter(), Reader::new(input));
    while let Some(line) = reader.next_line().map_err(|error| TraceError::of(&args.file, error))? {
        if !filter.passes(&line) {
            continue;
        }
        if args.summary {
            summary.add_line(&line);
            continue;
        }
        let written = match args.printed.format {
            Format::Table => writeln!(out, "{line}"),
            Format::Csv => writeln!(out, "{}", csv_line(&line)),
            Format::Json => {
                writeln!(out, "{}", serde_json::to_string(&line).expect("lines are plain data with string keys"))
            }
        };
        written.map_err(TraceError::Output)?;
    }
    if reader.is_torn() {
        eprintln!("telpher: the last line of {} is incomplete", args.file.display());
    }
    if args.summary {
        let written = match args.printed.format {
            Format::Table => write!(out, "{summary}"),
            Format::Csv => write!(out, "{}", csv_summary(&summary)),
            Format::Json => {
                let json = serde_json::to_string_pretty(&summary);
                writeln!(out, "{}", json.expect("a summary is plain data with string keys"))
            }
        };
        written.map_err(TraceError::Output)?;
    }
    out.flush().map_err(TraceError::Output)
}

/// Columns of a trace as CSV. `text` is the whole line as `--format table` prints it.
const COLUMNS: [&str; 12] = [
    "time_ns",
    "process",
    "thread",
    "queue",
    "kind",
    "number",
    "how",
    "operation",
    "result",
    "duration_ns",
    "retries",
    "text",
];

/// Returns a line of a trace as CSV.
fn csv_line(line: &Line) -> String {
    let origin = line.origin();
    let place = [origin.time_ns.to_string(), origin.process.to_string(), origin.thread.to_string()];
    let about = match line {
        Line::Descriptor(story) => [
            "descriptor".into(),
            story.which.to_string(),
            story.how.clone().unwrap_or_default(),
            story.operation.clone(),
            story.status_name.clone().unwrap_or_else(|| story.end.clone()),
            story.duration_ns.map_or_else(String::new, |time| time.to_string()),
            story.retries.to_string(),
        ],
        Line::Misuse(misuse) => ["misuse", "", "", "", &misuse.misuse, "", ""].map(String::from),
        Line::Lost(_) => ["lost", "", "", "", "", "", ""].map(String::from),
    };
    let text = line.to_string();
    let fields = place.iter().chain([&origin.queue]).chain(&about).map(String::as_str).chain([text.trim()]);
    fields.map(csv::field).collect::<Vec<_>>().join(",")
}

/// Returns one line for each operation of a summary.
fn csv_summary(summary: &Summary) -> String {
    let mut all = serde_json::to_value(summary).expect("a summary is plain data with string keys");
    let operations = all["operations"].take();
    let rows = operations.as_object().into_iter().flatten().map(|(name, counts)| {
        let mut row = counts.clone();
        row["operation"] = name.clone().into();
        row
    });
    csv::rows(&rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    const TRACE: &str = "\
0.000001000 1/1 wq0.0 #1 enqcmd memory-move(src=0x10, dst=0x20, size=64, flags=crav|rcr) = 0x01 success <5.000us>
0.000002000 1/2 wq0.1 #1 movdir64b batch(list=0x40, count=2) = 0x05 batch-fail members=2 <9.000us>
0.000002000 1/2 wq0.1     #1[0] fill(pattern=0x0, dst=0x20, size=4096) = 0x83 page-fault-write bytes=100 fault=0x84 <7.000us>
0.000003000 2/2 wq0.1 #2 movdir64b fill(pattern=0x0, dst=0x20, size=64) = (not completed)
0.000004000 2/2 wq0.1 #3 enqcmd nop() = (retry) retries=7
0.000005000 2/2 wq0.1 misuse read-after-write address=0x20 len=64: #2 source-1 of fill(dst=0x20)
0.000006000 2/2 wq0.1 lost entries=4
";

    fn filtered(options: &[&str], input: &str) -> Result<String, TraceError> {
        let words = [&["telpher", "trace", "some.trace"], options].concat();
        let crate::args::Command::Trace(args) = Cli::parse_from_words(words).unwrap().command else {
            panic!("`telpher trace` is the command")
        };
        let mut out = Vec::new();
        filter(&args, input.as_bytes(), &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_options_select_lines() {
        let first = TRACE.lines().next().unwrap();
        let (queue, op, slow) = (["--queue", "wq0.0,wq9.9"], ["--op", "copy"], ["--slower-than", "4us"]);
        for options in
            [[queue, op].concat(), [["--process", "1"], op].concat(), [["--status", "success"], slow].concat()]
        {
            assert_eq!(filtered(&options, TRACE).unwrap(), format!("{first}\n"), "{options:?}");
        }
    }

    #[test]
    fn json_round_trips() {
        let json = filtered(&["--format", "json"], TRACE).unwrap();
        assert_eq!(json.lines().count(), 7);
        assert_eq!(filtered(&[], &json).unwrap(), TRACE);
        let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!((&first["queue"], &first["operands"]["size"]), (&"wq0.0".into(), &64.into()));
    }

    #[test]
    fn csv_has_a_line_for_each_line_or_operation() {
        let text = filtered(&["--format", "csv"], TRACE).unwrap();
        let line = |number: usize| text.lines().nth(number).unwrap();
        assert_eq!(text.lines().count(), 8);
        assert_eq!(line(0), COLUMNS.join(","));
        assert!(line(1).starts_with("1000,1,1,wq0.0,descriptor,#1,enqcmd,memory-move,success,5000,0,\"0.000001000"));
        assert!(line(6).starts_with("5000,2,2,wq0.1,misuse,,,,read-after-write,,,"));
        let summary = filtered(&["--format", "csv", "--summary"], TRACE).unwrap();
        assert!(summary.lines().next().unwrap().contains("operation"), "{summary}");
        assert!(summary.lines().any(|line| line.contains("memory-move")), "{summary}");
    }

    #[test]
    fn a_summary_counts_what_passes() {
        let text = filtered(&["--summary", "--queue", "wq0.1"], TRACE).unwrap();
        assert!(text.starts_with("3 descriptors, 100 B completed, by 2 processes\n"), "{text}");
        for part in [
            "1 batch-fail",
            "1 page-fault",
            "1 not completed",
            "7 retries",
            "1 finding: 1 read-after-write",
            "misses 4 events",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let json = filtered(&["--summary", "--format", "json"], TRACE).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(summary["operations"]["memory-move"]["ends"]["success"], 1);
    }

    #[test]
    fn an_incomplete_last_line_is_accepted_and_other_bad_lines_are_not() {
        let torn = &TRACE[..TRACE.len() - 20];
        assert_eq!(filtered(&[], torn).unwrap().lines().count(), 6);
        let long = "x".repeat(2 << 20);
        let error = filtered(&[], &long).unwrap_err();
        let said = "some.trace is not a trace of `telpher run`: line 1 is longer than 1048576 bytes";
        assert_eq!(error.to_string(), said);
        let error = filtered(&[], "hello\n").unwrap_err();
        assert_eq!(error.to_string(), "some.trace is not a trace of `telpher run`");
        let error = filtered(&[], &format!("{TRACE}oops\n{TRACE}")).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "line 8 is not a line of a trace: oops");
    }

    #[test]
    fn a_bad_filter_describes_valid_ones() {
        for (options, said) in [
            (["--queue", "0.1"], "not a queue such as wq0.1"),
            (["--op", "x"], "use nop"),
            (["--status", "x"], "page-fault"),
            (["--slower-than", "5"], "50us"),
        ] {
            let words = [&["telpher", "trace", "f"], &options[..]].concat();
            let error = Cli::parse_from_words(words).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
