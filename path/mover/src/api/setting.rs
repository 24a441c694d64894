//! A policy as text: the names and values that C and Python programs, the environment and a tuning file use.
//!
//! One table ([`Policy::SETTINGS`]) says for each name which values it takes, how they are read, and how they are
//! written. So all front ends write a policy in the same way.

use crate::api::policy::{Hint, OnFault, Policy, Retry, WindowPath};
use crate::learn::Learning;
use crate::plan::route::Route;
use crate::plan::split::Split;
use crate::plan::threshold::Threshold;
use crate::wait::{DEFAULT_PAUSES, Wait};
use std::fmt::Write;
use std::time::Duration;
use telpher_abi::Opcode;

/// One field of a [`Policy`] in its text form.
#[derive(Clone, Copy)]
pub struct Setting {
    /// The field's name, words joined by hyphens.
    pub name: &'static str,
    /// The values it takes, as a help text shows them.
    pub takes: &'static str,
    /// What it decides, in one sentence.
    pub about: &'static str,
    /// Returns the policy with the value that the text gives; `None` if the text is not a value.
    read: fn(Policy, &str) -> Option<Policy>,
    /// Writes a policy's value.
    write: fn(&Policy) -> String,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("name", &self.name).field("takes", &self.takes).finish_non_exhaustive()
    }
}

/// Why a setting was not accepted; the policy is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No field has this name.
    #[error("there is no setting '{name}'; there are {}", names())]
    Name {
        /// As it was written.
        name: String,
    },
    /// The field does not take this value.
    #[error("'{name}' does not take '{value}'; it takes {takes}")]
    Value {
        /// The setting.
        name: &'static str,
        /// As it was written.
        value: String,
        /// The values it takes.
        takes: &'static str,
    },
}

fn names() -> String {
    Policy::SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ")
}

