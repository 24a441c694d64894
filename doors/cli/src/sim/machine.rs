//! The simulated machine that the options name.

use super::SimError;
use crate::args::OtherMachine;
use crate::log;
use telpher_sim::Machine;

/// Returns the machine that replaces the published ones.
pub(super) fn elsewhere(args: &OtherMachine) -> Result<Option<Machine>, SimError> {
    args.profile.as_deref().map(|profile| machine(profile, &args.set)).transpose()
}

/// Returns the machine that a name or a file describes, with changed numbers.
pub(crate) fn machine(profile: &str, set: &[String]) -> Result<Machine, SimError> {
    let machine = telpher_predict::machine(profile, set)?;
    log::info(|| format!("profile {} ({:016x}), {} numbers changed by --set", machine.name, machine.hash, set.len()));
    Ok(machine)
}
