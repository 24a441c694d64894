//! The header of a simulation result: the machines, and that nothing was measured.

use crate::machine::{command, date};
use serde::Serialize;
use std::time::SystemTime;

/// The header of every simulation result.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// Always true.
    pub simulated: bool,
    /// Name of the profile.
    pub profile: String,
    /// Hash of the profile's parameters.
    pub profile_hash: String,
    /// Name and hash: `spr-asplos (0123456789abcdef)`.
    #[serde(skip)]
    pub named: String,
    /// Date and time of the run, UTC.
    pub date: String,
    /// The command line.
    pub command: String,
    /// Version of telpher.
    pub version: &'static str,
}

impl About {
    /// Describes a run, now, on profiles with these names and hashes.
    #[must_use]
    pub fn of_all(profiles: &[(String, u64)]) -> Self {
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
    #[must_use]
    pub fn heading(&self) -> String {
        format!("Simulated · profile {} · {}\n", self.named, self.date)
    }

    /// Returns the facts at the top of a page.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Simulated", "every number here; nothing was measured".into()),
            ("Profile", self.named.clone()),
            ("Date", self.date.clone()),
            ("Command", self.command.clone()),
            ("Version", format!("telpher {}", self.version)),
        ]
    }
}
