//! One engine: takes a descriptor from its group, decides what is to be done, and hears from its runner how it went.
//!
//! ```text
//! step() ─► Idle | Again | Wait | Ended
//!        ─► Fetch    a batch member          ─► fetched()
//!        ─► Execute  action()                ─► executed()
//!        ─► Record   record()                ─► recorded()
//!        ─► Log      log_entry()             ─► logged()
//!        ─► Interrupt                            (already counted)
//! ```
//!
//! An engine never touches memory: the runner does, or, in simulated time, only accounts for it. (But for short copies that nobody looks
//! at: a runner with memory may have them [done](plain) in one go.) Source: SPEC §3.5, §3.8,
//! §3.9, §3.12, §5.4.

mod batch;
mod count;
mod plain;
mod report;

use crate::action::Action;
use crate::capabilities::MAX_ENGINES;
use crate::device::{Device, MAX_LANES};
use crate::errors::Append;
use crate::group::Pick;
use crate::interrupt::Interrupt;
use crate::legality::{Origin, Refusal};
use crate::observe::{Job, Member, Observer, Told, Verdict};
use crate::wq::{Entry, Submitter};
use batch::Batch;
use telpher_abi::perfmon::Event;
use telpher_abi::registers::WqState;
use telpher_abi::{CompletionRecord, Descriptor, EventLogEntry, Flags, OpFlags, Opcode, OperandId, Status, StatusByte};
use telpher_mem::Fault;
use telpher_ops::delta::OffsetOrder;

/// What an engine wants next.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing waits for this engine.
    Idle,
    /// Somebody else is just asking the arbiter, or a descriptor is just arriving: step again soon.
    Again,
    /// The descriptor in hand waits for others: step again after they have moved.
    Wait,
    /// A descriptor ended without telling anybody: step again.
    Ended,
    /// Read 64 bytes at this address, a batch member; answer with [`Engine::fetched`].
    Fetch {
        /// Where.
        address: u64,
    },
    /// Execute [`Engine::action`]; answer with [`Engine::executed`].
    Execute,
    /// Write [`Engine::record`]; answer with [`Engine::recorded`].
    Record {
        /// Where.
        address: u64,
    },
    /// Write [`Engine::log_entry`], padded with zeros to `bytes`; answer with [`Engine::logged`].
    Log {
        /// Address space of the log; `None` for the device's own.
        pasid: Option<u32>,
        /// Where.
        address: u64,
        /// Bytes of the device's entries.
        bytes: u64,
    },
    /// A completion interrupt was delivered.
    Interrupt(Interrupt),
}

/// How an action ended: what execution puts into the completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Status, result, bytes completed, fault address and the operation's own fields.
    pub record: CompletionRecord,
    /// Which operand faulted, if one did.
    pub operand: OperandId,
    /// Page requests that were granted.
    pub pages_granted: u32,
    /// Page requests that were refused.
    pub pages_refused: u32,
}

impl Outcome {
    /// An end with no more to say than its status.
    #[must_use]
    #[inline]
    pub fn of(status: Status) -> Self {
        Outcome {
            record: CompletionRecord::new(StatusByte::new(status)),
            operand: OperandId::Unknown,
            pages_granted: 0,
            pages_refused: 0,
        }
    }
}

impl Device {
    /// True if a queue takes nothing, and nothing that it has taken is executed or touches memory any more: it is disabled, or
    /// the device has halted, and none of its descriptors is in an engine's hand. May say `false` where somebody else is just
    /// looking.
    #[must_use]
    pub fn has_stopped(&self, wq: usize) -> bool {
        if self.wq_state(wq) == WqState::Disabled {
            // Whoever disabled it has waited for its descriptors, or abandoned them.
            return true;
        }
        // What waits in a halted device is abandoned by the reset that must come first.
        let turn = &self.groups[self.group_of_wq(wq)].0.turn;
        self.general.state.is_at_rest(turn, || self.in_progress(wq, u64::MAX, None, None))
    }

    /// True if a descriptor of the queue before `end` is in progress in any lane but `except`.
    pub(crate) fn in_progress(&self, wq: usize, end: u64, pasid: Option<u32>, except: Option<usize>) -> bool {
        let mut lanes = self.lanes.as_flattened().iter().enumerate();
        lanes.any(|(index, lane)| except != Some(index) && lane.0.holds(wq, end, pasid))
    }
}