impl Policy {
    /// Every setting, in the order of the fields.
    pub const SETTINGS: &'static [Setting] = &[
        Setting {
            name: "threshold",
            takes: "a size from which operations go to a device (4k, 1m), 'always' or 'never', for all operations or \
                    for some (memory-move=64k,fill=never)",
            about: "whether an operation goes to a device",
            read: |policy, value| Some(Policy { threshold: read_threshold(policy.threshold, value)?, ..policy }),
            write: |policy| write_threshold(&policy.threshold),
        },
        Setting {
            name: "learning",
            takes: "off or on",
            about: "whether the mover learns the costs of operations and decides by them instead of the threshold",
            read: |policy, value| Some(Policy { learning: read_word(LEARNINGS, value)?, ..policy }),
            write: |policy| write_word(LEARNINGS, &policy.learning),
        },
        Setting {
            name: "route",
            takes: "first, round-robin, least-loaded, local or push-pull",
            about: "which queue is asked first",
            read: |policy, value| Some(Policy { route: read_word(ROUTES, value)?, ..policy }),
            write: |policy| write_word(ROUTES, &policy.route),
        },
        Setting {
            name: "coalesce",
            takes: "on or off",
            about: "whether copies of a batch that begin where the one before ends become one descriptor",
            read: |policy, value| Some(Policy { coalesce: read_word(SWITCH, value)?, ..policy }),
            write: |policy| write_word(SWITCH, &policy.coalesce),
        },
        Setting {
            name: "split",
            takes: "a size from which an operation is cut into parts (1m), 'always' or 'never', and the number of \
                    queues for them (1m:2)",
            about: "how a long operation is split over queues",
            read: |policy, value| Some(Policy { split: read_split(policy.split, value)?, ..policy }),
            write: |policy| format!("{}:{}", write_limit(policy.split.above), policy.split.ways),
        },
        Setting {
            name: "hybrid",
            takes: "on or off",
            about: "whether the thread that waits for a long operation does parts of it",
            read: |policy, value| {
                let hybrid = read_word(SWITCH, value)?;
                Some(Policy { split: Split { hybrid, ..policy.split }, ..policy })
            },
            write: |policy| write_word(SWITCH, &policy.split.hybrid),
        },
        Setting {
            name: "retry",
            takes: "the number of further offers to a full queue (64), and the time between two offers (64:10us)",
            about: "how often a full queue is asked again",
            read: |policy, value| Some(Policy { retry: read_retry(value)?, ..policy }),
            write: |policy| format!("{}:{}", policy.retry.attempts, write_duration(policy.retry.pause)),
        },
        Setting {
            name: "on-fault",
            takes: "finish-on-cpu, touch-and-resubmit, also with a limit on touches of a page \
                    (touch-and-resubmit:4), or block",
            about: "what happens on a page fault",
            read: |policy, value| Some(Policy { on_fault: read_on_fault(value)?, ..policy }),
            write: |policy| match policy.on_fault {
                OnFault::FinishOnCpu => "finish-on-cpu".into(),
                OnFault::TouchAndResubmit { limit } => format!("touch-and-resubmit:{limit}"),
                OnFault::Block => "block".into(),
            },
        },
        Setting {
            name: "wait",
            takes: "spin, pause, yield, sleep, timed, monitor or predicted; yield with the number of checks before it \
                    (yield:256), sleep with that number and the length of one sleep (sleep:256:50us), timed and \
                    monitor with the longest time between two checks (monitor:50us)",
            about: "how threads wait",
            read: |policy, value| Some(Policy { wait: read_wait(value)?, ..policy }),
            write: |policy| match policy.wait {
                Wait::Spin => "spin".into(),
                Wait::Pause => "pause".into(),
                Wait::Yield { pauses } => format!("yield:{pauses}"),
                Wait::Sleep { pauses, interval } => format!("sleep:{pauses}:{}", write_duration(interval)),
                Wait::Timed { interval } => format!("timed:{}", write_duration(interval)),
                Wait::Monitor { at_most } => format!("monitor:{}", write_duration(at_most)),
                Wait::Predicted => "predicted".into(),
            },
        },
        Setting {
            name: "hint",
            takes: "cache or memory",
            about: "where results are written",
            read: |policy, value| Some(Policy { hint: read_word(HINTS, value)?, ..policy }),
            write: |policy| write_word(HINTS, &policy.hint),
        },
        Setting {
            name: "windows",
            takes: "device-or-cpu or device",
            about: "what copies into and out of the windows of other processes",
            read: |policy, value| Some(Policy { windows: read_word(WINDOWS, value)?, ..policy }),
            write: |policy| write_word(WINDOWS, &policy.windows),
        },
        Setting {
            name: "capacity",
            takes: "a number of descriptors from 1 to 1048576",
            about: "the most descriptors in flight",
            read: |policy, value| {
                let capacity = value.parse().ok().filter(|n| (1..=MOST_IN_FLIGHT).contains(n))?;
                Some(Policy { capacity, ..policy })
            },
            write: |policy| policy.capacity.to_string(),
        },
        Setting {
            name: "patience",
            takes: "a time such as 10ms or 1s",
            about: "how long a record may be missing before its queue is asked whether it still works",
            read: |policy, value| Some(Policy { patience: read_duration(value)?, ..policy }),
            write: |policy| write_duration(policy.patience),
        },
        Setting {
            name: "limit",
            takes: "a time such as 30s or 500ms",
            about: "how long a queue that reports that it works may leave a descriptor unanswered until it is given up",
            read: |policy, value| Some(Policy { limit: read_duration(value)?, ..policy }),
            write: |policy| write_duration(policy.limit),
        },
        Setting {
            name: "linger",
            takes: "a time such as 1s or 500ms",
            about: "how long the drop of the last handle waits for dropped jobs",
            read: |policy, value| Some(Policy { linger: read_duration(value)?, ..policy }),
            write: |policy| write_duration(policy.linger),
        },
    ];

    /// Sets one field from text.
    ///
    /// ```
    /// use telpher_mover::{Policy, Wait};
    /// let mut policy = Policy::default();
    /// policy.set("wait", "spin")?;
    /// policy.set("threshold", "memory-move=64k,fill=never")?;
    /// assert_eq!(policy.wait, Wait::Spin);
    /// assert!(policy.set("wiat", "spin").unwrap_err().to_string().starts_with("there is no setting 'wiat'"));
    /// # Ok::<(), telpher_mover::SettingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SettingError`], which names the accepted settings or values.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let setting = Self::setting(name).ok_or_else(|| SettingError::Name { name: name.into() })?;
        *self = (setting.read)(*self, value.trim()).ok_or_else(|| SettingError::Value {
            name: setting.name,
            value: value.into(),
            takes: setting.takes,
        })?;
        Ok(())
    }

    /// Returns one field as text, in the form that [`Policy::set`] reads; `None` if there is no such setting.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        Self::setting(name).map(|setting| (setting.write)(self))
    }

    fn setting(name: &str) -> Option<&'static Setting> {
        Self::SETTINGS.iter().find(|setting| setting.name == name.trim())
    }
}

