//! What the processes of a run have counted.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use telpher_metrics::{Record as _, RegionReader};
use telpher_offload_wire::Counters;

/// The most bytes of a process' counters that are read. Source: chosen; the files have a few kilobytes.
const MOST_BYTES: u64 = 1 << 20;

/// What one process has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its counters.
    pub counters: Counters,
}

/// Returns what the processes that write into a folder have counted, sorted by process. Files that are no counters of
/// this version are skipped.
///
/// # Errors
/// If the folder cannot be read.
pub fn processes(folder: &Path) -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_suffix(".counters")?.parse().ok());
        if let Some(pid) = pid
            && let Some(counters) = read(&entry.path())
        {
            processes.push(Process { pid, counters });
        }
    }
    processes.sort_by_key(|process| process.pid);
    Ok(processes)
}

/// Reads the counters in a file.
fn read(path: &Path) -> Option<Counters> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().ok().map(|bytes| AtomicU64::new(u64::from_ne_bytes(bytes)));
    let words: Vec<AtomicU64> = bytes.chunks_exact(8).filter_map(word).collect();
    let found = RegionReader::open(&words).ok()?.snapshot();
    let mut values = found.sets.first()?.values.iter();
    Some(Counters::build(&mut || values.next().copied().unwrap_or_default()))
}
