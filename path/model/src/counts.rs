//! The totals of a device, in words that may lie in memory shared with other processes.
//!
//! ```text
//! words      content
//! 0          the subscription: until when times are recorded
//! 8–23       Retry answers by queue
//! 24–39      lost submissions by queue
//! 64–        a block for each engine:
//!              0–63     descriptors by operation
//!              64–127   descriptors by status; 0 for abandoned ones
//!              128–255  by queue: descriptors, members of batches, bytes read, bytes written, page faults, pages
//!                       that the device waited for, bytes read and written in units of 32 bytes
//!              256–257  descriptors whose time was recorded, and the sum of their times in ns
//!              258–297  these descriptors by time: bucket N has times of N bits, the last one also longer ones
//!              298–361  when the descriptors in progress began: by lane, and whether it is a member of a batch
//!              362      when the engine has last looked whether the subscription still lasts
//! ```
//!
//! The thread that steps an engine writes the engine's block, without an atomic addition. Other words have several
//! writers. A reader needs no lock: each word was right at some moment during the read.

use crate::action::Action;
use crate::capabilities::{MAX_ENGINES, MAX_WQS};
use crate::device::MAX_LANES;
use crate::engine::Outcome;
use crate::observe::{DispatchDecision, Job, Observer, ReportedTo};
use crate::subscription::Subscription;
use crate::sync::Word;

use std::fmt;
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status, StatusByte};
use telpher_mem::{Fault, Space};
use telpher_portal::Offer;

/// Operations that are told apart; a code above is counted by its low bits. Source: the first word of OPCAP.
pub const OPERATIONS: usize = 64;
/// Statuses that are told apart: bits 5:0 of the status byte.
pub const STATUSES: usize = 64;
/// Buckets of the execution times.
pub const TIME_BUCKETS: usize = 40;

/// The bytes of a unit in which the performance counters count data. Source: SPEC App. D.
const UNIT: u64 = 32;

const SUCCESS: StatusByte = StatusByte::new(Status::Success);
const ABANDONED: StatusByte = StatusByte::new(Status::None);

const SUBSCRIPTION: usize = 0;
const RETRIES: usize = 8;
const LOST: usize = RETRIES + MAX_WQS;
const ENGINES: usize = 64;
const STATUS: usize = OPERATIONS;
const QUEUES: usize = STATUS + STATUSES;
const QUEUE_WORDS: usize = 8;
const TIMED: usize = QUEUES + MAX_WQS * QUEUE_WORDS;
const BUSY: usize = TIMED + 1;
const TIMES: usize = BUSY + 1;
const BEGUN: usize = TIMES + TIME_BUCKETS;
const CHECKED: usize = BEGUN + 2 * MAX_LANES;
/// A multiple of 16 words, so that the blocks of two engines share no cache line. x86 prefetches lines in pairs.
const ENGINE_WORDS: usize = (CHECKED + 1).next_multiple_of(16);
const WORDS: usize = ENGINES + MAX_ENGINES * ENGINE_WORDS;

const _: () = assert!(LOST + MAX_WQS <= ENGINES);

/// The totals of a queue, as positions in its words.
const DESCRIPTORS: usize = 0;
const MEMBERS: usize = 1;
const READ: usize = 2;
const WRITTEN: usize = 3;
const FAULTS: usize = 4;
const PAGES: usize = 5;
const READ_UNITS: usize = 6;
const WRITTEN_UNITS: usize = 7;

/// The words of one device, or of one process's share of it.
#[repr(C, align(64))]
pub struct DeviceCounts([Word; WORDS]);

impl fmt::Debug for DeviceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCounts").finish_non_exhaustive()
    }
}

impl Default for DeviceCounts {
    fn default() -> Self {
        DeviceCounts(std::array::from_fn(|_| Word::default()))
    }
}

impl DeviceCounts {
    /// The number of words.
    pub const WORDS: usize = WORDS;
    /// The position of the subscription's word, which readers write.
    pub const SUBSCRIPTION: usize = SUBSCRIPTION;

    /// Counts a queue's answer to a submission. Accepted ones are counted when they end.
    #[inline]
    pub fn offered(&self, wq: usize, offer: Offer) {
        let first = match offer {
            Offer::Taken => return,
            Offer::Retry => RETRIES,
            Offer::Lost => LOST,
        };
        self.0[first + wq % MAX_WQS].add(1);
    }

