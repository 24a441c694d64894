//! The `telpher` binary: parses the command line and calls one module for each command.
//!
//! ```text
//! args ──► bench ──► sweep | ops | pollution ──► measure, distance, crossover
//!            └─► report ──► table | json | csv on standard output, one HTML file
//!      ──► doctor ──► record, patient, checks
//!      ──► fabric ──► telpher-launch's libraries
//!      ──► list
//!      ──► completions, man (shell)
//!      ──► qdp ──► telpher-bench's prefetch, or telpher-claims' simulated queries
//!      ──► tune ──► telpher-bench's tune ──► telpher-mover's tuning file
//!      ──► sim, advise, record predict ──► telpher-predict, telpher-claims
//!      ──► run, trace ──► telpher-vdev
//!      ──► top, exporter ──► telpher-telemetry
//!      ──► vhost ──► telpher-switch
//!      ──► vfio ──► telpher-vfio
//!      ──► nvmf ──► telpher-nvmf-run, or telpher-bench's load generator
//!      ──► tier ──► telpher-tier-run
//!      ──► offload ──► telpher-offload        record ──► telpher-record
//! log: what a command chooses, with -v      live: views that are updated      version: commit, target, kernels
//! ```
//!
//! Results go to standard output, progress and remarks to standard error. The exit code is not 0 if anything failed
//! (`exit`).
#![forbid(unsafe_code)]

mod advise;
mod args;
mod bench;
mod doctor;
mod exit;
mod exporter;
mod fabric;
mod list;
mod live;
mod log;
mod nvmf;
mod offload;
mod published;
mod qdp;
mod record;
mod run;
mod screen;
mod shell;
mod sim;
mod tier;
mod top;
mod trace;
mod tune;
mod version;
mod vfio;
mod vhost;

use std::io::Write;
use std::process::ExitCode;
use telpher_os::chain;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let codes = exit::codes(words.get(1..).unwrap_or_default());
    let cli = match args::Cli::parse_from_words(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            return match args::sentence(&error, &words) {
                Some(sentence) => fail(codes.usage, &sentence),
                None => {
                    // Printing help to a closed pipe is not a failure.
                    let _ = error.print();
                    ExitCode::from(if error.use_stderr() { codes.usage } else { 0 })
                }
            };
        }
    };
    log::start(cli.verbose);
    screen::show_on(&std::io::stdout());
    log::debug(|| format!("telpher {}", version::LONG.replace('\n', ", ")));
    match cli.command {
        args::Command::Advise(args) => ended(advise::run(&args), codes),
        args::Command::Bench(bench) => ended(bench::run(&bench), codes),
        args::Command::Completions(args) => ended(shell::completions(&args), codes),
        args::Command::Doctor(args) => doctor::run(&args).unwrap_or_else(|error| fail(codes.failure, &chain(&error))),
        args::Command::Exporter(args) => ended(exporter::run(&args), codes),
        args::Command::Fabric(args) => match &args.kind {
            args::FabricKind::Env(args) => ended(fabric::env(args), codes),
            args::FabricKind::Install(args) => ended(fabric::install(args), codes),
        },
        args::Command::List(list) => ended(list::run(&list), codes),
        args::Command::Man(args) => ended(shell::man(&args), codes),
        args::Command::Nvmf(args) => match &args.kind {
            None => ended(nvmf::run(&args), codes),
            Some(args::NvmfKind::Bench(args)) => ended(nvmf::bench(args), codes),
            Some(args::NvmfKind::Check(args)) => ended(nvmf::check(args), codes),
            Some(args::NvmfKind::Ctl(args)) => ended(nvmf::ctl(args), codes),
        },
        args::Command::Offload(args) => match &args.kind {
            None => offload::run(&args).unwrap_or_else(|error| fail(error.exit_code(), &chain(&error))),
            Some(args::OffloadKind::Top(top)) => ended(offload::top(top), codes),
            Some(args::OffloadKind::Off(process)) => ended(offload::switch(process.pid, false), codes),
            Some(args::OffloadKind::On(process)) => ended(offload::switch(process.pid, true), codes),
            Some(args::OffloadKind::Install(args)) => ended(offload::install(args), codes),
        },
        args::Command::Qdp(args) => ended(qdp::run(&args), codes),
        args::Command::Record(args) => match &args.kind {
            None => record::run(&args).unwrap_or_else(|error| fail(error.exit_code(), &chain(&error))),
            Some(args::RecordKind::Show(args)) => ended(record::show(args), codes),
            Some(args::RecordKind::Predict(args)) => ended(record::predict(args), codes),
            Some(args::RecordKind::Merge(args)) => ended(record::merge(args), codes),
        },
        args::Command::Sim(args) => ended(sim::run(&args), codes),
        args::Command::Tier(args) => match args.kind {
            args::TierKind::Run(args) => {
                tier::run(&args).unwrap_or_else(|error| fail(error.exit_code(), &chain(&error)))
            }
            args::TierKind::Top(args) => ended(tier::top(&args), codes),
            args::TierKind::Pause(args) => ended(tier::pause(args.pid, true), codes),
            args::TierKind::Resume(args) => ended(tier::pause(args.pid, false), codes),
        },
        args::Command::Top(args) => ended(top::run(&args), codes),
        args::Command::Tune(args) => ended(tune::run(&args), codes),
        args::Command::Vfio(args) => ended(vfio::run(&args), codes),
        args::Command::Vhost(args) => ended(vhost::run(&args), codes),
        args::Command::Trace(args) => ended(trace::run(&args), codes),
        args::Command::Run(args) => run::run(&args).unwrap_or_else(|error| fail(error.exit_code(), &chain(&error))),
    }
}

/// Returns the exit code of a command; prints its error as a sentence.
fn ended<E: exit::Usage>(outcome: Result<(), E>, codes: exit::Codes) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(if error.is_usage() { codes.usage } else { codes.failure }, &chain(&error)),
    }
}

fn fail(code: u8, sentence: &str) -> ExitCode {
    // If standard error is closed, the exit code alone reports the failure.
    let has_colours = screen::has_colours(&std::io::stderr());
    let name = if has_colours { "\x1b[1;31mtelpher:\x1b[0m" } else { "telpher:" };
    let _ = writeln!(std::io::stderr(), "{name} {sentence}");
    ExitCode::from(code)
}
