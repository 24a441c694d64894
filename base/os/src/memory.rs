//! The available memory, checked before it is filled: a system without free memory kills programs without a message.

use crate::size;
use std::fs;
use std::path::Path;

/// There is too little memory.
#[derive(Debug, thiserror::Error)]
#[error("{what} would take {} of memory, and {} has {} left; {do_this}", size(*bytes), place(*node), size(*left))]
pub struct MemoryError {
    /// What would be in the memory.
    what: &'static str,
    bytes: u64,
    /// The NUMA node; none for the whole machine.
    node: Option<u32>,
    left: u64,
    /// Advice.
    do_this: &'static str,
}

fn place(node: Option<u32>) -> String {
    node.map_or("this machine".into(), |node| format!("NUMA node {node}"))
}

/// Checks that `bytes` bytes are available, on a node if one is named. If the system does not say, they are assumed to
/// be. `what` and `do_this` are parts of the error message: what needs the memory, and how to need less.
///
/// # Errors
/// If less memory is available.
pub fn check_memory(
    what: &'static str,
    bytes: u64,
    node: Option<u32>,
    do_this: &'static str,
) -> Result<(), MemoryError> {
    let here = node.and_then(|node| Some((Some(node), on(node)?)));
    let all = [here, available_memory().map(|left| (None, left))];
    match all.into_iter().flatten().find(|(_, left)| bytes > *left) {
        Some((node, left)) => Err(MemoryError { what, bytes, node, left, do_this }),
        None => Ok(()),
    }
}

/// Returns the bytes available without swapping, or this process' limit if that is lower.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let system = kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, &["MemAvailable:"]);
    [system, allowed(), addresses()].into_iter().flatten().min()
}

/// Returns the bytes of addresses that this process may still map (RLIMIT_AS).
fn addresses() -> Option<u64> {
    let most = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let mapped = kibibytes(&fs::read_to_string("/proc/self/status").ok()?, &["VmSize:"])?;
    Some(most.saturating_sub(mapped))
}

/// Bytes of a node that are free, or kept for files only.
fn on(node: u32) -> Option<u64> {
    let meminfo = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    let names = ["MemFree:", "Active(file):", "Inactive(file):"];
    // `Node 0 MemFree: 12 kB`
    let lines: Vec<&str> = meminfo.lines().filter_map(|line| line.splitn(3, ' ').nth(2)).collect();
    kibibytes(&lines.join("\n"), &names)
}

/// The sum of the lines of these names, in bytes; nothing if one is missing.
fn kibibytes(meminfo: &str, names: &[&str]) -> Option<u64> {
    let line = |name: &str| meminfo.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let number =
        |name: &&str| line(name)?.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()?.checked_mul(1024);
    names.iter().map(number).sum()
}

/// Returns the bytes that this process' control groups still allow (cgroups, version 2: `memory.max` of each, from its
/// own upward).
fn allowed() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    root.join(own).ancestors().take_while(|group| group.starts_with(root)).filter_map(left_in).min()
}

fn left_in(group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // Without a limit there is `max` instead.
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    // Pages of files are given back when others are wanted.
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let files = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let kept = files("inactive_file ").unwrap_or(0) + files("active_file ").unwrap_or(0);
    Some(most.saturating_sub(used.saturating_sub(kept)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_lines_is_none_if_one_is_missing() {
        let meminfo = "MemFree:   12 kB\nActive(file):  3 kB\n";
        assert_eq!(kibibytes(meminfo, &["MemFree:", "Active(file):"]), Some(15 << 10));
        assert_eq!(kibibytes(meminfo, &["MemFree:", "Inactive(file):"]), None);
    }

    #[test]
    fn too_large_a_request_is_refused_with_a_remedy() {
        check_memory("a byte", 1, None, "").expect("there is a byte");
        let Some(left) = available_memory() else { return };
        assert!(left > 0);
        let message = check_memory("all", u64::MAX, None, "ask for less").unwrap_err().to_string();
        assert!(message.contains("all would take") && message.ends_with("left; ask for less"), "{message}");
    }
}