    /// Returns the subscription, by which readers have times recorded.
    #[must_use]
    #[inline]
    pub fn subscription(&self) -> Subscription<'_> {
        Subscription(&self.0[SUBSCRIPTION])
    }

    /// Reads all words. **Staleness.** Each word was right at some moment during the call.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals(self.0.iter().map(Word::get).collect())
    }

    /// Takes the totals down in `earlier`, so that a reader can tell those of another device that counts here from now
    /// on, and forgets descriptors that the last device did not end. No device counts here meanwhile.
    pub fn hand_over(&self, earlier: &DeviceCounts) {
        for (at, (word, earlier)) in self.0.iter().zip(&earlier.0).enumerate() {
            // Words that are zero are not written: their pages may not have been touched so far.
            match word.get() {
                0 => {}
                total if is_total(at) => earlier.set(total),
                _ if at >= ENGINES => word.set(0),
                _ => {}
            }
        }
    }

    /// Returns the words of an engine. All positions in them are below constants, so that no index needs a check.
    #[inline]
    fn engine(&self, engine: usize) -> &[Word; ENGINE_WORDS] {
        let (engines, _) = self.0[ENGINES..].as_chunks();
        &engines[engine % MAX_ENGINES]
    }

    /// Counts a descriptor's end. The status is a byte, since most descriptors succeed, and need no more decoding.
    ///
    /// Not inlined: its registers would be missing in the engine's steps, which costs more than the call.
    #[inline(never)]
    pub(crate) fn ended(&self, engine: usize, wq: usize, is_member: bool, operation: u8, status: StatusByte) {
        let words = self.engine(engine);
        add_alone(&words[usize::from(operation) % OPERATIONS], 1);
        add_alone(&words[STATUS + usize::from(status.0) % STATUSES], 1);
        let queue = queue_at(wq);
        add_alone(&words[queue + if is_member { MEMBERS } else { DESCRIPTORS }], 1);
        if status != SUCCESS && (status.status().is_page_fault() || status.status() == Status::BatchPageFault) {
            add_alone(&words[queue + FAULTS], 1);
        }
    }

    /// Counts the bytes that a descriptor has read and written.
    #[inline]
    fn moved(&self, engine: usize, wq: usize, moved: &Moved) {
        let (words, queue) = (self.engine(engine), queue_at(wq));
        if moved.read != 0 {
            add_alone(&words[queue + READ], moved.read);
            add_alone(&words[queue + READ_UNITS], moved.read_units);
        }
        if moved.written != 0 {
            add_alone(&words[queue + WRITTEN], moved.written);
            add_alone(&words[queue + WRITTEN_UNITS], moved.written_units);
        }
    }
}

/// The position of an engine's words.
#[inline]
fn engine_at(engine: usize) -> usize {
    ENGINES + engine % MAX_ENGINES * ENGINE_WORDS
}

/// The position of a queue's words, in those of an engine.
#[inline]
fn queue_at(wq: usize) -> usize {
    QUEUES + wq % MAX_WQS * QUEUE_WORDS
}

/// Adds to a word that only the caller writes.
#[inline]
fn add_alone(word: &Word, more: u64) {
    word.set(word.get().wrapping_add(more));
}

/// The position of the stamp of a descriptor in progress, in the words of its engine.
#[inline]
fn stamp_at(job: &Job<'_>) -> usize {
    BEGUN + job.lane % MAX_LANES * 2 + usize::from(job.member.is_some())
}

/// The bytes that a descriptor has read and written, also in units of 32 bytes, of which each operand has whole ones.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    read: u64,
    read_units: u64,
    written: u64,
    written_units: u64,
}

impl Moved {
    #[inline]
    fn add(&mut self, write: bool, len: u64) {
        let (bytes, units) =
            if write { (&mut self.written, &mut self.written_units) } else { (&mut self.read, &mut self.read_units) };
        *bytes = bytes.saturating_add(len);
        *units = units.saturating_add(len.div_ceil(UNIT));
    }
}

