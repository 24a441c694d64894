//! The slots: one completion record each, and room for what a job that nobody waits for leaves behind.

use crate::forecast::Awaited;
use crate::freelists::FreeLists;
use crate::route::{Entry, Lane, Lanes};
use crate::slot::SlotState;
use crate::stripe;
use crate::sync::{AtomicU32, Ordering};
use crate::time::Moment;
use crate::vigil::Late;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use telpher_portal::RecordCell;

/// A completion record with a cache line of its own.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(super) struct Line(pub(super) RecordCell);

/// One slot besides its record.
#[derive(Debug)]
struct Slot {
    /// Whose turn it is.
    state: SlotState,
    /// Index of the lane of what is parked: a hint until the slot is claimed.
    lane: AtomicU32,
    /// What must stay until the record is written.
    parked: Mutex<Option<Parked>>,
}

/// What an owner left in its slot.
struct Parked {
    /// Index of the lane the descriptor went to.
    lane: usize,
    /// The lane's entry.
    entry: Entry,
    /// True if a deadline passed, false if the job was dropped.
    expired: bool,
    /// When its queue is given up; not known before the queues are first asked how they do.
    end: Option<Moment>,
    /// The buffers, and whatever else the device may touch.
    cargo: Box<dyn Send>,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("lane", &self.lane).field("expired", &self.expired).finish_non_exhaustive()
    }
}

/// One descriptor taken by a queue: must be landed or parked.
#[must_use = "a leg that is neither landed nor parked keeps its slot for ever"]
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) slot: u32,
    pub(super) lane: usize,
    entry: Entry,
    /// When its record is expected, if the policy's way of waiting asks for it.
    pub(super) awaited: Option<Awaited>,
}

/// The in-flight table of one mover.
#[derive(Debug)]
pub(super) struct Table {
    records: Box<[Line]>,
    slots: Box<[Slot]>,
    free: FreeLists,
    /// Where the next sweep begins.
    cursor: AtomicU32,
    /// Parked because the job was dropped.
    dropped: AtomicU32,
    /// Parked because a deadline passed.
    expired: AtomicU32,
}

/// Slots one sweep looks at, so that a sweep is short however large the table is.
const SWEEP: u32 = 16;

/// Every so many sweeps that find something parked, the queues are asked how they do: nobody waits for what was dropped, so nobody else
/// would. Source: derived; a sweep takes some 100 ns and a question some 10 µs, so that they are a tenth of the time spent sweeping.
const SWEEPS_TO_ASK: u32 = 1024;

impl Table {
    pub(super) fn new(capacity: u32) -> Self {
        let slot = |_| Slot { state: SlotState::new(), lane: AtomicU32::new(0), parked: Mutex::new(None) };
        Table {
            records: (0..capacity).map(|_| Line::default()).collect(),
            slots: (0..capacity).map(slot).collect(),
            free: FreeLists::new(capacity),
            cursor: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            expired: AtomicU32::new(0),
        }
    }

    /// A slot for a descriptor to a lane; its record is empty.
    pub(super) fn board(&self, lanes: &Lanes, lane: usize) -> Option<Leg> {
        let slot = self.free.pop(stripe::mine())?;
        let Some(entry) = lanes.all()[lane].enter() else {
            self.free.push(slot);
            return None;
        };
        self.slots[slot as usize].state.board();
        self.records[slot as usize].0.clear();
        Some(Leg { slot, lane, entry, awaited: None })
    }

    /// The leg's record.
    pub(super) fn record(&self, leg: &Leg) -> &RecordCell {
        &self.records[leg.slot as usize].0
    }

    /// The record of a slot, whoever has it now; none if there is no such slot.
    pub(super) fn record_of(&self, slot: u32) -> Option<&RecordCell> {
        self.records.get(slot as usize).map(|record| &record.0)
    }

    /// The owner saw the record, or the queue did not take the descriptor.
    pub(super) fn land(&self, lanes: &Lanes, leg: Leg) {
        self.slots[leg.slot as usize].state.land();
        self.free.push(leg.slot);
        lanes.all()[leg.lane].leave(leg.entry);
    }

