//! The simulated machine, and the notice on every result.

use super::SimError;
use crate::args::Elsewhere;
use crate::log;
use serde::Serialize;
use std::time::SystemTime;
use telpher_report::machine::{command, date};
use telpher_sim::{BUILT_IN, Machine};

/// The header of every simulation result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    /// Always true.
    pub(crate) simulated: bool,
    /// Name of the profile.
    pub(crate) profile: String,
    /// Hash of the profile's parameters.
    pub(crate) profile_hash: String,
    /// Name and hash: `spr-asplos (0123456789abcdef)`.
    #[serde(skip)]
    pub(crate) named: String,
    /// Date and time of the run, UTC.
    pub(crate) date: String,
    /// The command line.
    pub(crate) command: String,
    /// Version of telpher.
    pub(crate) version: &'static str,
}

impl About {
    /// Describes a run on one machine, now.
    pub(crate) fn of(machine: &Machine) -> Self {
        About::of_all(&[(machine.name.clone(), machine.hash)])
    }

    /// Describes a run on several profiles, now.
    pub(crate) fn of_all(profiles: &[(String, u64)]) -> Self {
        let joined = |of: fn(&(String, u64)) -> String| profiles.iter().map(of).collect::<Vec<_>>().join(", ");
        let named = joined(|(name, hash)| format!("{name} ({hash:016x})"));
        About {
            simulated: true,
            profile: joined(|(name, _)| name.clone()),
            profile_hash: joined(|(_, hash)| format!("{hash:016x}")),
            named,
            date: date(SystemTime::now()),
            command: command(std::env::args()),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Returns the line above tables.
    pub(crate) fn heading(&self) -> String {
        format!("Simulated · profile {} · {}\n", self.named, self.date)
    }

    /// Returns the facts at the top of a page.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Simulated", "every number here; nothing was measured".into()),
            ("Profile", self.named.clone()),
            ("Date", self.date.clone()),
            ("Command", self.command.clone()),
            ("Version", format!("telpher {}", self.version)),
        ]
    }
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
