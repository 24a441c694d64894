//! A task: a descriptor, its record, and what must be known until the record is written. A job's state is one.
//!
//! ```text
//! None ──submit──► InFlight ──record──► Finished ──submit──► …
//!           └────► OneByOne: a batch that no queue takes as such
//!           └────────────────────────► Finished: the CPU has executed it
//! ```
//!
//! A task lies in memory of the caller, which may be uninitialised, copied or freed at any time that the interface
//! allows. So it has no pointer to anything of the library: queues are named by their process and index.

use crate::cpu::{end_of_batch, read_member, record_of, run};
use crate::credits::Epoch;
use crate::job::Path;
use crate::last_error;
use crate::process::Process;
use crate::queues::{Placed, Queues, Refused};
use crate::resume::finish;
use crate::status::DmlStatus;
use crate::strict::strict;
use std::cell::Cell;
use std::mem::{align_of, offset_of, size_of};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode, Status, StatusByte};
use telpher_portal::{RecordCell, Watch};

/// Marks initialised memory. Source: chosen; no text and no small number.
const MAGIC: u32 = 0xd31a_5e6d;

/// Checks of a record without reading the clock. Source: as the mover's; a clock read is 1 % of that many PAUSEs.
const LOOKS: u32 = 64;
/// Checks of a waiting thread before it lets others run. Source: the mover's default.
const PAUSES: u32 = 256;
/// How long a record may be missing before its queue is asked whether it works. Source: the mover's default.
const PATIENCE: Duration = Duration::from_millis(10);
/// Time after which a queue that does not answer is given up, unless `TELPHER_DML_LIMIT` says another. Source: the
/// mover's default.
const LIMIT: Duration = Duration::from_secs(30);
/// The longest light sleep. Source: chosen; short against `PATIENCE`.
const NAP: Duration = Duration::from_micros(100);

/// The phase of a task. Zero, as in memory that `dml_init_job` has cleared, is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Never submitted, or released.
    None,
    /// A queue has it.
    InFlight,
    /// A queue has one member of the batch, or will get the next.
    OneByOne,
    /// The record is written.
    Finished,
}

/// A descriptor, its record, and its state.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Task {
    pub(crate) descriptor: DescriptorCell,
    pub(crate) record: RecordCell,
    state: State,
}

/// A task's descriptor. The hot path reads and writes single words of it: a copy of all 64 bytes soon after such writes
/// makes the processor wait for them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptorCell([Cell<u64>; 8]);

impl DescriptorCell {
    #[inline]
    pub(crate) fn set(&self, d: Descriptor) {
        for at in 0..8 {
            self.0[at].set(d.0[at]);
        }
    }

    /// Where the descriptor is.
    #[inline]
    pub(crate) const fn place(&self) -> *const Descriptor {
        std::ptr::from_ref(self).cast()
    }

    #[inline]
    pub(crate) fn get(&self) -> Descriptor {
        Descriptor(self.0.each_ref().map(Cell::get))
    }

    /// Its operation; only the first word is read.
    #[inline]
    pub(crate) fn opcode(&self) -> Opcode {
        self.first().opcode()
    }

    /// Requests a record at an address.
    #[inline]
    fn bind(&self, record: u64) {
        let bound = self.first().with_record(record);
        self.0[0].set(bound.0[0]);
        self.0[1].set(bound.0[1]);
    }

    #[inline]
    fn first(&self) -> Descriptor {
        Descriptor([self.0[0].get(), 0, 0, 0, 0, 0, 0, 0])
    }
}

/// What must be known until the record is written. Every byte pattern is valid: an unknown phase is `None`.
#[derive(Debug, Default)]
#[repr(C)]
struct State {
    magic: Cell<u32>,
    path: Cell<u32>,
    phase: Cell<u32>,
    /// The process that submitted it.
    process: Cell<u32>,
    /// The queue.
    queue: Cell<u32>,
    /// The epoch of its credit, if it has one.
    epoch: Cell<u32>,
    has_credit: Cell<u32>,
    /// The node that was asked for.
    node: Cell<u32>,
    /// `OneByOne`: the next member to submit.
    next: Cell<u32>,
    /// `OneByOne`: 1 if a member did not succeed, 2 if the queue has member `next - 1`.
    members: Cell<u32>,
    /// Checks since the submission, or for the member that is next.
    looks: Cell<u32>,
    unused: Cell<u32>,
    /// Milliseconds since the process' first wait, at the first clock read and at the last health check.
    since: Cell<u64>,
    asked: Cell<u64>,
    reserved: [Cell<u64>; 4],
}

