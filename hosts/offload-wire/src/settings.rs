//! The settings that a process reads from its environment, and their text.
//!
//! ```text
//! version=4,device=hw:wq0.0+hw:wq2.0,threshold=16384,functions=memcpy+memmove,…
//! ```
//!
//! The text has no blanks, quotes, dollar or per cent signs. So it needs no quoting in a shell, in systemd's
//! `Environment=` and `EnvironmentFile=`, and in container tools' lists of variables. Every other byte of a path is
//! written as `@` and two hexadecimal digits.

use crate::VERSION;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;
use telpher_mover::MemoryCallsPolicy;

/// The variable with the settings.
pub const VARIABLE: &str = "TELPHER_OFFLOAD";

/// The functions whose calls may go to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Functions {
    /// `memcpy`, `mempcpy`.
    pub memcpy: bool,
    /// `memmove`, `bcopy`.
    pub memmove: bool,
    /// `memset`.
    pub memset: bool,
    /// `memcmp`, `bcmp`.
    pub memcmp: bool,
}

impl Functions {
    /// No function.
    pub const NONE: Functions = Functions { memcpy: false, memmove: false, memset: false, memcmp: false };

    /// Selects a function by its name. Returns false for an unknown name.
    pub fn select(&mut self, name: &str) -> bool {
        match name {
            "memcpy" => self.memcpy = true,
            "memmove" => self.memmove = true,
            "memset" => self.memset = true,
            "memcmp" => self.memcmp = true,
            _ => return false,
        }
        true
    }

    /// Returns the names of the selected functions.
    fn names(self) -> Vec<&'static str> {
        let all =
            [(self.memcpy, "memcpy"), (self.memmove, "memmove"), (self.memset, "memset"), (self.memcmp, "memcmp")];
        all.into_iter().filter(|(selected, _)| *selected).map(|(_, name)| name).collect()
    }
}

/// How a thread waits for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitMethod {
    /// It looks again and again, with a PAUSE between.
    Poll,
    /// It lets other threads run between looks.
    Yield,
    /// It sleeps lightly between looks (TPAUSE), each time for this long.
    Timed(Duration),
    /// It sleeps lightly until the device writes (UMWAIT), each time at most for this long.
    Monitor(Duration),
}

