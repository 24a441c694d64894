//! The slots: one completion record each, and space for the memory of a job that was dropped or expired.

use crate::inflight::free_lists::FreeLists;
use crate::inflight::slot::SlotState;
use crate::plan::route::{Entry, PortalQueue, PortalQueues};
use crate::stats::{Counts, Stats, Work};
use crate::sync::{AtomicU32, Ordering};
use crate::thread_stripe;
use crate::wait::forecast::Awaited;
use crate::wait::stall_timer::StallAction;
use crate::wait::time::Moment;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use telpher_metrics::Position;
use telpher_portal::RecordCell;

/// A completion record with a cache line of its own.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(super) struct PaddedRecord(pub(super) RecordCell);

/// One slot without its record.
#[derive(Debug)]
struct SlotCell {
    /// Which thread may use the slot.
    state: SlotState,
    /// Index of the queue of the parked descriptor: a hint until the slot is claimed.
    queue: AtomicU32,
    /// The memory that must stay until the record is written.
    parked: Mutex<Option<Parked>>,
}

/// The memory that an owner left in its slot.
struct Parked {
    /// Index of the queue that took the descriptor.
    queue: usize,
    /// The queue's entry.
    entry: Entry,
    /// True if a deadline passed, false if the job was dropped.
    expired: bool,
    /// When its queue is given up; not known before the first health check of the queues.
    end: Option<Moment>,
    /// The buffers, and everything else that the device may touch.
    payload: Box<dyn Send>,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("queue", &self.queue).field("expired", &self.expired).finish_non_exhaustive()
    }
}

/// One descriptor that a queue took. It must be completed or parked.
#[must_use = "a slot that is neither completed nor parked is never free again"]
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) index: u32,
    pub(super) queue: usize,
    entry: Entry,
    /// When its record is expected, if the wait policy needs that.
    pub(super) awaited: Option<Awaited>,
}

/// The gauge of parked jobs whose deadline passed, or that were dropped.
fn kept(expired: bool) -> Position<Work> {
    Work::AT.kept.field(if expired { Stats::AT.quarantined } else { Stats::AT.orphaned })
}

/// The in-flight table of one mover.
#[derive(Debug)]
pub(super) struct Table {
    records: Box<[PaddedRecord]>,
    slots: Box<[SlotCell]>,
    free: FreeLists,
    /// Where the next sweep begins.
    cursor: AtomicU32,
    /// Parked because the job was dropped.
    dropped: AtomicU32,
    /// Parked because a deadline passed.
    expired: AtomicU32,
    /// The same, of all movers of this process.
    counts: Counts,
}

/// Number of slots that one sweep checks, so that a sweep is short however large the table is.
const SLOTS_PER_SWEEP: u32 = 16;

/// The number of sweeps with parked slots between two health checks of the queues. No thread waits for a dropped job,
/// so nothing else would ask its queue. Source: derived; a sweep takes some 100 ns and a health check some 10 µs, so
/// the checks are a tenth of the time spent sweeping.
const SWEEPS_PER_HEALTH_CHECK: u32 = 1024;

impl Table {
    pub(super) fn new(capacity: u32, counts: Counts) -> Self {
        let slot = |_| SlotCell { state: SlotState::new(), queue: AtomicU32::new(0), parked: Mutex::new(None) };
        Table {
            records: (0..capacity).map(|_| PaddedRecord::default()).collect(),
            slots: (0..capacity).map(slot).collect(),
            free: FreeLists::new(capacity),
            cursor: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            expired: AtomicU32::new(0),
            counts,
        }
    }

    /// Takes a slot for a descriptor to a queue; its record is empty.
    pub(super) fn acquire(&self, queues: &PortalQueues, queue: usize) -> Option<Slot> {
        let index = self.free.pop(thread_stripe::of_this_thread())?;
        let Some(entry) = queues.all()[queue].enter() else {
            self.free.push(index);
            return None;
        };
        self.slots[index as usize].state.acquire();
        self.records[index as usize].0.clear();
        Some(Slot { index, queue, entry, awaited: None })
    }

    /// Returns the slot's record.
    pub(super) fn record(&self, slot: &Slot) -> &RecordCell {
        &self.records[slot.index as usize].0
    }

    /// Returns the record with this slot number, whichever descriptor it belongs to now; `None` if there is no such
    /// slot.
    pub(super) fn record_of(&self, slot: u32) -> Option<&RecordCell> {
        self.records.get(slot as usize).map(|record| &record.0)
    }

    /// Frees a slot: the owner saw the record, or the queue did not take the descriptor.
    pub(super) fn release(&self, queues: &PortalQueues, slot: Slot) {
        self.slots[slot.index as usize].state.release();
        self.free.push(slot.index);
        queues.all()[slot.queue].leave(slot.entry);
    }

