//! The settings that a process reads from its environment.

use crate::VERSION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The variable with the settings, as JSON.
pub const VARIABLE: &str = "TELPHER_OFFLOAD";

/// The functions whose calls may go to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Functions {
    /// `memcpy`, `memmove`, `mempcpy`, `bcopy`.
    pub copy: bool,
    /// `memset`.
    pub fill: bool,
    /// `memcmp`, `bcmp`.
    pub compare: bool,
}

/// How the calls of each process are executed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// [`VERSION`].
    pub version: u32,
    /// The absolute path of the folder for the counters; without it nothing is written.
    pub folder: Option<PathBuf>,
    /// The device: `model:…`, `hw:…`, `all`, `cpu`.
    pub device: String,
    /// Shorter calls stay with the C library; bytes.
    pub threshold: u64,
    /// The functions whose calls may go to the device.
    pub functions: Functions,
    /// Whether calls of sites whose data is in the cache stay with the CPU.
    pub learns: bool,
    /// Whether programs that the program executes are offloaded as well, whatever environment they get.
    pub follow: bool,
}

impl Settings {
    /// Settings for a device.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Settings {
        Settings {
            version: VERSION,
            folder: None,
            device: device.into(),
            // Source: a copy of cold data by one core takes as long as by a DSA from 8 to 16 KiB on (DTO's README,
            // table of latencies, compared with cold copies measured on an EPYC).
            threshold: 16 << 10,
            // A program rarely compares long ranges, and most long fills are the first touch of fresh pages.
            functions: Functions { copy: true, fill: false, compare: false },
            learns: true,
            follow: true,
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
        parse(VARIABLE, value)
    }
}

/// Reads the value of a variable.
pub(crate) fn parse<T: DeserializeOwned>(variable: &'static str, value: &str) -> Result<T, SettingsError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let words = |error: serde_json::Error| SettingsError::Words(variable, error.to_string());
    let Version { version } = serde_json::from_str(value).map_err(words)?;
    if version != VERSION {
        return Err(SettingsError::Version(variable, version));
    }
    serde_json::from_str(value).map_err(words)
}

/// Why a variable's value is not valid settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// The variable has settings of another version.
    Version(&'static str, u32),
    /// The variable has no settings at all.
    Words(&'static str, String),
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingsError::Version(variable, version) => write!(
                out,
                "{variable} is of version {version}, this is version {VERSION}: use `telpher` and its library from the \
                 same build"
            ),
            SettingsError::Words(variable, words) => write!(out, "{variable} does not contain settings: {words}"),
        }
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_with_a_reason() {
        assert!(matches!(Settings::from_value(""), Err(SettingsError::Words(..))));
        let mut settings = Settings::new("cpu");
        assert_eq!(Settings::from_value(&settings.to_value()), Ok(settings.clone()));
        settings.version = 7;
        let refused = Settings::from_value(&settings.to_value()).unwrap_err();
        assert_eq!(refused, SettingsError::Version(VARIABLE, 7));
        let unknown = format!("{{\"version\":{VERSION},\"colour\":1}}");
        assert!(Settings::from_value(&unknown).unwrap_err().to_string().contains("colour"));
    }
}
