//! Checks for huge pages.

use crate::causes;
use crate::examined_machine::{ExaminedMachine, TRANSPARENT};
use crate::finding::{Evidence, Finding};
use telpher_os::COST_OF_NEVER;

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let memory = &p.memory;
    let pools =
        |file: &str| -> Vec<Evidence> { memory.pools.iter().map(|pool| p.seen(&format!("{pool}/{file}"))).collect() };
    let remark = "DSA's own speed hardly depends on it (Kuper et al., ASPLOS 2024, Figure 8); DPDK and SPDK do not \
                  start without huge pages.";
    let mut findings = Vec::new();
    if memory.reserved > 0 && memory.free == 0 {
        findings.push(
            Finding::of(&causes::HUGE_PAGES_USED_UP, "the machine")
                .all_seen(pools("free_hugepages"))
                .because(remark)
                .remedy("grep -i huge /proc/*/smaps_rollup 2>/dev/null    # shows which processes use them")
                .remedy("sysctl vm.nr_hugepages=N    # reserves more"),
        );
    }
    if memory.reserved == 0 && memory.never_transparent {
        findings.push(
            Finding::of(&causes::HUGE_PAGES_NONE, "the machine")
                .all_seen(pools("nr_hugepages"))
                .seen(p.seen(TRANSPARENT))
                .because(remark)
                .because(format!("With `telpher tier run` {COST_OF_NEVER}."))
                .remedy("sysctl vm.nr_hugepages=1024    # reserves 2 GiB of 2 MiB pages")
                .remedy(format!("or: echo madvise > {TRANSPARENT}")),
        );
    } else {
        findings.extend(transparent(p));
    }
    findings
}

/// The effect of the transparent huge page setting on `telpher tier`, which needs no device.
pub(super) fn transparent(p: &ExaminedMachine<'_>) -> Option<Finding> {
    p.memory.never_transparent.then(|| {
        Finding::of(&causes::TRANSPARENT_HUGE_PAGES_OFF, "the machine")
            .seen(p.seen(TRANSPARENT))
            .because(format!("With `telpher tier run` {COST_OF_NEVER}."))
            .remedy(format!("echo madvise > {TRANSPARENT}    # for programs that request them"))
    })
}