const _: () = {
    assert!(size_of::<DescriptorCell>() == size_of::<Descriptor>() && offset_of!(Task, descriptor) == 0);
    assert!(size_of::<Task>() == 192 && align_of::<Task>() == 64);
    assert!(offset_of!(Task, record) == 64 && offset_of!(Task, state) == 96);
};

/// Bits of [`State::members`].
const FAILED: u32 = 1;
const HAS_MEMBER: u32 = 2;

impl Task {
    /// Prepares the memory of a task that is not submitted.
    pub(crate) fn init(&self, path: Path) {
        self.descriptor.set(Descriptor::default());
        self.record.complete(&CompletionRecord::default());
        self.set_phase(Phase::None);
        self.state.magic.set(MAGIC);
        self.state.path.set(path.number());
    }

    /// Returns the path, if the memory has been initialised.
    #[inline]
    pub(crate) fn path(&self) -> Option<Path> {
        if self.state.magic.get() == MAGIC { Path::from_number(self.state.path.get()) } else { None }
    }

    /// True if it has been submitted and not released.
    pub(crate) fn is_submitted(&self) -> bool {
        self.phase() != Phase::None
    }

    #[inline]
    fn phase(&self) -> Phase {
        match self.state.phase.get() {
            1 => Phase::InFlight,
            2 => Phase::OneByOne,
            3 => Phase::Finished,
            _ => Phase::None,
        }
    }

    #[inline]
    fn set_phase(&self, phase: Phase) {
        self.state.phase.set(match phase {
            Phase::None => 0,
            Phase::InFlight => 1,
            Phase::OneByOne => 2,
            Phase::Finished => 3,
        });
    }

    /// Submits the descriptor on a path. If the task is in flight, waits for it first: its record would be written
    /// twice.
    ///
    /// # Errors
    /// Why no queue took it. Then the record is zero.
    #[inline]
    pub(crate) fn submit(&self, path: Path, node: u32) -> Result<(), DmlStatus> {
        self.settle();
        self.state.path.set(path.number());
        if path == Path::Software {
            self.descriptor.bind(self.record.address());
            self.execute(&self.descriptor.get());
            return Ok(());
        }
        self.submit_settled(path, node)
    }

    /// Executes the task's descriptor, which is `d`, on the CPU. The task is not in flight.
    #[inline]
    pub(crate) fn execute(&self, d: &Descriptor) {
        self.finish_as(&run(d));
    }

    /// Submits the descriptor of a task that is not in flight, and whose path this is, to a queue.
    ///
    /// # Errors
    /// As for [`submit`](Task::submit).
    pub(crate) fn submit_settled(&self, path: Path, node: u32) -> Result<(), DmlStatus> {
        self.descriptor.bind(self.record.address());
        self.record.complete(&CompletionRecord::default());
        self.submit_to_queue(&self.descriptor.get(), path, node)
    }

    /// Waits for a submission that is still in flight, before its descriptor and its memory are used again.
    #[inline]
    pub(crate) fn settle(&self) {
        if matches!(self.phase(), Phase::InFlight | Phase::OneByOne) {
            self.wait(false);
        }
        self.set_phase(Phase::None);
    }

