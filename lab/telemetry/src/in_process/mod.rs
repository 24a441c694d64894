//! Devices that programs model in their own process: read from the memory that a process publishes, without its help.
//!
//! ```text
//! memfd:telpher-devices ──► DeviceRegion ─┬► rows: a device for each of a process, source process-PID
//!                                         └► DeviceSums: one for all with the same queues and engines, source programs
//!                                            Kinds: which have a row of their own, and which are in the row "other"
//! ```

mod kinds;
mod sums;

pub use sums::DeviceSums;

use crate::device_rows::{Client, Closed, DeviceReading, Done, add_device};
use crate::opening::OPEN_FLAGS;
use crate::snapshot::{PROCESS, Snapshot, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use telpher_device::in_process::{self, OWN_PASID, PublishedSlot, subscription_of};
use telpher_device::published::PublishedDevice;
use telpher_model::{LONGEST_NS, Totals};
use telpher_os::monotonic_ns;

/// Why the descriptors that wait in a queue are unknown.
const NO_OCCUPANCY: &str = "the queue is in memory of the process alone";
/// Why the entries of the event log are unknown.
const NO_LOG: &str = "a device in a program has no event log";

/// Memory of this name, and the processes that have it open: the one that counts there, and its forked children.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) holders: Vec<u32>,
}

/// The devices that a process publishes in one region.
#[derive(Clone, Debug)]
pub struct DeviceRegion {
    /// The process.
    pub pid: u32,
    /// The inode of the region: another one is another region.
    pub inode: u64,
    /// Its devices of which nothing is known, because there was no slot for them.
    pub unshown: u64,
    /// The slots that a device has, or had.
    pub slots: Vec<PublishedSlot>,
    path: PathBuf,
}

impl DeviceRegion {
    /// Reads a region; `None` if the process that counts there has ended, and only children of it have the memory.
    pub(crate) fn read(proc: &Path, inode: u64, memory: &DeviceMemory) -> io::Result<Option<DeviceRegion>> {
        let mut bytes = Vec::new();
        let devices = in_process::read(|at, words| {
            bytes.resize(words.len() * 8, 0);
            memory.file.read_exact_at(&mut bytes, at as u64 * 8)?;
            let read = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            words.iter_mut().zip(read).for_each(|(word, value)| *word = value);
            Ok(())
        })?;
        let is_it =
            |pid: &&u32| own_number(&proc.join(pid.to_string())).unwrap_or_else(|| u64::from(**pid)) == devices.process;
        let region = |pid: &u32| DeviceRegion {
            pid: *pid,
            inode,
            unshown: devices.unshown,
            slots: devices.slots.clone(),
            path: memory.path.clone(),
        };
        Ok(memory.holders.iter().find(is_it).map(region))
    }

    /// Has the times of descriptors recorded for the open devices, for [`LONGEST_NS`] from now.
    pub fn subscribe(&self) {
        let until = monotonic_ns().saturating_add(LONGEST_NS);
        // A process that has ended needs no subscription. The write of an aligned word is not torn on x86.
        let Ok(file) = OpenOptions::new().write(true).custom_flags(OPEN_FLAGS).open(&self.path) else { return };
        if file.metadata().is_ok_and(|metadata| metadata.ino() == self.inode) {
            for slot in self.slots.iter().filter(|slot| slot.is_open) {
                let _ = file.write_all_at(&until.to_ne_bytes(), subscription_of(slot.slot) as u64 * 8);
            }
        }
    }
}

/// Returns the number by which a process knows itself: in a container, another one than outside.
fn own_number(folder: &Path) -> Option<u64> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

impl<'a> DeviceReading<'a> {
    /// A device of programs that has done nothing.
    fn of_programs(device: &'a PublishedDevice) -> DeviceReading<'a> {
        DeviceReading {
            device,
            sum: Totals::default(),
            queues: BTreeMap::new(),
            clients: Vec::new(),
            closed: Vec::new(),
            unread: BTreeSet::new(),
            no_log: NO_LOG,
        }
    }

    /// Adds a slot of a process: its open device is a client of each queue.
    fn add_slot(&mut self, pid: u32, slot: &PublishedSlot) {
        self.sum.add(&slot.all);
        if slot.is_open {
            let own = slot.all.since(&slot.earlier);
            let done = |wq| Done::of(&own, wq);
            let queues = || self.device.queues.iter().map(|queue| queue.wq);
            let first_used = queues().find(|wq| done(*wq) != Done::default()).or(queues().next());
            for wq in queues() {
                let occupancy = Value::unknown(NO_OCCUPANCY);
                let done = done(wq);
                // A device has many queues, most of which its program does not use.
                let is_shown = done != Done::default() || Some(wq) == first_used;
                self.clients.push(Client { wq, process: pid, pasid: OWN_PASID, done, occupancy, is_shown });
            }
        }
        self.add_closed(slot.closed, &slot.earlier);
    }

    /// Adds devices that were closed to the sums of their queues.
    fn add_closed(&mut self, number: u64, totals: &Totals) {
        for wq in self.device.queues.iter().map(|queue| queue.wq) {
            let more = Done::of(totals, wq);
            if more == Done::default() {
                continue;
            }
            match self.closed.iter_mut().find(|closed| closed.wq == wq) {
                Some(closed) => {
                    closed.files = closed.files.saturating_add(number);
                    closed.done = closed.done.and(&more);
                }
                None => self.closed.push(Closed { wq, files: number, done: more }),
            }
        }
    }

    /// Adds the rows.
    fn finish(mut self, snapshot: &mut Snapshot, source: &str) {
        self.queues = self.device.queues.iter().map(|queue| (queue.wq, Done::of(&self.sum, queue.wq))).collect();
        add_device(snapshot, source, &self);
    }
}

/// Returns the rows of the devices of each process.
#[must_use]
pub fn rows(regions: &[DeviceRegion]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    for region in regions {
        let source = format!("{PROCESS}{}", region.pid);
        for slot in &region.slots {
            let number = numbers.entry(region.pid).or_default();
            let device = PublishedDevice { device: *number, ..slot.device.clone() };
            *number += 1;
            let mut reading = DeviceReading::of_programs(&device);
            reading.add_slot(region.pid, slot);
            reading.finish(&mut snapshot, &source);
        }
        snapshot.problems.extend(unshown(region));
    }
    snapshot
}

fn unshown(region: &DeviceRegion) -> Option<String> {
    (region.unshown != 0).then(|| {
        format!(
            "process {}: what {} of its modelled devices have done is not known: it has too many at a time",
            region.pid, region.unshown
        )
    })
}
