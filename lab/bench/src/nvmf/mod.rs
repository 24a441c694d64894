//! `telpher bench nvmf`: what the NVMe/TCP target costs its core; one experiment per question.
//!
//! ```text
//! Driver (core 0) ──loopback──► Server::run (core 1)   its thread's CPU time for each command
//!                 └───────────► BareLoop    (core 1)   the least that recv and writev cost
//! ```

mod bare;
mod digests;
mod driver;
mod engines;
mod idle;
mod reads;
mod target;
mod turns;

use super::BenchError;
use super::questions::{self, Answers, Experiment};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run. `idle` is first, because memory that others have freed would be
/// used again.
pub const EXPERIMENTS: &[Experiment] = &[idle::EXPERIMENT, reads::EXPERIMENT, digests::EXPERIMENT, engines::EXPERIMENT];

/// The first sentence of the report.
pub const LEAD: &str = "What telpher's NVMe/TCP target costs its core, with and without data digests.";

/// Runs the requested experiments.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    let remarks = vec![
        "Over loopback, the kernel copies the data twice, and its share of the target's CPU time is larger than with a \
         network card."
            .to_owned(),
        "The modelled device is software on this CPU.".to_owned(),
    ];
    questions::hold("nvmf", EXPERIMENTS, &args.only, args.seconds, machine, remarks)
}
