//! Checks whether a control group denies the program resources that it needs.

use crate::causes;
use crate::examined_machine::ExaminedMachine;
use crate::finding::Finding;

/// One processor, in thousandths.
const WHOLE: u64 = 1000;

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((path, quota)) = p.container.quota.as_ref().filter(|(_, quota)| *quota < WHOLE) {
        findings.push(
            Finding::of(&causes::CPU_QUOTA, "this process")
                .seen(p.seen(path))
                .because(format!("It allows {}.{:03} of a processor.", quota / WHOLE, quota % WHOLE))
                .remedy("raise the limit (Docker: --cpus, Kubernetes: resources.limits.cpu, systemd: CPUQuota=)")
                .remedy("or wait without spinning: telpher's policy of predicted sleep, or UMWAIT"),
        );
    }
    if p.memory.reserved > 0 && !p.container.no_huge_pages.is_empty() {
        findings.push(
            Finding::of(&causes::HUGETLB_LIMIT, "this process")
                .all_seen(p.container.no_huge_pages.iter().map(|path| p.seen(path)))
                .remedy(
                    "Kubernetes: resources.limits.hugepages-2Mi; otherwise: echo max > the file, in the group above",
                ),
        );
    }
    findings
}
