//! The settings that a process reads from its environment.

use crate::VERSION;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The variable with the settings, as JSON; without it a process manages no memory.
pub const VARIABLE: &str = "TELPHER_TIER";

/// One tier of memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tier {
    /// The name for people.
    pub name: String,
    /// Its NUMA node; none for a part of any memory.
    pub node: Option<u32>,
    /// The most bytes that a process uses of it; 0 for the home tier, which is unlimited.
    pub bytes: u64,
}

/// How the memory of each process is managed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// [`VERSION`].
    pub version: u32,
    /// The absolute path of the folder of the states.
    pub folder: PathBuf,
    /// The tiers, the fastest first.
    pub tiers: Vec<Tier>,
    /// The index of the tier on which pages are allocated when they are first touched.
    pub home: u8,
    /// The device that copies: `cpu`, `model:…`, `hw:…`.
    pub device: String,
    /// The mechanism that moves pages: `exchange`, `move-pages`, or none for the best that the kernel has.
    pub mechanism: Option<String>,
    /// The source of heat: `damon`, `perf`, `traps`, `windows`, or none for the best available.
    pub source: Option<String>,
    /// The most bytes a second that are moved.
    pub limit: Option<u64>,
    /// Whether to move all memory to and fro, whatever is hot.
    pub shuffle: bool,
    /// Whether to manage programs that the program executes as well, whatever environment they get.
    pub follow: bool,
    /// Mappings of fewer bytes are ignored.
    pub least: u64,
    /// Milliseconds between two scans of the program's mappings.
    pub look_ms: u64,
    /// Milliseconds between two reports of the state.
    pub tell_ms: u64,
}

/// Why a value is not valid settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// Another version of the messages.
    Version(u32),
    /// Not settings at all.
    Words(String),
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingsError::Version(version) => {
                write!(
                    out,
                    "{VARIABLE} is of version {version}, this is version {VERSION}: \
                     use `telpher tier run` and its library from the same build"
                )
            }
            SettingsError::Words(words) => {
                write!(out, "{VARIABLE} does not contain settings of `telpher tier run`: {words}")
            }
        }
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Creates settings for these tiers, the fastest first, with default values.
    ///
    /// # Panics
    /// Never: `home` is not checked here.
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
            // Source of the three: chosen. Each mapping is a range to keep track of; a scan reads a file of some ten
            // kilobytes.
            least: 128 << 10,
            look_ms: 50,
            tell_ms: 500,
        }
    }

    /// Returns the variable's value.
    #[must_use]
    pub fn to_value(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the variable's value.
    ///
    /// # Errors
    /// [`SettingsError`]: not valid settings, or of another version.
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
    fn invalid_settings_are_refused_with_a_reason() {
        assert!(matches!(Settings::from_value(""), Err(SettingsError::Words(_))));
        assert!(matches!(Settings::from_value(&format!("{{\"version\":{VERSION}}}")), Err(SettingsError::Words(_))));
        let mut settings = Settings::new("/x", Vec::new(), 0);
        settings.version = 7;
        let refused = Settings::from_value(&settings.to_value()).unwrap_err();
        assert_eq!(refused, SettingsError::Version(7));
        assert!(refused.to_string().contains("version 7"), "{refused}");
    }
}
