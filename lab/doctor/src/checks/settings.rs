//! Checks of firmware and boot settings with which a device works. All are notes: whether a setting is wrong depends on
//! what the machine is for.

use crate::causes;
use crate::examined_machine::{BALANCING, CACHE, ExaminedMachine, GIGANTIC, NUMA};
use crate::finding::Finding;

/// Bits to which a firmware setting limits physical addresses; processors with DSA have 52. Source: the setting's name,
/// "Limit CPU PA to 46 bits".
const LIMITED_BITS: u32 = 46;
/// Microseconds from which the way back from an idle state is longer than a copy. Source: chosen; a device copies 1 MiB
/// in some 35 µs.
const LONG_WAY_US: u64 = 100;
/// Ways of the last-level cache that devices may fill on machines as they are delivered. Source: Kuper et al., ASPLOS
/// 2024, §4.3: two of the ways, for all devices together.
const FEW_WAYS: u32 = 2;

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let settings = &p.settings;
    let mut findings = Vec::new();
    if p.cpu.name.contains("CPU Max") && p.numa.iter().all(|node| !node.cpus.is_empty()) {
        findings.push(
            Finding::of(&causes::HBM_NOT_A_NODE, "the machine")
                .seen(p.seen_line("/proc/cpuinfo", "model name"))
                .all_seen(p.numa.iter().map(|node| p.seen(&format!("{NUMA}/node{}/cpulist", node.number))))
                .because(
                    "Each memory node has processors. In flat mode the high-bandwidth memory is nodes of its own, \
                     without processors, to which a device can copy; in cache mode no program sees it.",
                )
                .remedy("firmware setup: set the memory mode (`Memory Hierarchy`) to flat")
                .remedy("numactl --hardware    # then shows memory nodes without processors"),
        );
    }
    if !p.cpu.is_guest()
        && p.cpu.is_of_a_family_with_dsa()
        && settings.physical_bits.is_some_and(|bits| bits <= LIMITED_BITS)
    {
        findings.push(
            Finding::of(&causes::ADDRESSES_LIMITED, "the machine")
                .seen(p.seen_line("/proc/cpuinfo", "address sizes"))
                .because("They reach 64 TiB. Keys of memory encryption (TME-MK) take bits away, too.")
                .remedy("firmware setup: switch off `Limit CPU PA to 46 bits`"),
        );
    }
    if let Some(idle) = settings.deepest_idle.as_ref().filter(|idle| idle.latency_us >= LONG_WAY_US) {
        findings.push(
            Finding::of(&causes::DEEP_IDLE_STATES, "the machine")
                .seen(p.seen(&format!("{}/name", idle.folder)))
                .seen(p.seen(&format!("{}/latency", idle.folder)))
                .because(format!(
                    "A thread that sleeps until a copy ends may wake {} µs later, from {}.",
                    idle.latency_us, idle.name
                ))
                .remedy("if latency matters, compare: boot with `intel_idle.max_cstate=1 processor.max_cstate=1`")
                .remedy(format!("or: cpupower idle-set --disable-by-latency {}", LONG_WAY_US - 1)),
        );
    }
    if settings.numa_balancing && p.numa.len() > 1 {
        findings.push(
            Finding::of(&causes::NUMA_BALANCING, "the machine")
                .seen(p.seen(BALANCING))
                .because(
                    "It makes pages inaccessible for a moment to see their use, which is a page fault for a device, \
                     too; and it moves the pages that `telpher tier run` moves.",
                )
                .remedy("sysctl kernel.numa_balancing=0")
                .remedy("or boot with `numa_balancing=disable`"),
        );
    }
    if settings.hosts_machines && settings.gigantic_pages == Some(0) {
        findings.push(
            Finding::of(&causes::GIGANTIC_PAGES_NONE, "the machine")
                .seen(p.seen(GIGANTIC))
                .because(
                    "Later there is rarely a free one; guests of `telpher vhost` need fewer translations with them.",
                )
                .remedy("boot with `hugepagesz=1G hugepages=N`, if guests shall have such pages"),
        );
    }
    if let Some((ways, all)) = settings.cache_ways.filter(|(ways, all)| *ways <= FEW_WAYS && ways < all) {
        findings.push(
            Finding::of(&causes::CACHE_WAYS_FEW, "the machine")
                .all_seen(["shareable_bitmask", "cbm_mask"].map(|file| p.seen(&format!("{CACHE}/{file}"))))
                .because(format!(
                    "Devices may fill {ways} of {all} ways. Results of several devices that are not read soon leave \
                     them (Kuper et al., ASPLOS 2024, §4.3)."
                ))
                .remedy("write results to memory (`--hint memory`, the policy's hint) where no core reads them soon")
                .remedy("or give devices more ways: the register IIO_LLC_WAYS, with the tools of your platform"),
        );
    }
    findings
}