/// The largest table of descriptors in flight that a setting may ask for. Source: derived; 128 MiB of slots and
/// records.
const MOST_IN_FLIGHT: u32 = 1 << 20;

const ROUTES: &[(&str, Route)] = &[
    ("first", Route::First),
    ("round-robin", Route::RoundRobin),
    ("least-loaded", Route::LeastLoaded),
    ("local", Route::Local),
    ("push-pull", Route::PushPull),
];

const SWITCH: &[(&str, bool)] = &[("on", true), ("off", false)];

const LEARNINGS: &[(&str, Learning)] = &[("off", Learning::Off), ("on", Learning::On)];

const HINTS: &[(&str, Hint)] = &[("cache", Hint::Cache), ("memory", Hint::Memory)];

const WINDOWS: &[(&str, WindowPath)] = &[("device-or-cpu", WindowPath::DeviceOrCpu), ("device", WindowPath::Device)];

fn read_word<T: Copy>(words: &[(&str, T)], value: &str) -> Option<T> {
    words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning)
}

fn write_word<T: PartialEq>(words: &[(&str, T)], meaning: &T) -> String {
    words.iter().find(|(_, each)| each == meaning).map_or("", |(word, _)| word).into()
}

fn read_split(split: Split, value: &str) -> Option<Split> {
    let (above, ways) = match value.split_once(':') {
        None => (value, split.ways),
        Some((above, ways)) => (above, ways.parse().ok().filter(|&ways| ways > 0)?),
    };
    Some(Split { above: read_limit(above)?, ways, ..split })
}

fn read_retry(value: &str) -> Option<Retry> {
    let (attempts, pause) = value.split_once(':').unwrap_or((value, "0s"));
    Some(Retry { attempts: attempts.parse().ok()?, pause: read_duration(pause)? })
}

fn read_on_fault(value: &str) -> Option<OnFault> {
    match value.split_once(':') {
        None => match value {
            "finish-on-cpu" => Some(OnFault::FinishOnCpu),
            "touch-and-resubmit" => Some(OnFault::default()),
            "block" => Some(OnFault::Block),
            _ => None,
        },
        Some(("touch-and-resubmit", limit)) => Some(OnFault::TouchAndResubmit { limit: limit.parse().ok()? }),
        Some(_) => None,
    }
}

/// The length of one sleep, if a setting does not give one. Source: assumed; the timer slack of a Linux thread, which
/// is the shortest sleep.
const DEFAULT_SLEEP: Duration = Duration::from_micros(50);

fn read_wait(value: &str) -> Option<Wait> {
    let mut parts = value.split(':');
    let word = parts.next()?;
    let mut pauses = || parts.next().map_or(Some(DEFAULT_PAUSES), |text| text.parse().ok());
    let wait = match word {
        "spin" => Wait::Spin,
        "pause" => Wait::Pause,
        "yield" => Wait::Yield { pauses: pauses()? },
        "sleep" => {
            Wait::Sleep { pauses: pauses()?, interval: parts.next().map_or(Some(DEFAULT_SLEEP), read_duration)? }
        }
        "timed" => Wait::Timed { interval: parts.next().map_or(Some(DEFAULT_SLEEP), read_duration)? },
        "monitor" => Wait::Monitor { at_most: parts.next().map_or(Some(DEFAULT_SLEEP), read_duration)? },
        "predicted" => Wait::Predicted,
        _ => return None,
    };
    parts.next().is_none().then_some(wait)
}

