//! Reads the devices of a run, `telpher run`, from its index and the shared memory that the index names.
//!
//! Nothing is locked, and the run is not asked. The index is read again after the words: if it was replaced meanwhile,
//! a file may have been closed, and everything is read once more.

use crate::snapshot::{DeviceRow, EngineRow, NOT_RECORDED, ProcessRow, QueueRow, Snapshot, Value, Work, errors};
use rustix::fs::{Mode, OFlags};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use telpher_abi::{Opcode, Status};
use telpher_device::published::{INDEX, INDEX_VERSION, PublishedDevice, PublishedFile, RunIndex, SharedFile};
use telpher_model::{DeviceCounts, LONGEST_NS, OPERATIONS, QueueTotals, STATUSES, Totals};
use telpher_os::monotonic_ns;

/// The most bytes of an index. Source: chosen; ten times that of a run with all slots of eight queues in use.
const MOST_BYTES: u64 = 16 << 20;
/// Readings of a run whose files come and go, before the last one is taken as it is.
const READINGS: u32 = 8;

/// The reason of a sum that cannot be known.
const UNREAD: &str = "the totals of a process cannot be read";

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
    let file = OpenOptions::new().read(true).write(write).open(format!("/proc/{host}/fd/{}", shared.descriptor))?;
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

/// An open file with its numbers.
struct ReadFile<'a> {
    file: &'a PublishedFile,
    /// What it has done in its own queue.
    done: Done,
    occupancy: Value,
}

/// The numbers of a file, or of closed ones, in their queue.
struct Done {
    work: QueueTotals,
    retries: u64,
    lost: u64,
}

impl Done {
    fn of(totals: &Totals, wq: u32) -> Done {
        let wq = wq as usize;
        Done { work: totals.queue(wq), retries: totals.retries(wq), lost: totals.lost(wq) }
    }
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
    let mut files = Vec::new();
    let mut unread = BTreeSet::new();
    let (mut bytes, mut slots, mut sums) = (Vec::new(), BTreeMap::new(), Sums::new());
    for file in &index.files {
        match totals(index.host, file, &mut bytes) {
            Ok(totals) => {
                let occupancy = occupancy(index.host, file, &mut slots)
                    .map_or_else(|e| Value::unknown(e.to_string()), Value::Known);
                // The words of a guest may hold any queue: a file counts for its own queue only.
                sums.entry((file.device, file.wq)).or_default().add(&totals);
                files.push(ReadFile { file, done: Done::of(&totals, file.wq), occupancy });
            }
            Err(error) => {
                unread.insert((file.device, file.wq));
                snapshot.problems.push(format!(
                    "{source}: the totals of process {} at wq{}.{} cannot be read: {error}",
                    file.process, file.device, file.wq
                ));
            }
        }
    }
    for device in &index.devices {
        add_device(&mut snapshot, index, (&files, &mut sums), &unread, device, source);
    }
    snapshot
}

