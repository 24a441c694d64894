//! What the processes of a run have counted: totals, their call sites, and their calls by size if the user asks for
//! them.

use std::cmp::Reverse;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telpher_launch::{RunDirectory, RunKind};
use telpher_metrics::{Record as _, RegionReader};
use telpher_offload_wire::counters::{Counters, switch_word};
use telpher_offload_wire::sites::SiteSnapshot;
use telpher_offload_wire::statistics::StatisticsSnapshot;

/// The most bytes of a process' file that are read. Source: chosen; the files have 529 KiB at most.
const MOST_BYTES: u64 = 1 << 20;

/// What one process has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its counters.
    pub counters: Counters,
    /// Whether its calls may go to the device; false after `switch`.
    pub is_on: bool,
    /// Its call sites, those with most bytes first. A process that has executed another program has sites of both.
    pub sites: Vec<SiteSnapshot>,
}

/// The calls of one process by their size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessStatistics {
    /// Its number.
    pub pid: u32,
    /// How long it ran; until now if it ended without its destructors.
    pub run_time: Duration,
    /// Ticks of the time stamp counter in a microsecond.
    pub ticks_per_us: u64,
    /// Its calls.
    pub calls: StatisticsSnapshot,
}

/// Returns what the processes that write into a folder have counted, sorted by process. Files that are no counters of
/// this version are skipped.
///
/// # Errors
/// If the folder cannot be read.
pub fn processes(folder: &Path) -> io::Result<Vec<Process>> {
    let mut processes: Vec<Process> = Vec::new();
    for process in files(folder, "counters")?.into_iter().filter_map(|(pid, path)| read(pid, &path)) {
        match processes.last_mut() {
            // It has executed another program: the sum of both.
            Some(last) if last.pid == process.pid => {
                last.counters = last.counters.combine(&process.counters, &mut u64::wrapping_add);
                last.is_on = process.is_on;
            }
            _ => processes.push(process),
        }
    }
    let mut sites = files(folder, "sites")?;
    for process in &mut processes {
        let of_process = sites.extract_if(.., |(pid, _)| *pid == process.pid);
        let found = of_process.filter_map(|(_, path)| words(&path));
        process.sites = found.flat_map(|words| SiteSnapshot::read(&words)).collect();
        process.sites.sort_by_key(|site| Reverse(site.device_bytes.saturating_add(site.cpu_bytes)));
    }
    Ok(processes)
}

/// Returns the processes of all runs of this user that are alive, each with its folder.
#[must_use]
pub fn running() -> Vec<(PathBuf, Process)> {
    let of_run = |folder: PathBuf| {
        // A run may end, and its folder disappear, while it is read.
        let found = processes(&folder).unwrap_or_default();
        found.into_iter().filter(|process| lives(process.pid)).map(move |process| (folder.clone(), process))
    };
    RunDirectory::running(RunKind::Offload).into_iter().flat_map(of_run).collect()
}

/// Returns whether a process exists and has not ended.
fn lives(pid: u32) -> bool {
    // The state follows the name, which is in parentheses and may contain any character.
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Returns the calls by size of the processes that write into a folder, sorted by process. Files that are no statistics
/// of this version are skipped.
///
/// # Errors
/// If the folder cannot be read.
pub fn statistics(folder: &Path) -> io::Result<Vec<ProcessStatistics>> {
    let found = files(folder, "statistics")?;
    Ok(found.into_iter().filter_map(|(pid, path)| read_statistics(pid, &path)).collect())
}

/// Returns the files of a kind in a folder, sorted by process. A process that has executed other programs has several:
/// `PID.kind`, `PID-1.kind` and so on.
pub(crate) fn files(folder: &Path, kind: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.split('-').next()?.parse().ok());
        if let Some(pid) = pid
            && path.extension().is_some_and(|extension| extension == kind)
        {
            found.push((pid, path));
        }
    }
    // A longer name is a later one.
    found.sort_unstable_by(|(a, path), (b, other)| {
        (a, path.as_os_str().len(), path).cmp(&(b, other.as_os_str().len(), other))
    });
    Ok(found)
}

/// Reads the words of a file.
fn words(path: &Path) -> Option<Vec<u64>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok().map(u64::from_ne_bytes)).collect())
}

/// Reads the counters in a file.
fn read(pid: u32, path: &Path) -> Option<Process> {
    let words: Vec<AtomicU64> = words(path)?.into_iter().map(AtomicU64::new).collect();
    // The file is shorter while the process creates it, or if another version wrote it.
    let is_on = words.get(switch_word())?.load(Ordering::Relaxed) == 0;
    let found = RegionReader::open(&words).ok()?.snapshot();
    let mut values = found.sets.first()?.values.iter();
    let counters = Counters::build(&mut || values.next().copied().unwrap_or_default());
    Some(Process { pid, counters, is_on, sites: Vec::new() })
}

/// Reads the statistics in a file.
fn read_statistics(pid: u32, path: &Path) -> Option<ProcessStatistics> {
    let calls = StatisticsSnapshot::read(&words(path)?)?;
    let (ticks, now_ns) = (telpher_os::ticks(), now_ns());
    // The counter has a constant rate, so its rate since the process' start is that of the calls.
    let since_us = now_ns.saturating_sub(calls.start_ns) / 1000;
    let ticks_per_us = ticks.saturating_sub(calls.start_ticks) / since_us.max(1);
    let run_time = Duration::from_nanos(calls.end_ns.unwrap_or(now_ns).saturating_sub(calls.start_ns));
    Some(ProcessStatistics { pid, run_time, ticks_per_us: ticks_per_us.max(1), calls })
}

/// Returns the time since the machine was started, as the processes note it.
fn now_ns() -> u64 {
    telpher_os::clock_ns(rustix::time::ClockId::Boottime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_offload_wire::statistics::{Group, Operation, Statistics, WORDS};

    #[test]
    fn only_whole_files_of_processes_are_read() {
        let folder = std::env::temp_dir().join(format!("telpher-offload-files-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        // It began a second ago, at a rate of about 1 GHz.
        let (ticks, began) = (telpher_os::ticks(), now_ns() - 1_000_000_000);
        let started = Statistics::begin(&words, b"sort", ticks.saturating_sub(1_000_000_000), began).unwrap();
        started.count(Operation::Move, 8192, Group::Device, 8192, 3);
        started.end(began + 5_000_000);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        std::fs::write(folder.join("17.statistics"), &bytes).unwrap();
        std::fs::write(folder.join("18.statistics"), &bytes[..bytes.len() - 8]).unwrap();
        std::fs::write(folder.join("x.statistics"), &bytes).unwrap();
        std::fs::write(folder.join("19.counters"), &bytes).unwrap();
        let (found, counters) = (statistics(&folder).unwrap(), processes(&folder).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(counters, []);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.pid, one.run_time, one.calls.program.as_str()), (17, Duration::from_millis(5), "sort"));
        // The test itself takes a part of a second at most.
        assert!((500..=2000).contains(&one.ticks_per_us), "{}", one.ticks_per_us);
        assert_eq!(one.calls.buckets[0].calls[Group::Device as usize][Operation::Move as usize], 1);
    }
}
