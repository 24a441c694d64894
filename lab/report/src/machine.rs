//! The facts about the machine that a reader of its numbers must know.

use serde::Serialize;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Facts printed with every report.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: Vec<usize>,
    /// Bytes of the second-level cache of one core, if known.
    pub l2_bytes: Option<u64>,
    /// Bytes of the last-level cache, if known.
    pub llc_bytes: Option<u64>,
    /// NUMA nodes with memory.
    pub nodes: Vec<u32>,
    /// Kernel release.
    pub kernel: String,
    /// True under a hypervisor.
    pub virtual_machine: bool,
    /// Start of the run in UTC, `2026-11-21 08:00`.
    pub date: String,
    /// The command as typed.
    pub command: String,
    /// The version of telpher.
    pub version: &'static str,
}

impl Machine {
    /// Reads the facts from the system.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
        let [_, l2, l3, l4] = telpher_os::cache_bytes();
        let known = |bytes: u64| (bytes > 0).then_some(bytes);
        Machine {
            cpu: telpher_os::cpu_name().unwrap_or_else(|| "unknown processor".into()),
            cores: telpher_os::allowed_cpus().unwrap_or_else(|_| vec![0]),
            l2_bytes: known(l2),
            llc_bytes: known(l4).or(known(l3)).or(known(l2)),
            nodes: nodes(),
            kernel: telpher_os::kernel_release().unwrap_or_else(|| "unknown".into()),
            virtual_machine: flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            date: date(SystemTime::now()),
            command: command(std::env::args()),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Returns the core of submitting thread `n`.
    pub fn core(&self, n: usize) -> usize {
        self.cores[n % self.cores.len()]
    }

    /// Returns the cores for engines besides those of `submitters` submitting threads; all cores if none is left.
    pub fn engine_cores(&self, submitters: usize) -> Vec<usize> {
        match self.cores.get(submitters..) {
            Some(rest) if !rest.is_empty() => rest.to_vec(),
            _ => self.cores.clone(),
        }
    }

    /// Returns a size that is larger than the last-level cache: a rotation through that many bytes finds nothing
    /// cached.
    pub fn cold_bytes(&self) -> u64 {
        2 * self.llc_bytes.unwrap_or(64 << 20).clamp(16 << 20, 256 << 20)
    }
}

/// Returns the command as a user would type it, with the program's bare name.
pub fn command(words: impl Iterator<Item = String>) -> String {
    let quoted = words.enumerate().map(|(i, word)| match word.rsplit('/').next() {
        Some(name) if i == 0 => name.to_owned(),
        _ if word.contains(|c: char| c.is_whitespace() || "'\"$*;&|<>()".contains(c)) => {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
        _ => word,
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn first_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}

/// Returns the NUMA nodes with memory; node 0 if the system does not report them.
fn nodes() -> Vec<u32> {
    let list =
        first_line("/sys/devices/system/node/has_memory").or_else(|| first_line("/sys/devices/system/node/online"));
    let nodes = telpher_os::parse_number_list(&list.unwrap_or_default());
    if nodes.is_empty() { vec![0] } else { nodes }
}

/// Formats a time as `YYYY-MM-DD HH:MM` in UTC.
pub fn date(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // Howard Hinnant's civil_from_days for days since 1970, which is never negative here; the year begins in March.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_calendar_dates() {
        let at = |s| date(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        // `date -u -d @1709208000` and `date -u -d @1795248000`.
        assert_eq!(at(1_709_208_000), "2024-02-29 12:00 UTC");
        assert_eq!(at(1_795_248_000), "2026-11-21 08:00 UTC");
    }

    #[test]
    fn the_command_can_be_typed_again() {
        let words = ["/usr/bin/telpher", "bench", "--size", "1k..8k*2"].map(String::from);
        assert_eq!(command(words.into_iter()), "telpher bench --size '1k..8k*2'");
    }

    #[test]
    fn this_machine_has_a_core_and_a_node() {
        let machine = Machine::read();
        assert!(!machine.cores.is_empty() && !machine.nodes.is_empty());
        assert!(!machine.engine_cores(machine.cores.len()).is_empty());
    }
}
