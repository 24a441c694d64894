//! Devices that programs model in their own process: read from the memory that a process publishes, without its help.
//!
//! ```text
//! memfd:telpher-devices ──► DeviceRegion ─┬► rows: a device for each of a process, source process-PID
//!                                         └► DeviceSums: one for all with the same queues and engines, source programs
//! ```

use crate::device_rows::{Client, Closed, DeviceReading, Done, add_device};
use crate::opening::OPEN_FLAGS;
use crate::snapshot::{PROCESS, PROGRAMS, Snapshot, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use telpher_device::in_process::{self, OWN_PASID, PublishedSlot, subscription_of};
use telpher_device::published::PublishedDevice;
use telpher_model::{LONGEST_NS, Totals};
use telpher_os::monotonic_ns;

/// The most different devices that are remembered. Source: chosen; a configuration is one of a few.
const MOST_KINDS: usize = 64;

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
            no_log: "a device in a program has no event log",
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
                let occupancy = Value::unknown("the queue is in memory of the process alone");
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

/// What was seen of a slot.
#[derive(Debug)]
struct Seen {
    kind: usize,
    /// Its totals that are not zero, by position.
    totals: Vec<(usize, u64)>,
    /// The number of devices that it has or had.
    devices: u64,
}

impl Seen {
    /// True if the slot of a later reading is another one. The totals of a slot only grow: smaller ones are those of
    /// another process, which has the number now.
    fn has_ended(&self, later: Option<&Seen>) -> bool {
        let Some(later) = later else { return true };
        let later: BTreeMap<usize, u64> = later.totals.iter().copied().collect();
        self.totals.iter().any(|(at, total)| later.get(at).is_none_or(|later| later < total))
    }
}

/// Sums the devices of all processes that have the same queues and engines, and keeps the totals of processes that have
/// ended, as far as it has seen them.
#[derive(Debug, Default)]
pub struct DeviceSums {
    kinds: Vec<Kind>,
    /// The slots of the last reading, by process, region and number.
    last: BTreeMap<(u32, u64, u32), Seen>,
}

/// Devices with the same queues and engines.
#[derive(Debug)]
struct Kind {
    device: PublishedDevice,
    /// What processes that have ended have done, and the number of their devices.
    ended: Totals,
    ended_devices: u64,
}

/// A device without what may differ between two of the same kind.
fn kind_of(device: &PublishedDevice) -> PublishedDevice {
    let mut kind = PublishedDevice { state: String::new(), device: 0, ..device.clone() };
    kind.queues.iter_mut().for_each(|queue| queue.enabled = false);
    kind
}

impl DeviceSums {
    fn kind(&mut self, device: &PublishedDevice) -> Option<usize> {
        let wanted = kind_of(device);
        if let Some(at) = self.kinds.iter().position(|kind| kind_of(&kind.device) == wanted) {
            return Some(at);
        }
        if self.kinds.len() == MOST_KINDS {
            return None;
        }
        let number = u32::try_from(self.kinds.len()).unwrap_or(u32::MAX);
        let device = PublishedDevice { device: number, ..wanted };
        self.kinds.push(Kind { device, ended: Totals::default(), ended_devices: 0 });
        Some(self.kinds.len() - 1)
    }

    /// Returns the rows of a reading. Readings must be passed in their order.
    pub fn rows(&mut self, regions: &[DeviceRegion]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut now = BTreeMap::new();
        let mut slots: Vec<Vec<(u32, &PublishedSlot)>> = Vec::new();
        for region in regions {
            for slot in &region.slots {
                let Some(kind) = self.kind(&slot.device) else {
                    let pid = region.pid;
                    snapshot.problems.push(format!("process {pid}: there are too many different devices in programs"));
                    continue;
                };
                slots.resize_with(self.kinds.len(), Vec::new);
                slots[kind].push((region.pid, slot));
                let devices = slot.closed.saturating_add(slot.is_open.into());
                let mut totals = Totals::default();
                totals.add(&slot.all);
                let seen = Seen { kind, totals: totals.nonzero().collect(), devices };
                now.insert((region.pid, region.inode, slot.slot), seen);
            }
            snapshot.problems.extend(unshown(region));
        }
        slots.resize_with(self.kinds.len(), Vec::new);
        for (_, seen) in self.last.iter().filter(|(slot, seen)| seen.has_ended(now.get(slot))) {
            let kind = &mut self.kinds[seen.kind];
            kind.ended.add(&Totals::from_nonzero(seen.totals.iter().copied()).unwrap_or_default());
            kind.ended_devices = kind.ended_devices.saturating_add(seen.devices);
        }
        self.last = now;
        for (kind, slots) in self.kinds.iter_mut().zip(slots) {
            let is_enabled = |wq: u32| {
                let of_slot = |(_, slot): &(u32, &PublishedSlot)| {
                    slot.is_open && slot.device.queues.iter().any(|queue| queue.wq == wq && queue.enabled)
                };
                slots.iter().any(of_slot)
            };
            let states = ["enabled", "halted", "disabled"];
            let has = |state: &&str| slots.iter().any(|(_, slot)| slot.device.state == *state);
            kind.device.state = states.into_iter().find(has).unwrap_or("closed").into();
            kind.device.queues.iter_mut().for_each(|queue| queue.enabled = is_enabled(queue.wq));
            let mut reading = DeviceReading::of_programs(&kind.device);
            slots.iter().for_each(|(pid, slot)| reading.add_slot(*pid, slot));
            reading.sum.add(&kind.ended);
            reading.add_closed(kind.ended_devices, &kind.ended);
            reading.finish(&mut snapshot, PROGRAMS);
        }
        snapshot
    }
}