    /// The owner leaves while the device may still touch `cargo`.
    pub(super) fn park(&self, leg: Leg, cargo: Box<dyn Send>, expired: bool) {
        let Leg { slot, lane, entry, .. } = leg;
        let slot = &self.slots[slot as usize];
        // Relaxed: a count for people, and a hint for `sweep`.
        self.count(expired).fetch_add(1, Ordering::Relaxed);
        // Relaxed: published by `park` below. There are fewer lanes than numbers.
        slot.lane.store(u32::try_from(lane).unwrap_or(u32::MAX), Ordering::Relaxed);
        *slot.parked.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Parked { lane, entry, expired, end: None, cargo });
        slot.state.park();
    }

    fn count(&self, expired: bool) -> &AtomicU32 {
        if expired { &self.expired } else { &self.dropped }
    }

    /// Parked slots: after a drop, after a deadline.
    ///
    /// **Staleness**: others park and sweep meanwhile.
    pub(super) fn parked(&self) -> (u32, u32) {
        // Relaxed: see `park`.
        (self.dropped.load(Ordering::Relaxed), self.expired.load(Ordering::Relaxed))
    }

    /// Looks at some parked slots and frees those whose record has been written, or whose queue is out. A queue that leaves one without a
    /// record for longer than `limit` is given up.
    pub(super) fn sweep(&self, lanes: &Lanes, limit: Duration, now: impl FnOnce() -> Moment) {
        if self.parked() == (0, 0) {
            return;
        }
        let len = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        // Relaxed: any start is a fair one.
        let start = self.cursor.fetch_add(SWEEP, Ordering::Relaxed);
        for i in 0..SWEEP.min(len) {
            self.sweep_one(lanes, start.wrapping_add(i) % len);
        }
        if start % (SWEEPS_TO_ASK * SWEEP) == (SWEEPS_TO_ASK - 1) * SWEEP && self.parked() != (0, 0) {
            self.ask(lanes, limit, now());
        }
    }

    /// Asks the queues how they do, and gives up those that are later than anybody waits: somebody may wait for the memory.
    #[cold]
    fn ask(&self, lanes: &Lanes, limit: Duration, now: Moment) {
        let mut late = vec![Late::Ask; lanes.all().len()];
        for slot in self.slots.iter().filter(|slot| slot.state.is_parked()) {
            let mut parked = slot.parked.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Parked { lane, end, .. }) = parked.as_mut()
                && now >= *end.get_or_insert_with(|| now.after(limit))
            {
                late[*lane] = Late::GiveUp;
            }
        }
        // Behind the locks: a portal may do anything.
        lanes.all().iter().zip(late).for_each(|(lane, late)| lane.looked(late));
    }

    /// Looks at every slot.
    pub(super) fn sweep_all(&self, lanes: &Lanes) {
        for index in 0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX) {
            self.sweep_one(lanes, index);
        }
    }

    fn sweep_one(&self, lanes: &Lanes, index: u32) {
        let slot = &self.slots[index as usize];
        // Relaxed: exact behind the claim, which looks twice; see `claim_if`.
        let is_out = || lanes.all().get(slot.lane.load(Ordering::Relaxed) as usize).is_some_and(Lane::is_out);
        if !slot.state.claim_if(|| self.records[index as usize].0.status().is_some() || is_out()) {
            return;
        }
        let parked = slot.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Parked { lane, entry, expired, cargo, .. } = parked.expect("a parked slot holds what was parked");
        slot.state.vacate();
        self.free.push(index);
        lanes.all()[lane].leave(entry);
        // Relaxed: see `park`.
        self.count(expired).fetch_sub(1, Ordering::Relaxed);
        // Last: a payload's own drop may do anything, the slot is already in order.
        drop(cargo);
    }

    /// True if a slot in use has no record yet.
    ///
    /// **Staleness**: others board and land meanwhile.
    pub(super) fn is_in_the_air(&self) -> bool {
        self.slots.iter().zip(&self.records).any(|(slot, record)| slot.state.is_used() && record.0.status().is_none())
    }

    /// Gives up every slot still parked: records and buffers stay where they are for ever.
    pub(super) fn leak(&mut self) {
        for slot in &mut self.slots {
            let parked = slot.parked.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(parked);
        }
        Box::leak(std::mem::take(&mut self.records));
    }
}
