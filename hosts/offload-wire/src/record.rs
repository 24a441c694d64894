//! The settings of a process that records its calls instead of offloading them.

use crate::VERSION;
use crate::settings::SettingsError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use telpher_recording::{CurvePoint, Machine};

/// The variable with the settings of `telpher record`, as JSON.
pub const RECORD_VARIABLE: &str = "TELPHER_RECORD";

/// Where a process writes its recording, and what the recording says about the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordSettings {
    /// [`VERSION`].
    pub version: u32,
    /// The absolute path of the folder for the recordings, one file for each process.
    pub folder: PathBuf,
    /// Whether programs that the program executes are recorded as well, whatever environment they get.
    pub follow: bool,
    /// The machine.
    pub machine: Machine,
    /// Ticks of its time stamp counter between two readings in a row.
    pub timer_ticks: u64,
    /// What calls cost on it.
    pub curves: RecordedCurves,
}

/// The calibration curves.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedCurves {
    /// Of copies.
    pub copy: Vec<CurvePoint>,
    /// Of `memset`.
    pub fill: Vec<CurvePoint>,
    /// Of `memcmp` with equal ranges.
    pub compare: Vec<CurvePoint>,
}

impl RecordSettings {
    /// Returns settings for a folder.
    #[must_use]
    pub fn new(
        folder: impl Into<PathBuf>,
        machine: Machine,
        timer_ticks: u64,
        curves: RecordedCurves,
    ) -> RecordSettings {
        RecordSettings { version: VERSION, folder: folder.into(), follow: true, machine, timer_ticks, curves }
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
    pub fn from_value(value: &str) -> Result<RecordSettings, SettingsError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let words = |error: serde_json::Error| SettingsError::Words(RECORD_VARIABLE, error.to_string());
        let Version { version } = serde_json::from_str(value).map_err(words)?;
        if version != VERSION {
            return Err(SettingsError::Version(RECORD_VARIABLE, version));
        }
        serde_json::from_str(value).map_err(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_environment() {
        let machine = Machine { cpu: "a \"CPU\"".into(), tsc_hz: 2_000_000_000, ..Machine::default() };
        let point = CurvePoint { len: 4096, hot_ps: 10, cold_ps: 100, fresh_ps: 1000 };
        let curves = RecordedCurves { copy: vec![point], ..RecordedCurves::default() };
        let settings = RecordSettings::new("/tmp/a folder", machine, 20, curves);
        assert_eq!(RecordSettings::from_value(&settings.to_value()), Ok(settings.clone()));
        let error = RecordSettings::from_value(&RecordSettings { version: 9, ..settings }.to_value()).unwrap_err();
        assert!(error.to_string().starts_with("TELPHER_RECORD is of version 9"), "{error}");
    }
}
