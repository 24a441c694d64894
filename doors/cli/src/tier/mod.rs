//! `telpher tier`: runs unmodified programs with their memory on several tiers, and reports on them.

mod state;

use crate::args::program::{WriteError, check_writable, write_report};
use crate::args::{MechanismArg, SourceArg, TierRun, TierTop};
use crate::{live, log};
use std::path::Path;
use std::process::ExitCode;
use telpher_launch::{RunDirectory, RunKind};
use telpher_report::deliver::DeliverError;
use telpher_report::schema;
use telpher_report::tier::tables as report;
use telpher_tier::{Mechanism, SourceKind};
use telpher_tier_run::{RunOptions, TierError};
use telpher_tier_wire::{State, StateFolder};

pub(crate) use telpher_tier_run::pause;

/// Why a program was not run, or its report not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RunError {
    /// The program cannot be run.
    #[error(transparent)]
    Run(#[from] TierError),
    /// A file cannot be written.
    #[error(transparent)]
    Report(#[from] WriteError),
}

impl RunError {
    /// Returns the exit code: as a shell's if the program cannot be run, 125 for all other errors.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Run(error) => error.exit_code(),
            RunError::Report(_) => 125,
        }
    }
}

/// Runs the program to its end and writes the reports. Returns the program's exit code.
///
/// # Errors
/// If the program cannot be run, or a report cannot be written.
pub(crate) fn run(args: &TierRun) -> Result<ExitCode, RunError> {
    // Checked before the program runs.
    args.html.as_deref().map_or(Ok(()), check_writable)?;
    args.run.check()?;
    let options = RunOptions {
        program: args.run.program.clone(),
        tiers: args.tier.clone(),
        home: args.home.clone(),
        device: args.device.clone(),
        mechanism: args.mechanism.map(|mechanism| match mechanism {
            MechanismArg::Exchange => Mechanism::Exchange,
            MechanismArg::MovePages => Mechanism::MovePages,
        }),
        source: match args.source {
            SourceArg::Auto => None,
            SourceArg::Damon => Some(SourceKind::Damon),
            SourceArg::Traps => Some(SourceKind::Traps),
            SourceArg::Perf => Some(SourceKind::Perf),
            SourceArg::Windows => Some(SourceKind::Windows),
        },
        limit: args.limit,
        shuffle: args.shuffle,
        follow: !args.no_follow,
        least: args.least,
        grace: args.run.grace(),
    };
    log::info(|| {
        let tiers: Vec<&str> = options.tiers.iter().map(|tier| tier.name.as_str()).collect();
        let tiers = if tiers.is_empty() { "the NUMA nodes with memory".into() } else { tiers.join(", ") };
        format!("tiers: {tiers}; NUMA nodes of this machine: {}", telpher_os::Nodes::of_this_machine().count())
    });
    log::info(|| {
        let mechanism = options.mechanism.map_or("what the kernel has".into(), |mechanism| format!("{mechanism:?}"));
        format!("copies by {}; pages move by {mechanism}", options.device)
    });
    let (code, states) = telpher_tier_run::run(&options)?;
    for state in &states {
        let source = &state.tracking.source;
        log::debug(|| format!("process {}: pages moved by {}, hot pages by {source}", state.pid, state.mechanism));
    }
    let rows = || state::for_tables(&states);
    let list = schema::List { name: "processes", elements: &states };
    args.run.summarise(schema::TIER_RUN, &list, || report::text(&rows()), || report::csv(&rows()))?;
    if let Some(path) = &args.html {
        write_report(path, &report::html(&rows()), &report::csv(&rows()))?;
    }
    Ok(ExitCode::from(code))
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TopError {
    /// No program runs.
    #[error("no program runs under `telpher tier run` as this user{}; start one, or look as the user whose it \
             is", of(*.0))]
    None(Option<u32>),
    /// Standard output is closed.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

fn of(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(", or none that is process {pid}"))
}

/// Shows the processes under `telpher tier run` until none is left.
///
/// # Errors
/// If there is nothing to show at the beginning, or standard output is closed.
pub(crate) fn top(args: &TierTop) -> Result<(), TopError> {
    let text = |states: &[State]| report::picture(&state::for_tables(states));
    let csv = |states: &[State]| report::csv(&state::for_tables(states));
    if live::show(&args.updates, (schema::TIER_TOP, "processes"), || states(args.pid), text, csv)? {
        Ok(())
    } else {
        Err(TopError::None(args.pid))
    }
}

/// Returns the states of the processes that are alive.
pub(crate) fn states(pid: Option<u32>) -> Vec<State> {
    // A run may end, and its folder disappear, while it is read.
    let read = |folder: &std::path::PathBuf| StateFolder::open(folder).and_then(|folder| folder.read_all());
    let of_runs = RunDirectory::running(RunKind::Tier).into_iter().flat_map(|folder| read(&folder).unwrap_or_default());
    let lives = |state: &State| !state.ended && Path::new("/proc").join(state.pid.to_string()).exists();
    of_runs.filter(|state| pid.is_none_or(|pid| pid == state.pid) && lives(state)).collect()
}
