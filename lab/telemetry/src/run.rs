//! Reads the devices of a run, `telpher run`, from its index and the shared memory that the index names.
//!
//! Nothing is locked, and the run is not asked. The index is read again after the words: if it was replaced meanwhile,
//! a file may have been closed, and everything is read once more.

use crate::device_rows::{Client, Closed, DeviceReading, Done, add_device};
use crate::opening::OPEN_FLAGS;
use crate::snapshot::{Snapshot, Value};
use rustix::fs::{Mode, OFlags};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use telpher_device::published::{INDEX, INDEX_VERSION, PublishedFile, RunIndex, SharedFile};
use telpher_model::{DeviceCounts, LONGEST_NS, Totals};
use telpher_os::monotonic_ns;

/// The most bytes of an index. Source: chosen; ten times that of a run with all slots of eight queues in use.
const MOST_BYTES: u64 = 16 << 20;
/// Readings of a run whose files come and go, before the last one is taken as it is.
const READINGS: u32 = 8;

/// Why the devices of a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The index cannot be read.
    #[error("cannot read {file}; the run may have ended")]
    Index {
        /// The index.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a valid index.
    #[error("{file} is not an index of devices")]
    Damaged {
        /// The index.
        file: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Another version.
    #[error("{file} has version {version} and this program reads {INDEX_VERSION}; use the telpher of that run")]
    Version {
        /// The index.
        file: String,
        /// Its version.
        version: u32,
    },
    /// Another user owns the index.
    #[error("{file} belongs to user {owner}; look as that user")]
    Owner {
        /// The index.
        file: String,
        /// Its owner.
        owner: u32,
    },
}

/// Reads the index in the directory of a run. Follows no link, and accepts only a file of this user.
///
/// # Errors
/// If there is no index of this version of this user.
pub fn index(directory: &Path) -> Result<RunIndex, ReadError> {
    let path = directory.join(INDEX);
    let name = || path.display().to_string();
    let failed = |source: io::Error| ReadError::Index { file: name(), source };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| failed(error.into()))?);
    let owner = file.metadata().map_err(failed)?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(ReadError::Owner { file: name(), owner });
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(failed)?;
    let index: RunIndex =
        serde_json::from_slice(&text).map_err(|source| ReadError::Damaged { file: name(), source })?;
    if index.version != INDEX_VERSION {
        return Err(ReadError::Version { file: name(), version: index.version });
    }
    Ok(index)
}

/// Opens shared memory of a host process; fails if another file has the descriptor's number now.
fn open(host: u32, shared: SharedFile, write: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    let file = options.custom_flags(OPEN_FLAGS).open(format!("/proc/{host}/fd/{}", shared.descriptor))?;
    if file.metadata()?.ino() == shared.inode {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::NotFound, "the descriptor belongs to another file now"))
    }
}

/// Reads the totals of an open file. `bytes` is for the words, and has any content.
fn totals(host: u32, file: &PublishedFile, bytes: &mut Vec<u8>) -> io::Result<Totals> {
    bytes.resize(DeviceCounts::WORDS * 8, 0);
    open(host, file.memory, false)?.read_exact_at(bytes, 0)?;
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    Totals::from_words(words).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Reads the number of descriptors of an open file that wait in its queue. The files of a queue have the same slots,
/// which are opened once.
fn occupancy(host: u32, file: &PublishedFile, opened: &mut BTreeMap<(i32, u64), File>) -> io::Result<u64> {
    let mut bytes = [0; 4];
    let slots = match opened.entry((file.slots.descriptor, file.slots.inode)) {
        Entry::Occupied(slots) => slots.into_mut(),
        Entry::Vacant(place) => place.insert(open(host, file.slots, false)?),
    };
    slots.read_exact_at(&mut bytes, u64::from(file.slot) * 4)?;
    Ok(u32::from_ne_bytes(bytes).into())
}

/// Has the times of descriptors recorded for all open files of a run, for [`LONGEST_NS`] from now. Files that are
/// opened later are included by the next call. Returns the number of files.
///
/// # Errors
/// If there is no index.
pub fn subscribe(directory: &Path) -> Result<usize, ReadError> {
    let index = index(directory)?;
    let until = monotonic_ns().saturating_add(LONGEST_NS);
    let at = DeviceCounts::SUBSCRIPTION as u64 * 8;
    // A file that is closed meanwhile needs no subscription. The write of an aligned word is not torn on x86.
    let written = index.files.iter().filter(|file| {
        open(index.host, file.memory, true).and_then(|memory| memory.write_all_at(&until.to_ne_bytes(), at)).is_ok()
    });
    Ok(written.count())
}

/// The sums of the words of files by device and queue.
type Sums = BTreeMap<(u32, u32), Totals>;

/// Reads the devices of a run. `source` names the run in the rows.
///
/// # Errors
/// If there is no index of this version of this user.
pub fn read(directory: &Path, source: &str) -> Result<Snapshot, ReadError> {
    let mut index_read = index(directory)?;
    for reading in 1..=READINGS {
        let snapshot = read_once(&index_read, source);
        let after = index(directory)?;
        if after.generation == index_read.generation || reading == READINGS {
            return Ok(snapshot);
        }
        index_read = after;
    }
    unreachable!("the last reading returns")
}

fn read_once(index: &RunIndex, source: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut clients: BTreeMap<u32, Vec<Client>> = BTreeMap::new();
    let mut unread = BTreeSet::new();
    let (mut bytes, mut slots, mut sums) = (Vec::new(), BTreeMap::new(), Sums::new());
    for file in &index.files {
        let PublishedFile { device, wq, process, pasid, .. } = *file;
        match totals(index.host, file, &mut bytes) {
            Ok(totals) => {
                let occupancy = occupancy(index.host, file, &mut slots)
                    .map_or_else(|e| Value::unknown(e.to_string()), Value::Known);
                // The words of a guest may hold any queue: a file counts for its own queue only.
                sums.entry((device, wq)).or_default().add(&totals);
                let done = Done::of(&totals, wq);
                let client = Client { wq, process, pasid, done, occupancy, is_shown: true };
                clients.entry(device).or_default().push(client);
            }
            Err(error) => {
                unread.insert((device, wq));
                snapshot.problems.push(format!(
                    "{source}: the totals of process {process} at wq{device}.{wq} cannot be read: {error}"
                ));
            }
        }
    }
    for device in &index.devices {
        let departed = index.departed.iter().filter(|departed| departed.device == device.device);
        let mut closed = Vec::new();
        for (departed, totals) in departed.filter_map(|departed| Some((departed, departed.totals()?))) {
            let (wq, files) = (departed.wq, departed.files);
            sums.entry((device.device, wq)).or_default().add(&totals);
            closed.push(Closed { wq, files, done: Done::of(&totals, wq) });
        }
        let mut sum = Totals::default();
        let mut queues = BTreeMap::new();
        for ((_, wq), totals) in sums.range((device.device, 0)..=(device.device, u32::MAX)) {
            sum.add(totals);
            queues.insert(*wq, Done::of(totals, *wq));
        }
        let reading = DeviceReading {
            device,
            sum,
            queues,
            clients: clients.remove(&device.device).unwrap_or_default(),
            closed,
            unread: unread.iter().filter(|(of, _)| *of == device.device).map(|(_, wq)| *wq).collect(),
            no_log: "a run shows the log inside, in debugfs",
        };
        add_device(&mut snapshot, source, &reading);
    }
    snapshot
}
