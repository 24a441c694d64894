//! Sums of the devices of all processes that shrink neither when a process ends nor when it cannot be read once, and
//! that count nothing twice when it can be read again.

use super::kinds::{Kinds, Present, Row};
use super::{DeviceRegion, unshown};
use crate::published::Holder;
use crate::snapshot::Snapshot;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use telpher_device::in_process::PublishedSlot;
use telpher_device::published::PublishedDevice;
use telpher_model::Totals;

/// A slot of a region of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SlotKey {
    process: u32,
    inode: u64,
    slot: u32,
}

/// Sums the devices of all processes that have the same queues and engines, and keeps the totals of processes that have
/// ended, as far as it has seen them. A process that cannot be read for a while counts as it was read last.
#[derive(Debug)]
pub struct DeviceSums {
    /// `/proc`, except in tests.
    proc: PathBuf,
    kinds: Kinds,
    /// The slots of the last reading, and those that could not be read then.
    last: BTreeMap<SlotKey, Seen>,
    /// The processes of these slots, by number and inode of the region.
    holders: BTreeMap<(u32, u64), Holder>,
    /// Counts the readings.
    reading: u64,
}

impl Default for DeviceSums {
    fn default() -> Self {
        DeviceSums::with_proc("/proc".into())
    }
}

/// What was seen of a slot.
#[derive(Debug)]
struct Seen {
    row: Row,
    device: PublishedDevice,
    is_open: bool,
    closed: u64,
    /// Its totals that are not zero, by position.
    all: Vec<(usize, u64)>,
    /// Those of devices that were closed, if one is open.
    earlier: Vec<(usize, u64)>,
}

impl Seen {
    fn of(row: Row, slot: &PublishedSlot) -> Seen {
        let earlier = if slot.is_open { slot.earlier.counted().collect() } else { Vec::new() };
        let (is_open, closed) = (slot.is_open, slot.closed);
        Seen { row, device: slot.device.clone(), is_open, closed, all: slot.all.counted().collect(), earlier }
    }

    /// Returns the slot as it was seen.
    fn slot(&self, number: u32) -> PublishedSlot {
        let all = totals(self.all.iter().copied());
        let earlier = if self.is_open { totals(self.earlier.iter().copied()) } else { all.clone() };
        let (is_open, closed) = (self.is_open, self.closed);
        PublishedSlot { slot: number, device: self.device.clone(), is_open, closed, all, earlier }
    }

    /// Returns what is missing in a later reading of the slot. A device's totals only grow, but a process can write
    /// anything. What is missing stays in the sum, so that no counter shrinks.
    fn missing_in(&self, later: &PublishedSlot) -> Option<Totals> {
        let missing = self.all.iter().map(|(at, total)| (*at, total.saturating_sub(later.all.word(*at))));
        missing.clone().any(|(_, missing)| missing != 0).then(|| totals(missing))
    }

    /// Returns the totals of the closed devices in a later reading of the slot, if it takes some of them back. At most
    /// all totals of the slot are those of closed devices.
    fn earlier_in(&self, later: &PublishedSlot) -> Option<Totals> {
        let earlier = if self.is_open { &self.earlier } else { &self.all };
        let kept = earlier.iter().map(|(at, total)| (*at, (*total).min(later.all.word(*at))));
        let taken_back: Vec<(usize, u64)> = kept.filter(|(at, total)| *total > later.earlier.word(*at)).collect();
        (!taken_back.is_empty()).then(|| totals(later.earlier.counted().chain(taken_back)))
    }

    fn devices(&self) -> u64 {
        self.closed.saturating_add(self.is_open.into())
    }
}

fn totals(words: impl Iterator<Item = (usize, u64)>) -> Totals {
    Totals::from_nonzero(words).expect("the positions are those of totals")
}

impl DeviceSums {
    /// Creates sums that look for regions below another folder than `/proc`, for tests.
    #[must_use]
    pub fn with_proc(proc: PathBuf) -> DeviceSums {
        DeviceSums { proc, kinds: Kinds::default(), last: BTreeMap::new(), holders: BTreeMap::new(), reading: 0 }
    }

    /// Returns the rows of a reading. Readings must be passed in their order.
    pub fn rows(&mut self, regions: &[DeviceRegion]) -> Snapshot {
        self.reading += 1;
        let mut present: BTreeMap<SlotKey, Cow<'_, PublishedSlot>> = BTreeMap::new();
        for DeviceRegion { pid, inode, slots, .. } in regions {
            let key = |slot: &PublishedSlot| SlotKey { process: *pid, inode: *inode, slot: slot.slot };
            present.extend(slots.iter().map(|slot| (key(slot), Cow::Borrowed(slot))));
            self.holders.entry((*pid, *inode)).or_insert_with(|| Holder::new(&self.proc, *pid));
        }
        for (key, slot) in &mut present {
            if let Some(earlier) = self.last.get(key).and_then(|seen| seen.earlier_in(slot)) {
                slot.to_mut().earlier = earlier;
            }
        }
        let mut now = self.seen_again(&present);
        let absent: Vec<(SlotKey, Row, PublishedSlot)> = now
            .iter()
            .filter(|(key, _)| !present.contains_key(key))
            .map(|(key, seen)| (*key, seen.row, seen.slot(key.slot)))
            .collect();
        for (key, slot) in &present {
            let row = || self.kinds.place(&slot.device, key.process, self.reading);
            let row = now.get(key).map_or_else(row, |seen| seen.row);
            now.insert(*key, Seen::of(row, slot));
        }
        let mut by_row: BTreeMap<Row, Vec<Present<'_>>> = BTreeMap::new();
        let read = present.iter().map(|(key, slot)| (key.process, now[key].row, &**slot));
        for (process, row, slot) in read.chain(absent.iter().map(|(key, row, slot)| (key.process, *row, slot))) {
            by_row.entry(row).or_default().push((process, slot));
        }
        let mut snapshot = Snapshot { problems: regions.iter().filter_map(unshown).collect(), ..Snapshot::default() };
        self.kinds.finish(&mut snapshot, |row| by_row.get(&row).map_or(&[][..], Vec::as_slice));
        self.last = now;
        let held: BTreeSet<(u32, u64)> = self.last.keys().map(|key| (key.process, key.inode)).collect();
        self.holders.retain(|region, _| held.contains(region));
        snapshot
    }

    /// Returns the slots of the last reading whose processes still publish them, and adds the others to those that have
    /// ended.
    fn seen_again(&mut self, present: &BTreeMap<SlotKey, Cow<'_, PublishedSlot>>) -> BTreeMap<SlotKey, Seen> {
        let mut kept = BTreeMap::new();
        let mut published: BTreeMap<(u32, u64), bool> = BTreeMap::new();
        for (key, seen) in std::mem::take(&mut self.last) {
            if let Some(slot) = present.get(&key) {
                if let Some(missing) = seen.missing_in(slot) {
                    self.kinds.add_ended(seen.row, &missing, 0);
                }
            } else {
                let SlotKey { process, inode, .. } = key;
                let holder = self.holders.get(&(process, inode));
                let look = || holder.is_some_and(|holder| holder.publishes(&self.proc, inode));
                if !*published.entry((process, inode)).or_insert_with(look) {
                    self.kinds.add_ended(seen.row, &totals(seen.all.iter().copied()), seen.devices());
                    continue;
                }
            }
            self.kinds.mark(seen.row, self.reading);
            kept.insert(key, seen);
        }
        kept
    }
}

#[cfg(test)]
mod tests;