/// The descriptor in hand.
#[derive(Clone, Copy, Debug)]
struct Work {
    descriptor: Descriptor,
    origin: Origin,
    position: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Between descriptors (or between members of a batch).
    Ready,
    /// Waits for the runner's answer to `Fetch`.
    Fetching,
    /// A descriptor is in hand, not yet looked at.
    Deciding,
    /// A Drain in hand waits for what is before it.
    Draining,
    /// Waits for the runner's answer to `Execute`.
    Executing,
    /// The outcome is known; its record is to be written.
    Recording,
    /// Waits for the runner's answer to `Record`.
    Recorded,
    /// The entry is to be appended to the event log.
    Logging,
    /// Waits for the runner's answer to `Log`.
    Logged,
    /// Record and log are done; an interrupt may follow.
    Notifying,
    /// Clean up, and take the next.
    Ending,
}

/// An engine of a device: private state of whoever steps it.
#[derive(Debug)]
pub struct Engine {
    index: usize,
    lane: usize,
    phase: Phase,
    work: Work,
    action: Action,
    /// How the descriptor in hand ended, from `Recording` on.
    outcome: Outcome,
    /// What to append to the event log, from `Logging` on; and whether an interrupt may follow.
    entry: EventLogEntry,
    notify_after_log: bool,
    /// An entry that follows the completion record.
    owed_entry: Option<EventLogEntry>,
    /// Who was told of the outcome, at `Ending`.
    told: Told,
    batch: Option<Batch>,
}

impl Engine {
    /// Engine `index`, in-progress place `lane`. Each pair may be stepped by one runner at a time.
    ///
    /// # Panics
    /// If the model holds no such engine or lane.
    #[must_use]
    pub fn new(index: usize, lane: usize) -> Self {
        assert!(index < MAX_ENGINES && lane < MAX_LANES, "engine {index} lane {lane} is beyond the model");
        let origin = Origin { wq: 0, submitter: Submitter::default(), batch_index: None };
        let work = Work { descriptor: Descriptor::nop(), origin, position: 0 };
        Engine {
            index,
            lane,
            phase: Phase::Ready,
            work,
            action: Action::Nop,
            outcome: Outcome::of(Status::None),
            entry: EventLogEntry::default(),
            notify_after_log: false,
            owed_entry: None,
            told: Told::Nobody,
            batch: None,
        }
    }

