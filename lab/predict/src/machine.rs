//! The simulated machine.

use crate::PredictError;
use telpher_report::about::About;
use telpher_sim::{BUILT_IN, Machine};

/// The profile of the machine unless another one is named.
pub const DEFAULT_PROFILE: &str = "spr-asplos";

/// Describes a run on one machine, now.
#[must_use]
pub fn about_of(machine: &Machine) -> About {
    About::of_all(&[(machine.name.clone(), machine.hash)])
}

/// Returns the machine that a name or a file describes, with changed numbers: each change is KEY=VALUE.
///
/// # Errors
/// If there is no such profile, the file cannot be read, or a number is not valid.
pub fn machine(profile: &str, set: &[String]) -> Result<Machine, PredictError> {
    if let Some(change) = set.iter().find(|change| !change.contains('=')) {
        return Err(PredictError::Not(format!("--set takes KEY=VALUE, such as device.bubble_ns=10, not '{change}'")));
    }
    let changes = set.join("\n");
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == profile) {
        return Ok(Machine::changed(name, text, &changes)?);
    }
    if profile == "template" {
        let how = "telpher sim profiles template > my-machine.toml, then --profile ./my-machine.toml";
        return Err(PredictError::Not(format!("template is no machine but the form to describe one's own: {how}")));
    }
    if !profile.contains(['.', '/']) {
        let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        return Err(PredictError::NoProfile { name: profile.into(), known: known.join(", ") });
    }
    let text =
        std::fs::read_to_string(profile).map_err(|source| PredictError::Read { path: profile.to_owned(), source })?;
    Ok(Machine::changed(profile, &text, &changes)?)
}
