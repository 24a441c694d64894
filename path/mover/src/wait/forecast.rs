//! Predicts when a record will be written: the operation's own time, after the time of everything the queue was sent
//! before.
//!
//! [`BusyUntil`] is the time until which a queue is expected to be busy with what it was sent. A new descriptor begins
//! then, or now, and adds its own time. A record that comes earlier or later than expected moves that time by the
//! difference, since everything queued behind it comes earlier or later as well.

use super::time::Moment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;
use std::time::Duration;
use telpher_abi::Opcode;

/// One descriptor in flight, and when its record is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaited {
    /// Index of the queue that took it.
    pub(crate) queue: usize,
    /// The number of the slot with its record.
    pub(crate) slot: u32,
    /// Its operation.
    pub(crate) op: Opcode,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// When it was submitted.
    pub(crate) since: Moment,
    /// When its record is expected.
    pub(crate) due: Moment,
    /// The queue was expected to be idle when it was submitted.
    pub(crate) alone: bool,
}

impl Awaited {
    /// Returns the time it took, if its record was found at `now`. A record that was found after a sleep was written at
    /// some time during the sleep. Half of the intended sleep is subtracted, but at most an eighth of the whole. So an
    /// operation that ends during the sleep is believed to be shorter each time, until its record is seen to arrive,
    /// however late the thread woke up. If that happens [`TOO_LONG`] times in a row, the estimate is far too long, and
    /// all of the half is subtracted.
    pub(crate) fn took(&self, slept: Option<Slept>, in_a_row: u32, now: Moment) -> Duration {
        let Some(Slept { nap, end }) = slept else { return now.since(self.since) };
        let elapsed = end.min(now).since(self.since);
        let most = if in_a_row < TOO_LONG { elapsed / 8 } else { elapsed / 2 };
        elapsed.saturating_sub((nap / 2).min(most))
    }
}

/// Number of records in a row that were found after a sleep, from which on the estimate is far too long. Source:
/// chosen; if the estimate is right, a few in a hundred end during a sleep, each of them more or less by chance.
const TOO_LONG: u32 = 4;

/// A sleep as it was intended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slept {
    /// Its length.
    pub(crate) nap: Duration,
    /// Its end.
    pub(crate) end: Moment,
}

/// The time until which a queue is expected to be busy with what it was sent.
#[derive(Debug)]
pub(crate) struct BusyUntil {
    /// The moment, in nanoseconds.
    busy: AtomicU64,
    /// Records in a row that were found after a sleep.
    slept_through: AtomicU32,
}

impl BusyUntil {
    pub(crate) fn new() -> Self {
        BusyUntil { busy: AtomicU64::new(0), slept_through: AtomicU32::new(0) }
    }

    /// Records whether a record was found after a sleep or was seen to arrive; returns how many in a row were found
    /// after a sleep.
    pub(crate) fn seen(&self, after_sleep: bool) -> u32 {
        // Relaxed (both): of two threads that wait at once, one may not be counted.
        let in_a_row = if after_sleep { self.slept_through.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.slept_through.store(in_a_row, Ordering::Relaxed);
        in_a_row
    }

    /// Adds an operation that takes `takes` and is submitted now. Returns when it is expected to end, and whether it is
    /// alone.
    pub(crate) fn add(&self, now: Moment, takes: Duration) -> (Moment, bool) {
        let end = |busy: u64| Moment { nanos: busy.max(now.nanos) }.after(takes);
        // Relaxed (both): no other memory depends on the number.
        let add = |busy| Some(end(busy).nanos);
        let busy = self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or_else(|busy| busy);
        (end(busy), busy <= now.nanos)
    }

    /// Records that the operation expected at `due` has ended now.
    pub(crate) fn ended(&self, due: Moment, now: Moment) {
        let moved = |busy: u64| {
            // Nothing is queued behind it.
            let behind = busy.checked_sub(due.nanos)?;
            Some(now.nanos.saturating_add(behind))
        };
        // Relaxed (both): as in `add`.
        let _ = self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
    }
}

/// How much later than intended sleeps end, averaged over the last ones, in nanoseconds.
#[derive(Debug)]
pub(crate) struct WakeUp(AtomicU64);

/// The value before the first sleep. Source: assumed; an ordinary kernel without timer slack, on a processor that was
/// idle.
const FIRST_WAKE_UP: Duration = Duration::from_micros(20);
/// The most that one sleep counts for: a longer delay was another thread's time slice, not waking up. Source: assumed.
const LONGEST_WAKE_UP: Duration = Duration::from_micros(200);

impl WakeUp {
    pub(crate) fn new() -> Self {
        Self::of(FIRST_WAKE_UP)
    }

    /// Starts with this delay.
    pub(crate) fn of(late: Duration) -> Self {
        WakeUp(AtomicU64::new(nanos(late)))
    }

