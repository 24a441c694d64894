//! This process: capabilities, processors, memory, limits of its container.

use super::{list, text};
use crate::bundle::MAX_PATH;
use telpher_hw::Files;

/// CAP_SYS_RAWIO. Source: UAPI linux/capability.h.
const CAP_SYS_RAWIO: u32 = 17;
/// CAP_DAC_OVERRIDE.
const CAP_DAC_OVERRIDE: u32 = 1;

/// The examining process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    /// Whether CAP_SYS_RAWIO is in effect.
    pub(crate) rawio: Option<bool>,
    /// Whether CAP_SYS_RAWIO can be acquired.
    pub(crate) rawio_reachable: Option<bool>,
    /// Whether CAP_DAC_OVERRIDE is in effect, so that permission bits do not apply.
    pub(crate) overrides: Option<bool>,
    /// Its user ID for file access.
    pub(crate) uid: Option<u32>,
    /// Its group IDs for file access.
    pub(crate) groups: Vec<u32>,
    /// Whether it is in a user namespace other than the initial one, where capabilities grant less.
    pub(crate) in_user_namespace: bool,
    /// Processors that it may run on; `None` if not known.
    pub(crate) cpus: Option<Vec<u32>>,
}

/// The status file of the process.
pub(crate) const STATUS: &str = "/proc/self/status";
/// The file that says whether SELinux enforces its rules.
pub(crate) const SELINUX: &str = "/sys/fs/selinux/enforce";
/// The file that says whether AppArmor is on.
pub(crate) const APPARMOR: &str = "/sys/module/apparmor/parameters/enabled";
/// The file with this process' security label.
pub(crate) const LABEL: &str = "/proc/self/attr/current";
/// The file that describes its user namespace.
pub(crate) const UID_MAP: &str = "/proc/self/uid_map";

impl Process {
    pub(super) fn of(files: &dyn Files) -> Self {
        let status = text(files, STATUS).unwrap_or_default();
        let value = |key: &str| {
            status.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name == key).then(|| value.trim().to_owned())
            })
        };
        let capability = |key: &str, bit: u32| {
            let set = u64::from_str_radix(&value(key)?, 16).ok()?;
            Some(set >> bit & 1 == 1)
        };
        // Real, effective, saved and file system ID.
        let for_files = |key: &str| value(key)?.split_whitespace().nth(3)?.parse().ok();
        let more = value("Groups").unwrap_or_default();
        let groups = more.split_whitespace().filter_map(|group| group.parse().ok());
        for path in [SELINUX, APPARMOR, LABEL] {
            // Read so that a recording has the evidence of findings about nodes.
            let _ = text(files, path);
        }
        // The initial namespace maps all IDs onto themselves.
        let map = text(files, UID_MAP).unwrap_or_default();
        let whole = map.split_whitespace().collect::<Vec<_>>() == ["0", "0", "4294967295"];
        Process {
            rawio: capability("CapEff", CAP_SYS_RAWIO),
            rawio_reachable: capability("CapBnd", CAP_SYS_RAWIO),
            overrides: capability("CapEff", CAP_DAC_OVERRIDE),
            uid: for_files("Uid"),
            groups: groups.chain(for_files("Gid")).collect(),
            in_user_namespace: !map.is_empty() && !whole,
            cpus: value("Cpus_allowed_list").map(|list| numbers(&list)),
        }
    }
}

/// Parses a list: `0,2-5` is 0, 2, 3, 4, 5. A malformed list is empty. A list never exceeds the maximum number of
/// processors.
pub(crate) fn numbers(list: &str) -> Vec<u32> {
    /// Maximum number of processors of Linux on x86-64. Source: Linux arch/x86/Kconfig, NR_CPUS_RANGE_END 8192.
    const MOST: u32 = 1 << 16;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last < MOST).then_some(first..=last)
    });
    ranges.flatten().take(MOST as usize).collect()
}

/// Huge pages.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Reserved huge pages, of all sizes.
    pub(crate) reserved: u64,
    /// Reserved huge pages that are free.
    pub(crate) free: u64,
    /// Pools that were read.
    pub(crate) pools: Vec<String>,
    /// Whether transparent huge pages are off (`never`).
    pub(crate) never_transparent: bool,
}

/// The folder of huge page pools.
const POOLS: &str = "/sys/kernel/mm/hugepages";
/// The setting of transparent huge pages.
pub(crate) const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

