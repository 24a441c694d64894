//! Call sites of processes under `telpher offload`: as text and CSV.

use super::OffloadedProcess;
use crate::csv;
use crate::table::{Align, Table, last_characters};
use crate::units;
use serde::Serialize;

/// The long calls of one call site.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct OffloadedSite {
    /// The function of the call, with the distance from its begin; or the file with the offset.
    pub site: String,
    /// The file of the call; empty if it belongs to none.
    pub file: String,
    /// The return address, relative to the file's first mapping.
    pub offset: u64,
    /// What executes its calls, and why: `device`, `CPU: data cached`.
    pub verdict: &'static str,
    /// Its calls.
    pub calls: u64,
    /// Calls that the device executed, at least in part.
    pub device_calls: u64,
    /// Bytes that the device executed.
    pub device_bytes: u64,
    /// Bytes that the CPU executed.
    pub cpu_bytes: u64,
}

/// Maximum sites that are listed. Source: chosen; two to eight sites have nearly all bytes of the programs that were
/// looked at.
const MOST: usize = 20;
/// The longest name of a site.
const NAME: usize = 22;

/// Returns a table with one line for each call site, those with most bytes first; nothing if there is none.
#[must_use]
pub fn sites_text<'a>(processes: impl IntoIterator<Item = &'a OffloadedProcess>) -> String {
    let of_process = |process: &'a OffloadedProcess| process.sites.iter().map(|site| (process.pid, site));
    let mut sites: Vec<(u32, &OffloadedSite)> = processes.into_iter().flat_map(of_process).collect();
    sites.retain(|(_, site)| site.calls > 0);
    if sites.is_empty() {
        return String::new();
    }
    let bytes = |site: &OffloadedSite| site.device_bytes.saturating_add(site.cpu_bytes);
    sites.sort_by_key(|(pid, site)| (std::cmp::Reverse(bytes(site)), *pid));
    let mut table = Table::new(&[
        ("process", Align::Right),
        ("call site", Align::Left),
        ("calls", Align::Right),
        ("bytes", Align::Right),
        ("share", Align::Right),
        ("verdict", Align::Left),
    ]);
    for (pid, site) in sites.iter().take(MOST) {
        let all = bytes(site);
        table.row([
            pid.to_string(),
            last_characters(&site.site, NAME),
            site.calls.to_string(),
            units::size(all),
            if all == 0 { "–".into() } else { format!("{:.0} %", 100.0 * site.device_bytes as f64 / all as f64) },
            site.verdict.into(),
        ]);
    }
    let left = sites.len().saturating_sub(MOST);
    let more = if left > 0 { format!("and {left} call sites with fewer bytes\n") } else { String::new() };
    format!("{table}{more}\nshare: bytes by the device, of those of the site\n")
}

/// Returns one line for each call site.
#[must_use]
pub fn sites_csv<'a>(processes: &'a [OffloadedProcess]) -> String {
    #[derive(Serialize)]
    struct Row<'a> {
        pid: u32,
        #[serde(flatten)]
        site: &'a OffloadedSite,
    }
    let of_process = |process: &'a OffloadedProcess| process.sites.iter().map(|site| Row { pid: process.pid, site });
    let rows: Vec<Row<'a>> = processes.iter().flat_map(of_process).collect();
    csv::rows(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_listed_by_bytes_with_their_verdict_and_unused_ones_are_left_out() {
        let site = |site: &str, verdict, calls, device_bytes, cpu_bytes| OffloadedSite {
            site: site.into(),
            verdict,
            calls,
            device_bytes,
            cpu_bytes,
            ..OffloadedSite::default()
        };
        let long = "a::name<with, many, parameters>::that_is_long+0x17";
        let one = OffloadedProcess {
            pid: 17,
            sites: vec![site("small+0x1", "learning", 1, 0, 4096), site("unused", "device", 0, 0, 0)],
            ..OffloadedProcess::default()
        };
        let sites = vec![site(long, "CPU: pages absent", 1_000_000, 3 << 30, 1 << 30)];
        let two = OffloadedProcess { pid: 4_194_304, sites, ..OffloadedProcess::default() };
        let all = [one, two];
        let text = sites_text(&all);
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text}"));
        assert!(place("is_long+0x17") < place("small+0x1") && place("75 %") < place("learning"), "{text}");
        assert!(!text.contains("unused"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(sites_text(&[]), "");
        let csv = sites_csv(&all);
        assert_eq!((csv.lines().count(), csv.lines().next().unwrap().contains("verdict")), (4, true), "{csv}");
    }
}