/// How the calls of each process are executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// [`VERSION`].
    pub version: u32,
    /// The absolute path of the folder for the counters; without it nothing is written.
    pub folder: Option<PathBuf>,
    /// The devices: each is `model:…`, `hw:…`, `all` or `cpu`. Calls use the queues of all of them in turn.
    pub devices: Vec<String>,
    /// Shorter calls stay with the C library; bytes.
    pub threshold: u64,
    /// The functions whose calls may go to the device.
    pub functions: Functions,
    /// Whether copies between overlapping ranges may go to the device.
    pub overlapping: bool,
    /// Whether a call goes to a device of the NUMA node of its CPU; otherwise the queues of all nodes take turns.
    pub nearest: bool,
    /// Whether the device writes its results into the cache; otherwise into memory.
    pub results_in_cache: bool,
    /// How a thread waits; without it, as the mover's default.
    pub wait: Option<WaitMethod>,
    /// Whether calls of sites whose data is in the cache stay with the CPU.
    pub learns: bool,
    /// Names of programs and libraries whose calls stay with the CPU, beside those that the library knows itself.
    pub deny: Vec<String>,
    /// The absolute path of a file with [verdicts](crate::verdicts) for call sites. Other sites are as without it.
    pub verdicts: Option<PathBuf>,
    /// The times of a simulated device that modelled devices impose on their descriptors, as the type `DeviceTimes` of
    /// telpher-device writes them. Without them a descriptor takes as long as the CPU needs to execute it.
    pub device_times: Option<String>,
    /// Whether every call is counted by its size, as Intel's DTO does.
    pub statistics: bool,
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
            devices: vec![device.into()],
            threshold: MemoryCallsPolicy::THRESHOLD,
            // A program rarely compares long ranges, and most long fills are the first touch of fresh pages.
            functions: Functions { memcpy: true, memmove: true, ..Functions::NONE },
            overlapping: true,
            nearest: true,
            results_in_cache: true,
            wait: None,
            learns: true,
            deny: Vec::new(),
            verdicts: None,
            device_times: None,
            statistics: false,
            follow: true,
        }
    }

    /// Returns the variable's value.
    #[must_use]
    pub fn to_value(&self) -> String {
        let list = |words: &[String]| words.iter().map(|word| escaped(word.as_ref())).collect::<Vec<_>>().join("+");
        let mut settings = vec![
            ("version", self.version.to_string()),
            ("device", list(&self.devices)),
            ("threshold", self.threshold.to_string()),
            ("functions", self.functions.names().join("+")),
            ("overlapping", write_flag(self.overlapping)),
            ("nearest", write_flag(self.nearest)),
            ("cache", write_flag(self.results_in_cache)),
            ("learn", write_flag(self.learns)),
            ("statistics", write_flag(self.statistics)),
            ("follow", write_flag(self.follow)),
        ];
        settings.extend((!self.deny.is_empty()).then(|| ("deny", list(&self.deny))));
        settings.extend(self.verdicts.as_ref().map(|path| ("verdicts", escaped(path.as_os_str()))));
        settings.extend(self.device_times.as_ref().map(|times| ("times", times.clone())));
        settings.extend(self.wait.map(|wait| ("wait", wait.to_word())));
        settings.extend(self.folder.as_ref().map(|folder| ("folder", escaped(folder.as_os_str()))));
        write_words(&settings)
    }

    /// Reads the variable's value.
    ///
    /// # Errors
    /// [`SettingsError`]: not valid settings, or of another version.
    pub fn from_value(value: &str) -> Result<Settings, SettingsError> {
        let words = read_version(VARIABLE, value)?;
        let mut settings = Settings { devices: Vec::new(), ..Settings::new("") };
        for word in words {
            settings.set(word).ok_or_else(|| SettingsError::Words(VARIABLE, word.into()))?;
        }
        if settings.devices.is_empty() {
            return Err(SettingsError::Words(VARIABLE, "it names no device".into()));
        }
        Ok(settings)
    }

    /// Applies one setting of the text; `None` if it is invalid.
    fn set(&mut self, word: &str) -> Option<()> {
        let names = |value: &str| -> Option<Vec<String>> {
            value.split('+').map(|name| unescaped(name)?.into_string().ok()).collect()
        };
        let (name, value) = word.split_once('=')?;
        match name {
            "device" => self.devices = names(value)?,
            "deny" => self.deny = names(value)?,
            "threshold" => self.threshold = value.parse().ok()?,
            "functions" => {
                self.functions = Functions::NONE;
                let mut names = value.split('+').filter(|name| !name.is_empty());
                if !names.all(|name| self.functions.select(name)) {
                    return None;
                }
            }
            "overlapping" => self.overlapping = read_flag(value)?,
            "nearest" => self.nearest = read_flag(value)?,
            "cache" => self.results_in_cache = read_flag(value)?,
            "learn" => self.learns = read_flag(value)?,
            "statistics" => self.statistics = read_flag(value)?,
            "follow" => self.follow = read_flag(value)?,
            "wait" => self.wait = Some(WaitMethod::from_word(value)?),
            "times" => self.device_times = Some(value.into()),
            "verdicts" => self.verdicts = Some(unescaped(value)?.into()),
            "folder" => self.folder = Some(unescaped(value)?.into()),
            _ => return None,
        }
        Some(())
    }
}

impl WaitMethod {
    fn to_word(self) -> String {
        match self {
            WaitMethod::Poll => "poll".into(),
            WaitMethod::Yield => "yield".into(),
            WaitMethod::Timed(interval) => format!("timed:{}", interval.as_nanos()),
            WaitMethod::Monitor(at_most) => format!("monitor:{}", at_most.as_nanos()),
        }
    }