    pub(crate) fn get(&self) -> Duration {
        // Relaxed: see `BusyUntil::add`.
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Learns that a sleep ended `late` after its intended end.
    pub(crate) fn learn(&self, late: Duration) {
        let late = nanos(late.min(LONGEST_WAKE_UP));
        // Relaxed: as above; of two at once, one may be lost.
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(old - old / 4 + late / 4, Ordering::Relaxed);
    }

    /// Records that a sleep was not worth it because of the wake-up delay. A thread that never sleeps cannot learn that
    /// the delay has become short again, so each call reduces the estimate a little.
    pub(crate) fn forgo(&self) {
        // Relaxed (both): as above.
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(old - old / 16, Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

thread_local! {
    /// Of the descriptors that this thread checked without success since the last `take_missed`, the one that is
    /// expected first.
    static MISSED: Cell<Option<Awaited>> = const { Cell::new(None) };
}

thread_local! {
    /// Whether this thread does nothing but wait, and its sleep before the present check.
    static CHECK: Cell<Option<Option<Slept>>> = const { Cell::new(None) };
}

/// The duration of one check; ends when it is dropped.
#[must_use = "the check ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct CheckGuard(());

impl Drop for CheckGuard {
    fn drop(&mut self) {
        CHECK.with(|current_check| current_check.set(None));
    }
}

/// Begins a check of a thread that only waits; `slept` is its sleep before it, if it slept.
pub(crate) fn begin_check(slept: Option<Slept>) -> CheckGuard {
    CHECK.with(|current_check| current_check.set(Some(slept)));
    CheckGuard(())
}

/// Returns this thread's sleep before its present check, if it slept; `None` if the thread is not waiting.
pub(crate) fn current_check() -> Option<Option<Slept>> {
    CHECK.with(Cell::get)
}

/// Records a failed check, for the wait loop on this thread.
pub(crate) fn note_missed(awaited: &Awaited) {
    MISSED.with(|seen| {
        if seen.get().is_none_or(|first| awaited.due < first.due) {
            seen.set(Some(*awaited));
        }
    });
}

/// Returns and clears the first expected descriptor among the failed checks since the last call.
pub(crate) fn take_missed() -> Option<Awaited> {
    MISSED.with(Cell::take)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Moment {
        Moment { nanos }
    }

    const TEN: Duration = Duration::from_nanos(10);

    #[test]
    fn a_descriptor_begins_when_the_one_before_it_ends() {
        let busy_until = BusyUntil::new();
        assert_eq!(busy_until.add(at(100), TEN), (at(110), true));
        assert_eq!(busy_until.add(at(104), TEN), (at(120), false));
        assert_eq!(busy_until.add(at(200), TEN), (at(210), true));
    }

    #[test]
    fn an_early_or_late_end_moves_the_descriptors_behind_it() {
        let busy_until = BusyUntil::new();
        let (due, _) = busy_until.add(at(100), TEN);
        busy_until.add(at(100), TEN);
        busy_until.ended(due, at(106));
        assert_eq!(busy_until.add(at(106), TEN).0, at(126));
        busy_until.ended(at(116), at(140));
        assert_eq!(busy_until.add(at(140), TEN).0, at(160));
    }

    #[test]
    fn an_end_with_nothing_behind_it_leaves_the_queue_idle() {
        let busy_until = BusyUntil::new();
        let (due, _) = busy_until.add(at(100), TEN);
        busy_until.ended(due, at(300));
        assert_eq!(busy_until.add(at(301), TEN), (at(311), true));
        // A record that was counted before moves nothing.
        busy_until.ended(at(900), at(5));
        assert_eq!(busy_until.add(at(301), TEN).0, at(321));
    }

    #[test]
    fn the_wake_up_delay_is_learned_and_one_long_sleep_changes_it_little() {
        let wake_up = WakeUp::new();
        (0..40).for_each(|_| wake_up.learn(Duration::from_micros(60)));
        assert!(wake_up.get().abs_diff(Duration::from_micros(60)) < Duration::from_micros(1));
        wake_up.learn(Duration::from_secs(5));
        assert!(wake_up.get() < Duration::from_micros(100));
        (0..100).for_each(|_| wake_up.learn(Duration::ZERO));
        assert!(wake_up.get() < Duration::from_micros(1));
    }

    #[test]
    fn a_record_found_after_a_sleep_counts_as_shorter() {
        let awaited =
            Awaited { queue: 0, slot: 0, op: Opcode::Fill, bytes: 1, since: at(100), due: at(900), alone: true };
        let nanos = Duration::from_nanos;
        assert_eq!(awaited.took(None, 0, at(900)), nanos(800));
        let slept = |nap, end| Some(Slept { nap: nanos(nap), end: at(end) });
        assert_eq!(awaited.took(slept(720, 820), 1, at(900)), nanos(630));
        // The result does not depend on how late the thread woke up.
        assert_eq!(awaited.took(slept(720, 820), 1, at(90_000)), nanos(630));
        assert_eq!(awaited.took(slept(100, 1900), 1, at(1900)), nanos(1750));
        // Again and again: it is far less, or only as little less as a short sleep allows.
        assert_eq!(awaited.took(slept(720, 820), TOO_LONG, at(900)), nanos(360));
        assert_eq!(awaited.took(slept(100, 1900), TOO_LONG, at(1900)), nanos(1750));
    }

    #[test]
    fn a_check_ends_with_its_guard() {
        assert_eq!(current_check(), None);
        let slept = Some(Slept { nap: TEN, end: at(20) });
        let check = begin_check(slept);
        assert_eq!(current_check(), Some(slept));
        drop(check);
        assert_eq!(current_check(), None);
    }

    #[test]
    fn the_first_expected_of_several_missed_records_is_kept() {
        let awaited = |slot, due| Awaited {
            queue: 0,
            slot,
            op: Opcode::Fill,
            bytes: 1,
            since: at(0),
            due: at(due),
            alone: false,
        };
        [awaited(0, 30), awaited(1, 20), awaited(2, 25)].iter().for_each(note_missed);
        assert_eq!((take_missed().map(|first| first.slot), take_missed()), (Some(1), None));
    }
}
