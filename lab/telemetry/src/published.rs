//! Reads the statistics that processes publish of themselves: regions of metrics (`telpher_metrics::Region`) in unnamed
//! memory files, which a process keeps open under a name that readers know (`telpher_os::PUBLISHED`).
//!
//! ```text
//! /proc/PID/fd/N ─┬► memfd:telpher-metrics ──► copied while no set is claimed ──► RegionReader ──► values by metric
//!                 └► memfd:telpher-devices ──► DeviceRegion: the devices that the process models itself
//! ```
//!
//! Only processes of this user are looked at. A file may have any content: it is copied, at most some hundred KiB of
//! it, and the copy is checked.

use crate::in_process::{DeviceMemory, DeviceRegion};
use crate::opening::OPEN_FLAGS;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use telpher_metrics::{Description, MetricSet, RegionReader};
use telpher_os::{PUBLISHED, PUBLISHED_DEVICES, PUBLISHED_FROM};

/// The most bytes of a region that are read. Source: chosen; a crate's region has some 20 KiB.
const MOST_BYTES: u64 = 512 << 10;
/// The most descriptors of a process that are looked at. Source: chosen; a process publishes one region for each set of
/// metrics.
const MOST_DESCRIPTORS: usize = 16;
/// Readings of a region whose sets are being claimed, before it is left out.
const READINGS: usize = 8;
/// The word of a region that is odd while a set is claimed, see `telpher_metrics::Region`.
const SEQUENCE: u64 = telpher_metrics::SEQUENCE_WORD as u64 * 8;

/// The last number that stands for a set of a process that is in no memory file, in place of an inode. Two processes
/// may have the same. Source: chosen; inodes of memory files are larger.
pub const LAST_OWN_SET: u64 = 1;

/// What one process publishes in one region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessMetrics {
    /// The process.
    pub pid: u32,
    /// The inode of the region: another one is another region. Up to [`LAST_OWN_SET`], the number of a set that is in
    /// no memory file.
    pub inode: u64,
    /// The descriptions of the values.
    pub metrics: Vec<Description>,
    /// The values, summed over the sets of the region.
    pub values: Vec<u64>,
}

impl ProcessMetrics {
    /// Describes what another reader has read of a process. The inode must be another one for each of its sets.
    #[must_use]
    pub fn of<S: MetricSet>(pid: u32, inode: u64, values: &S) -> ProcessMetrics {
        let metrics = S::METRICS.iter().map(Description::from).collect();
        ProcessMetrics { pid, inode, metrics, values: values.words() }
    }

    /// Describes those values of a set that another reader knows, by the names of their metrics.
    #[must_use]
    pub fn part<S: MetricSet>(pid: u32, inode: u64, known: &[(&str, u64)]) -> ProcessMetrics {
        let described = known.iter().filter_map(|(name, value)| {
            let metric = S::METRICS.iter().find(|metric| metric.name == *name)?;
            Some((Description::from(metric), *value))
        });
        let (metrics, values) = described.unzip();
        ProcessMetrics { pid, inode, metrics, values }
    }
}

/// Why a region was left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// The process.
    pub pid: u32,
    /// What is wrong, for people.
    pub why: String,
}

/// What the processes of this user publish.
#[derive(Debug, Default)]
pub struct Publications {
    /// The statistics of each process.
    pub processes: Vec<ProcessMetrics>,
    /// The devices that processes model themselves.
    pub devices: Vec<DeviceRegion>,
    /// What was left out.
    pub unread: Vec<Unread>,
}

/// Reads what the processes of this user publish, below `proc`, which is `/proc` except in tests. A region that a
/// process shares with its children is read once.
#[must_use]
pub fn read(proc: &Path) -> Publications {
    let user = rustix::process::geteuid().as_raw();
    let mut pids: Vec<u32> = fs::read_dir(proc)
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    pids.sort_unstable();
    let mut found = Found::default();
    for pid in pids {
        find(pid, proc, user, &mut found);
    }
    let mut publications =
        Publications { processes: found.metrics.into_values().collect(), unread: found.unread, ..Default::default() };
    for (inode, memory) in found.devices {
        match DeviceRegion::read(proc, inode, &memory) {
            Ok(region) => publications.devices.extend(region),
            Err(error) => publications.unread.push(Unread { pid: memory.holders[0], why: error.to_string() }),
        }
    }
    publications
}

/// A process in which a region was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pid: u32,
    /// When it was started, as far as that could be read: another process of its number has another time.
    started: Option<u64>,
}

