//! One engine: takes a descriptor from its group, decides what to do, and gets the result from its runner.
//!
//! ```text
//! step() ─► Idle | Again | Wait | Ended
//!        ─► Fetch    a batch member          ─► fetched()
//!        ─► ReadBitmap a submitter's bit     ─► bitmap_read()
//!        ─► Execute  action()                ─► executed()
//!        ─► Record   record()                ─► recorded()
//!        ─► Log      log_entry()             ─► logged()
//!        ─► Interrupt                            (already counted)
//! ```
//!
//! An engine never accesses memory: the runner does, or, in simulated time, only accounts for it. The exception are
//! short copies and CRCs without an observer, which a runner with memory may execute on the [fast path](fast_path).
//! Source: SPEC §3.5, §3.8, §3.9, §3.12, §5.4.

mod batch;
mod count;
mod domains;
mod fast_path;
mod report;

use crate::action::{Action, handles};
use crate::capabilities::MAX_ENGINES;
use crate::device::{Device, MAX_LANES};
use crate::errors::Append;
use crate::group::Pick;
use crate::interrupt::Interrupt;
use crate::legality::{Origin, Refusal};
use crate::observe::{DispatchDecision, Job, Member, Observer, ReportedTo};
use crate::windows::{PendingBit, Window};
use crate::wq::{Entry, Submitter};
use batch::Batch;
use telpher_abi::perfmon::Event;
use telpher_abi::registers::WqState;
use telpher_abi::{CompletionRecord, Descriptor, EventLogEntry, Flags, OpFlags, Opcode, OperandId, Status, StatusByte};
use telpher_mem::Fault;
use telpher_ops::delta::OffsetOrder;

/// The engine's next request.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// No descriptor waits for this engine.
    Idle,
    /// Another engine is asking the arbiter, or a descriptor is being submitted: step again soon.
    Again,
    /// The current descriptor waits for others: step again after they have progressed.
    Wait,
    /// A descriptor ended without a report: step again.
    Ended,
    /// Read 64 bytes at this address, a batch member; answer with [`Engine::fetched`].
    Fetch {
        /// The address of the member.
        address: u64,
    },
    /// Read a byte of a submitter bitmap; answer with [`Engine::bitmap_read`].
    ReadBitmap {
        /// The address space of the bitmap; `None` for the device's own.
        pasid: Option<u32>,
        /// The address of the byte.
        address: u64,
    },
    /// Execute [`Engine::action`] on the submitter's memory, and that of [`Engine::windows`]; answer with
    /// [`Engine::executed`].
    Execute,
    /// Write [`Engine::record`]; answer with [`Engine::recorded`].
    Record {
        /// The address of the record.
        address: u64,
    },
    /// Write [`Engine::log_entry`], padded with zeros to `bytes`; answer with [`Engine::logged`].
    Log {
        /// The address space of the log; `None` for the device's own.
        pasid: Option<u32>,
        /// The address of the entry.
        address: u64,
        /// Bytes of the device's log entries.
        bytes: u64,
    },
    /// A completion interrupt was delivered.
    Interrupt(Interrupt),
}

/// The result of an action: the fields for the completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Status, result, bytes completed, fault address and the operation's own fields.
    pub record: CompletionRecord,
    /// The operand that faulted, if one did.
    pub operand: OperandId,
    /// Page requests that were granted.
    pub pages_granted: u32,
    /// Page requests that were refused.
    pub pages_refused: u32,
}

impl Outcome {
    /// An outcome that consists of its status only.
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
    /// True if a queue takes nothing, and nothing it has taken is executed or accesses memory any more. That is: it is
    /// disabled, or the device has halted, and none of its descriptors is in progress. May return `false` if another
    /// thread is checking at the same time.
    #[must_use]
    pub fn has_stopped(&self, wq: usize) -> bool {
        if self.wq_state(wq) == WqState::Disabled {
            // The command that disabled it has waited for its descriptors, or abandoned them.
            return true;
        }
        // A halted device's waiting descriptors are abandoned by the reset that must come first.
        let lock = &self.groups[self.group_of_wq(wq)].0.lock;
        self.general.state.is_at_rest(lock, || self.in_progress(wq, u64::MAX, None, None))
    }

