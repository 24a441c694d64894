//! `telpher bench tier`: what it costs to move pages between tiers while a program runs, a contest for each question.
//!
//! Tiers are pools of the same memory here, so that what is measured is the way and not the memory; copies are the CPU's.

mod busy;
mod heat;
mod huge;
mod shuttle;
mod small;

use super::BenchError;
use super::machine::Machine;
use super::questions::{self, Answers, Contest};
use super::turns;
use crate::args::Contests;

/// Every contest, in the order in which they run.
pub(crate) const CONTESTS: &[Contest] = &[small::CONTEST, huge::CONTEST, busy::CONTEST, heat::CONTEST];

/// What its report begins with.
pub(crate) const LEAD: &str =
    "What it costs to move pages between tiers of memory, and what threads notice of it that use them meanwhile.";

/// Runs the contests asked for.
pub(crate) fn run(args: &Contests, machine: Machine) -> Result<Answers, BenchError> {
    let remarks = vec![
        "Tiers are pools of the same memory, so that the way is measured and not the memory. The CPU makes the copies."
            .to_owned(),
    ];
    questions::hold("tier", CONTESTS, &args.only, args.seconds, machine, remarks)
}
