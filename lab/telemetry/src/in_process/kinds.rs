//! Which devices of programs have a row: one for all with the same queues and engines.
//!
//! ```text
//! a device's queues and engines ─► Kinds ─┬► a row: at most 64, and 8 for one process
//!                                         └► the row "other": for devices without, and kinds whose row was removed
//! ```
//!
//! A process can describe any devices, and a new kind each time it is read. If there are as many rows as may be, the
//! row of the kind that ended programs used the longest time ago is removed; its totals go to the row "other".

use super::{NO_LOG, NO_OCCUPANCY};
use crate::device_rows::{Client, Closed, DeviceReading, Done, OtherReading, add_other};
use crate::snapshot::{PROGRAMS, Snapshot, Value};
use telpher_device::in_process::{OWN_PASID, PublishedSlot};
use telpher_device::published::PublishedDevice;
use telpher_model::Totals;

/// The most kinds that have a row. Source: chosen; the configurations of a machine are a few.
pub(super) const MOST_KINDS: usize = 64;
/// The most rows of kinds that one process has brought. Source: chosen; most programs have one or two devices.
pub(super) const MOST_OF_PROCESS: usize = 8;

/// The kinds, by the number of their row's device.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    rows: Vec<Kind>,
    /// The number of the next row. No number is used twice, so that a counter never becomes another one.
    next: u32,
    other: Other,
}

/// Devices with the same queues and engines.
#[derive(Debug)]
struct Kind {
    device: PublishedDevice,
    /// The process that had the first of them.
    brought_by: u32,
    /// The last reading that had one of them.
    used: u64,
    ended: Ended,
}

/// What processes that have ended have done.
#[derive(Debug, Default)]
struct Ended {
    totals: Totals,
    devices: u64,
}

/// The sum of devices without a row.
#[derive(Debug, Default)]
struct Other {
    /// Kinds whose row was removed, and devices that found none.
    kinds: u64,
    ended: Ended,
}

/// The row of a device: the number of its kind, or the row "other".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Row {
    /// The kind's.
    Kind(u32),
    /// The one of all devices without.
    Other,
}

/// A slot, and the process that has it.
pub(super) type Present<'a> = (u32, &'a PublishedSlot);

/// A device without what may differ between two of the same kind.
fn kind_of(device: &PublishedDevice) -> PublishedDevice {
    let mut kind = PublishedDevice { state: String::new(), device: 0, ..device.clone() };
    kind.queues.iter_mut().for_each(|queue| queue.enabled = false);
    kind
}

impl Kinds {
    /// Returns the place of a kind's row.
    fn find(&self, row: Row) -> Option<usize> {
        let Row::Kind(number) = row else { return None };
        self.rows.iter().position(|kind| kind.device.device == number)
    }

    /// A row has a device in this reading.
    pub(super) fn mark(&mut self, row: Row, reading: u64) {
        if let Some(at) = self.find(row) {
            self.rows[at].used = reading;
        }
    }

    /// Returns the row of a device that was not seen before, of a process. Call [`mark`](Self::mark) for all others of
    /// the reading first.
    pub(super) fn place(&mut self, device: &PublishedDevice, process: u32, reading: u64) -> Row {
        let wanted = kind_of(device);
        if let Some(kind) = self.rows.iter_mut().find(|kind| kind_of(&kind.device) == wanted) {
            kind.used = reading;
            return Row::Kind(kind.device.device);
        }
        let of_process = self.rows.iter().filter(|kind| kind.brought_by == process && kind.used == reading).count();
        if of_process >= MOST_OF_PROCESS || !self.make_room(reading) {
            self.other.kinds = self.other.kinds.saturating_add(1);
            return Row::Other;
        }
        let device = PublishedDevice { device: self.next, ..wanted };
        self.next = self.next.saturating_add(1);
        let row = Row::Kind(device.device);
        self.rows.push(Kind { device, brought_by: process, used: reading, ended: Ended::default() });
        row
    }