/// Returns the bytes that a descriptor has read and written, without those of its record and its list.
fn bytes_of(descriptor: &Descriptor, record: &CompletionRecord) -> Moved {
    let status = record.status();
    let opcode = descriptor.opcode();
    let is_data = !matches!(opcode, Opcode::Nop | Opcode::Batch | Opcode::Drain | Opcode::CacheFlush);
    let differs = matches!(opcode, Opcode::Compare | Opcode::ComparePattern) && record.result() != 0;
    let stops_early = status.is_page_fault() || differs;
    let mut moved = Moved::default();
    if !is_data || !(stops_early || matches!(status, Status::Success | Status::SuccessPredicateFalse)) {
        return moved;
    }
    for range in Action::of(descriptor).ranges() {
        let len = match opcode {
            Opcode::CreateDelta if range.write => range.len.min(record.delta_record_size().into()),
            _ if stops_early => range.len.min(record.bytes_completed().into()),
            _ => range.len,
        };
        moved.add(range.write, len);
    }
    moved
}

/// The clocks by which times are recorded.
#[derive(Debug)]
pub struct Clocks {
    /// The monotonic clock in nanoseconds, by which subscriptions end.
    pub now_ns: fn() -> u64,
    /// A stamp of this moment, never 0, in any unit. It is taken twice for each descriptor.
    pub stamp: fn() -> u64,
    /// The nanoseconds between two stamps; 0 if the second one is earlier.
    pub ns_between: fn(u64, u64) -> u64,
}

/// How long an engine trusts that a subscription still lasts, in nanoseconds. Source: chosen, far below a subscription.
const TRUSTED_NS: u64 = 1_000_000;

/// An observer that counts, and passes every call on to another one.
#[derive(Debug)]
pub struct Counting<'a, O: ?Sized> {
    /// The words; the caller alone steps the engines that count in them.
    pub counts: &'a DeviceCounts,
    /// The clocks. They are read only while a reader has subscribed.
    pub clocks: &'a Clocks,
    /// The other observer.
    pub observer: &'a O,
}

impl<O: Observer + ?Sized> Counting<'_, O> {
    #[cold]
    fn begin(&self, job: &Job<'_>) {
        let begun = (self.clocks.stamp)();
        let words = self.counts.engine(job.engine);
        let checked = &words[CHECKED];
        let last = checked.get();
        // A moment to come was written by another process; trusting it would leave the recording on.
        let is_trusted = last <= begun && (self.clocks.ns_between)(last, begun) < TRUSTED_NS;
        let is_on = is_trusted || self.counts.subscription().is_on((self.clocks.now_ns)());
        if is_on && !is_trusted {
            checked.set(begun);
        }
        words[stamp_at(job)].set(if is_on { begun } else { 0 });
    }

    #[cold]
    fn end(&self, job: &Job<'_>) {
        let words = self.counts.engine(job.engine);
        let word = &words[stamp_at(job)];
        let begun = word.get();
        if begun == 0 {
            return;
        }
        word.set(0);
        let time = (self.clocks.ns_between)(begun, (self.clocks.stamp)());
        let bucket = (u64::BITS - time.leading_zeros()) as usize;
        add_alone(&words[TIMED], 1);
        add_alone(&words[BUSY], time);
        add_alone(&words[TIMES + bucket.min(TIME_BUCKETS - 1)], 1);
    }
}

impl<O: Observer + ?Sized> Observer for Counting<'_, O> {
    /// While times are recorded, everything goes by steps.
    #[inline]
    fn is_watching(&self) -> bool {
        self.counts.subscription().is_set() || self.observer.is_watching()
    }

    #[inline]
    fn dispatched(&self, job: &Job<'_>) -> DispatchDecision {
        let decision = self.observer.dispatched(job);
        if decision != DispatchDecision::Wait {
            if self.counts.subscription().is_set() {
                self.begin(job);
            } else {
                // A stamp that is left is another descriptor's, whose end was not timed.
                self.counts.engine(job.engine)[stamp_at(job)].set(0);
            }
        }
        decision
    }

    #[inline]
    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        let outcome = self.observer.execute(job, space, act);
        if outcome.pages_granted != 0 {
            let words = self.counts.engine(job.engine);
            add_alone(&words[queue_at(job.wq) + PAGES], outcome.pages_granted.into());
        }
        outcome
    }

    #[inline]
    fn window_updated(&self, job: &Job<'_>, generation: u64) -> Result<(), Status> {
        self.observer.window_updated(job, generation)
    }

    #[inline]
    fn concluding(&self, job: &Job<'_>, record: &CompletionRecord) -> bool {
        self.observer.concluding(job, record)
    }

    #[inline]
    fn record(
        &self,
        job: &Job<'_>,
        record: &CompletionRecord,
        write: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.observer.record(job, record, write)
    }

    #[inline]
    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, reported_to: ReportedTo) {
        let is_abandoned = reported_to == ReportedTo::Abandoned;
        // Without a call at its dispatch, the stamp is another descriptor's, which began under an earlier subscription.
        if job.is_watched && self.counts.subscription().is_set() && !is_abandoned {
            self.end(job);
        }
        let operation = job.descriptor.opcode_code();
        let status = if is_abandoned { ABANDONED } else { record.status_byte() };
        self.counts.ended(job.engine, job.wq, job.member.is_some(), operation, status);
        if operation != Opcode::Nop.code() {
            self.counts.moved(job.engine, job.wq, &bytes_of(job.descriptor, record));
        }
        self.observer.ended(job, record, reported_to);
    }

    #[inline]
    fn ended_fast(&self, job: &Job<'_>) {
        let len = u64::from(job.descriptor.size());
        let mut moved = Moved::default();
        moved.add(false, len);
        if job.descriptor.opcode() != Opcode::CrcGeneration {
            moved.add(true, len);
        }
        self.counts.ended(job.engine, job.wq, job.member.is_some(), job.descriptor.opcode_code(), SUCCESS);
        self.counts.moved(job.engine, job.wq, &moved);
        self.observer.ended_fast(job);
    }
}