fn add_device(
    snapshot: &mut Snapshot,
    index: &RunIndex,
    (files, sums): (&[ReadFile<'_>], &mut Sums),
    unread: &BTreeSet<(u32, u32)>,
    device: &PublishedDevice,
    source: &str,
) {
    // A sum without one of its files would be a wrong number.
    let is_whole = !unread.iter().any(|(of, _)| *of == device.device);
    let known = |is_whole: bool, value: u64| if is_whole { value.into() } else { Value::unknown(UNREAD) };
    let work = |is_whole: bool, totals: QueueTotals| if is_whole { totals.into() } else { Work::unknown(UNREAD) };
    let files = || files.iter().filter(|read| read.file.device == device.device);
    let departed = || {
        let of_device = index.departed.iter().filter(|departed| departed.device == device.device);
        of_device.filter_map(|departed| Some((departed, departed.totals()?)))
    };
    let number = |queue: u32| queue as usize;
    departed().for_each(|(departed, totals)| sums.entry((device.device, departed.wq)).or_default().add(&totals));
    let mut sum = Totals::default();
    sums.range((device.device, 0)..=(device.device, u32::MAX)).for_each(|(_, totals)| sum.add(totals));
    let mut all = QueueTotals::default();
    let (mut shared, mut dedicated) = (0_u64, 0_u64);
    let (mut retries, mut lost) = (0_u64, 0_u64);
    for queue in &device.queues {
        let totals = sums.remove(&(device.device, queue.wq)).unwrap_or_default();
        let done = totals.queue(number(queue.wq));
        all = [all, done].into_iter().sum();
        let is_read = !unread.contains(&(device.device, queue.wq));
        let requests = if queue.dedicated { &mut dedicated } else { &mut shared };
        *requests = requests.saturating_add(done.descriptors);
        retries = retries.saturating_add(totals.retries(number(queue.wq)));
        lost = lost.saturating_add(totals.lost(number(queue.wq)));
        let open = || files().filter(|read| read.file.wq == queue.wq);
        let waiting = open().try_fold(0_u64, |sum, read| Some(sum.saturating_add(read.occupancy.known()?)));
        snapshot.queues.push(QueueRow {
            source: source.into(),
            queue: format!("wq{}.{}", device.device, queue.wq),
            state: if queue.enabled { "enabled" } else { "disabled" }.into(),
            mode: if queue.dedicated { "dedicated" } else { "shared" }.into(),
            size: u64::from(queue.size).into(),
            threshold: if queue.dedicated {
                Value::unknown("a dedicated queue has none")
            } else {
                u64::from(queue.threshold).into()
            },
            priority: u64::from(queue.priority).into(),
            group: group(queue.group),
            clients: known(is_read, open().count() as u64),
            occupancy: waiting.filter(|_| is_read).map_or_else(|| Value::unknown(UNREAD), Value::Known),
            work: work(is_read, done),
            retries: known(is_read, totals.retries(number(queue.wq))),
            lost: known(is_read, totals.lost(number(queue.wq))),
        });
    }
    for engine in &device.engines {
        let times = sum.times(number(engine.engine));
        let recorded = |value: Option<u64>| value.map_or_else(|| Value::unknown(NOT_RECORDED), Value::Known);
        snapshot.engines.push(EngineRow {
            source: source.into(),
            engine: format!("engine{}.{}", device.device, engine.engine),
            group: group(engine.group),
            work: work(is_whole, sum.engine(number(engine.engine))),
            timed: recorded(times.as_ref().map(|times| times.count)),
            busy_ns: recorded(times.as_ref().map(|times| times.sum_ns)),
            times: times.map_or_else(Vec::new, |times| times.buckets.to_vec()),
        });
    }
    for read in files() {
        snapshot.processes.push(process(source, read));
    }
    for (departed, totals) in departed() {
        snapshot.processes.push(ProcessRow {
            source: source.into(),
            queue: format!("wq{}.{}", departed.device, departed.wq),
            pid: Value::unknown("the sum of closed files"),
            command: format!("{} closed", departed.files),
            pasid: Value::unknown("the sum of closed files"),
            ..row(&Done::of(&totals, departed.wq))
        });
    }
    let named = |count: usize, name: &dyn Fn(u8) -> String, of: &dyn Fn(u8) -> u64| {
        (0..).take(count).filter(|code| of(*code) != 0).map(|code| (name(code), of(code))).collect()
    };
    snapshot.devices.push(DeviceRow {
        source: source.into(),
        device: format!("dsa{}", device.device),
        state: device.state.clone(),
        clients: known(is_whole, files().count() as u64),
        work: work(is_whole, all),
        retries: known(is_whole, retries),
        lost: known(is_whole, lost),
        errors: known(is_whole, errors(&sum)),
        shared_requests: known(is_whole, shared),
        dedicated_requests: known(is_whole, dedicated),
        operations: named(OPERATIONS, &|code| Opcode::from_code(code).name().to_owned(), &|code| sum.operation(code)),
        statuses: named(STATUSES, &|code| format!("{:?}", Status::from_code(code)), &|code| sum.status(code)),
        logged: Value::unknown("a run shows the log inside, in debugfs"),
        logged_codes: Vec::new(),
    });
}

fn group(group: Option<u32>) -> Value {
    group.map_or_else(|| Value::unknown("in no group"), |group| u64::from(group).into())
}

/// The numbers of a process row, or of a sum.
fn row(done: &Done) -> ProcessRow {
    ProcessRow {
        source: String::new(),
        queue: String::new(),
        pid: Value::Known(0),
        command: String::new(),
        pasid: Value::Known(0),
        work: done.work.into(),
        retries: done.retries.into(),
        lost: done.lost.into(),
        record_faults: Value::unknown("the modelled driver does not count them by file"),
    }
}

fn process(source: &str, read: &ReadFile<'_>) -> ProcessRow {
    let PublishedFile { device, wq, process, pasid, .. } = *read.file;
    ProcessRow {
        source: source.into(),
        queue: format!("wq{device}.{wq}"),
        pid: u64::from(process).into(),
        command: command(process),
        pasid: u64::from(pasid).into(),
        ..row(&read.done)
    }
}

/// Returns the name of a process's program; empty if it has ended.
pub(crate) fn command(process: u32) -> String {
    // The kernel's names have at most 15 bytes.
    let mut name = [0; 64];
    let read =
        File::open(format!("/proc/{process}/comm")).and_then(|mut file| file.read(&mut name)).unwrap_or_default();
    // A program may put any characters into its name, also those that control a terminal.
    String::from_utf8_lossy(&name[..read]).trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
