//! `telpher bench telemetry`: what counting costs a device's user, and how long readers of its counts take.
//!
//! ```text
//! noop    the inline model in this process: without counts, with totals, with times
//! scrape  telpher run ──► a hundred processes at eight queues ◄── telpher exporter ◄── GET /metrics
//! top     the same run ◄── telpher top --once
//! ```

mod clients;
mod noop;
mod readers;

use super::BenchError;
use super::questions::{self, Answers, Experiment};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[noop::EXPERIMENT, readers::SCRAPE, readers::TOP];

/// The first sentence of the report.
pub const LEAD: &str = "What it costs to count what a device does, and to read it.";

/// Runs the requested experiments.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    let remarks = vec![
        "The device is a model: software on this CPU. Readers read shared memory; the processes of the device take no \
         part in it, which the row with stopped processes shows."
            .to_owned(),
    ];
    questions::hold("telemetry", EXPERIMENTS, &args.only, args.seconds, machine, remarks)
}
