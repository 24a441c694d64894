//! What the processes of a run have learned, as verdicts for the next run.

use crate::processes::Process;
use std::collections::BTreeMap;
use telpher_offload_wire::sites::{SiteFile, SiteSnapshot};
use telpher_offload_wire::verdicts::SiteVerdict;

/// Returns the verdicts of all call sites, sorted by file and offset. Where processes differ, the executor of more
/// calls wins; the CPU does if both have as many.
///
/// Sites that are still being learned have no verdict, and neither have those of denied libraries.
#[must_use]
pub fn learned(processes: &[Process]) -> Vec<SiteVerdict> {
    let mut votes: BTreeMap<(SiteFile, u64), Votes> = BTreeMap::new();
    for site in processes.iter().flat_map(|process| &process.sites) {
        let SiteSnapshot { offset, file: Some(file), verdict, calls, .. } = site else { continue };
        // A forked child inherits sites that it may never use.
        let Some(by_device) = verdict.by_device().filter(|_| *calls > 0) else { continue };
        let votes = votes.entry((file.clone(), *offset)).or_default();
        let of_executor = if by_device { &mut votes.device } else { &mut votes.cpu };
        // The process may have written any number.
        *of_executor = of_executor.saturating_add(*calls);
    }
    let verdict = |((SiteFile { path, build_id }, offset), votes): ((SiteFile, u64), Votes)| SiteVerdict {
        by_device: votes.device > votes.cpu,
        build_id,
        offset,
        path,
    };
    votes.into_iter().map(verdict).collect()
}

/// The calls of processes that gave a site to the one or the other.
#[derive(Default)]
struct Votes {
    device: u64,
    cpu: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_offload_wire::Counters;
    use telpher_offload_wire::sites::Verdict;

    #[test]
    fn the_verdict_of_more_calls_wins_and_sites_without_one_are_left_out() {
        let site = |offset, verdict, calls| SiteSnapshot {
            offset,
            file: Some(SiteFile { path: "/usr/bin/x".into(), build_id: "0a".into() }),
            verdict,
            calls,
            device_calls: 0,
            device_bytes: 0,
            cpu_bytes: 0,
        };
        let process = |sites| Process { pid: 1, counters: Counters::default(), is_on: true, sites };
        let anonymous = SiteSnapshot { file: None, ..site(6, Verdict::Device, 9) };
        let processes = [
            process(vec![site(2, Verdict::Cached, 5), site(1, Verdict::Device, 10), anonymous]),
            process(vec![site(1, Verdict::Absent, 9), site(2, Verdict::GivenDevice, 5), site(3, Verdict::Device, 0)]),
            process(vec![site(3, Verdict::Learning, 9), site(4, Verdict::Denied, 9), site(5, Verdict::Always, 9)]),
        ];
        let found = learned(&processes);
        let found: Vec<_> = found.iter().map(|verdict| (verdict.offset, verdict.by_device)).collect();
        assert_eq!(found, [(1, true), (2, false)]);
    }
}
