//! The simulated machine.

use super::SimError;
use crate::args::Elsewhere;
use crate::log;
use telpher_report::about::About;
use telpher_sim::{BUILT_IN, Machine};

/// Describes a run on one machine, now.
pub(crate) fn about_of(machine: &Machine) -> About {
    About::of_all(&[(machine.name.clone(), machine.hash)])
}

/// Returns the machine that replaces the published ones.
pub(super) fn elsewhere(args: &Elsewhere) -> Result<Option<Machine>, SimError> {
    args.profile.as_deref().map(|profile| machine(profile, &args.set)).transpose()
}

/// Returns the machine that a name or a file describes, with changed numbers.
pub(crate) fn machine(profile: &str, set: &[String]) -> Result<Machine, SimError> {
    let machine = read(profile, set)?;
    log::info(|| format!("profile {} ({:016x}), {} numbers changed by --set", machine.name, machine.hash, set.len()));
    Ok(machine)
}

fn read(profile: &str, set: &[String]) -> Result<Machine, SimError> {
    if let Some(change) = set.iter().find(|change| !change.contains('=')) {
        return Err(SimError::Not(format!("--set takes KEY=VALUE, such as device.bubble_ns=10, not '{change}'")));
    }
    let changes = set.join("\n");
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == profile) {
        return Ok(Machine::changed(name, text, &changes)?);
    }
    if profile == "template" {
        let how = "telpher sim profiles template > my-machine.toml, then --profile ./my-machine.toml";
        return Err(SimError::Not(format!("template is no machine but the form to describe one's own: {how}")));
    }
    if !profile.contains(['.', '/']) {
        let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        return Err(SimError::NoProfile { name: profile.into(), known: known.join(", ") });
    }
    let text =
        std::fs::read_to_string(profile).map_err(|source| SimError::Read { path: profile.to_owned(), source })?;
    Ok(Machine::changed(profile, &text, &changes)?)
}
