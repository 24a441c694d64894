//! What a process learns from its environment.

use crate::VERSION;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Variable with the settings, as JSON; without it a process manages nothing.
pub const VARIABLE: &str = "TELPHER_TIER";

/// One kind of memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tier {
    /// What people call it.
    pub name: String,
    /// The NUMA node it is; none for a part of whatever memory there is.
    pub node: Option<u32>,
    /// The most that a process takes of it; of the tier that is home, 0: as much as it likes.
    pub bytes: u64,
}

/// How the memory of each process is managed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// [`VERSION`].
    pub version: u32,
    /// Folder of the states, absolute.
    pub folder: PathBuf,
    /// The fastest first.
    pub tiers: Vec<Tier>,
    /// Which of them pages are on when they are touched first.
    pub home: u8,
    /// Who copies: `cpu`, `model:…`, `hw:…`.
    pub device: String,
    /// By which mechanism pages move: `exchange`, `move-pages`, or none for the best that the kernel has.
    pub mechanism: Option<String>,
    /// Where heat is looked for: `damon`, `perf`, `traps`, `windows`, or none for the best there is.
    pub source: Option<String>,
    /// Bytes a second that are moved at most.
    pub limit: Option<u64>,
    /// All memory is moved to and fro, whatever is hot.
    pub shuffle: bool,
    /// Programs that are executed are managed, too, whatever environment they are given.
    pub follow: bool,
    /// Mappings of fewer bytes are left alone.
    pub least: u64,
    /// Milliseconds between two looks at the program's mappings.
    pub look_ms: u64,
    /// Milliseconds between two states.
    pub tell_ms: u64,
}

/// Why a value is no settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// Not the words of this build.
    Version(u32),
    /// Not such words at all.
    Words(String),
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingsError::Version(version) => {
                write!(
                    out,
                    "{VARIABLE} is of version {version}, this is version {VERSION}: run the program by `telpher tier run` of one build"
                )
            }
            SettingsError::Words(words) => {
                write!(out, "{VARIABLE} does not have the words of `telpher tier run`: {words}")
            }
        }
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Tiers, the fastest first, and what is usual.
    ///
    /// # Panics
    /// Never: `home` is not looked at here.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, tiers: Vec<Tier>, home: u8) -> Settings {
        Settings {
            version: VERSION,
            folder: folder.into(),
            tiers,
            home,
            device: "cpu".into(),
            mechanism: None,
            source: None,
            limit: None,
            shuffle: false,
            follow: true,
            // Source of the three: chosen. A mapping is a piece of memory to keep account of; a look reads a file of some ten kilobytes.
            least: 128 << 10,
            look_ms: 50,
            tell_ms: 500,
        }
    }

    /// The variable's value.
    #[must_use]
    pub fn to_value(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the variable's value.
    ///
    /// # Errors
    /// [`SettingsError`]: not these words, or of another version.
    pub fn from_value(value: &str) -> Result<Settings, SettingsError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let words = |error: serde_json::Error| SettingsError::Words(error.to_string());
        let Version { version } = serde_json::from_str(value).map_err(words)?;
        if version != VERSION {
            return Err(SettingsError::Version(version));
        }
        serde_json::from_str(value).map_err(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_refused_with_what_is_wrong() {
        assert!(matches!(Settings::from_value(""), Err(SettingsError::Words(_))));
        assert!(matches!(Settings::from_value(&format!("{{\"version\":{VERSION}}}")), Err(SettingsError::Words(_))));
        let mut settings = Settings::new("/x", Vec::new(), 0);
        settings.version = 7;
        let refused = Settings::from_value(&settings.to_value()).unwrap_err();
        assert_eq!(refused, SettingsError::Version(7));
        assert!(refused.to_string().contains("version 7"), "{refused}");
    }
}
