//! Are there huge pages for programs that want them?

use crate::doctor::causes;
use crate::doctor::finding::{Evidence, Finding};
use crate::doctor::patient::{Patient, TRANSPARENT};

pub(super) fn examine(p: &Patient<'_>) -> Vec<Finding> {
    let memory = &p.memory;
    let pools =
        |file: &str| -> Vec<Evidence> { memory.pools.iter().map(|pool| p.seen(&format!("{pool}/{file}"))).collect() };
    let remark = "DSA's own speed hardly depends on it (Kuper et al., ASPLOS 2024, Figure 8); DPDK and SPDK do not start without.";
    if memory.reserved > 0 && memory.free == 0 {
        return vec![
            Finding::of(&causes::HUGE_PAGES_USED_UP, "the machine")
                .all_seen(pools("free_hugepages"))
                .because(remark)
                .remedy("grep -i huge /proc/*/smaps_rollup 2>/dev/null    # who has them")
                .remedy("sysctl vm.nr_hugepages=N    # more of them"),
        ];
    }
    if memory.reserved == 0 && memory.never_transparent {
        return vec![
            Finding::of(&causes::HUGE_PAGES_NONE, "the machine")
                .all_seen(pools("nr_hugepages"))
                .seen(p.seen(TRANSPARENT))
                .because(remark)
                .remedy("sysctl vm.nr_hugepages=1024    # reserves 2 GiB of 2 MiB pages")
                .remedy(format!("or: echo madvise > {TRANSPARENT}")),
        ];
    }
    Vec::new()
}