    /// Leaves `payload` in the slot while the device may still touch it.
    pub(super) fn park(&self, slot: Slot, payload: Box<dyn Send>, expired: bool) {
        let Slot { index, queue, entry, .. } = slot;
        let cell = &self.slots[index as usize];
        // Relaxed: a count for users, and a hint for `sweep`.
        self.count(expired).fetch_add(1, Ordering::Relaxed);
        self.counts.add(kept(expired), 1);
        // Relaxed: published by `park` below. The index fits: there are fewer queues than 2^32.
        cell.queue.store(u32::try_from(queue).unwrap_or(u32::MAX), Ordering::Relaxed);
        *cell.parked.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Parked { queue, entry, expired, end: None, payload });
        cell.state.park();
    }

    fn count(&self, expired: bool) -> &AtomicU32 {
        if expired { &self.expired } else { &self.dropped }
    }

    /// Returns the number of parked slots: after a drop, after a deadline.
    ///
    /// **Staleness**: other threads park and sweep meanwhile.
    pub(super) fn parked(&self) -> (u32, u32) {
        // Relaxed: see `park`.
        (self.dropped.load(Ordering::Relaxed), self.expired.load(Ordering::Relaxed))
    }

    /// Checks some parked slots and frees those whose record has been written, or whose queue is dead. A queue that
    /// leaves a slot without a record for longer than `limit` is given up.
    pub(super) fn sweep(&self, queues: &PortalQueues, limit: Duration, now: impl FnOnce() -> Moment) {
        if self.parked() == (0, 0) {
            return;
        }
        let len = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        // Relaxed: any start is fair.
        let start = self.cursor.fetch_add(SLOTS_PER_SWEEP, Ordering::Relaxed);
        for i in 0..SLOTS_PER_SWEEP.min(len) {
            self.sweep_one(queues, start.wrapping_add(i) % len);
        }
        if start % (SWEEPS_PER_HEALTH_CHECK * SLOTS_PER_SWEEP) == (SWEEPS_PER_HEALTH_CHECK - 1) * SLOTS_PER_SWEEP
            && self.parked() != (0, 0)
        {
            self.check_health(queues, limit, now());
        }
    }

    /// Checks the health of the queues, and gives up those that are later than the limit: another part of the program
    /// may need the memory.
    #[cold]
    fn check_health(&self, queues: &PortalQueues, limit: Duration, now: Moment) {
        let mut late = vec![StallAction::CheckHealth; queues.all().len()];
        for slot in self.slots.iter().filter(|slot| slot.state.is_parked()) {
            let mut parked = slot.parked.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Parked { queue, end, .. }) = parked.as_mut()
                && now >= *end.get_or_insert_with(|| now.after(limit))
            {
                late[*queue] = StallAction::GiveUp;
            }
        }
        // After the locks are released: a portal may do anything.
        queues.all().iter().zip(late).for_each(|(queue, late)| queue.on_stall(late));
    }

    /// Checks every slot.
    pub(super) fn sweep_all(&self, queues: &PortalQueues) {
        for index in 0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX) {
            self.sweep_one(queues, index);
        }
    }

    fn sweep_one(&self, queues: &PortalQueues, index: u32) {
        let slot = &self.slots[index as usize];
        // Relaxed: exact after the claim, which checks twice; see `claim_if`.
        let is_dead =
            || queues.all().get(slot.queue.load(Ordering::Relaxed) as usize).is_some_and(PortalQueue::is_dead);
        if !slot.state.claim_if(|| self.records[index as usize].0.status().is_some() || is_dead()) {
            return;
        }
        let parked = slot.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Parked { queue, entry, expired, payload, .. } = parked.expect("a parked slot holds what was parked");
        slot.state.vacate();
        self.free.push(index);
        queues.all()[queue].leave(entry);
        // Relaxed: see `park`.
        self.count(expired).fetch_sub(1, Ordering::Relaxed);
        self.counts.subtract(kept(expired), 1);
        // Last: a payload's own drop may do anything, and the slot is consistent by now.
        drop(payload);
    }

    /// Returns true if a slot in use has no record yet.
    ///
    /// **Staleness**: other threads submit and complete meanwhile.
    pub(super) fn has_in_flight(&self) -> bool {
        self.slots.iter().zip(&self.records).any(|(slot, record)| slot.state.is_used() && record.0.status().is_none())
    }

    /// Gives up every slot still parked: records and buffers are leaked.
    pub(super) fn leak(&mut self) {
        for slot in &mut self.slots {
            let parked = slot.parked.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(parked);
        }
        Box::leak(std::mem::take(&mut self.records));
    }
}