    fn submit_to_queue(&self, d: &Descriptor, path: Path, node: u32) -> Result<(), DmlStatus> {
        let process = Process::current();
        self.state.process.set(process.number);
        self.state.node.set(node);
        self.state.looks.set(0);
        let queues = process.queues();
        match queues.offer(d, node) {
            Ok(placed) => {
                self.place(placed);
                self.set_phase(Phase::InFlight);
                Ok(())
            }
            Err(Refused::Batch) if path == Path::Hardware => {
                self.state.next.set(0);
                self.state.members.set(0);
                self.set_phase(Phase::OneByOne);
                match self.next_member(queues) {
                    Err(refused @ (Refused::Busy | Refused::NoQueue | Refused::OtherNode)) => {
                        self.set_phase(Phase::None);
                        last_error::set(queues.why(refused, d, node));
                        Err(refused.status())
                    }
                    // `step` refuses a first member that no queue takes.
                    _ => Ok(()),
                }
            }
            Err(_) if path == Path::Auto => {
                self.finish_as(&run(d));
                Ok(())
            }
            Err(refused) => {
                last_error::set(queues.why(refused, d, node));
                Err(refused.status())
            }
        }
    }

    fn place(&self, placed: Placed) {
        self.state.queue.set(placed.queue);
        self.state.epoch.set(placed.epoch.map_or(0, |epoch| epoch.0));
        self.state.has_credit.set(placed.epoch.is_some().into());
    }

    fn placed(&self) -> Placed {
        let epoch = (self.state.has_credit.get() == 1).then(|| Epoch(self.state.epoch.get()));
        Placed { queue: self.state.queue.get(), epoch }
    }

    #[inline]
    fn finish_as(&self, record: &CompletionRecord) {
        self.record.complete(record);
        self.set_phase(Phase::Finished);
    }

    /// True once the record is written, and for a task that is not submitted.
    #[inline]
    pub(crate) fn finished(&self) -> bool {
        match self.phase() {
            Phase::None | Phase::Finished => true,
            Phase::InFlight => self.look(),
            Phase::OneByOne => self.step(),
        }
    }