    /// True if a descriptor of the queue before `end` is in progress in any lane except `except`.
    pub(crate) fn in_progress(&self, wq: usize, end: u64, pasid: Option<u32>, except: Option<usize>) -> bool {
        let mut lanes = self.lanes.as_flattened().iter().enumerate();
        lanes.any(|(index, lane)| except != Some(index) && lane.0.holds(wq, end, pasid))
    }
}

/// The current descriptor.
#[derive(Clone, Copy, Debug)]
struct Work {
    descriptor: Descriptor,
    origin: Origin,
    position: u64,
    /// The observer was told of its dispatch.
    is_watched: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Between descriptors (or between members of a batch).
    Ready,
    /// Waits for the runner's answer to `Fetch`.
    Fetching,
    /// The current descriptor has not been checked yet.
    Deciding,
    /// The current descriptor is a Drain that waits for earlier descriptors.
    Draining,
    /// The handles of the current descriptor are looked up.
    Resolving,
    /// Waits for the runner's answer to `ReadBitmap`.
    ReadingBitmap(PendingBit),
    /// The current descriptor, an Update Window, writes its entry.
    Updating,
    /// It waits for the descriptors that began before this ticket and use the entry, which has this generation.
    WindowDraining { ticket: u64, generation: u64 },
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
    /// Clean up, and take the next descriptor.
    Ending,
}

/// An engine of a device; the runner that steps it owns this private state.
#[derive(Debug)]
pub struct Engine {
    index: usize,
    lane: usize,
    phase: Phase,
    work: Work,
    action: Action,
    /// The outcome of the current descriptor, from `Recording` on.
    outcome: Outcome,
    /// The entry to append to the event log, from `Logging` on; and whether an interrupt may follow.
    entry: EventLogEntry,
    notify_after_log: bool,
    /// An entry to append after the completion record.
    pending_entry: Option<EventLogEntry>,
    /// Where the outcome was reported, at `Ending`.
    reported_to: ReportedTo,
    batch: Option<Batch>,
    /// The windows of the current descriptor's handles, once they are looked up.
    windows: [Option<Window>; 2],
    /// True while the lane is marked as a user of windows.
    uses_windows: bool,
}

impl Engine {
    /// Creates engine `index`, lane `lane`. Each pair may be stepped by one runner at a time.
    ///
    /// # Panics
    /// If the model has no such engine or lane.
    #[must_use]
    pub fn new(index: usize, lane: usize) -> Self {
        assert!(index < MAX_ENGINES && lane < MAX_LANES, "engine {index} lane {lane} is beyond the model");
        let origin = Origin { wq: 0, submitter: Submitter::default(), batch_index: None };
        let work = Work { descriptor: Descriptor::nop(), origin, position: 0, is_watched: false };
        Engine {
            index,
            lane,
            phase: Phase::Ready,
            work,
            action: Action::Nop,
            outcome: Outcome::of(Status::None),
            entry: EventLogEntry::default(),
            notify_after_log: false,
            pending_entry: None,
            reported_to: ReportedTo::NotRequested,
            batch: None,
            windows: [None; 2],
            uses_windows: false,
        }
    }

