//! `telpher bench mover`: what the mover's own machinery costs and gains, a contest for each question.

mod faults;
mod hybrid;
mod learned;
mod places;
mod shape;
mod sharing;
mod submission;
mod wait;

use super::questions::{self, Answers, Contest};
use super::results::MODEL_REMARK;
use super::{BenchError, turns};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every contest, in the order in which they run.
pub const CONTESTS: &[Contest] = &[
    sharing::CONTEST,
    wait::CONTEST,
    learned::CONTEST,
    hybrid::CONTEST,
    places::CONTEST,
    shape::CONTEST,
    faults::CONTEST,
    submission::CONTEST,
];

/// What its report begins with.
pub const LEAD: &str = "What the mover's own machinery costs and gains.";

/// Runs the contests asked for.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    questions::hold("mover", CONTESTS, &args.only, args.seconds, machine, vec![MODEL_REMARK.to_owned()])
}
