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
    let settings = settings(args);
    log::info(|| format!("calls from {} bytes on go to {}", settings.threshold, settings.devices.join(", ")));
    let options = RunOptions { program: args.run.program.clone(), settings, grace: args.run.grace() };
    let (code, processes) = telpher_offload::run(&options, say)?;
    let processes: Vec<OffloadedProcess> = processes.iter().map(row).collect();
    args.run.summarise(&processes, || report::text(&processes), || report::csv(&processes))?;
    Ok(ExitCode::from(code))
}

/// Tells the user something on standard error.
fn say(text: &str) {
    eprintln!("telpher: {text}");
}

/// Returns the settings: those of DTO's variables, and over them those of the options. Warns of variables that mean
/// something else to DTO.
fn settings(args: &Offload) -> Settings {
    let mut settings = Settings { follow: !args.no_follow, ..Settings::new("all") };
    let is_overridden = |name: &str| match name {
        "DTO_MIN_BYTES" => args.threshold.is_some(),
        "DTO_DSA_MEMCPY" | "DTO_DSA_MEMMOVE" | "DTO_DSA_MEMSET" | "DTO_DSA_MEMCMP" => args.function.is_some(),
        "DTO_AUTO_ADJUST_KNOBS" => args.always,
        "DTO_WQ_LIST" | "DTO_USESTDC_CALLS" => !args.device.is_empty(),
        _ => false,
    };
    // Names and values of DTO are ASCII, so a value that is damaged here is invalid anyway.
    let environment = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| !is_overridden(name));
    let remarks = telpher_offload::read_dto_variables(environment, &mut settings);
    if !remarks.is_empty() {
        say(&format!("variables of DTO: {}", remarks.join("; ")));
    }
    if !args.device.is_empty() {
        settings.devices.clone_from(&args.device);
    }
    settings.threshold = args.threshold.unwrap_or(settings.threshold);
    settings.functions = args.function.unwrap_or(settings.functions);
    settings.learns &= !args.always;
    settings
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
        other_calls: counters.nested + counters.overlapping + counters.forked,
        cpu_bytes: counters.cpu_bytes,
        faults: counters.faults,
        retries: counters.retries,
    }
}
