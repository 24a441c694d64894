//! The environment variables of Intel's DTO, read as settings.
//!
//! DTO reads numbers with `strtoul`: `64K` is 64 for it, and a word is 0. Such a value is read here as its author meant
//! it, with a remark. A variable that has no counterpart gets a remark as well, so that none is ignored in silence.
//! Source of what DTO does: its source at commit 87ffb96 (2025-08-22).

use crate::settings::{Settings, WaitMethod};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Reads one variable's value into the settings. Returns a remark, which continues "NAME=VALUE".
type Reader = fn(&str, &mut Reading<'_>) -> Option<String>;

/// DTO's variables. Later ones win: `DTO_USESTDC_CALLS` over `DTO_WQ_LIST`.
const VARIABLES: &[(&str, Reader)] = &[
    ("DTO_MIN_BYTES", min_bytes),
    ("DTO_DSA_MEMCPY", |value, reading| switch(value, &mut reading.settings.functions.memcpy)),
    ("DTO_DSA_MEMMOVE", |value, reading| switch(value, &mut reading.settings.functions.memmove)),
    ("DTO_DSA_MEMSET", |value, reading| switch(value, &mut reading.settings.functions.memset)),
    ("DTO_DSA_MEMCMP", |value, reading| switch(value, &mut reading.settings.functions.memcmp)),
    ("DTO_DSA_CC", |value, reading| switch(value, &mut reading.settings.results_in_cache)),
    ("DTO_OVERLAPPING_MEMMOVE_ACTION", |value, reading| switch(value, &mut reading.settings.overlapping)),
    // Fixed knobs: every call from the threshold on goes to the device.
    ("DTO_AUTO_ADJUST_KNOBS", |value, reading| switch(value, &mut reading.settings.learns)),
    ("DTO_WAIT_METHOD", wait_method),
    ("DTO_UMWAIT_DELAY", umwait_delay),
    ("DTO_CPU_SIZE_FRACTION", cpu_size_fraction),
    ("DTO_IS_NUMA_AWARE", is_numa_aware),
    ("DTO_WQ_LIST", wq_list),
    ("DTO_USESTDC_CALLS", use_c_library),
    ("DTO_COLLECT_STATS", |value, reading| switch(value, &mut reading.settings.statistics)),
    ("DTO_LOG_FILE", log_file),
    ("DTO_LOG_LEVEL", log_level),
    ("DTO_ENQCMD_MAX_RETRIES", |_, _| Some("has no effect, as in DTO since June 2024".into())),
];

/// What a [`Reader`] sees and changes.
struct Reading<'a> {
    settings: &'a mut Settings,
    log_file: Option<String>,
}

/// What DTO's variables say besides the settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DtoVariables {
    /// A remark for each variable whose value DTO reads otherwise, or that has no counterpart.
    pub remarks: Vec<String>,
    /// The file for the statistics of each process, to which `.PROGRAM.PID` is added.
    pub log_file: Option<String>,
}

/// Changes the settings as the variables of DTO in an environment ask for; all others are skipped.
pub fn read_dto_variables(
    environment: impl IntoIterator<Item = (String, String)>,
    settings: &mut Settings,
) -> DtoVariables {
    let variables: BTreeMap<String, String> =
        environment.into_iter().filter(|(name, _)| name.starts_with("DTO_")).collect();
    let mut reading = Reading { settings, log_file: None };
    let mut remarks = Vec::new();
    for (name, read) in VARIABLES {
        if let Some(value) = variables.get(*name) {
            remarks.extend(read(value, &mut reading).map(|remark| format!("{name}={value} {remark}")));
        }
    }
    let is_unknown = |name: &&String| VARIABLES.iter().all(|(known, _)| known != name);
    remarks.extend(variables.keys().filter(is_unknown).map(|name| format!("{name} is no variable of DTO")));
    DtoVariables { remarks, log_file: reading.log_file }
}

/// Returns the number that DTO reads in a text, as `strtoul` does; `None` if it is too large, where DTO takes its
/// default.
fn number_of_dto(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number = if end == 0 { 0 } else { digits[..end].parse::<u64>().ok()? };
    Some(if negative { number.wrapping_neg() } else { number })
}

/// Says what DTO reads in a value.
fn in_dto(value: &str) -> String {
    number_of_dto(value).map_or("DTO takes its default".into(), |number| format!("DTO reads {number}"))
}

