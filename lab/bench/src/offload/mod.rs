//! `telpher bench offload`: what `telpher offload` and `telpher record` cost a program and gain; one experiment per
//! question.
//!
//! ```text
//! turns ──"copy-64 20"──► program   by itself, under `telpher offload`, under `telpher record`
//! ```

mod calls;
mod cold;
mod empty_library;
mod hot;
mod prediction;
pub mod program;
mod redis;
mod runs;
mod simulated;
mod start;

use super::BenchError;
use super::questions::{self, Answers, Experiment};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[
    calls::EXPERIMENT,
    start::EXPERIMENT,
    hot::EXPERIMENT,
    cold::EXPERIMENT,
    simulated::EXPERIMENT,
    prediction::EXPERIMENT,
    redis::EXPERIMENT,
];

/// The first sentence of the report.
pub const LEAD: &str = "What telpher offload and telpher record cost a program, and what they gain.";

/// Runs the requested experiments.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    let mut remarks = vec![
        "The modelled device is software on this CPU. Rows that say 'simulated' have the times of simulated hardware."
            .to_owned(),
    ];
    let (mut table, mut only) = (EXPERIMENTS.to_vec(), args.only.clone());
    let is_asked = only.is_empty() || only.iter().any(|name| name == redis::EXPERIMENT.name);
    if let Some(missing) = redis::missing().filter(|_| is_asked) {
        remarks.push(format!("Not measured: {}, because {missing} is not installed.", redis::EXPERIMENT.name));
        table.retain(|experiment| experiment.name != redis::EXPERIMENT.name);
        only.retain(|name| name != redis::EXPERIMENT.name);
        if only.is_empty() && !args.only.is_empty() {
            table.clear();
        }
    }
    questions::hold("offload", &table, &only, args.seconds, machine, remarks)
}
