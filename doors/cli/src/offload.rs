//! `telpher offload`: runs unmodified programs whose long memory copies a device executes.

use crate::args::{Format, Offload};
use crate::log;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use telpher_offload::{OffloadError, Process, RunOptions};
use telpher_offload_wire::Settings;
use telpher_report::offload::{self as report, OffloadedProcess};

/// Why a program was not run, or its summary not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RunError {
    /// The program cannot be run.
    #[error(transparent)]
    Run(#[from] OffloadError),
    /// The summary cannot be written.
    #[error("cannot write {}; name another file", path.display())]
    Summary {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl RunError {
    /// Returns the exit code: as a shell's if the program cannot be run, 125 for all other errors.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Run(error) => error.exit_code(),
            RunError::Summary { .. } => 125,
        }
    }
}

/// Runs the program to its end and writes the summary. Returns the program's exit code.
///
/// # Errors
/// If the program cannot be run, or the summary cannot be written.
pub(crate) fn run(args: &Offload) -> Result<ExitCode, RunError> {
    // Checked before the program runs.
    if let Some(path) = &args.output {
        telpher_os::check_writable(path).map_err(|source| RunError::Summary { path: path.into(), source })?;
    }
    let settings = Settings {
        threshold: args.threshold,
        functions: args.function,
        learns: !args.always,
        follow: !args.no_follow,
        ..Settings::new(&*args.device)
    };
    log::info(|| format!("calls from {} bytes on go to {}", settings.threshold, settings.device));
    let grace = Duration::from_secs_f64(args.grace);
    let remark = |text: &str| eprintln!("telpher: {text}");
    let (code, processes) =
        telpher_offload::run(&RunOptions { program: args.program.clone(), settings, grace }, remark)?;
    let processes: Vec<OffloadedProcess> = processes.iter().map(row).collect();
    let summary = match args.format {
        Format::Table => report::text(&processes),
        Format::Json => serde_json::to_string_pretty(&processes).expect("counters are plain data") + "\n",
        Format::Csv => report::csv(&processes),
    };
    match &args.output {
        Some(path) => telpher_os::write_file(path, summary.as_bytes())
            .map_err(|source| RunError::Summary { path: path.into(), source })?,
        None if args.quiet => {}
        None => eprint!("{summary}"),
    }
    Ok(ExitCode::from(code))
}

/// Returns a process as the tables show it.
fn row(process: &Process) -> OffloadedProcess {
    let counters = &process.counters;
    OffloadedProcess {
        pid: process.pid,
        device_calls: counters.by_device,
        device_bytes: counters.device_bytes,
        cached_calls: counters.hot,
        timed_calls: counters.timed,
        other_calls: counters.nested + counters.forked,
        cpu_bytes: counters.cpu_bytes,
        faults: counters.faults,
        retries: counters.retries,
    }
}