/// Says that a value is not what its variable takes.
fn invalid(value: &str, expected: &str) -> Option<String> {
    Some(format!("is not {expected} and has no effect ({})", in_dto(value)))
}

/// Returns a number without sign, if the text is nothing else.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// 0 or 1.
fn switch(value: &str, setting: &mut bool) -> Option<String> {
    match value.to_ascii_lowercase().as_str() {
        "0" | "off" | "no" | "false" => *setting = false,
        "1" => *setting = true,
        "on" | "yes" | "true" => {
            *setting = true;
            return Some(format!("is read as 1 ({})", in_dto(value)));
        }
        _ => match number(value) {
            Some(number) => *setting = number != 0,
            None => return invalid(value, "0 or 1"),
        },
    }
    None
}

fn min_bytes(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    let lower = value.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return invalid(value, "a number of bytes"),
    };
    let Some(bytes) = number(digits).and_then(|number| number.checked_mul(1 << shift)) else {
        return invalid(value, "a number of bytes");
    };
    // A call of no bytes needs no descriptor.
    reading.settings.threshold = bytes.max(1);
    if bytes == 0 {
        Some("is read as 1 byte (DTO submits descriptors of no bytes)".into())
    } else if number_of_dto(value) != Some(bytes) {
        Some(format!("is read as {bytes} bytes ({})", in_dto(value)))
    } else {
        None
    }
}

/// The longest sleep of one wait, where the variables name none. Source: DTO, UMWAIT_DELAY_DEFAULT of 100,000 ticks, at
/// two ticks for a nanosecond.
const LONGEST_SLEEP: Duration = Duration::from_micros(50);
/// The length of one timed sleep. Source: DTO README, the accelerator's time for 8 KiB is about 1 µs.
const TIMED_SLEEP: Duration = Duration::from_micros(1);

fn wait_method(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    let (method, remark) = if value.starts_with("busypoll") {
        (WaitMethod::Poll, None)
    } else if value.starts_with("umwait") {
        (WaitMethod::Monitor(LONGEST_SLEEP), None)
    } else if value.starts_with("tpause") {
        (WaitMethod::Timed(TIMED_SLEEP), None)
    } else if value.starts_with("yield") {
        (WaitMethod::Yield, Some("lets other threads run (DTO polls without saying so)"))
    } else if value.starts_with("sleep") {
        (WaitMethod::Yield, Some("is read as yield, because memcpy must not sleep (DTO polls)"))
    } else {
        return Some("is not busypoll, umwait, tpause or yield and has no effect (DTO polls)".into());
    };
    reading.settings.wait = Some(method);
    remark.map(Into::into)
}

fn umwait_delay(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    let Some(ticks) = number(value).filter(|ticks| *ticks > 0) else {
        return Some("is not a number of clock ticks and has no effect (DTO ignores this variable)".into());
    };
    let Some(WaitMethod::Monitor(longest)) = &mut reading.settings.wait else {
        return Some("has no effect without DTO_WAIT_METHOD=umwait (DTO ignores this variable)".into());
    };
    *longest = Duration::from_nanos(ticks.saturating_mul(1000) / ticks_per_microsecond());
    Some("bounds each wait (DTO ignores this variable)".into())
}

/// Returns the rate of the time stamp counter. It is compared with the clock for a millisecond.
fn ticks_per_microsecond() -> u64 {
    let (begun, first) = (Instant::now(), telpher_os::ticks());
    while begun.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    let (ticks, took) = (telpher_os::ticks().wrapping_sub(first), begun.elapsed());
    (ticks.saturating_mul(1000) / u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1)).max(1)
}

fn cpu_size_fraction(value: &str, _: &mut Reading<'_>) -> Option<String> {
    match value.trim().parse::<f64>() {
        Ok(0.0) => None,
        Ok(share) if (0.0..1.0).contains(&share) => {
            Some("has no counterpart: a device executes the whole of a call".into())
        }
        _ => Some("is not a share from 0 to 1 and has no effect (DTO reads 0)".into()),
    }
}

fn is_numa_aware(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    let (nearest, remark) = match value {
        "0" => (false, None),
        "1" => {
            (true, Some("is read as 2, the node of the CPU (DTO asks for the buffer's by a system call in each call)"))
        }
        "2" => (true, None),
        _ => return Some("is not 0, 1 or 2 and has no effect (DTO reads it as 0 or as another of the three)".into()),
    };
    reading.settings.nearest = nearest;
    remark.map(Into::into)
}