    /// Returns the number of the engine.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// True if there is no current descriptor.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Ready) && self.batch.is_none()
    }

    /// Returns the action to execute, after [`Step::Execute`].
    #[must_use]
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Returns the windows of the operands in other address spaces, by handle, after [`Step::Execute`].
    #[must_use]
    #[inline]
    pub fn windows(&self) -> [Option<Window>; 2] {
        self.windows
    }

    /// Returns the completion record to write, after [`Step::Record`].
    #[must_use]
    pub fn record(&self) -> &CompletionRecord {
        &self.outcome.record
    }

    /// Returns the event log entry to write, after [`Step::Log`].
    #[must_use]
    pub fn log_entry(&self) -> &EventLogEntry {
        &self.entry
    }

    /// Returns the address space of the current descriptor.
    #[must_use]
    pub fn submitter(&self) -> Submitter {
        self.work.origin.submitter
    }

    /// True if the current descriptor asks the device to wait for pages of its buffers.
    #[must_use]
    pub fn blocks_on_fault(&self) -> bool {
        self.work.descriptor.flags().contains(Flags::BLOCK_ON_FAULT)
    }

    /// Returns the current descriptor and its queue.
    #[must_use]
    pub fn descriptor(&self) -> (&Descriptor, usize) {
        (&self.work.descriptor, self.work.origin.wq)
    }

    /// Returns the current descriptor as observers see it.
    #[must_use]
    #[inline]
    pub fn job(&self) -> Job<'_> {
        self.job_of(&self.work.descriptor, &self.work.origin)
    }

    #[inline]
    fn job_of<'a>(&'a self, descriptor: &'a Descriptor, origin: &Origin) -> Job<'a> {
        let member = match (&self.batch, origin.batch_index) {
            (Some(batch), Some(index)) => Some(Member { batch: &batch.work.descriptor, index }),
            _ => None,
        };
        Job {
            descriptor,
            wq: origin.wq,
            engine: self.index,
            lane: self.lane,
            submitter: origin.submitter,
            member,
            is_watched: self.work.is_watched,
        }
    }

    /// True if the device waits for pages of completion records, descriptor lists and readbacks.
    #[must_use]
    pub fn has_page_requests(&self, device: &Device) -> bool {
        let config = device.wq_cfg(self.work.origin.wq);
        let pci = device.pci();
        pci.prs && pci.ats && !config.prs_disable() && !config.ats_disable()
    }

    fn lane_index(&self) -> usize {
        self.index * MAX_LANES + self.lane
    }

    /// Returns the engine's next request. Calls `observer` for descriptors that the engine takes and ends.
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
                    observer.ended(&self.job(), &self.outcome.record, self.reported_to);
                    self.end(device);
                    // Each step ends within a bounded time, however many descriptors request no record.
                    if self.batch.is_none() && self.reported_to != ReportedTo::Record {
                        return Step::Ended;
                    }
                }
                Phase::Resolving => {
                    if let Some(step) = self.resolve(device) {
                        return step;
                    }
                }
                Phase::Updating => {
                    if !self.update_window(device, observer) {
                        return Step::Wait;
                    }
                }
                Phase::WindowDraining { ticket, generation } => {
                    if device.windows_in_use(ticket, Some(self.work.descriptor.handle_2())) {
                        return Step::Wait;
                    }
                    self.end_update(device, observer, generation);
                }
                // The runner has not answered the last request yet.
                Phase::ReadingBitmap(_) | Phase::Fetching | Phase::Executing | Phase::Recorded | Phase::Logged => {
                    return Step::Wait;
                }
            }
        }
    }

    /// Takes the next descriptor of the group. Returns `None` if the phase has changed.
    #[inline]
    fn next_descriptor<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Option<Step> {
        let Some(group) = device.group_of_engine(self.index) else { return Some(Step::Idle) };
        let lane = &device.lanes[self.index][self.lane].0;
        let mark = |wq: usize, entry: &Entry, is_batch: bool| {
            device.occupancy_fell(wq, entry);
            lane.take(wq, entry.submitter.to_word(), entry.position, is_batch);
        };
        let (wq, entry) = match device.pick(group, (self.index, self.lane), &mut self.work.descriptor, mark) {
            Pick::Nothing => return Some(Step::Idle),
            Pick::Again => return Some(Step::Again),
            Pick::Entry(wq, entry) => (wq, entry),
        };
        self.work.origin = Origin { wq, submitter: entry.submitter, batch_index: None };
        self.work.position = entry.position;
        if entry.abandoned {
            self.work.is_watched = false;
            self.reported_to = ReportedTo::Abandoned;
            self.outcome = Outcome::of(Status::None);
            self.phase = Phase::Ending;
            return None;
        }
        device.count(Event::FROM_WQ, 1, Some(wq), Some(self.index), None);
        self.phase = Phase::Deciding;
        self.decide(device, observer)
    }

    /// Refuses the current descriptor, or turns it into an action. Returns `None` if the phase has changed.
    #[inline]
    fn decide<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Option<Step> {
        self.work.is_watched = observer.is_watching();
        if self.work.is_watched {
            match observer.dispatched(&self.job()) {
                DispatchDecision::Go => {}
                DispatchDecision::Wait => return Some(Step::Wait),
                DispatchDecision::End(status) => {
                    self.refuse(device, Refusal::from(status));
                    return None;
                }
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
            Opcode::UpdateWindow => {
                self.phase = Phase::Updating;
                None
            }
            _ => {
                self.action = Action::of(descriptor);
                let handles = handles(descriptor);
                if handles != [None; 2] {
                    self.begin_resolving(device, handles);
                    return None;
                }
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

    /// Takes the runner's answer to [`Step::Execute`].
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
            outcome.record = outcome.record.with_fault_address_masked(false);
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

    /// True if a descriptor that ended with `status` gets a completion record. Source: SPEC §5.4.
    #[inline]
    fn wants_record(&self, status: Status) -> bool {
        let flags = self.work.descriptor.flags();
        let silent = matches!(status, Status::Success | Status::SuccessPredicateFalse | Status::BatchFail);
        flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID)
            && (flags.contains(Flags::REQUEST_COMPLETION_RECORD) || !silent)
    }

    /// Decides where the outcome is reported. Returns `None` if the phase has changed.
    #[inline]
    fn conclude(&mut self, device: &Device) -> Option<Step> {
        let outcome = self.outcome;
        let status = outcome.record.status();
        if let Some(batch) = self.batch.as_mut() {
            batch.done += 1;
            // A false predicate also counts as a failure (SPEC §3.9).
            batch.failed |= status != Status::Success;
        }
        if device.perfmon.is_counting() {
            self.count_completion(device, status);
        }
        if self.wants_record(status) {
            if self.drains_to_log(device, status) {
                let entry = self.log_entry_with_record(device, Status::DrainEventLog, &outcome.record, true);
                self.reported_to = ReportedTo::Elsewhere;
                self.log(entry, false);
                return None;
            }
            if outcome.operand != OperandId::Unknown && device.capabilities.gen_cap.fault_info() {
                self.outcome.record = outcome.record.with_fault_operand(outcome.operand as u8);
            }
            self.phase = Phase::Recorded;
            return Some(Step::Record { address: self.work.descriptor.completion_address() });
        }
        let reported_to = matches!(status, Status::Success | Status::SuccessPredicateFalse | Status::BatchFail);
        if reported_to {
            self.reported_to = ReportedTo::NotRequested;
            self.phase = Phase::Notifying;
        } else {
            let information = match status {
                Status::InvalidFlags => Some(outcome.record.invalid_flags()),
                status if self.uses_windows && status.is_page_fault() => {
                    Some((outcome.operand as u32) << 29 | u32::from(outcome.record.fault_handle()))
                }
                status if status.has_direction() => Some((outcome.operand as u32) << 29),
                Status::InterDomainHandle
                | Status::InterDomainPermission
                | Status::InterDomainWindow
                | Status::UpdateWindowEntry => Some(outcome.record.fault_handle().into()),
                _ => None,
            };
            self.report(device, &outcome, information);
        }
        None
    }

    /// Takes the runner's answer to [`Step::Record`].
    #[inline]
    pub fn recorded(&mut self, device: &Device, written: Result<(), Fault>) {
        if self.phase != Phase::Recorded {
            return;
        }
        match written {
            Ok(()) => {
                self.reported_to = ReportedTo::Record;
                device.count(Event::RECORD_WRITTEN, 1, Some(self.work.origin.wq), Some(self.index), None);
                match self.pending_entry.take() {
                    Some(entry) => self.log(entry, false),
                    None => self.phase = Phase::Notifying,
                }
            }
            Err(fault) => self.record_faulted(device, fault),
        }
    }

    /// Delivers the completion interrupt, if one was requested.
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

    /// Ends the current descriptor, if its record is written, without taking the next one. For runners that do
    /// something else in between.
    pub fn settle<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> Option<Interrupt> {
        let mut interrupt = None;
        if matches!(self.phase, Phase::Notifying) {
            self.phase = Phase::Ending;
            interrupt = self.notify(device);
        }
        if matches!(self.phase, Phase::Ending) {
            observer.ended(&self.job(), &self.outcome.record, self.reported_to);
            self.end(device);
        }
        interrupt
    }

    #[inline]
    fn end(&mut self, device: &Device) {
        self.phase = Phase::Ready;
        if self.uses_windows {
            self.uses_windows = false;
            self.windows = [None; 2];
            device.end_window_use(self.lane_index());
        }
        if self.batch.is_none() {
            device.lanes[self.index][self.lane].0.release();
        }
    }
}
