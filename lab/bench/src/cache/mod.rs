//! `telpher bench cache`: what the cache of hot blocks costs; one experiment per question.
//!
//! The CPU makes the copies unless a row says otherwise: the question is what the cache adds to them.

mod ahead;
mod hits;
mod memory;
mod misses;
mod sample_set;
mod threads;

use super::BenchError;
use super::interleaved;
use super::questions::{self, Answers, Experiment};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] =
    &[hits::EXPERIMENT, threads::EXPERIMENT, misses::EXPERIMENT, memory::EXPERIMENT, ahead::EXPERIMENT];

/// The first sentence of the report.
pub const LEAD: &str = "What the cache of hot blocks costs beyond the copies it makes, and what fetching ahead does.";

/// Runs the requested experiments.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    let remarks = vec!["The CPU makes the copies unless a row says otherwise; blocks are of 4 KiB.".to_owned()];
    questions::hold("cache", EXPERIMENTS, &args.only, args.seconds, machine, remarks)
}
