//! `telpher bench mover`: what the mover's own machinery costs and gains; one experiment per question.

mod faults;
mod hybrid;
mod learned;
mod places;
mod shape;
mod sharing;
mod submission;
mod wait;

use super::questions::{self, Answers, Experiment};
use super::results::MODEL_REMARK;
use super::{BenchError, interleaved};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[
    sharing::EXPERIMENT,
    wait::EXPERIMENT,
    learned::EXPERIMENT,
    hybrid::EXPERIMENT,
    places::EXPERIMENT,
    shape::EXPERIMENT,
    faults::EXPERIMENT,
    submission::EXPERIMENT,
];

/// The first sentence of the report.
pub const LEAD: &str = "What the mover's own machinery costs and gains.";

/// Runs the requested experiments.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    questions::hold("mover", EXPERIMENTS, &args.only, args.seconds, machine, vec![MODEL_REMARK.to_owned()])
}