impl Memory {
    pub(super) fn of(files: &dyn Files) -> Self {
        let mut memory = Memory::default();
        for name in list(files, POOLS).unwrap_or_default() {
            let count = |file: &str| text(files, &format!("{POOLS}/{name}/{file}"))?.parse::<u64>().ok();
            memory.reserved = memory.reserved.saturating_add(count("nr_hugepages").unwrap_or(0));
            memory.free = memory.free.saturating_add(count("free_hugepages").unwrap_or(0));
            memory.pools.push(format!("{POOLS}/{name}"));
        }
        memory.never_transparent = text(files, TRANSPARENT).is_some_and(|text| text.contains("[never]"));
        memory
    }
}

/// Limits of control groups, and signs of a container.
#[derive(Debug, Default)]
pub(crate) struct Container {
    /// Evidence that this is a container.
    pub(crate) signs: Vec<String>,
    /// A file with a processor quota, and the quota in thousandths of a processor.
    pub(crate) quota: Option<(String, u64)>,
    /// Files that forbid huge pages.
    pub(crate) no_huge_pages: Vec<String>,
}

/// Files that exist in containers only. Source: Docker, Podman, systemd's container interface.
const SIGNS: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];
/// Words in a control group's path that name a container's manager.
const MANAGERS: [&str; 5] = ["docker", "kubepods", "libpod", "lxc", "containerd"];
/// Sizes of pages that control groups limit. Source: Linux Documentation/admin-guide/cgroup-v2.rst.
const HUGE: [&str; 2] = ["hugetlb.2MB.max", "hugetlb.1GB.max"];

impl Container {
    pub(super) fn of(files: &dyn Files) -> Self {
        let mut container = Container::default();
        let signs = SIGNS.iter().filter(|path| text(files, path).is_some());
        container.signs = signs.map(|path| (*path).to_owned()).collect();
        let groups = text(files, "/proc/self/cgroup").unwrap_or_default();
        if MANAGERS.iter().any(|manager| groups.contains(manager)) {
            container.signs.push("/proc/self/cgroup".into());
        }
        // `0::/system.slice/x.service` is version 2; the groups above it limit too.
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let own = own.filter(|path| path.len() < MAX_PATH).unwrap_or("/");
        let mut at = own.trim_end_matches('/');
        loop {
            let folder = format!("/sys/fs/cgroup{at}");
            container.limits_of(files, &folder);
            let Some(cut) = at.rfind('/') else { break };
            at = &at[..cut];
        }
        container.old_quota(files);
        container
    }

    fn limits_of(&mut self, files: &dyn Files, folder: &str) {
        let path = format!("{folder}/cpu.max");
        let quota = text(files, &path).and_then(|text| {
            let (quota, period) = text.split_once(' ')?;
            thousandths(quota.parse().ok()?, period.parse().ok()?)
        });
        self.tighten(path, quota);
        for name in HUGE {
            let path = format!("{folder}/{name}");
            if text(files, &path).as_deref() == Some("0") {
                self.no_huge_pages.push(path);
            }
        }
    }

    /// Control groups of version 1, as a container sees its own.
    fn old_quota(&mut self, files: &dyn Files) {
        let path = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us";
        let number = |path: &str| text(files, path)?.parse::<i64>().ok().and_then(|value| u64::try_from(value).ok());
        // -1 means no quota and does not parse as `u64`.
        let quota = number(path).zip(number("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
        self.tighten(path.into(), quota.and_then(|(quota, period)| thousandths(quota, period)));
    }

    fn tighten(&mut self, path: String, quota: Option<u64>) {
        if let Some(quota) = quota
            && self.quota.as_ref().is_none_or(|(_, known)| quota < *known)
        {
            self.quota = Some((path, quota));
        }
    }
}

fn thousandths(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_parsed_and_malformed_ones_are_empty() {
        assert_eq!(numbers("0,2-5\n"), [0, 2, 3, 4, 5]);
        assert_eq!(numbers(""), [0; 0]);
        assert_eq!(numbers("x,3,-"), [3]);
        assert_eq!(numbers("0-4294967295"), [0; 0]);
        assert_eq!(numbers("5-2"), [0; 0]);
        assert_eq!(numbers(&"0-65535,".repeat(1000)).len(), 1 << 16);
    }

    #[test]
    fn a_quota_is_counted_in_thousandths_of_a_processor() {
        assert_eq!(thousandths(50_000, 100_000), Some(500));
        assert_eq!(thousandths(1, 0), None);
        assert_eq!(thousandths(u64::MAX, 1), None);
    }
}