/// The operations of a mover that have a size, and so a threshold.
pub(crate) const SIZED: [Opcode; 22] = [
    Opcode::MemoryMove,
    Opcode::Fill,
    Opcode::Compare,
    Opcode::ComparePattern,
    Opcode::CreateDelta,
    Opcode::ApplyDelta,
    Opcode::Dualcast,
    Opcode::CrcGeneration,
    Opcode::CopyCrc,
    Opcode::DifCheck,
    Opcode::DifInsert,
    Opcode::DifStrip,
    Opcode::DifUpdate,
    Opcode::DixGenerate,
    Opcode::TypeConversion,
    Opcode::Reduce,
    Opcode::ReduceDualcast,
    Opcode::GatherReduce,
    Opcode::GatherCopy,
    Opcode::ScatterCopy,
    Opcode::ScatterFill,
    Opcode::CacheFlush,
];

/// Returns the operation with a size that has this name.
pub(crate) fn sized(name: &str) -> Option<Opcode> {
    SIZED.into_iter().find(|op| op.name() == name.trim())
}

fn read_threshold(mut threshold: Threshold, value: &str) -> Option<Threshold> {
    for part in value.split(',') {
        threshold = match part.split_once('=') {
            None => Threshold::all(read_limit(part)?),
            Some((name, limit)) => threshold.with(sized(name)?, read_limit(limit)?),
        };
    }
    Some(threshold)
}

/// Writes the limit that most operations have, then the operations with another limit.
fn write_threshold(threshold: &Threshold) -> String {
    let sharing = |limit: u64| SIZED.iter().filter(|op| threshold.of(**op) == limit).count();
    // The first of the limits that most operations share.
    let limits = SIZED.iter().rev().map(|op| threshold.of(*op));
    let common = limits.max_by_key(|limit| sharing(*limit)).expect("there are operations");
    let mut text = write_limit(common);
    for op in SIZED.into_iter().filter(|&op| threshold.of(op) != common) {
        // Writing to a string does not fail.
        let _ = write!(text, ",{}={}", op.name(), write_limit(threshold.of(op)));
    }
    text
}