    fn from_word(word: &str) -> Option<WaitMethod> {
        let nanoseconds = |digits: &str| digits.parse().ok().map(Duration::from_nanos);
        match word.split_once(':') {
            None if word == "poll" => Some(WaitMethod::Poll),
            None if word == "yield" => Some(WaitMethod::Yield),
            Some(("timed", digits)) => nanoseconds(digits).map(WaitMethod::Timed),
            Some(("monitor", digits)) => nanoseconds(digits).map(WaitMethod::Monitor),
            _ => None,
        }
    }
}

/// Joins settings to the text of a variable.
pub(crate) fn write_words(settings: &[(&str, String)]) -> String {
    settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// Checks the version of a variable's value. Returns the other settings.
///
/// # Errors
/// If it is another version, or none.
pub(crate) fn read_version<'a>(
    variable: &'static str,
    value: &'a str,
) -> Result<impl Iterator<Item = &'a str>, SettingsError> {
    let mut words = value.split(',');
    let version = words.next().and_then(|word| word.strip_prefix("version="));
    let version = version.and_then(|version| version.parse().ok());
    match version.ok_or_else(|| SettingsError::Words(variable, "it does not begin with version=".into()))? {
        VERSION => Ok(words),
        version => Err(SettingsError::Version(variable, version)),
    }
}

pub(crate) fn write_flag(flag: bool) -> String {
    if flag { "1" } else { "0" }.to_owned()
}

pub(crate) fn read_flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Returns a text in the characters that need no quoting.
pub(crate) fn escaped(text: &OsStr) -> String {
    let mut out = String::new();
    for byte in text.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b':' | b'_' | b'-' => out.push(char::from(*byte)),
            other => out.push_str(&format!("@{other:02x}")),
        }
    }
    out
}

/// Reverses [`escaped`]; `None` if the text is damaged.
pub(crate) fn unescaped(text: &str) -> Option<OsString> {
    let mut parts = text.split('@');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(OsString::from_vec(bytes))
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
    fn settings_are_read_as_they_were_written() {
        let plain = Settings::new("cpu");
        let all = Settings {
            folder: Some(OsString::from_vec(b"/run/a b,c=\"d\"+%\xff".to_vec()).into()),
            devices: vec!["hw:wq0.0".into(), "model:./my devices.json".into()],
            threshold: u64::MAX,
            functions: Functions { memset: true, memcmp: true, ..Functions::NONE },
            overlapping: false,
            nearest: false,
            results_in_cache: false,
            wait: Some(WaitMethod::Monitor(Duration::from_nanos(1234))),
            learns: false,
            deny: vec!["my driver".into(), "libx".into()],
            verdicts: Some("/srv/a folder/verdicts".into()),
            device_times: Some("copy:4096:800:140+fill:1:2:3+compare:1:2:3".into()),
            statistics: true,
            follow: false,
            ..plain.clone()
        };
        let waits = [WaitMethod::Poll, WaitMethod::Yield, WaitMethod::Timed(Duration::from_micros(7))];
        let waits = waits.map(|wait| Settings { wait: Some(wait), functions: Functions::NONE, ..plain.clone() });
        for settings in [plain, all].into_iter().chain(waits) {
            let value = settings.to_value();
            assert!(value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'\\$%;`(){}".contains(&byte)), "{value}");
            assert_eq!(Settings::from_value(&value), Ok(settings), "{value}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_a_reason() {
        for wrong in ["", "{}", "device=cpu", "version=x"] {
            assert!(matches!(Settings::from_value(wrong), Err(SettingsError::Words(..))), "{wrong}");
        }
        let other = Settings { version: 7, ..Settings::new("cpu") };
        assert_eq!(Settings::from_value(&other.to_value()), Err(SettingsError::Version(VARIABLE, 7)));
        let damaged =
            ["colour=1", "threshold=", "learn=2", "functions=strcpy", "wait=poll:1", "device=@4", "folder=@xx"];
        for word in damaged {
            let refused = Settings::from_value(&format!("version={VERSION},device=cpu,{word}")).unwrap_err();
            assert!(refused.to_string().ends_with(word), "{refused}");
        }
        assert!(Settings::from_value(&format!("version={VERSION}")).unwrap_err().to_string().contains("no device"));
    }
}
