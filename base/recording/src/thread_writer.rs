//! What one thread records about its calls.

use crate::calibration::{judge, logarithm};
use crate::event::{NO_SITE, RawEvent};
use crate::layout::{SAMPLE_PERIOD, SMALL_LENGTHS, SiteCounters, ThreadTable};
use crate::mapped::{Mapped, ThreadTables};
use crate::operation::{Alignment, Call, Distance, Operation, Temperature, size_class};
use crate::own_counter;
use crate::sampling::slot_of;
use crate::site_directory::find_or_claim;
use crate::sync::{AtomicU64, Ordering};
use std::cell::Cell;

/// The number of long calls begins at this bit of its word; below it is the number of those in flight.
pub(crate) const NUMBER_SHIFT: u32 = 16;

/// Of this many calls without a site, one in [`SAMPLE_PERIOD`] is timed, or one in 256 of a small length; of later
/// ones, one in [`LATER_PERIOD`]. Source: chosen; a measurement takes some 30 ns, which are 0.5 ns for each of 64
/// calls, and some ten samples are enough.
const FIRST_CALLS: u64 = 4096;
const LATER_PERIOD: u64 = 1024;
/// A call of a small length may be timed if the lowest byte of its counter has this value before. It is not the first
/// call, which waits for code and data that are not in the caches, and would count like 255 later ones.
pub const SMALL_SAMPLED: u8 = 63;

/// Returns whether a call without a site is timed, from how many there were before it.
#[inline]
fn is_timed(len: usize, before: u64) -> bool {
    let turn = if len < SMALL_LENGTHS {
        before % (1 << u8::BITS) == u64::from(SMALL_SAMPLED)
    } else {
        before.is_multiple_of(SAMPLE_PERIOD)
    };
    // Both turns come once in the later period.
    turn && (before < FIRST_CALLS || before % LATER_PERIOD < SAMPLE_PERIOD)
}

/// Counts a call of a small length; returns how many there were before it.
///
/// A signal handler between the load and the addition may make two calls a sample, or none; here and below.
#[inline]
fn number_small(calls: &AtomicU64) -> u64 {
    let before = calls.load(Ordering::Relaxed);
    own_counter::add(calls, 1);
    before
}

/// Counts a call by its size class; returns how many there were before it.
#[inline]
fn number_sized(table: &ThreadTable<AtomicU64>, operation: Operation, len: usize) -> u64 {
    let cell = &table.sizes[operation as usize][size_class(len)];
    let before = cell.calls.load(Ordering::Relaxed);
    own_counter::add_call(cell, len as u64);
    before
}

/// What a thread needs to record a call.
#[derive(Clone, Copy)]
struct Attached<'m> {
    mapped: &'m Mapped<'m>,
    tables: ThreadTables<'m>,
}

impl Attached<'_> {
    #[inline]
    fn add(&self, word: &AtomicU64, more: u64) {
        if self.tables.shared {
            word.fetch_add(more, Ordering::Relaxed);
        } else {
            own_counter::add(word, more);
        }
    }
}

/// One thread's part of a recording. A program keeps it in thread-local memory. Signal handlers of the thread may use
/// it at any time, also in the middle of a method: no count is lost.
///
/// A call below [`Start::sites_from`](crate::Start::sites_from) is recorded by [`count`](ThreadWriter::count), and by
/// [`time`](ThreadWriter::time) if `count` asks for it. A longer call is recorded by [`begin`](ThreadWriter::begin) and
/// [`end`](ThreadWriter::end).
pub struct ThreadWriter<'m> {
    /// The thread's table, if it has one of its own: all that a short call needs.
    own: Cell<Option<&'m ThreadTable<AtomicU64>>>,
    attached: Cell<Option<Attached<'m>>>,
}

impl std::fmt::Debug for ThreadWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let thread = self.attached.get().map(|attached| attached.tables.index);
        f.debug_struct("ThreadWriter").field("thread", &thread).finish_non_exhaustive()
    }
}

/// A call between [`ThreadWriter::begin`] and [`ThreadWriter::end`].
#[must_use = "a long call stays in flight until it ends"]
#[derive(Clone, Copy, Debug)]
pub struct CallInProgress {
    recorded: bool,
    /// When it began, if it is timed.
    start: Option<u64>,
    /// Of a long call: its number, and how many were in flight with it.
    long: Option<(u64, u64)>,
}

impl<'m> ThreadWriter<'m> {
    /// A thread that records nothing, as the first value of thread-local memory.
    #[must_use]
    pub const fn detached() -> Self {
        ThreadWriter { own: Cell::new(None), attached: Cell::new(None) }
    }

    /// Begins to record. `attached` is set first: `own` alone would not be enough for a long call of a signal handler.
    pub(crate) fn set(&self, mapped: &'m Mapped<'_>, tables: ThreadTables<'m>) {
        self.attached.set(Some(Attached { mapped, tables }));
        self.own.set((!tables.shared).then_some(tables.calls));
    }

