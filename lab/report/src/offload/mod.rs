//! What the processes under `telpher offload` did with their long calls: as text and CSV.

mod dto;
mod running;
mod sites;

pub use dto::{DtoRow, DtoStatistics, dto_text};
pub use running::{RunningProcess, running_csv, running_text};
pub use sites::{OffloadedSite, sites_csv, sites_text};

use crate::csv;
use crate::table::{Align, Table};
use crate::units;
use serde::Serialize;

/// The long calls of one process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct OffloadedProcess {
    /// The process.
    pub pid: u32,
    /// Calls that the device executed.
    pub device_calls: u64,
    /// Bytes that the device executed.
    pub device_bytes: u64,
    /// Calls that stayed with the CPU because their data was in the caches.
    pub cached_calls: u64,
    /// Calls that the CPU executed and timed, to learn whether their data was in the caches.
    pub timed_calls: u64,
    /// Calls that the CPU executed for another reason: for example inside another call, of a denied library, or because
    /// their pages were absent.
    pub other_calls: u64,
    /// Bytes that the CPU executed.
    pub cpu_bytes: u64,
    /// Page faults of the device.
    pub faults: u64,
    /// Descriptors that a full queue refused.
    pub retries: u64,
    /// Nanoseconds in which threads had a descriptor at a simulated device; 0 without one.
    pub simulated_ns: u64,
    /// Descriptors for which the CPU took longer than the simulated device.
    pub late_descriptors: u64,
    /// Its call sites.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<OffloadedSite>,
}

impl OffloadedProcess {
    /// Returns the process without its call sites, which have lines of their own in CSV.
    fn without_sites(&self) -> OffloadedProcess {
        OffloadedProcess { sites: Vec::new(), ..*self }
    }
}

/// Maximum processes that are listed individually. Source: chosen.
const MOST: usize = 20;

/// Returns a table with one line for each process that made long calls.
#[must_use]
pub fn text(processes: &[OffloadedProcess]) -> String {
    let mut busy: Vec<&OffloadedProcess> =
        processes.iter().filter(|process| process.device_bytes + process.cpu_bytes > 0).collect();
    if busy.is_empty() {
        return format!(
            "No process made a call of the threshold or more ({} loaded a device).\nGo and Java copy with functions of \
             their own; --threshold lowers the threshold.\n",
            processes.len()
        );
    }
    busy.sort_by_key(|process| std::cmp::Reverse((process.device_bytes + process.cpu_bytes, process.pid)));
    let mut table = Table::new(&[
        ("process", Align::Right),
        ("by device", Align::Right),
        ("bytes", Align::Right),
        ("cached", Align::Right),
        ("timed", Align::Right),
        ("other", Align::Right),
        ("bytes by CPU", Align::Right),
        ("faults", Align::Right),
    ]);
    for process in busy.iter().take(MOST) {
        table.row([
            process.pid.to_string(),
            process.device_calls.to_string(),
            units::size(process.device_bytes),
            process.cached_calls.to_string(),
            process.timed_calls.to_string(),
            process.other_calls.to_string(),
            units::size(process.cpu_bytes),
            process.faults.to_string(),
        ]);
    }
    let simulated = simulated(&busy);
    let left = busy.len().saturating_sub(MOST);
    let more = if left > 0 { format!("and {left} processes with fewer bytes\n") } else { String::new() };
    format!(
        "Calls of the threshold or more\n\n{table}{more}\ncached, timed, other: calls that the CPU executed, because \
         their data was in\nthe caches, to learn whether it was, or for other reasons: inside another call,\nswitched \
         off, a denied caller, or absent pages\n{simulated}"
    )
}

/// Returns the time of the simulated device; empty without one.
fn simulated(processes: &[&OffloadedProcess]) -> String {
    let sum = |of: fn(&OffloadedProcess) -> u64| processes.iter().map(|process| of(process)).sum::<u64>();
    let (ns, late) = (sum(|process| process.simulated_ns), sum(|process| process.late_descriptors));
    if ns == 0 {
        return String::new();
    }
    let elapsed = if late == 0 {
        "No descriptor took the CPU longer, so the program's time is that with such a\ndevice.".into()
    } else {
        format!("{late} descriptors took the CPU longer, so the program's time is not that with such a\ndevice.")
    };
    format!("\nTime of calls at the simulated device: {}\n{elapsed}\n", units::time(ns as f64))
}

/// Returns one line for each process.
#[must_use]
pub fn csv(processes: &[OffloadedProcess]) -> String {
    csv::rows(&processes.iter().map(OffloadedProcess::without_sites).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_listed_by_bytes_and_idle_ones_are_left_out() {
        let process = |pid, device_bytes| OffloadedProcess { pid, device_bytes, ..OffloadedProcess::default() };
        let all = [process(1, 4096), process(2, 1 << 20), process(3, 0)];
        let text = text(&all);
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text}"));
        assert!(place("1 MiB") < place("4 KiB") && !text.contains("      3 "), "{text}");
        assert!(super::text(&all[2..]).contains("(1 loaded a device)"));
        assert_eq!(csv(&all).lines().count(), 4);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
