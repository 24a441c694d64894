//! `telpher bench vfio`: what a device in a virtual machine costs its client, and how machines share engines.
//!
//! ```text
//! descriptor  one 64-byte store, or a batch of 32 ──► telpher vfio ──► record seen; beside it an echo over a socket
//! shares      two machines of equal weight ──► one engine; both always have work
//! own-engine  a machine with its own engine, beside a neighbour that works or rests
//! simulated   the same on a simulated device, configured as `telpher advise` does for a limit of the loss
//! ```
//!
//! The guests are clients of ours: no machine is emulated.

mod descriptor;
mod guest;
mod shares;
mod simulated;

use super::BenchError;
use super::questions::{self, Answers, Experiment};
use crate::options::ExperimentOptions;
use telpher_report::machine::Machine;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] =
    &[descriptor::EXPERIMENT, shares::EQUAL, shares::OWN_ENGINE, simulated::OWN_ENGINE];

/// The first sentence of the report.
pub const LEAD: &str = "What a device over vfio-user costs its client, and how machines share its engines.";

/// Runs the requested experiments.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    let remarks = vec![
        "Unless it is simulated, the device is a model: software on this CPU. Each access to it is a message between \
         two processes, so these are no times of a device in a machine under KVM."
            .to_owned(),
    ];
    questions::hold("vfio", EXPERIMENTS, &args.only, args.seconds, machine, remarks)
}