/// A copy of the words of [`DeviceCounts`], or a sum of such copies.
#[derive(Clone, PartialEq, Eq)]
pub struct Totals(Vec<u64>);

impl Default for Totals {
    fn default() -> Self {
        Totals(vec![0; WORDS])
    }
}

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.nonzero()).finish()
    }
}

/// The totals of a queue, or of a queue in one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueTotals {
    /// Descriptors that ended, without members of batches.
    pub descriptors: u64,
    /// Members of batches that ended.
    pub members: u64,
    /// Bytes read by operations.
    pub read_bytes: u64,
    /// Bytes written by operations.
    pub written_bytes: u64,
    /// Descriptors and members that ended with a page fault.
    pub faults: u64,
    /// Pages that the device waited for.
    pub pages: u64,
    /// Bytes read, in units of 32 bytes: each operand counts its last unit as a whole one.
    pub read_units: u64,
    /// Bytes written, in these units.
    pub written_units: u64,
}

/// The execution times of an engine, as far as they were recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutionTimes {
    /// Descriptors and members whose time was recorded.
    pub count: u64,
    /// The sum of their times in nanoseconds, from dispatch to end. The time of a Batch includes its members'.
    pub sum_ns: u64,
    /// Their number by time: bucket N has times of N bits in nanoseconds, the last one also longer ones.
    pub buckets: [u64; TIME_BUCKETS],
}

impl Totals {
    /// Takes over words that a device wrote; `None` if their number is another.
    #[must_use]
    pub fn from_words(words: Vec<u64>) -> Option<Totals> {
        (words.len() == WORDS).then_some(Totals(words))
    }

    /// Creates the totals from the words that are not zero; `None` if a position is out of range.
    #[must_use]
    pub fn from_nonzero(words: impl IntoIterator<Item = (usize, u64)>) -> Option<Totals> {
        let mut totals = Totals::default();
        for (at, value) in words {
            *totals.0.get_mut(at)? = value;
        }
        Some(totals)
    }

    /// Returns the words that are not zero, with their positions.
    pub fn nonzero(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.0.iter().copied().enumerate().filter(|(_, value)| *value != 0)
    }

    /// Returns the totals that are not zero, with their positions, without the subscription and the stamps.
    pub fn counted(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.nonzero().filter(|(at, _)| is_total(*at))
    }

    /// Returns the word at a position; 0 beyond the last one.
    #[must_use]
    pub fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// Adds the totals of a device or a process, which may be any numbers. What is no total, such as the subscription
    /// and the beginnings of descriptors, becomes zero.
    pub fn add(&mut self, other: &Totals) {
        for (at, (word, more)) in self.0.iter_mut().zip(&other.0).enumerate() {
            *word = if is_total(at) { word.saturating_add(*more) } else { 0 };
        }
    }

    /// Returns what was counted since these earlier totals of the same words. What is no total becomes zero.
    #[must_use]
    pub fn since(&self, earlier: &Totals) -> Totals {
        let words = self.0.iter().zip(&earlier.0).enumerate();
        Totals(words.map(|(at, (now, then))| if is_total(at) { now.saturating_sub(*then) } else { 0 }).collect())
    }

    /// Returns the deadline of the subscription in nanoseconds of the monotonic clock; 0 for none.
    #[must_use]
    pub fn subscribed_until(&self) -> u64 {
        self.0[SUBSCRIPTION]
    }