fn wq_list(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    let names = value.split(';').map(str::trim).filter(|name| !name.is_empty());
    let devices: Vec<String> = names.map(|name| format!("hw:{name}")).collect();
    if devices.is_empty() {
        return Some("names no queue and has no effect (DTO leaves all calls to the CPU)".into());
    }
    reading.settings.devices = devices;
    None
}

fn use_c_library(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    let mut only_cpu = false;
    let remark = switch(value, &mut only_cpu);
    if only_cpu {
        reading.settings.devices = vec!["cpu".into()];
    }
    remark
}

fn log_file(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    if !reading.settings.statistics {
        return Some("has no effect without DTO_COLLECT_STATS=1: messages go to standard error".into());
    }
    reading.log_file = Some(value.into());
    None
}

fn log_level(value: &str, reading: &mut Reading<'_>) -> Option<String> {
    // With statistics, DTO sets the level itself.
    if value == "0" || reading.settings.statistics {
        return None;
    }
    Some(
        "has no counterpart: the library writes no messages inside calls; `telpher offload -v` reports what is chosen"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Functions;

    /// Returns the settings after these variables, and the remarks.
    fn read(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let mut settings = Settings::new("all");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let remarks = read_dto_variables(variables, &mut settings).remarks;
        (settings, remarks)
    }

    /// Asserts that a value changes the default settings so, without a remark or with one that has these words.
    fn check(name: &str, value: &str, expected: impl FnOnce(&mut Settings), remark: Option<&str>) {
        let mut changed = Settings::new("all");
        expected(&mut changed);
        let (settings, remarks) = read(&[(name, value)]);
        assert_eq!(settings, changed, "{name}={value}");
        match remark {
            None => assert_eq!(remarks, [""; 0], "{name}={value}"),
            Some(words) => {
                assert_eq!(remarks.len(), 1, "{name}={value}: {remarks:?}");
                assert!(
                    remarks[0].starts_with(&format!("{name}={value} ")) && remarks[0].contains(words),
                    "{remarks:?}"
                );
            }
        }
    }

    #[test]
    fn sizes_are_read_as_their_author_meant_them() {
        let at = |bytes: u64| move |settings: &mut Settings| settings.threshold = bytes;
        check("DTO_MIN_BYTES", "65536", at(65536), None);
        check("DTO_MIN_BYTES", "64K", at(65536), Some("65536 bytes (DTO reads 64)"));
        check("DTO_MIN_BYTES", "1MiB", at(1 << 20), Some("(DTO reads 1)"));
        check("DTO_MIN_BYTES", "0", at(1), Some("descriptors of no bytes"));
        let same = |_: &mut Settings| {};
        check("DTO_MIN_BYTES", "-1", same, Some("DTO reads 18446744073709551615"));
        check("DTO_MIN_BYTES", "many", same, Some("DTO reads 0"));
        check("DTO_MIN_BYTES", "", same, Some("DTO reads 0"));
        check("DTO_MIN_BYTES", "99999999999999999999", same, Some("DTO takes its default"));
        check("DTO_MIN_BYTES", "17179869184g", same, Some("DTO reads 17179869184"));
    }

    #[test]
    fn switches_choose_functions_cache_overlaps_and_learning() {
        check("DTO_DSA_MEMCPY", "0", |settings| settings.functions.memcpy = false, None);
        check("DTO_DSA_MEMMOVE", "0", |settings| settings.functions.memmove = false, None);
        check("DTO_DSA_MEMSET", "1", |settings| settings.functions.memset = true, None);
        check("DTO_DSA_MEMCMP", "7", |settings| settings.functions.memcmp = true, None);
        check("DTO_DSA_CC", "0", |settings| settings.results_in_cache = false, None);
        check("DTO_OVERLAPPING_MEMMOVE_ACTION", "0", |settings| settings.overlapping = false, None);
        check("DTO_AUTO_ADJUST_KNOBS", "0", |settings| settings.learns = false, None);
        check("DTO_DSA_MEMSET", "yes", |settings| settings.functions.memset = true, Some("DTO reads 0"));
        check("DTO_DSA_MEMCPY", "no", |settings| settings.functions.memcpy = false, None);
        check("DTO_DSA_MEMCPY", "-1", |_| {}, Some("has no effect"));
        check("DTO_DSA_MEMCPY", "", |_| {}, Some("has no effect (DTO reads 0)"));
    }

    #[test]
    fn waiting_methods_are_those_that_dto_documents() {
        let wait = |method| move |settings: &mut Settings| settings.wait = Some(method);
        check("DTO_WAIT_METHOD", "busypoll", wait(WaitMethod::Poll), None);
        check("DTO_WAIT_METHOD", "tpause", wait(WaitMethod::Timed(TIMED_SLEEP)), None);
        check("DTO_WAIT_METHOD", "umwait", wait(WaitMethod::Monitor(LONGEST_SLEEP)), None);
        check("DTO_WAIT_METHOD", "yield", wait(WaitMethod::Yield), Some("DTO polls"));
        check("DTO_WAIT_METHOD", "sleep", wait(WaitMethod::Yield), Some("must not sleep"));
        check("DTO_WAIT_METHOD", "nap", |_| {}, Some("has no effect"));
        check("DTO_UMWAIT_DELAY", "5000", |_| {}, Some("without DTO_WAIT_METHOD=umwait"));
        let (settings, remarks) = read(&[("DTO_UMWAIT_DELAY", "300000"), ("DTO_WAIT_METHOD", "umwait")]);
        // Processors count one to six thousand ticks in a microsecond, within a factor of two.
        let Some(WaitMethod::Monitor(longest)) = settings.wait else { panic!("{settings:?}") };
        assert!(longest > Duration::from_micros(25) && longest < Duration::from_micros(600), "{longest:?}");
        assert_eq!(remarks, ["DTO_UMWAIT_DELAY=300000 bounds each wait (DTO ignores this variable)"]);
    }

    #[test]
    fn queues_are_devices_and_the_c_library_wins_over_them() {
        let queues = |settings: &mut Settings| settings.devices = vec!["hw:wq0.0".into(), "hw:wq2.0".into()];
        check("DTO_WQ_LIST", "wq0.0;wq2.0", queues, None);
        check("DTO_WQ_LIST", " wq0.0; wq2.0;", queues, None);
        check("DTO_WQ_LIST", ";", |_| {}, Some("names no queue"));
        let (settings, remarks) = read(&[("DTO_USESTDC_CALLS", "1"), ("DTO_WQ_LIST", "wq0.0")]);
        assert_eq!((settings.devices, remarks), (vec!["cpu".to_owned()], vec![]));
        check("DTO_USESTDC_CALLS", "0", |_| {}, None);
    }

    #[test]
    fn no_variable_is_ignored_in_silence() {
        for (name, harmless, remarked) in [
            ("DTO_CPU_SIZE_FRACTION", "0.00", "0.33"),
            ("DTO_CPU_SIZE_FRACTION", "0", "1.5"),
            ("DTO_IS_NUMA_AWARE", "2", "buffer"),
            ("DTO_LOG_LEVEL", "0", "2"),
        ] {
            check(name, harmless, |_| {}, None);
            check(name, remarked, |_| {}, Some(""));
        }
        check("DTO_ENQCMD_MAX_RETRIES", "3", |_| {}, Some("no effect"));
        check("DTO_LOG_FILE", "/tmp/log", |_| {}, Some("without DTO_COLLECT_STATS"));
        let (settings, remarks) = read(&[("DTO_MIN_BYTE", "9"), ("HOME", "/root"), ("DTO_MIN_BYTES", "9")]);
        assert_eq!((settings.threshold, remarks), (9, vec!["DTO_MIN_BYTE is no variable of DTO".to_owned()]));
        assert_eq!(settings.functions, Functions { memcpy: true, memmove: true, ..Functions::NONE });
    }

    #[test]
    fn the_node_is_that_of_the_cpu_and_never_of_the_buffer() {
        check("DTO_IS_NUMA_AWARE", "0", |settings| settings.nearest = false, None);
        check("DTO_IS_NUMA_AWARE", "1", |settings| settings.nearest = true, Some("the node of the CPU"));
        check("DTO_IS_NUMA_AWARE", "2", |settings| settings.nearest = true, None);
        check("DTO_IS_NUMA_AWARE", "-1", |_| {}, Some("has no effect"));
    }

    #[test]
    fn statistics_go_to_the_log_file() {
        let mut settings = Settings::new("all");
        let variables = [("DTO_COLLECT_STATS", "1"), ("DTO_LOG_FILE", "/tmp/log"), ("DTO_LOG_LEVEL", "2")];
        let found = read_dto_variables(variables.map(|(name, value)| (name.into(), value.into())), &mut settings);
        assert_eq!(found, DtoVariables { remarks: vec![], log_file: Some("/tmp/log".into()) });
        assert!(settings.statistics);
    }
}
