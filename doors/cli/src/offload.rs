//! `telpher offload`: runs unmodified programs whose long memory copies a device executes.

use crate::args::Offload;
use crate::args::program::WriteError;
use crate::log;
use std::process::ExitCode;
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
    #[error(transparent)]
    Summary(#[from] WriteError),
}

impl RunError {
    /// Returns the exit code: as a shell's if the program cannot be run, 125 for all other errors.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Run(error) => error.exit_code(),
            RunError::Summary(_) => 125,
        }
    }
}

/// Runs the program to its end and writes the summary. Returns the program's exit code.
///
/// # Errors
/// If the program cannot be run, or the summary cannot be written.
pub(crate) fn run(args: &Offload) -> Result<ExitCode, RunError> {
    args.run.check()?;
    let settings = Settings {
        threshold: args.threshold,
        functions: args.function,
        learns: !args.always,
        follow: !args.no_follow,
        ..Settings::new(&*args.device)
    };
    log::info(|| format!("calls from {} bytes on go to {}", settings.threshold, settings.device));
    let remark = |text: &str| eprintln!("telpher: {text}");
    let options = RunOptions { program: args.run.program.clone(), settings, grace: args.run.grace() };
    let (code, processes) = telpher_offload::run(&options, remark)?;
    let processes: Vec<OffloadedProcess> = processes.iter().map(row).collect();
    args.run.summarise(&processes, || report::text(&processes), || report::csv(&processes))?;
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
