//! The one binary: `telpher run` runs a program on a virtual DSA, `telpher bench` measures, `telpher list` shows what is there.
//!
//! ```text
//! args ──► bench ──► sweep | ops | pollution ──► measure, distance, crossover
//!            └─► report ──► table | json | csv on standard output, one HTML file
//!      ──► doctor ──► record, patient, checks
//!      ──► list
//!      ──► qdp ──► telpher-cache's queries, here, or telpher-claims' simulated ones
//!      ──► tune ──► bench::sweep ──► telpher-mover's tuning file
//!      ──► sim, advise ──► telpher-sim, telpher-claims
//!      ──► run, trace ──► telpher-vdev
//!      ──► vhost ──► telpher-vhost
//!      ──► tier ──► telpher-vdev's way to run a program, with telpher-tier-guest loaded first
//! ```
//!
//! Results go to standard output, progress and remarks to standard error; the exit code is not 0 when anything failed.
#![deny(unsafe_code)]

mod advise;
mod args;
mod bench;
mod doctor;
mod ffi;
mod list;
mod qdp;
mod report;
mod run;
mod sim;
#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
mod tier;
mod trace;
mod tune;
mod vhost;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let cli = match args::Cli::try_parse_from(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            return match args::sentence(&error, &words) {
                Some(sentence) => fail(&sentence),
                None => {
                    // Printing help to a closed pipe is nobody's failure.
                    let _ = error.print();
                    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
                }
            };
        }
    };
    let outcome: Result<(), Box<dyn std::error::Error>> = match cli.command {
        args::Command::Advise(args) => advise::run(&args).map_err(Into::into),
        args::Command::Bench(bench) => bench::run(&bench).map_err(Into::into),
        args::Command::Doctor(args) => {
            return doctor::run(&args).unwrap_or_else(|error| fail(&told(&error)));
        }
        args::Command::List(list) => list::run(&list).map_err(Into::into),
        args::Command::Qdp(args) => qdp::run(&args).map_err(Into::into),
        args::Command::Sim(args) => sim::run(&args).map_err(Into::into),
        args::Command::Tier(args) => match args.kind {
            args::TierKind::Run(args) => {
                return tier::run(&args).unwrap_or_else(|error| {
                    let _ = fail(&told(&error));
                    ExitCode::from(error.exit_code())
                });
            }
            args::TierKind::Top(args) => tier::top(&args).map_err(Into::into),
            args::TierKind::Pause(args) => tier::pause(args.pid, true).map_err(Into::into),
            args::TierKind::Resume(args) => tier::pause(args.pid, false).map_err(Into::into),
        },
        args::Command::Tune(args) => tune::run(&args).map_err(Into::into),
        args::Command::Vhost(args) => vhost::run(&args).map_err(Into::into),
        args::Command::Trace(args) => trace::run(&args).map_err(Into::into),
        args::Command::Run(args) => {
            return run::run(&args).unwrap_or_else(|error| {
                let _ = fail(&told(&error));
                ExitCode::from(error.exit_code())
            });
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&told(&*error)),
    }
}

/// The error and what led to it, in one sentence.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn fail(sentence: &str) -> ExitCode {
    eprintln!("telpher: {sentence}");
    ExitCode::FAILURE
}