    /// Returns whether there is room for one more row, if necessary that of ended programs.
    fn make_room(&mut self, reading: u64) -> bool {
        if self.rows.len() < MOST_KINDS {
            return true;
        }
        let unused = self.rows.iter().enumerate().filter(|(_, kind)| kind.used != reading);
        let Some((at, _)) = unused.min_by_key(|(_, kind)| kind.used) else { return false };
        let Ended { totals, devices } = self.rows.remove(at).ended;
        self.other.kinds = self.other.kinds.saturating_add(1);
        self.add_ended(Row::Other, &totals, devices);
        true
    }

    /// Adds what a process has done that has ended.
    pub(super) fn add_ended(&mut self, row: Row, totals: &Totals, devices: u64) {
        let ended = match self.find(row) {
            Some(at) => &mut self.rows[at].ended,
            None => &mut self.other.ended,
        };
        ended.totals.add(totals);
        ended.devices = ended.devices.saturating_add(devices);
    }

    /// Adds the rows. `slots` returns the present slots of a row.
    pub(super) fn finish<'a>(&mut self, snapshot: &mut Snapshot, slots: impl Fn(Row) -> &'a [Present<'a>]) {
        for kind in &mut self.rows {
            let slots = slots(Row::Kind(kind.device.device));
            kind.device.state = state(slots).into();
            kind.device.queues.iter_mut().for_each(|queue| queue.enabled = is_enabled(slots, Some(queue.wq)));
            let mut reading = DeviceReading::of_programs(&kind.device);
            slots.iter().for_each(|(process, slot)| reading.add_slot(*process, slot));
            reading.sum.add(&kind.ended.totals);
            reading.add_closed(kind.ended.devices, &kind.ended.totals);
            reading.finish(snapshot, PROGRAMS);
        }
        if self.other.kinds != 0 {
            self.other.finish(snapshot, slots(Row::Other));
        }
    }
}

impl Other {
    fn finish(&self, snapshot: &mut Snapshot, slots: &[Present<'_>]) {
        let Ended { totals, devices } = &self.ended;
        let mut sum = Totals::default();
        sum.add(totals);
        let mut closed = Closed { wq: 0, files: *devices, done: Done::all(totals) };
        let mut clients = Vec::new();
        for (process, slot) in slots {
            sum.add(&slot.all);
            if slot.is_open {
                let done = Done::all(&slot.all.since(&slot.earlier));
                let occupancy = Value::unknown(NO_OCCUPANCY);
                clients.push(Client { wq: 0, process: *process, pasid: OWN_PASID, done, occupancy, is_shown: true });
            }
            closed.files = closed.files.saturating_add(slot.closed);
            closed.done = closed.done.and(&Done::all(&slot.earlier));
        }
        let reading = OtherReading {
            kinds: self.kinds,
            state: state(slots),
            is_enabled: is_enabled(slots, None),
            sum,
            clients,
            closed: (closed.done != Done::default()).then_some(closed),
            no_log: NO_LOG,
        };
        add_other(snapshot, PROGRAMS, &reading);
    }
}

/// The state of devices together: enabled while one of them is.
fn state(slots: &[Present<'_>]) -> &'static str {
    let has = |state: &&str| slots.iter().any(|(_, slot)| slot.device.state == *state);
    ["enabled", "halted", "disabled"].into_iter().find(has).unwrap_or("closed")
}

/// True while a queue of this number, or any queue, is enabled in an open device.
fn is_enabled(slots: &[Present<'_>], wq: Option<u32>) -> bool {
    let of_slot = |(_, slot): &Present<'_>| {
        let is_it = |number| wq.is_none_or(|wq| wq == number);
        slot.is_open && slot.device.queues.iter().any(|queue| is_it(queue.wq) && queue.enabled)
    };
    slots.iter().any(of_slot)
}