    /// Returns the Retry answers of a queue.
    #[must_use]
    pub fn retries(&self, wq: usize) -> u64 {
        self.0[RETRIES + wq % MAX_WQS]
    }

    /// Returns the lost submissions of a queue.
    #[must_use]
    pub fn lost(&self, wq: usize) -> u64 {
        self.0[LOST + wq % MAX_WQS]
    }

    /// Returns the totals of a queue in one engine.
    #[must_use]
    pub fn queue_in_engine(&self, wq: usize, engine: usize) -> QueueTotals {
        let at = engine_at(engine) + queue_at(wq);
        QueueTotals {
            descriptors: self.0[at + DESCRIPTORS],
            members: self.0[at + MEMBERS],
            read_bytes: self.0[at + READ],
            written_bytes: self.0[at + WRITTEN],
            faults: self.0[at + FAULTS],
            pages: self.0[at + PAGES],
            read_units: self.0[at + READ_UNITS],
            written_units: self.0[at + WRITTEN_UNITS],
        }
    }

    /// Returns the totals of a queue.
    #[must_use]
    pub fn queue(&self, wq: usize) -> QueueTotals {
        (0..MAX_ENGINES).map(|engine| self.queue_in_engine(wq, engine)).sum()
    }

    /// Returns the totals of an engine.
    #[must_use]
    pub fn engine(&self, engine: usize) -> QueueTotals {
        (0..MAX_WQS).map(|wq| self.queue_in_engine(wq, engine)).sum()
    }

    /// Returns the totals of all queues.
    #[must_use]
    pub fn all(&self) -> QueueTotals {
        (0..MAX_WQS).map(|wq| self.queue(wq)).sum()
    }

    /// Returns the descriptors and members of an operation.
    #[must_use]
    pub fn operation(&self, code: u8) -> u64 {
        self.sum_of(usize::from(code) % OPERATIONS)
    }

    /// Returns the descriptors and members that ended with a status (bits 5:0); of status 0, the abandoned ones.
    #[must_use]
    pub fn status(&self, code: u8) -> u64 {
        self.sum_of(STATUS + usize::from(code) % STATUSES)
    }

    fn sum_of(&self, word: usize) -> u64 {
        (0..MAX_ENGINES).fold(0, |sum: u64, engine| sum.saturating_add(self.0[engine_at(engine) + word]))
    }

    /// Returns the descriptors and members of an operation in one engine.
    #[must_use]
    pub fn operation_in_engine(&self, code: u8, engine: usize) -> u64 {
        self.0[engine_at(engine) + usize::from(code) % OPERATIONS]
    }

    /// Returns the descriptors and members that ended with a status in one engine.
    #[must_use]
    pub fn status_in_engine(&self, code: u8, engine: usize) -> u64 {
        self.0[engine_at(engine) + STATUS + usize::from(code) % STATUSES]
    }

    /// Returns the execution times of an engine; `None` if none was recorded.
    #[must_use]
    pub fn times(&self, engine: usize) -> Option<ExecutionTimes> {
        let block = engine_at(engine);
        let count = self.0[block + TIMED];
        let buckets = std::array::from_fn(|bucket| self.0[block + TIMES + bucket]);
        (count != 0).then(|| ExecutionTimes { count, sum_ns: self.0[block + BUSY], buckets })
    }
}

/// True for a word that only grows.
fn is_total(at: usize) -> bool {
    match at.checked_sub(ENGINES) {
        None => at >= RETRIES,
        Some(at) => !(BEGUN..=CHECKED).contains(&(at % ENGINE_WORDS)),
    }
}

impl std::iter::Sum for QueueTotals {
    fn sum<I: Iterator<Item = QueueTotals>>(totals: I) -> QueueTotals {
        totals.fold(QueueTotals::default(), |sum, more| QueueTotals {
            descriptors: sum.descriptors.saturating_add(more.descriptors),
            members: sum.members.saturating_add(more.members),
            read_bytes: sum.read_bytes.saturating_add(more.read_bytes),
            written_bytes: sum.written_bytes.saturating_add(more.written_bytes),
            faults: sum.faults.saturating_add(more.faults),
            pages: sum.pages.saturating_add(more.pages),
            read_units: sum.read_units.saturating_add(more.read_units),
            written_units: sum.written_units.saturating_add(more.written_units),
        })
    }
}
