//! Processes that run under `telpher offload`: as text and CSV.

use super::OffloadedProcess;
use crate::csv;
use crate::table::{Align, Table, printable};
use crate::units;
use serde::Serialize;

/// One process that runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunningProcess {
    /// The program's name.
    pub command: String,
    /// Whether its calls may go to the device.
    pub is_on: bool,
    /// Bytes by the device in a second, since the last update; `None` at the first one.
    pub device_bytes_per_second: Option<f64>,
    /// Its calls since its start.
    #[serde(flatten)]
    pub calls: OffloadedProcess,
}

/// Returns a table with one line for each process, and one of their call sites.
#[must_use]
pub fn running_text(processes: &[RunningProcess]) -> String {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        right("process"),
        ("program", Align::Left),
        ("to", Align::Left),
        right("by device"),
        right("bytes"),
        right("per s"),
        right("by CPU"),
        right("share"),
        right("faults"),
    ]);
    for RunningProcess { command, is_on, device_bytes_per_second, calls } in processes {
        let all = calls.device_bytes + calls.cpu_bytes;
        table.row([
            calls.pid.to_string(),
            printable(command),
            if *is_on { "device" } else { "CPU" }.into(),
            calls.device_calls.to_string(),
            units::size(calls.device_bytes),
            device_bytes_per_second.map_or("–".into(), units::rate),
            (calls.cached_calls + calls.timed_calls + calls.other_calls).to_string(),
            if all == 0 { "–".into() } else { format!("{:.0} %", 100.0 * calls.device_bytes as f64 / all as f64) },
            calls.faults.to_string(),
        ]);
    }
    let mut sites = super::sites_text(processes.iter().map(|process| &process.calls));
    if !sites.is_empty() {
        sites.insert(0, '\n');
    }
    format!(
        "{table}\nto: where long calls may go (telpher offload on PID, off PID)\nshare: bytes by the device, of those \
         of long calls\n{sites}"
    )
}

/// Returns one line for each process.
#[must_use]
pub fn running_csv(processes: &[RunningProcess]) -> String {
    let without_sites = |process: &RunningProcess| RunningProcess {
        command: process.command.clone(),
        calls: process.calls.without_sites(),
        ..*process
    };
    csv::rows(&processes.iter().map(without_sites).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_share_of_the_device_and_a_name_without_control_characters() {
        let calls =
            OffloadedProcess { pid: 4711, device_bytes: 3 << 20, cpu_bytes: 1 << 20, ..OffloadedProcess::default() };
        let off =
            RunningProcess { command: "re\x1bdis".into(), is_on: false, device_bytes_per_second: Some(2e9), calls };
        let fresh = RunningProcess {
            command: "sort".into(),
            is_on: true,
            device_bytes_per_second: None,
            calls: OffloadedProcess::default(),
        };
        let rows = [off, fresh];
        let text = running_text(&rows);
        let line =
            |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}")).to_owned();
        assert!(
            ["4711", "CPU", "3 MiB", "75 %", "2.00 GB/s"].iter().all(|word| line("re\u{fffd}dis").contains(word)),
            "{text}"
        );
        assert!(line("sort").contains("device") && line("sort").contains("–"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let csv = running_csv(&rows);
        let header: Vec<&str> = csv.lines().next().unwrap_or_default().split(',').collect();
        assert!(["command", "is_on", "pid", "device_calls"].iter().all(|column| header.contains(column)), "{csv}");
        assert_eq!(csv.lines().count(), 3);
    }
}