    /// Number of the engine.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// True if no descriptor is in hand.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Ready) && self.batch.is_none()
    }

    /// What to execute, after [`Step::Execute`].
    #[must_use]
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// The completion record to write, after [`Step::Record`].
    #[must_use]
    pub fn record(&self) -> &CompletionRecord {
        &self.outcome.record
    }

    /// The event log entry to write, after [`Step::Log`].
    #[must_use]
    pub fn log_entry(&self) -> &EventLogEntry {
        &self.entry
    }

    /// Address space of the descriptor in hand.
    #[must_use]
    pub fn submitter(&self) -> Submitter {
        self.work.origin.submitter
    }

    /// The descriptor in hand asks the device to wait for pages of its buffers.
    #[must_use]
    pub fn blocks_on_fault(&self) -> bool {
        self.work.descriptor.flags().contains(Flags::BLOCK_ON_FAULT)
    }

    /// The descriptor in hand, and its queue.
    #[must_use]
    pub fn descriptor(&self) -> (&Descriptor, usize) {
        (&self.work.descriptor, self.work.origin.wq)
    }

    /// The descriptor in hand as observers see it.
    #[must_use]
    #[inline]
    pub fn job(&self) -> Job<'_> {
        let Work { descriptor, origin, .. } = &self.work;
        let member = match (&self.batch, origin.batch_index) {
            (Some(batch), Some(index)) => Some(Member { batch: &batch.work.descriptor, index }),
            _ => None,
        };
        Job { descriptor, wq: origin.wq, submitter: origin.submitter, member }
    }

    /// Completion records, descriptor lists and readbacks are waited for by page requests.
    #[must_use]
    pub fn has_page_requests(&self, device: &Device) -> bool {
        let config = device.wq_cfg(self.work.origin.wq);
        let pci = device.pci();
        pci.prs && pci.ats && !config.prs_disable() && !config.ats_disable()
    }

    fn lane_index(&self) -> usize {
        self.index * MAX_LANES + self.lane
    }

    /// What this engine wants next. `observer` hears of descriptors that come into its hand and leave it.
    #[inline]
    pub fn step<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Step {
        loop {
            match self.phase {
                Phase::Ready => match self.batch {
                    Some(batch) => {
                        if let Some(step) = self.next_member(device, batch) {
                            return step;
                        }
                    }
                    None => {
                        if let Some(step) = self.next_descriptor(device, observer) {
                            return step;
                        }
                    }
                },
                Phase::Deciding => {
                    if let Some(step) = self.decide(device, observer) {
                        return step;
                    }
                }
                Phase::Draining => {
                    let Work { origin, position, .. } = self.work;
                    let shared = device.wqs[origin.wq].rules.0.dedicated.get() == 0;
                    let pasid = if shared { origin.submitter.pasid } else { None };
                    if device.in_progress(origin.wq, position, pasid, Some(self.lane_index())) {
                        return Step::Wait;
                    }
                    self.phase = Phase::Executing;
                    return Step::Execute;
                }
                Phase::Recording => {
                    if !observer.concluding(&self.job(), &self.outcome.record) {
                        return Step::Wait;
                    }
                    if let Some(step) = self.conclude(device) {
                        return step;
                    }
                }
                Phase::Logging => match device.begin_append(self.lane_index() as u64) {
                    Append::Wait => return Step::Wait,
                    Append::Dropped => self.after_log(),
                    Append::At(address) => {
                        self.phase = Phase::Logged;
                        let config = device.evl_cfg();
                        let pasid = config.pasid_enable().then_some(config.pasid());
                        let bytes = device.capabilities.event_log_entry_bytes();
                        return Step::Log { pasid, address, bytes };
                    }
                },
                Phase::Notifying => {
                    self.phase = Phase::Ending;
                    if let Some(interrupt) = self.notify(device) {
                        return Step::Interrupt(interrupt);
                    }
                }
                Phase::Ending => {
                    observer.ended(&self.job(), &self.outcome.record, self.told);
                    self.end(device);
                    // Each step ends within a bounded time, however many descriptors want no record.
                    if self.batch.is_none() && self.told != Told::Record {
                        return Step::Ended;
                    }
                }
                // The runner owes an answer: say what it was asked.
                Phase::Fetching | Phase::Executing | Phase::Recorded | Phase::Logged => return Step::Wait,
            }
        }
    }

    /// Takes the next descriptor of the group. `None` if the phase moved on.
    #[inline]
    fn next_descriptor<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Option<Step> {
        let Some(group) = device.group_of_engine(self.index) else { return Some(Step::Idle) };
        let lane = &device.lanes[self.index][self.lane].0;
        let mark = |wq: usize, entry: &Entry| {
            device.occupancy_fell(wq, entry);
            lane.take(wq, entry.submitter.to_word(), entry.position);
        };
        let (wq, entry) = match device.pick(group, &mut self.work.descriptor, mark) {
            Pick::Nothing => return Some(Step::Idle),
            Pick::Again => return Some(Step::Again),
            Pick::Entry(wq, entry) => (wq, entry),
        };
        self.work.origin = Origin { wq, submitter: entry.submitter, batch_index: None };
        self.work.position = entry.position;
        if entry.abandoned {
            self.told = Told::Abandoned;
            self.outcome = Outcome::of(Status::None);
            self.phase = Phase::Ending;
            return None;
        }
        device.count(Event::FROM_WQ, 1, Some(wq), Some(self.index), None);
        self.phase = Phase::Deciding;
        self.decide(device, observer)
    }

    /// Refuses the descriptor in hand, or turns it into an action. `None` if the phase moved on.
    #[inline]
    fn decide<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Option<Step> {
        match observer.dispatched(&self.job()) {
            Verdict::Go => {}
            Verdict::Wait => return Some(Step::Wait),
            Verdict::End(status) => {
                self.refuse(device, Refusal::from(status));
                return None;
            }
        }
        if device.perfmon.is_counting() {
            self.count_dispatch(device);
        }
        // By reference throughout: copying 64 bytes that were just stored word by word costs more than checking them.
        let descriptor = &self.work.descriptor;
        let opcode = descriptor.opcode();
        if let Err(refusal) = device.check(descriptor, self.work.origin) {
            self.refuse(device, refusal);
            return None;
        }
        match opcode {
            Opcode::Batch => {
                let continued = device.capabilities.gen_cap.batch_continuation()
                    && descriptor.flags().contains(OpFlags::BATCH_ERROR);
                self.batch =
                    Some(Batch { work: self.work, next: 0, done: 0, failed: continued, logged: false, fault: None });
                self.phase = Phase::Ready;
                None
            }
            Opcode::Nop => {
                self.outcome = Outcome::of(Status::Success);
                self.phase = Phase::Recording;
                None
            }
            Opcode::Drain => {
                self.action = Action::of(descriptor);
                self.phase = Phase::Draining;
                None
            }
            _ => {
                self.action = Action::of(descriptor);
                if let Action::ApplyDelta { order, .. } = &mut self.action
                    && device.capabilities.tolerances.equal_delta_offsets
                {
                    *order = OffsetOrder::NotDescending;
                }
                self.phase = Phase::Executing;
                Some(Step::Execute)
            }
        }
    }

    /// The runner's answer to [`Step::Execute`].
    #[inline]
    pub fn executed(&mut self, device: &Device, mut outcome: Outcome) {
        if !matches!(self.phase, Phase::Executing) {
            return;
        }
        if device.perfmon.is_counting() {
            self.count_execution(device, &outcome);
        }
        if !device.capabilities.gen_cap.fault_info() {
            outcome.operand = OperandId::Unknown;
        }
        self.end_with(outcome);
    }

    fn end_with(&mut self, outcome: Outcome) {
        self.outcome = outcome;
        self.phase = Phase::Recording;
    }

    fn wants_anything(&self) -> bool {
        let wants = Flags::REQUEST_COMPLETION_RECORD.union(Flags::REQUEST_COMPLETION_INTERRUPT);
        self.work.descriptor.flags().intersects(wants)
    }

    /// Whether a descriptor that ended with `status` gets a completion record. Source: SPEC §5.4.
    #[inline]
    fn wants_record(&self, status: Status) -> bool {
        let flags = self.work.descriptor.flags();
        let silent = matches!(status, Status::Success | Status::SuccessPredicateFalse | Status::BatchFail);
        flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID)
            && (flags.contains(Flags::REQUEST_COMPLETION_RECORD) || !silent)
    }

    /// Decides where the outcome goes. `None` if the phase moved on.
    #[inline]
    fn conclude(&mut self, device: &Device) -> Option<Step> {
        let outcome = self.outcome;
        let status = outcome.record.status();
        if let Some(batch) = self.batch.as_mut() {
            batch.done += 1;
            // Also a predicate that is false counts as a failure (SPEC §3.9).
            batch.failed |= status != Status::Success;
        }
        if device.perfmon.is_counting() {
            self.count_completion(device, status);
        }
        if self.wants_record(status) {
            if self.drains_to_log(device, status) {
                let entry = self.log_entry_with_record(device, Status::DrainEventLog, &outcome.record, true);
                self.told = Told::Elsewhere;
                self.log(entry, false);
                return None;
            }
            if outcome.operand != OperandId::Unknown && device.capabilities.gen_cap.fault_info() {
                self.outcome.record = outcome.record.with_fault_operand(outcome.operand as u8);
            }
            self.phase = Phase::Recorded;
            return Some(Step::Record { address: self.work.descriptor.completion_address() });
        }
        let told = matches!(status, Status::Success | Status::SuccessPredicateFalse | Status::BatchFail);
        if told {
            self.told = Told::Nobody;
            self.phase = Phase::Notifying;
        } else {
            let information = match status {
                Status::InvalidFlags => Some(outcome.record.invalid_flags()),
                status if status.has_direction() => Some((outcome.operand as u32) << 29),
                _ => None,
            };
            self.report(device, &outcome, information);
        }
        None
    }

    /// The runner's answer to [`Step::Record`].
    #[inline]
    pub fn recorded(&mut self, device: &Device, written: Result<(), Fault>) {
        if self.phase != Phase::Recorded {
            return;
        }
        match written {
            Ok(()) => {
                self.told = Told::Record;
                device.count(Event::RECORD_WRITTEN, 1, Some(self.work.origin.wq), Some(self.index), None);
                match self.owed_entry.take() {
                    Some(entry) => self.log(entry, false),
                    None => self.phase = Phase::Notifying,
                }
            }
            Err(fault) => self.record_faulted(device, fault),
        }
    }

    /// Delivers the completion interrupt, if one was asked for.
    #[inline]
    fn notify(&mut self, device: &Device) -> Option<Interrupt> {
        let Work { descriptor, origin, .. } = &self.work;
        if !descriptor.flags().contains(Flags::REQUEST_COMPLETION_INTERRUPT) {
            return None;
        }
        // A handle that was refused, or revoked since, gets no interrupt.
        let interrupt = device.interrupt_of_handle(descriptor.interrupt_handle(), origin.submitter)?;
        device.deliver(interrupt).then(|| {
            let event = if interrupt.ims { Event::IMS } else { Event::MSIX };
            device.count(event, 1, Some(origin.wq), Some(self.index), None);
            interrupt
        })
    }

    /// Ends the descriptor in hand, if its record is written, without taking the next: for runners that have something else to do
    /// between the two.
    pub fn settle<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Option<Interrupt> {
        let mut interrupt = None;
        if matches!(self.phase, Phase::Notifying) {
            self.phase = Phase::Ending;
            interrupt = self.notify(device);
        }
        if matches!(self.phase, Phase::Ending) {
            observer.ended(&self.job(), &self.outcome.record, self.told);
            self.end(device);
        }
        interrupt
    }

    #[inline]
    fn end(&mut self, device: &Device) {
        self.phase = Phase::Ready;
        if self.batch.is_none() {
            device.lanes[self.index][self.lane].0.let_go();
        }
    }
}