impl Holder {
    pub(crate) fn new(proc: &Path, pid: u32) -> Holder {
        Holder { pid, started: started(proc, pid) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// True if the process has a region open, whether it can be read or not. False if it has ended or has closed the
    /// region.
    pub(crate) fn publishes(&self, proc: &Path, inode: u64) -> bool {
        let folder = proc.join(self.pid.to_string()).join("fd");
        for number in (PUBLISHED_FROM..).take(MOST_DESCRIPTORS) {
            match inode_of(proc, &folder.join(number.to_string())) {
                Ok(open) if open == Some(inode) => return true,
                Ok(_) => {}
                // A process without this number publishes nothing more: `find` stops there, too.
                Err(error) if is_closed(&error) => return false,
                // The process does not let this user look, is a zombie, or is another user's with the same number.
                Err(_) => return self.started.is_some() && started(proc, self.pid) == self.started,
            }
        }
        false
    }
}

/// Returns when a process was started, in ticks since boot; `None` if it has ended, also if its parent has not taken
/// notice.
fn started(proc: &Path, pid: u32) -> Option<u64> {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    // proc_pid_stat(5): the name in parentheses can have any bytes; the state is the third field, the start the 22nd.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let is_alive = !["Z", "X"].contains(&state);
    fields.nth(18).filter(|_| is_alive)?.parse().ok()
}

/// Returns the inode of a descriptor's file, if the file is a region. Another file's system may never answer.
fn inode_of(proc: &Path, path: &Path) -> io::Result<Option<u64>> {
    match region_name(proc, &fs::read_link(path)?) {
        Some(_) => fs::metadata(path).map(|metadata| Some(metadata.ino())),
        None => Ok(None),
    }
}

/// Returns the name of a region from the link of its descriptor. The kernel shows memory files in the root folder;
/// tests have theirs below `proc`.
fn region_name(proc: &Path, link: &Path) -> Option<&'static str> {
    let name = link.file_name()?.to_str()?.strip_prefix("memfd:")?.strip_suffix(" (deleted)")?;
    let folder = link.parent()?;
    let is_memory = folder == Path::new("/") || folder.starts_with(proc);
    [PUBLISHED, PUBLISHED_DEVICES].into_iter().find(|known| is_memory && *known == name)
}

/// True if a process has ended, or has no descriptor of this number.
fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENDED)
}

/// The process has ended meanwhile. Source: Linux, ESRCH.
const ENDED: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What was found so far, by inode.
#[derive(Debug, Default)]
struct Found {
    metrics: BTreeMap<u64, ProcessMetrics>,
    devices: BTreeMap<u64, DeviceMemory>,
    unread: Vec<Unread>,
}

fn find(pid: u32, proc: &Path, user: u32, found: &mut Found) {
    let folder = &proc.join(pid.to_string());
    for number in (PUBLISHED_FROM..).take(MOST_DESCRIPTORS) {
        let path = folder.join(format!("fd/{number}"));
        // A process without this number publishes nothing more, has ended, or belongs to a user whose processes the
        // kernel does not show.
        let Ok(link) = fs::read_link(&path) else { return };
        let Some(name) = region_name(proc, &link) else { continue };
        // Root is shown the processes of all users.
        if !fs::metadata(folder).is_ok_and(|process| process.uid() == user) {
            return;
        }
        match open(&path) {
            Ok((inode, file)) if name == PUBLISHED_DEVICES => {
                let memory = || DeviceMemory { file, path, holders: Vec::new() };
                found.devices.entry(inode).or_insert_with(memory).holders.push(pid);
            }
            Ok((inode, _)) if found.metrics.contains_key(&inode) => {}
            Ok((inode, file)) => match read_region(&file) {
                Ok((metrics, values)) => {
                    found.metrics.insert(inode, ProcessMetrics { pid, inode, metrics, values });
                }
                Err(error) => found.unread.push(Unread { pid, why: error.to_string() }),
            },
            // The process has closed it, or has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => found.unread.push(Unread { pid, why: error.to_string() }),
        }
    }
}

fn open(path: &Path) -> io::Result<(u64, File)> {
    let file = OpenOptions::new().read(true).custom_flags(OPEN_FLAGS).open(path)?;
    Ok((file.metadata()?.ino(), file))
}

/// Reads the values of a region, summed over its sets.
fn read_region(file: &File) -> io::Result<(Vec<Description>, Vec<u64>)> {
    let words: Vec<AtomicU64> = settled(file)?.into_iter().map(AtomicU64::new).collect();
    let reader = RegionReader::open(&words).map_err(io::Error::other)?;
    let metrics = reader.metrics().to_vec();
    let mut sums = vec![0_u64; metrics.len()];
    for set in reader.snapshot().sets {
        // Gauges of one set may be below zero: what one thread began, another one ended. Their sum is right.
        sums.iter_mut().zip(set.values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    Ok((metrics, sums))
}

/// Copies a region of which no set is being claimed meanwhile.
fn settled(file: &File) -> io::Result<Vec<u64>> {
    let word = |at| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).map(|()| u64::from_ne_bytes(bytes))
    };
    let metadata = file.metadata()?;
    let len = metadata.len();
    if !metadata.is_file() || len > MOST_BYTES {
        return Err(io::Error::other(format!("its region of metrics has {len} bytes; at most {MOST_BYTES} are read")));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    for _ in 0..READINGS {
        let before = word(SEQUENCE)?;
        file.read_exact_at(&mut bytes, 0)?;
        if before.is_multiple_of(2) && word(SEQUENCE)? == before {
            return Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect());
        }
    }
    Err(io::Error::other("its region of metrics is being changed all the time"))
}