/// Reads a size from which a device is used: `64`, `4k`, `always`, `never`.
pub(crate) fn read_limit(text: &str) -> Option<u64> {
    let text = text.trim();
    match text {
        "always" => return Some(0),
        "never" => return Some(u64::MAX),
        _ => {}
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Writes a size with the largest unit that leaves a whole number.
pub(crate) fn write_limit(bytes: u64) -> String {
    match bytes {
        0 => "always".into(),
        u64::MAX => "never".into(),
        _ => {
            let (unit, name) = [(1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")]
                .into_iter()
                .find(|(unit, _)| bytes.is_multiple_of(*unit))
                .unwrap_or((1, ""));
            format!("{}{name}", bytes / unit)
        }
    }
}

/// Reads a time: a whole number and `ns`, `us`, `ms` or `s`.
pub(crate) fn read_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = digits.parse().ok()?;
    Some(match &text[digits.len()..] {
        "ns" => Duration::from_nanos(number),
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    })
}

/// Writes a time with the largest unit that leaves a whole number.
pub(crate) fn write_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let (unit, name) = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")]
        .into_iter()
        .find(|(unit, _)| nanos.is_multiple_of(*unit))
        .unwrap_or((1, "ns"));
    format!("{}{name}", nanos / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_reads_what_it_writes() {
        let mut other = Policy::default();
        for (name, value) in [
            ("threshold", "64k,fill=never,compare=always,crc-generation=1000"),
            ("learning", "on"),
            ("route", "push-pull"),
            ("coalesce", "off"),
            ("split", "256k:4"),
            ("hybrid", "on"),
            ("retry", "3:10us"),
            ("on-fault", "touch-and-resubmit:9"),
            ("wait", "sleep:7:20us"),
            ("hint", "memory"),
            ("capacity", "77"),
            ("patience", "250us"),
            ("limit", "5s"),
            ("linger", "1500ms"),
        ] {
            other.set(name, value).unwrap();
        }
        for policy in [Policy::default(), other, Policy { threshold: Threshold::CPU, ..other }] {
            let mut read = Policy { threshold: Threshold::DEVICE, wait: Wait::Pause, ..Policy::default() };
            for setting in Policy::SETTINGS {
                let value = policy.get(setting.name).unwrap();
                read.set(setting.name, &value).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(read.get(setting.name).unwrap(), value);
            }
            for op in SIZED {
                assert_eq!(read.threshold.of(op), policy.threshold.of(op), "{op:?}");
            }
            assert_eq!(Policy { threshold: policy.threshold, ..read }, policy);
        }
    }

    #[test]
    fn a_threshold_is_written_with_the_most_common_limit_first() {
        let threshold = Threshold::default().with(Opcode::MemoryMove, 64 << 10).with(Opcode::Fill, u64::MAX);
        assert_eq!(write_threshold(&threshold), "4k,memory-move=64k,fill=never");
        assert_eq!(read_threshold(Threshold::DEVICE, "4k,memory-move=64k,fill=never"), Some(threshold));
        assert_eq!(write_threshold(&Threshold::CPU), "never");
    }

    #[test]
    fn every_field_reads_all_its_values() {
        let mut policy = Policy::default();
        for (name, values) in [
            ("route", &["first", "round-robin", "least-loaded", "local", "push-pull"][..]),
            ("split", &["never", "1m", "always", "1m:2", "64k:8"]),
            ("hybrid", &["on", "off"]),
            ("coalesce", &["on", "off"]),
            ("learning", &["off", "on"]),
            ("on-fault", &["finish-on-cpu", "touch-and-resubmit", "block"]),
            (
                "wait",
                &[
                    "spin",
                    "pause",
                    "yield",
                    "yield:3",
                    "sleep",
                    "sleep:3",
                    "sleep:3:1ms",
                    "timed",
                    "timed:3us",
                    "monitor",
                    "monitor:1ms",
                    "predicted",
                ],
            ),
            ("hint", &["cache", "memory"]),
            ("threshold", &["0", "4096", "4k", "1M", "2g", "always", "never", " memory-move = 1k , fill=2k"]),
            ("retry", &["0", "64", "64:1us"]),
        ] {
            for value in values {
                policy.set(name, value).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn a_rejected_value_gives_an_error_and_changes_nothing() {
        let mut policy = Policy::default();
        for (name, value) in [
            ("wait", "spin:3"),
            ("wait", "predicted:1ms"),
            ("wait", "monitor:3"),
            ("wait", "sleep:3:1ms:4"),
            ("wait", "yield:many"),
            ("threshold", ""),
            ("threshold", "4k,"),
            ("threshold", "fill=64k,sort=4k"),
            ("threshold", "99999999999g"),
            ("threshold", "4kk"),
            ("threshold", "-1"),
            ("threshold", "4é"),
            ("on-fault", "block:3"),
            ("capacity", "0"),
            ("capacity", "1048577"),
            ("linger", "1"),
            ("linger", "1h"),
            ("patience", "soon"),
            ("retry", "64:1"),
            ("hint", "l3"),
            ("route", "Second"),
            ("split", "1m:0"),
            ("split", "1m:2:3"),
            ("split", ":2"),
            ("hybrid", "perhaps"),
        ] {
            let error = policy.set(name, value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{name}' does not take '{value}'; it takes ")), "{error}");
            assert_eq!(policy, Policy::default());
        }
        let error = policy.set("colour", "red").unwrap_err().to_string();
        assert!(error.contains("there are threshold, "), "{error}");
        assert_eq!(policy.get("colour"), None);
    }
}
