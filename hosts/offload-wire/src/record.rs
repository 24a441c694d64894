//! The settings of a process that records its calls instead of offloading them, and their text.
//!
//! ```text
//! version=4,folder=/srv/recording,follow=1,cpu=…,copy=4096:10:100:1000+65536:12:95:900,…
//! ```
//!
//! The text has the rules of [`settings`](crate::settings).

use crate::VERSION;
use crate::settings::{SettingsError, escaped, read_flag, read_version, unescaped, write_flag, write_words};
use std::ffi::OsStr;
use std::path::PathBuf;
use telpher_recording::{CurvePoint, Machine};

/// The variable with the settings of `telpher record`.
pub const RECORD_VARIABLE: &str = "TELPHER_RECORD";

/// Where a process writes its recording, and what the recording says about the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
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
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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
        let RecordSettings { version, folder, follow, machine, timer_ticks, curves } = self;
        let text = |text: &str| escaped(OsStr::new(text));
        let [level_1, level_2, level_3] = machine.cache_bytes;
        write_words(&[
            ("version", version.to_string()),
            ("folder", escaped(folder.as_os_str())),
            ("follow", write_flag(*follow)),
            ("cpu", text(&machine.cpu)),
            ("signature", machine.cpu_signature.to_string()),
            ("cpus", machine.logical_cpus.to_string()),
            ("caches", format!("{level_1}:{level_2}:{level_3}")),
            ("kernel", text(&machine.kernel)),
            ("tsc", machine.tsc_hz.to_string()),
            ("timer", timer_ticks.to_string()),
            ("copy", write_points(&curves.copy)),
            ("fill", write_points(&curves.fill)),
            ("compare", write_points(&curves.compare)),
        ])
    }

    /// Reads the variable's value.
    ///
    /// # Errors
    /// [`SettingsError`]: not valid settings, or of another version.
    pub fn from_value(value: &str) -> Result<RecordSettings, SettingsError> {
        let words = read_version(RECORD_VARIABLE, value)?;
        let (machine, curves) = (Machine::default(), RecordedCurves::default());
        let mut settings = RecordSettings::new(PathBuf::new(), machine, 0, curves);
        for word in words {
            settings.set(word).ok_or_else(|| SettingsError::Words(RECORD_VARIABLE, word.into()))?;
        }
        if settings.folder.as_os_str().is_empty() {
            return Err(SettingsError::Words(RECORD_VARIABLE, "it names no folder".into()));
        }
        Ok(settings)
    }

    /// Applies one setting of the text; `None` if it is invalid.
    fn set(&mut self, word: &str) -> Option<()> {
        let RecordSettings { folder, follow, machine, timer_ticks, curves, .. } = self;
        let text = |value: &str| unescaped(value)?.into_string().ok();
        let (name, value) = word.split_once('=')?;
        match name {
            "folder" => *folder = unescaped(value)?.into(),
            "follow" => *follow = read_flag(value)?,
            "cpu" => machine.cpu = text(value)?,
            "signature" => machine.cpu_signature = value.parse().ok()?,
            "cpus" => machine.logical_cpus = value.parse().ok()?,
            "caches" => {
                let numbers = value.split(':').map(|bytes| bytes.parse().ok()).collect::<Option<Vec<u64>>>()?;
                machine.cache_bytes = numbers.try_into().ok()?;
            }
            "kernel" => machine.kernel = text(value)?,
            "tsc" => machine.tsc_hz = value.parse().ok()?,
            "timer" => *timer_ticks = value.parse().ok()?,
            "copy" => curves.copy = read_points(value)?,
            "fill" => curves.fill = read_points(value)?,
            "compare" => curves.compare = read_points(value)?,
            _ => return None,
        }
        Some(())
    }
}

/// Writes the points of a curve as `4096:10:100:1000+65536:12:95:900`.
fn write_points(points: &[CurvePoint]) -> String {
    let point =
        |CurvePoint { len, hot_ps, cold_ps, fresh_ps }: &CurvePoint| format!("{len}:{hot_ps}:{cold_ps}:{fresh_ps}");
    points.iter().map(point).collect::<Vec<_>>().join("+")
}

/// Reverses [`write_points`]; `None` if the text is damaged.
fn read_points(text: &str) -> Option<Vec<CurvePoint>> {
    let point = |text: &str| {
        let (len, times) = text.split_once(':')?;
        let times = times.split(':').map(|time| time.parse().ok()).collect::<Option<Vec<u32>>>()?;
        let [hot_ps, cold_ps, fresh_ps] = times.try_into().ok()?;
        Some(CurvePoint { len: len.parse().ok()?, hot_ps, cold_ps, fresh_ps })
    };
    text.split('+').filter(|text| !text.is_empty()).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn settings_survive_the_environment() {
        let machine = Machine {
            cpu: "a \"CPU\", 2 GHz".into(),
            cpu_signature: 1,
            logical_cpus: 2,
            cache_bytes: [3, 4, 0],
            kernel: "6.1".into(),
            tsc_hz: 2_000_000_000,
        };
        let point = |len| CurvePoint { len, hot_ps: 10, cold_ps: 100, fresh_ps: 1000 };
        let curves = RecordedCurves { copy: vec![point(4096), point(8192)], fill: vec![point(1)], compare: Vec::new() };
        let folder = OsString::from_vec(b"/tmp/a folder, \xff".to_vec());
        let settings = RecordSettings { follow: false, ..RecordSettings::new(folder, machine, 5, curves) };
        let value = settings.to_value();
        assert!(value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'\\$%".contains(&byte)), "{value}");
        assert_eq!(RecordSettings::from_value(&value), Ok(settings.clone()));
        let error = RecordSettings::from_value(&RecordSettings { version: 9, ..settings }.to_value()).unwrap_err();
        assert!(error.to_string().starts_with("TELPHER_RECORD is of version 9"), "{error}");
    }

    #[test]
    fn invalid_settings_are_refused_with_a_reason() {
        let refused = |words: &str| RecordSettings::from_value(&format!("version={VERSION}{words}")).unwrap_err();
        for word in ["colour=1", "follow=2", "caches=1:2", "copy=1:2:3", "copy=1:2:3:4:5", "tsc=", "folder=@4"] {
            let error = refused(&format!(",folder=/x,{word}"));
            assert!(error.to_string().ends_with(word), "{error}");
        }
        assert!(refused("").to_string().contains("names no folder"));
        assert!(matches!(RecordSettings::from_value("{}"), Err(SettingsError::Words(RECORD_VARIABLE, _))));
    }
}