    /// The queues, if this process has submitted the task.
    fn queues(&self) -> Option<&'static Queues> {
        let process = Process::current();
        (process.number == self.state.process.get()).then(|| process.queues())
    }

    fn look(&self) -> bool {
        let Some(record) = self.record.read() else { return self.is_late() };
        if let Some(queues) = self.queues() {
            queues.completed(self.placed());
        }
        let d = self.descriptor.get();
        let is_auto = self.state.path.get() == Path::Auto.number();
        // The original leaves the members of a batch as they are.
        let finished = is_auto && !(strict() && d.opcode() == Opcode::Batch);
        self.finish_as(&if finished { finish(&d, record) } else { record });
        true
    }

    /// Lets the queue work; now and then asks whether it still does. True if the task has ended without its record.
    fn is_late(&self) -> bool {
        let Some(queues) = self.queues() else {
            // A forked child: the device works in the memory of the parent.
            return self.abandon();
        };
        if let Some(portal) = queues.portal(self.placed()) {
            portal.drive();
        }
        let Some(now) = self.count_look() else { return false };
        if u128::from(now - self.state.asked.get()) < PATIENCE.as_millis() {
            return false;
        }
        self.state.asked.set(now);
        let give_up = self.is_over(now);
        queues.has_stopped(self.placed(), give_up) && self.record.status().is_none() && self.abandon()
    }

    /// Counts a check. At every `LOOKS`th it returns the time.
    fn count_look(&self) -> Option<u64> {
        let looks = self.state.looks.get().wrapping_add(1);
        self.state.looks.set(looks);
        if !looks.is_multiple_of(LOOKS) {
            return None;
        }
        let now = millis();
        if looks == LOOKS {
            self.state.since.set(now);
            self.state.asked.set(now);
        }
        Some(now)
    }

    /// True if the checks have lasted for the limit.
    fn is_over(&self, now: u64) -> bool {
        u128::from(now - self.state.since.get()) >= limit().as_millis()
    }

    /// No device executes the task any more: the CPU does on the automatic path, and on the hardware path it has
    /// failed.
    fn abandon(&self) -> bool {
        let d = self.descriptor.get();
        let is_auto = self.state.path.get() == Path::Auto.number();
        let lost = CompletionRecord::new(StatusByte::new(Status::HardwareWriteError));
        self.finish_as(&if is_auto { run(&d) } else { lost });
        true
    }

    /// Waits until [`finished`](Task::finished).
    #[inline]
    pub(crate) fn wait(&self, light_sleep: bool) {
        let mut looks = 0_u32;
        while !self.finished() {
            looks = looks.saturating_add(1);
            self.rest(light_sleep, looks);
        }
    }

    #[cold]
    fn rest(&self, light_sleep: bool, looks: u32) {
        if looks > PAUSES {
            std::thread::yield_now();
        } else if light_sleep
            && self.phase() == Phase::InFlight
            && let Some(portal) = self.queues().and_then(|queues| queues.portal(self.placed()))
        {
            portal.watch(&self.record, Watch::Monitor, NAP);
        } else {
            std::hint::spin_loop();
        }
    }

    /// Waits, and ends the task. The record keeps its content.
    pub(crate) fn release(&self) {
        self.wait(false);
        self.set_phase(Phase::None);
    }

    /// Submits the next member of a batch by itself.
    fn next_member(&self, queues: &Queues) -> Result<(), Refused> {
        let batch = self.descriptor.get();
        // As a device answers.
        if batch.flags().contains(Flags::BLOCK_ON_FAULT) {
            self.finish_as(&CompletionRecord::new(StatusByte::new(Status::InvalidFlags)));
            return Ok(());
        }
        let at = self.state.next.get();
        let Ok(member) = read_member(&batch, at) else {
            self.finish_as(&CompletionRecord::new(StatusByte::fault(Status::BatchPageFault, false)));
            return Ok(());
        };
        // A fence is allowed in batches only, and here every member waits for the one before.
        let alone = member.with_flags(member.flags() - Flags::FENCE);
        let placed = queues.offer(&alone, self.state.node.get())?;
        self.place(placed);
        self.state.looks.set(0);
        self.state.next.set(at + 1);
        self.state.members.set(self.state.members.get() | HAS_MEMBER);
        Ok(())
    }

    /// Takes a batch whose members are submitted one by one a step further; true once it has ended.
    fn step(&self) -> bool {
        let batch = self.descriptor.get();
        let next = self.state.next.get();
        let Some(queues) = self.queues() else { return self.abandon() };
        if self.state.members.get() & HAS_MEMBER != 0 {
            let Ok(member) = read_member(&batch, next.wrapping_sub(1)) else { return self.abandon() };
            let Some(record) = record_of(&member) else { return self.is_late() };
            queues.completed(self.placed());
            let failed = self.state.members.get() & FAILED | u32::from(record.status() != Status::Success);
            self.state.members.set(failed);
            // From here on, checks are counted for the next member.
            self.state.looks.set(0);
        }
        let failed = self.state.members.get() & FAILED != 0;
        let ends = next == batch.size()
            || failed && read_member(&batch, next).is_ok_and(|member| member.flags().contains(Flags::FENCE));
        if ends {
            self.finish_as(&end_of_batch(failed, next));
            return true;
        }
        match self.next_member(queues) {
            Ok(()) => self.phase() == Phase::Finished,
            // No queue has a member now, so the batch can end at any time.
            Err(Refused::Busy) => self.count_look().is_some_and(|now| self.is_over(now)) && self.abandon(),
            // The member is refused as a device would refuse it.
            Err(refused) => {
                if let Ok(member) = read_member(&batch, next) {
                    crate::cpu::write_record(&member, &refused.record());
                }
                self.state.next.set(next + 1);
                self.state.members.set(FAILED);
                self.state.looks.set(0);
                false
            }
        }
    }
}

impl Refused {
    /// Returns the record of a batch member that no queue takes.
    fn record(self) -> CompletionRecord {
        CompletionRecord::new(StatusByte::new(match self {
            Refused::Operation => Status::BadOpcode,
            Refused::TooLong | Refused::Batch => Status::TransferSizeRange,
            Refused::NoQueue | Refused::OtherNode | Refused::Busy => Status::HardwareWriteError,
        }))
    }
}

/// Time after which a queue is given up. The variable is read once in a process.
fn limit() -> Duration {
    static READ: OnceLock<Duration> = OnceLock::new();
    *READ.get_or_init(|| {
        let millis = std::env::var("TELPHER_DML_LIMIT").ok().and_then(|value| value.parse().ok());
        millis.map_or(LIMIT, Duration::from_millis)
    })
}

/// Milliseconds since the process' first wait.
fn millis() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}
