//! Settings of firmware and kernel with which a device works, and that change what programs get from the machine.

use super::{list, text};
use telpher_hw::Files;

/// The settings; a field is `None` where the machine does not say.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Bits of a physical address.
    pub(crate) physical_bits: Option<u32>,
    /// Of the idle states that are on, the one with the longest way back.
    pub(crate) deepest_idle: Option<IdleState>,
    /// The kernel moves pages to the nodes that use them.
    pub(crate) numa_balancing: bool,
    /// Reserved pages of 1 GiB.
    pub(crate) gigantic_pages: Option<u64>,
    /// The kernel can run virtual machines.
    pub(crate) hosts_machines: bool,
    /// Ways of the last-level cache that devices may fill, and all.
    pub(crate) cache_ways: Option<(u32, u32)>,
}

/// An idle state of the first processor, which represents all.
#[derive(Debug)]
pub(crate) struct IdleState {
    /// Its folder.
    pub(crate) folder: String,
    /// Its name, such as C6.
    pub(crate) name: String,
    /// Microseconds until the processor works again.
    pub(crate) latency_us: u64,
}

/// The folder of the idle states. Source: Linux, Documentation/admin-guide/pm/cpuidle.rst.
pub(crate) const IDLE: &str = "/sys/devices/system/cpu/cpu0/cpuidle";
/// The setting of NUMA balancing. Source: Linux, Documentation/admin-guide/sysctl/kernel.rst.
pub(crate) const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// The number of reserved pages of 1 GiB. Source: Linux, Documentation/admin-guide/mm/hugetlbpage.rst.
pub(crate) const GIGANTIC: &str = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
/// Modules with which the kernel runs virtual machines on Intel's processors.
const KVM: &str = "/sys/module/kvm_intel";
/// What resctrl says about the last-level cache, where it is mounted. Source: Linux,
/// Documentation/arch/x86/resctrl.rst.
pub(crate) const CACHE: &str = "/sys/fs/resctrl/info/L3";

impl Settings {
    pub(super) fn of(files: &dyn Files) -> Settings {
        let bits = |name: &str| {
            let mask = text(files, &format!("{CACHE}/{name}"))?;
            u32::from_str_radix(mask.trim_start_matches("0x"), 16).ok().map(u32::count_ones)
        };
        Settings {
            physical_bits: text(files, "/proc/cpuinfo").as_deref().and_then(physical_bits),
            deepest_idle: deepest_idle(files),
            numa_balancing: text(files, BALANCING).is_some_and(|setting| setting != "0"),
            gigantic_pages: text(files, GIGANTIC).and_then(|number| number.parse().ok()),
            hosts_machines: list(files, KVM).is_some(),
            cache_ways: bits("shareable_bitmask").zip(bits("cbm_mask")),
        }
    }
}

/// Parses `address sizes : 46 bits physical, 57 bits virtual`.
fn physical_bits(cpuinfo: &str) -> Option<u32> {
    let line = cpuinfo.lines().find(|line| line.starts_with("address sizes"))?;
    line.split_once(':')?.1.trim().split_once(" bits physical")?.0.parse().ok()
}

fn deepest_idle(files: &dyn Files) -> Option<IdleState> {
    let states = list(files, IDLE)?.into_iter().filter(|name| name.starts_with("state")).filter_map(|state| {
        let folder = format!("{IDLE}/{state}");
        let says = |file: &str| text(files, &format!("{folder}/{file}"));
        let (name, latency_us) = (says("name")?, says("latency")?.parse().ok()?);
        (says("disable").as_deref() != Some("1")).then_some(IdleState { folder, name, latency_us })
    });
    states.max_by_key(|state| state.latency_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_physical_address_are_those_of_the_line() {
        assert_eq!(physical_bits("flags : fpu\naddress sizes\t: 46 bits physical, 57 bits virtual\n"), Some(46));
        assert_eq!(physical_bits("flags : fpu\n"), None);
        assert_eq!(physical_bits("address sizes\t: none\n"), None);
    }
}
