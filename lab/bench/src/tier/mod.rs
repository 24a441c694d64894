//! `telpher bench tier`: what it costs to move pages between tiers while a program runs; one experiment per question.
//!
//! The tiers are pools of the same memory, so the mechanism is measured and not the memory. The CPU makes the copies.

mod busy;
mod heat;
mod huge;
mod programs;
mod shuttle;
mod small;
pub mod workloads;

use super::BenchError;
use super::interleaved;
use super::questions::{self, Answers, Experiment};
use crate::options::TierOptions;
use telpher_os::TransparentHugePages;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[small::EXPERIMENT, huge::EXPERIMENT, busy::EXPERIMENT, heat::EXPERIMENT];

/// The first sentence of the report.
pub const LEAD: &str =
    "What it costs to move pages between tiers of memory, and what threads notice of it that use them meanwhile.";

/// Runs the requested experiments and programs.
pub fn run(args: &TierOptions, machine: Machine) -> Result<Answers, BenchError> {
    let mut remarks = vec![
        "Tiers are pools of the same memory, so that the way is measured and not the memory. The CPU makes the copies."
            .to_owned(),
    ];
    let setting = TransparentHugePages::setting();
    remarks.push(format!("Transparent huge pages: {setting} (/sys/kernel/mm/transparent_hugepage/enabled)."));
    let mut only = args.experiments.only.clone();
    only.retain(|name| name != programs::NAME);
    let asked = only.len() < args.experiments.only.len();
    let holds_programs = asked || only.is_empty();
    // The programs take their part of the time, all of it if nothing else is asked for.
    let share = if asked && only.is_empty() { 1.0 } else { programs::SHARE };
    let mut seconds = args.experiments.seconds;
    if holds_programs {
        remarks.push(
            "Programs are on the tiers that `telpher tier run` has here: nodes, or else parts of one.".to_owned(),
        );
    }
    let programs = if args.programs.is_empty() {
        programs::Programs::Own { seconds: seconds * share }
    } else {
        programs::Programs::Given(&args.programs)
    };
    if holds_programs && args.programs.is_empty() {
        seconds *= 1.0 - share;
    }
    // `--only programs` runs no other experiment.
    let mut table = if asked && only.is_empty() { Vec::new() } else { EXPERIMENTS.to_vec() };
    if setting.are_off() && (only.is_empty() || only.iter().any(|name| name == huge::EXPERIMENT.name)) {
        remarks.push(format!(
            "Not measured: {} and the huge pages of {}, because transparent huge pages are off; to allow them: \
             echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            huge::EXPERIMENT.name,
            heat::EXPERIMENT.name
        ));
        table.retain(|contest| contest.name != huge::EXPERIMENT.name);
        only.retain(|name| name != huge::EXPERIMENT.name);
        if only.is_empty() && !args.experiments.only.is_empty() {
            table.clear();
        }
    }
    let mut answers = questions::hold("tier", &table, &only, seconds, machine, remarks)?;
    if holds_programs {
        answers.contests.push(programs::answer(&programs)?);
    }
    Ok(answers)
}