    /// Returns false if nothing is recorded.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.attached.get().is_some()
    }

    /// Stops recording in this thread, for the only thread of a forked child. No mapped memory is touched.
    pub fn detach(&self) {
        self.own.set(None);
        self.attached.set(None);
    }

    /// Counts a call. Returns true if the caller should measure its time and pass it to [`ThreadWriter::time`]: one
    /// call in 64 of each operation and size class, or one in 256 of a length below [`SMALL_LENGTHS`], and one in 1024
    /// after the first 4096.
    #[inline]
    #[must_use]
    pub fn count(&self, operation: Operation, len: usize) -> bool {
        self.count_own(operation, len)
            .unwrap_or_else(|| self.count_shared(operation, len).is_some_and(|before| is_timed(len, before)))
    }

    /// Does the same, if the thread has a table of its own; otherwise returns `None` and counts nothing. This is the
    /// shortest way of a short call.
    #[inline]
    #[must_use]
    pub fn count_own(&self, operation: Operation, len: usize) -> Option<bool> {
        let table = self.own.get()?;
        // Two ends: each needs only one half of `is_timed`.
        if let Some(calls) = table.small[operation as usize].get(len) {
            return Some(is_timed(len, number_small(calls)));
        }
        Some(is_timed(len, number_sized(table, operation, len)))
    }

    /// Returns the words that count the calls of each operation with 0, 1, … bytes, if the thread has a table of its
    /// own.
    ///
    /// Only this thread may change them, each by an instruction that adds one without a lock prefix. It passes a call
    /// to [`ThreadWriter::count`] instead if the word's lowest byte is [`SMALL_SAMPLED`].
    #[must_use]
    pub fn small_calls(&self) -> Option<&'m [[AtomicU64; SMALL_LENGTHS]; Operation::ALL.len()]> {
        Some(&self.own.get()?.small)
    }

    /// Counts a call; returns how many there were before it.
    #[inline]
    fn number_own(&self, operation: Operation, len: usize) -> Option<u64> {
        let table = self.own.get()?;
        Some(match table.small[operation as usize].get(len) {
            Some(calls) => number_small(calls),
            None => number_sized(table, operation, len),
        })
    }

    /// Does the same for a thread that shares its table. `None` if the thread is detached.
    #[cold]
    fn count_shared(&self, operation: Operation, len: usize) -> Option<u64> {
        let attached = self.attached.get()?;
        if let Some(calls) = attached.tables.calls.small[operation as usize].get(len) {
            attached.add(calls, 1);
            // Relaxed: another thread's addition in between makes two calls a sample, or none.
            return Some(calls.load(Ordering::Relaxed).wrapping_sub(1));
        }
        let cell = &attached.tables.calls.sizes[operation as usize][size_class(len)];
        attached.add(&cell.bytes, len as u64);
        Some(cell.calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds the time of a call that was counted, in ticks of the time stamp counter.
    pub fn time(&self, operation: Operation, len: usize, ticks: u64) {
        let Some(attached) = self.attached.get() else { return };
        let cell = &attached.tables.calls.sizes[operation as usize][size_class(len)];
        attached.add(&cell.timed_calls, 1);
        attached.add(&cell.timed_ticks, ticks);
    }

    /// Records that a call begins. `clock` reads the time stamp counter, if the call is timed; it is the last step.
    ///
    /// A call that never ends, because a signal handler jumps out of it, stays in flight for the rest of the recording.
    #[inline]
    pub fn begin(&self, call: &Call, clock: impl FnOnce() -> u64) -> CallInProgress {
        let Some(attached) = self.attached.get() else {
            return CallInProgress { recorded: false, start: None, long: None };
        };
        let before = self.number_own(call.operation, call.len).or_else(|| self.count_shared(call.operation, call.len));
        let sampled = before.is_some_and(|before| before.is_multiple_of(SAMPLE_PERIOD));
        let is_long = call.len >= attached.mapped.long_from;
        let long = is_long.then(|| {
            // Relaxed: the numbers order the calls; no other data depends on them.
            let before = attached.mapped.progress.long_calls.fetch_add((1 << NUMBER_SHIFT) + 1, Ordering::Relaxed);
            (before >> NUMBER_SHIFT, before % (1 << NUMBER_SHIFT) + 1)
        });
        CallInProgress { recorded: true, start: (sampled || is_long).then(clock), long }
    }

    /// Records that the call has ended. `clock` reads the time stamp counter, if the call is timed; it is the first
    /// step. `faults` is the number of page faults during the call, if the caller counted them.
    ///
    /// Returns true for the first call of a site by this thread: the caller may then
    /// [add the module](crate::Writer::add_module) to which the site belongs.
    #[inline]
    pub fn end(&self, call: &Call, begun: CallInProgress, clock: impl FnOnce() -> u64, faults: Option<u64>) -> bool {
        let interval = begun.start.map(|start| [start, clock()]);
        let Some(attached) = self.attached.get().filter(|_| begun.recorded) else { return false };
        attached.end(call, begun, interval, faults)
    }
}

impl Attached<'_> {
    fn end(&self, call: &Call, begun: CallInProgress, interval: Option<[u64; 2]>, faults: Option<u64>) -> bool {
        let ticks = interval.map(|[start, end]| end.saturating_sub(start));
        let temperature = ticks.and_then(|ticks| self.temperature(call, ticks, faults));
        if let Some(ticks) = ticks {
            let cell = &self.tables.calls.sizes[call.operation as usize][size_class(call.len)];
            self.add(&cell.timed_calls, 1);
            self.add(&cell.timed_ticks, ticks);
        }
        let site = find_or_claim(
            self.mapped.directory,
            &self.mapped.progress.sites_claimed,
            self.tables.sites.len(),
            call.return_address as u64,
        );
        // Another process may have written any index into the file.
        let site = site.filter(|site| usize::from(*site) < self.tables.sites.len());
        let mut is_first = false;
        match site {
            Some(site) => {
                let counters = &self.tables.sites[usize::from(site)];
                is_first = counters.calls.load(Ordering::Relaxed) == 0;
                self.count_site(counters, call, ticks.zip(temperature), faults);
            }
            None => self.add(&self.tables.calls.calls_without_site, 1),
        }
        if let (Some((number, in_flight)), Some([start, end])) = (begun.long, interval) {
            // Relaxed: see `begin`.
            self.mapped.progress.long_calls.fetch_sub(1, Ordering::Relaxed);
            self.end_long(start, end, in_flight);
            self.trace(
                number,
                RawEvent {
                    start_ticks: start.saturating_sub(self.mapped.start_ticks),
                    duration_ticks: u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX),
                    site: site.unwrap_or(NO_SITE),
                    thread: self.tables.index,
                    len: call.len as u64,
                    operation: call.operation,
                    overlap: call.overlap().map(|(direction, distance)| (direction, logarithm_of(distance))),
                    destination_aligned: call.destination.is_multiple_of(64),
                    source_aligned: call.source.is_multiple_of(64),
                    temperature,
                    in_flight: u8::try_from(in_flight).unwrap_or(u8::MAX),
                },
            );
        }
        is_first
    }

    fn temperature(&self, call: &Call, ticks: u64, faults: Option<u64>) -> Option<Temperature> {
        if faults.is_some_and(|faults| faults > 0) {
            return Some(Temperature::Fresh);
        }
        let boundary = self.mapped.boundary(call.operation.access(), logarithm(call.len as u64));
        let judged = judge(boundary, call.len as u64, ticks.saturating_sub(self.mapped.timer_ticks));
        // Without page faults, a call as slow as with them was disturbed by something else.
        judged.map(|judged| if faults == Some(0) { judged.min(Temperature::Cold) } else { judged })
    }

    fn count_site(
        &self,
        site: &SiteCounters<AtomicU64>,
        call: &Call,
        timed: Option<(u64, Temperature)>,
        faults: Option<u64>,
    ) {
        let len = call.len as u64;
        self.add(&site.calls, 1);
        self.add(&site.bytes, len);
        self.add(&site.operations[call.operation as usize], 1);
        self.add(&site.destinations[Alignment::of(call.destination) as usize], 1);
        if call.operation != Operation::Memset {
            self.add(&site.sources[Alignment::of(call.source) as usize], 1);
        }
        if let Some((direction, distance)) = call.overlap() {
            self.add(&site.overlaps[direction as usize][Distance::of(distance) as usize], 1);
            self.add(&site.overlap_bytes[direction as usize], len);
        }
        if let Some((ticks, temperature)) = timed {
            let cells = &site.timed[temperature as usize];
            self.add(&cells.calls, 1);
            self.add(&cells.bytes, len);
            self.add(&cells.ticks, ticks);
        }
        if let Some(faults) = faults {
            self.add(&site.fault_checks, 1);
            self.add(&site.faults, faults);
        }
    }

    fn end_long(&self, start: u64, end: u64, in_flight: u64) {
        let table = self.tables.calls;
        self.add(&table.long_calls, 1);
        let before = table.last_long_end.load(Ordering::Relaxed);
        if before != 0 {
            self.add(&table.gaps[logarithm(start.saturating_sub(before))], 1);
        }
        // A signal handler between these two lines may lose its own maximum or end, but never a count.
        table.last_long_end.store(end.max(1), Ordering::Relaxed);
        if in_flight > table.most_in_flight.load(Ordering::Relaxed) {
            table.most_in_flight.store(in_flight, Ordering::Relaxed);
        }
    }

    fn trace(&self, number: u64, event: RawEvent) {
        let slot = slot_of(number, self.mapped.limits.trace_blocks.into());
        let slot = slot.and_then(|slot| self.mapped.trace.get(usize::try_from(slot).ok()?));
        if let Some(slot) = slot {
            // The reader counts entries that are missing, so a refusal needs no counter.
            slot.publish(number, event.pack());
        }
    }
}

fn logarithm_of(distance: u64) -> u8 {
    u8::try_from((distance | 1).ilog2()).expect("a logarithm is below 64")
}
