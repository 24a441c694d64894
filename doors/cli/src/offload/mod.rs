//! `telpher offload`: runs unmodified programs whose long memory copies a device executes.

mod process;
mod settings;
mod statistics;
mod top;

pub(crate) use telpher_offload::switch;
pub(crate) use top::{TopError, top};

use crate::args::program::{WriteError, check_writable, write};
use crate::args::{Format, Offload, OffloadInstall, StatsArg};
use crate::log;
use crate::sim::{SimError, machine};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use telpher_offload::{Finished, OffloadError, Process, RunOptions};
use telpher_offload_wire::Settings;
use telpher_offload_wire::verdicts::{self, VerdictsError};
use telpher_predict::recording::PredictOptions;
use telpher_record::SiteNames;
use telpher_report::deliver::{DeliverError, write_result};
use telpher_report::offload::{self as report, OffloadedProcess};
use telpher_report::schema;

/// Why a program was not run, or its summary not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RunError {
    /// The program cannot be run.
    #[error(transparent)]
    Run(#[from] OffloadError),
    /// The summary, or the file of `--learned`, cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The variables cannot be printed.
    #[error(transparent)]
    Variables(#[from] DeliverError),
    /// Statistics need a command that prints them.
    #[error(
        "statistics are printed by `telpher offload -- PROGRAM` at its end; leave out --stats dto and \
         DTO_COLLECT_STATS"
    )]
    StatisticsOfVariables,
    /// The file of `--verdicts` cannot be read.
    #[error("cannot read the verdicts of {}", path.display())]
    ReadVerdicts {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of `--verdicts` has something else.
    #[error("{} has no verdicts", path.display())]
    Verdicts {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: VerdictsError,
    },
    /// The times of the simulated device cannot be computed.
    #[error("cannot compute the times of --device-times")]
    DeviceTimes(#[from] SimError),
    /// Times are for modelled devices only.
    #[error("--device-times is for modelled devices, and {0} is none; use --device model:spr")]
    NotModelled(String),
    /// The options contradict each other.
    #[error("--stats dto is a table of its own; leave out --format, --sites and --device-times")]
    Format,
}

impl RunError {
    /// Returns the exit code: as a shell's if the program cannot be run, 125 for all other errors.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Run(error) => error.exit_code(),
            _ => 125,
        }
    }
}

/// Runs the program to its end and writes the summary. Returns the program's exit code.
///
/// # Errors
/// If the program cannot be run, or the summary cannot be written.
pub(crate) fn run(args: &Offload) -> Result<ExitCode, RunError> {
    args.run.check()?;
    let has_other_output = args.run.format != Format::Table || args.sites || args.device_times.is_some();
    if args.stats == Some(StatsArg::Dto) && has_other_output {
        return Err(RunError::Format);
    }
    let (mut settings, log_file) = settings::settings(args, say);
    if let Some(profile) = &args.device_times {
        settings.device_times = Some(device_times(profile, &settings)?);
    }
    settings.verdicts.as_deref().map_or(Ok(()), check_verdicts)?;
    args.learned.as_deref().map_or(Ok(()), check_writable)?;
    if args.print_env {
        return print_variables(args, settings);
    }
    let as_dto = settings.statistics;
    log::info(|| format!("calls from {} bytes on go to {}", settings.threshold, settings.devices.join(", ")));
    let options = RunOptions { program: args.run.program.clone(), settings, grace: args.run.grace() };
    let Finished { code, processes, statistics } = telpher_offload::run(&options, say)?;
    if as_dto {
        statistics::deliver(&statistics, &args.run, log_file.as_deref())?;
    } else {
        summarise(args, &processes)?;
    }
    if let Some(path) = &args.learned {
        write(path, &verdicts::write(&telpher_offload::learned(&processes)))?;
    }
    Ok(ExitCode::from(code))
}

/// Prints what the processes have counted, or writes it where the options say.
fn summarise(args: &Offload, processes: &[Process]) -> Result<(), WriteError> {
    let mut names = SiteNames::default();
    let processes: Vec<OffloadedProcess> = processes.iter().map(|process| process::row(process, &mut names)).collect();
    let text = || {
        let sites = if args.sites { report::sites_text(&processes) } else { String::new() };
        let separator = if sites.is_empty() { "" } else { "\n" };
        report::text(&processes) + separator + &sites
    };
    let csv = || if args.sites { report::sites_csv(&processes) } else { report::csv(&processes) };
    args.run.summarise(schema::OFFLOAD, &schema::List { name: "processes", elements: &processes }, text, csv)
}

/// Returns the times of a simulated device, as the text of a setting.
fn device_times(profile: &str, settings: &Settings) -> Result<String, RunError> {
    if let Some(other) = settings.devices.iter().find(|device| !device.starts_with("model:")) {
        return Err(RunError::NotModelled(other.clone()));
    }
    let options = PredictOptions { to_cache: settings.results_in_cache, ..PredictOptions::on(machine(profile, &[])?) };
    Ok(telpher_predict::recording::device_times(&options).map_err(SimError::from)?.to_string())
}

/// Checks before the program runs that a file has verdicts.
fn check_verdicts(path: &Path) -> Result<(), RunError> {
    let text = std::fs::read_to_string(path).map_err(|source| RunError::ReadVerdicts { path: path.into(), source })?;
    verdicts::parse(&text).map(drop).map_err(|source| RunError::Verdicts { path: path.into(), source })
}

/// Prints the variables for programs that are started without this command.
fn print_variables(args: &Offload, settings: Settings) -> Result<ExitCode, RunError> {
    if settings.statistics {
        return Err(RunError::StatisticsOfVariables);
    }
    let variables = telpher_offload::variables(settings, args.library_file.as_deref())?;
    let lines: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    write_result(args.run.file(), lines)?;
    Ok(ExitCode::SUCCESS)
}

/// Installs the library, and prints the paths of its files.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn install(args: &OffloadInstall) -> Result<(), RunError> {
    let paths = telpher_offload::install(&args.folder, args.as_dto)?;
    let lines: String = paths.iter().map(|path| format!("{}\n", path.display())).collect();
    write_result(None, lines)?;
    Ok(())
}

/// Tells the user something on standard error.
fn say(text: &str) {
    eprintln!("telpher: {text}");
}
