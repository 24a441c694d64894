//! The settings of a process that records its calls instead of offloading them.

use crate::VERSION;
use crate::settings::SettingsError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use telpher_recording::CurvePoint;

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
    pub machine: RecordedMachine,
    /// What calls cost on it.
    pub curves: RecordedCurves,
}

/// The machine of a recording, as the command found it before the program started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedMachine {
    /// The processor's brand string.
    pub cpu: String,
    /// EAX of CPUID leaf 1: family, model and stepping.
    pub cpu_signature: u32,
    /// Logical processors that the program may use.
    pub logical_cpus: u32,
    /// Bytes of the data caches of level 1, 2 and 3; 0 for a level that is absent.
    pub cache_bytes: [u64; 3],
    /// The kernel's release.
    pub kernel: String,
    /// Ticks of the time stamp counter in a second.
    pub tsc_hz: u64,
    /// Ticks between two readings of the counter in a row.
    pub timer_ticks: u64,
}

/// One point of a curve: bytes of the call; picoseconds for each byte if the data is hot, cold, and fresh.
pub type Point = (u64, u32, u32, u32);

/// The calibration curves.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedCurves {
    /// Of copies.
    pub copy: Vec<Point>,
    /// Of `memset`.
    pub fill: Vec<Point>,
    /// Of `memcmp` with equal ranges.
    pub compare: Vec<Point>,
}

/// Returns the points as the recording has them.
#[must_use]
pub fn curve(points: &[Point]) -> Vec<CurvePoint> {
    let point = |&(len, hot_ps, cold_ps, fresh_ps): &Point| CurvePoint { len, hot_ps, cold_ps, fresh_ps };
    points.iter().map(point).collect()
}

impl RecordSettings {
    /// Returns settings for a folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, machine: RecordedMachine, curves: RecordedCurves) -> RecordSettings {
        RecordSettings { version: VERSION, folder: folder.into(), follow: true, machine, curves }
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
        let machine = RecordedMachine { cpu: "a \"CPU\"".into(), tsc_hz: 2_000_000_000, ..RecordedMachine::default() };
        let curves = RecordedCurves { copy: vec![(4096, 10, 100, 1000)], ..RecordedCurves::default() };
        let settings = RecordSettings::new("/tmp/a folder", machine, curves);
        assert_eq!(RecordSettings::from_value(&settings.to_value()), Ok(settings.clone()));
        let error = RecordSettings::from_value(&RecordSettings { version: 9, ..settings }.to_value()).unwrap_err();
        assert!(error.to_string().starts_with("TELPHER_RECORD is of version 9"), "{error}");
        assert_eq!(curve(&[(1, 2, 3, 4)])[0].fresh_ps, 4);
    }
}
