//! `--check`: finds misuse that a device does not report, because on hardware it only sometimes fails.
//!
//! ```text
//! submitted() ─► instruction; record requested, aligned, cleared, unused? ─► hazards with others ─► checksums
//!     │ the engine holds it for a while, so that the program has time for the mistakes that the check looks for
//! may_begin() ─► contents and list unchanged?
//! concluded() ─► its memory belongs to the program again, just before the record is written
//! ```
//!
//! One table per process, since two queues share its memory. A program that touches nothing between submission and
//! record gets no finding, whatever it does before and after.
//!
//! **Assumptions.** Only this process's stores are detected, and only by the bytes they changed. Memory returned to a
//! heap counts as written when the heap writes into it. Descriptors for which the table has no space are not checked.
//! Of a descriptor that the device refuses, only the record is checked. Of an executed descriptor, including all
//! members of a batch, the first [`COMPARED_BYTES`] bytes are compared.

mod content;
mod mapped;
mod table;
mod uses;

pub(crate) use content::{Memory, Own};

use super::file_log::{DescriptorId, FileLog};
use super::queue::Queue;
use content::{Change, Content};
use std::sync::Arc;
use table::{InFlight, Range, Table};
use telpher_abi::{COMPLETION_RECORD_BYTES, DESCRIPTOR_BYTES, Descriptor, Flags, Opcode, OperandId};
use telpher_interpose::preload::{Held, Lock};
use telpher_vdev_wire::event::{Finding, InvolvedDescriptor, Misuse};
use uses::{Kind, Use, record_of, uses_of};

/// Nanoseconds for which a descriptor is held before it is executed. Source: chosen; long enough for a program that
/// does not wait to continue, short enough for 5000 sequential descriptors a second.
pub(super) const HOLD_NS: u64 = 200_000;

/// Nanoseconds for which it additionally waits for older descriptors of its file to end. Source: chosen; longer than
/// any operation takes.
pub(super) const WAIT_LIMIT_NS: u64 = 100_000_000;

/// Bytes of one submission, including its members', that are compared. Source: chosen; takes some milliseconds.
pub(super) const COMPARED_BYTES: u64 = 8 << 20;

/// The check of one process.
#[derive(Debug)]
pub(crate) struct Checker {
    table: Lock<Inner>,
    memory: Box<dyn Memory>,
}

#[derive(Debug)]
struct Inner {
    table: Table,
    /// Hash of the descriptor that was refused last: retrying it gives no new findings.
    refused: u64,
}

/// A new submission.
pub(super) struct NewSubmission<'a> {
    /// The open file.
    pub(super) file: u64,
    pub(super) submission: u64,
    pub(super) descriptor: &'a Descriptor,
    /// The portal address of the submission.
    pub(super) destination: u64,
    /// The queue's group has a single engine.
    pub(super) single_engine: bool,
    /// Submitted by the wrong instruction: MOVDIR64B to a shared queue, or ENQCMD to a dedicated one.
    pub(super) is_wrong_instruction: bool,
    pub(super) now_ns: u64,
    pub(super) log: &'a Arc<FileLog>,
    /// The queue.
    pub(super) queue: &'a dyn Queue,
}

/// The findings of one submission: the first of each kind is reported.
struct Findings<'a> {
    log: &'a FileLog,
    reported: u32,
}

impl Findings<'_> {
    fn has(&self, misuse: Misuse) -> bool {
        self.reported >> misuse as u32 & 1 == 1
    }

    fn add(&mut self, finding: &Finding) {
        if !self.has(finding.misuse) {
            self.reported |= 1 << finding.misuse as u32;
            self.log.found(finding);
        }
    }
}

impl Checker {
    pub(crate) fn new(memory: Box<dyn Memory>) -> Self {
        Checker { table: Lock::new(Inner { table: Table::new(), refused: 0 }), memory }
    }

    fn inner(&self) -> Held<'_, Inner> {
        self.table.hold()
    }

    /// Checks a descriptor that is about to be submitted to its queue.
    pub(super) fn submitted(&self, new: &NewSubmission<'_>) {
        let mut inner = self.inner();
        let again = inner.refused == sum_of(new.descriptor);
        let table = &mut inner.table;
        let mut findings = Findings { log: new.log, reported: if again { u32::MAX } else { 0 } };
        judge_submission(new, &mut findings);
        if new.is_wrong_instruction {
            // The queue does not accept it.
            return;
        }
        // A descriptor that touches no memory but its record is not held: there is no mistake to wait for.
        let touches = |queue: &dyn Queue, descriptor: &Descriptor| {
            executed_uses(queue, descriptor, false).any(|range| range.kind != Kind::Record)
        };
        let hold = if touches(new.queue, new.descriptor) { HOLD_NS } else { 0 };
        let opened = table.open(|lists| InFlight {
            file: new.file,
            submission: new.submission,
            descriptor: *new.descriptor,
            destination: new.destination,
            single_engine: new.single_engine,
            due_ns: new.now_ns.saturating_add(hold),
            list_changed: false,
            log: Arc::clone(new.log),
            lists,
        });
        let Some(index) = opened else { return };
        let complete = self.take_in(table, index, new.queue, &mut findings);
        if !complete {
            table.forget_ranges(index);
        }
    }

    /// Records and checks all ranges of a new submission; `false` if there is no space.
    fn take_in(&self, table: &mut Table, index: usize, queue: &dyn Queue, findings: &mut Findings<'_>) -> bool {
        let top = table.entry(index).descriptor;
        if !self.note(table, index, queue, &top, (0, 0), findings) {
            return false;
        }
        if top.opcode() == Opcode::Batch && !queue.refuses(&top, false) {
            let mut segment = 0;
            for position in 0..top.size() {
                let address = top.src().wrapping_add(u64::from(position) * DESCRIPTOR_BYTES);
                let mut bytes = [0; 64];
                // A list that is not readable cannot be checked.
                if self.memory.read(address, &mut bytes).is_err() {
                    return false;
                }
                let member = Descriptor::from_bytes(&bytes);
                segment += u32::from(member.flags().contains(Flags::FENCE));
                if !table.add_member(index, member)
                    || !self.note(table, index, queue, &member, (position + 1, segment), findings)
                {
                    return false;
                }
            }
        }
        self.sum_contents(table, index);
        true
    }

    /// Records and checks the ranges of one descriptor; `false` if there is no space.
    fn note(
        &self,
        table: &mut Table,
        index: usize,
        queue: &dyn Queue,
        descriptor: &Descriptor,
        (member, segment): (u32, u32),
        findings: &mut Findings<'_>,
    ) -> bool {
        if let Some(record) = record_of(descriptor) {
            self.judge_record(table.entry(index).submission, descriptor, &record, member, findings);
        }
        let work = work_of(descriptor);
        executed_uses(queue, descriptor, member != 0).all(|what| {
            let compared = matches!(what.kind, Kind::Read | Kind::Write);
            let mut range = Range { what, member, segment, work, compared };
            for other in 0..table.len() {
                meet(table, (other, index), &mut range, descriptor, findings);
            }
            table.add_range(index, range)
        })
    }

    /// Checks the record: aligned and cleared.
    fn judge_record(
        &self,
        submission: u64,
        descriptor: &Descriptor,
        record: &Use,
        member: u32,
        findings: &mut Findings<'_>,
    ) {
        let mut find = |misuse, len| {
            let latest = involved((submission, member), OperandId::CompletionRecord, descriptor);
            findings.add(&Finding { misuse, latest, other: None, address: record.address, len });
        };
        if !record.address.is_multiple_of(COMPLETION_RECORD_BYTES) {
            find(Misuse::RecordMisaligned, COMPLETION_RECORD_BYTES);
        }
        let mut status = [0];
        if descriptor.flags().contains(Flags::REQUEST_COMPLETION_RECORD)
            && self.memory.read(record.address, &mut status).is_ok()
            && status != [0]
        {
            find(Misuse::RecordNotReset, 1);
        }
    }

    /// Computes checksums of a submission's memory, up to the limit.
    fn sum_contents(&self, table: &mut Table, index: usize) {
        let mut left = COMPARED_BYTES;
        let mut cursor = table.ranges(index);
        while let Some((position, range)) = table.step(&mut cursor) {
            if range.compared {
                let len = range.what.len.min(left);
                left -= len;
                table.set_content(position, Content::of(&*self.memory, range.what.address, len));
            }
        }
    }

    /// Called when an engine is about to execute a descriptor: returns how long it must wait, in nanoseconds, or `None`
    /// if it may run. Before it runs, its memory is compared.
    pub(super) fn must_wait(&self, file: u64, submission: u64, now_ns: u64) -> Option<u64> {
        let mut inner = self.inner();
        let table = &mut inner.table;
        let index = table.find(file, submission)?;
        let entry = table.entry(index);
        if now_ns < entry.due_ns {
            return Some(entry.due_ns - now_ns);
        }
        // Descriptors run one after the other, in order. A device with several engines may reorder them, but programs
        // that depend on the order get a hazard finding, and all others must run as without the check. After a time
        // limit the descriptor no longer waits for older ones.
        let limit = entry.due_ns.saturating_add(WAIT_LIMIT_NS);
        let older = |entry: &InFlight| entry.file == file && entry.submission < submission;
        if now_ns < limit && (0..table.len()).any(|index| older(table.entry(index))) {
            return Some(0);
        }
        self.compare(table, index, 0);
        None
    }

    /// Called when the next member of a batch was read: compares the list entry and the member's memory.
    pub(super) fn member_begins(&self, file: u64, id: DescriptorId, found: &Descriptor) {
        let mut inner = self.inner();
        let table = &mut inner.table;
        let Some(index) = table.find(file, id.submission) else { return };
        let entry = table.entry(index);
        let Some(member) = table.descriptor(index, id.member) else { return };
        if member != found && !entry.list_changed {
            let position = u64::from(id.member) - 1;
            let key = (id.submission, id.member);
            entry.log.found(&Finding {
                misuse: Misuse::ListChanged,
                latest: involved(key, OperandId::Source1, member),
                other: Some(involved(key, OperandId::Source1, found)),
                address: entry.descriptor.src().wrapping_add(position * DESCRIPTOR_BYTES),
                len: DESCRIPTOR_BYTES,
            });
            table.entry_mut(index).list_changed = true;
            // The recorded ranges belong to the former descriptor.
            table.release_member(index, id.member);
            return;
        }
        self.compare(table, index, id.member);
    }

    /// Compares the memory of a descriptor, or of a member, with its checksums.
    fn compare(&self, table: &Table, index: usize, member: u32) {
        let entry = table.entry(index);
        let Some(descriptor) = table.descriptor(index, member) else { return };
        let mut findings = Findings { log: &entry.log, reported: 0 };
        let mut cursor = table.ranges(index);
        while let Some((position, range)) = table.step(&mut cursor) {
            if !range.compared || range.member != member {
                continue;
            }
            let change = table.content(position).change(&*self.memory, range.what.address);
            let (misuse, address, len) = match change {
                Change::None => continue,
                Change::Written(address, len) if range.what.kind == Kind::Write => {
                    (Misuse::DestinationChanged, address, len)
                }
                Change::Written(address, len) => (Misuse::SourceChanged, address, len),
                Change::Unmapped(address) => (Misuse::Unmapped, address, 1),
            };
            let latest = involved((entry.submission, member), range.what.operand, descriptor);
            findings.add(&Finding { misuse, latest, other: None, address, len });
        }
    }

    /// Called when a descriptor, or a member of a batch, ends: its memory belongs to the program again.
    pub(super) fn concluded(&self, file: u64, id: DescriptorId) {
        let mut inner = self.inner();
        let Some(index) = inner.table.find(file, id.submission) else { return };
        match id.member {
            0 => inner.table.close(index),
            member => inner.table.release_member(index, member),
        }
    }

    /// Called when the program unmaps or remaps a range of its memory.
    pub(super) fn unmapped(&self, address: u64, len: u64) {
        let inner = self.inner();
        let table = &inner.table;
        let hole = Use { kind: Kind::Write, operand: OperandId::Unknown, address, len };
        for index in 0..table.len() {
            let entry = table.entry(index);
            let mut cursor = table.ranges(index);
            while let Some((_, range)) = table.step(&mut cursor) {
                let Some((address, len)) = range.what.shared_with(&hole) else { continue };
                let Some(descriptor) = table.descriptor(index, range.member) else { continue };
                let latest = involved((entry.submission, range.member), range.what.operand, descriptor);
                entry.log.found(&Finding { misuse: Misuse::Unmapped, latest, other: None, address, len });
                break;
            }
        }
    }

    /// Takes the lock for the duration of a fork, so that the table is consistent in the child.
    pub(super) fn before_fork(&self) {
        self.table.take();
    }

    /// Releases it in the parent.
    pub(super) fn after_fork(&self) {
        self.table.give();
    }

    /// Releases it in the child, where no descriptor is in flight.
    pub(super) fn after_fork_in_child(&self) {
        self.table.give();
        self.inner().table.abandon();
    }

    /// Called when the queue did not accept the descriptor.
    pub(super) fn refused(&self, file: u64, submission: u64, descriptor: &Descriptor) {
        let mut inner = self.inner();
        inner.refused = sum_of(descriptor);
        if let Some(index) = inner.table.find(file, submission) {
            inner.table.close(index);
        }
    }
}

/// Checks how a descriptor is submitted, whether or not it is accepted.
fn judge_submission(new: &NewSubmission<'_>, findings: &mut Findings<'_>) {
    let flags = new.descriptor.flags();
    let reported = flags.contains(Flags::RECORD) || flags.contains(Flags::REQUEST_COMPLETION_INTERRUPT);
    for (misuse, committed) in
        [(Misuse::WrongInstruction, new.is_wrong_instruction), (Misuse::NoRecordRequested, !reported)]
    {
        if committed {
            let latest = involved((new.submission, 0), OperandId::Unknown, new.descriptor);
            findings.add(&Finding { misuse, latest, other: None, address: new.destination, len: DESCRIPTOR_BYTES });
        }
    }
}

/// The ranges that the device will access for a descriptor or a batch's `member`; only the record if the device refuses
/// it.
fn executed_uses(queue: &dyn Queue, descriptor: &Descriptor, member: bool) -> impl Iterator<Item = Use> {
    let refused = queue.refuses(descriptor, member);
    uses_of(descriptor).filter(move |range| !refused || range.kind == Kind::Record)
}

/// Compares a new range with those of a descriptor in flight (also its own): reports hazards, and stops comparing the
/// contents of a range that the other one writes. Source of the ordering rules: SPEC §3.9.
fn meet(
    table: &mut Table,
    (other, own): (usize, usize),
    new: &mut Range,
    descriptor: &Descriptor,
    findings: &mut Findings<'_>,
) {
    let mut cursor = table.ranges(other);
    while let Some((position, old)) = table.step(&mut cursor) {
        let Some((address, len)) = new.what.shared_with(&old.what) else { continue };
        let Some(misuse) = new.what.hazard(&old.what) else { continue };
        if other == own && old.member == new.member {
            continue;
        }
        new.compared &= !old.what.kind.writes();
        if old.compared && new.what.kind.writes() {
            table.forget_content(position);
        }
        let (entry, mine) = (table.entry(other), table.entry(own));
        let ordered = if other == own {
            ordered_in_batch(&entry.descriptor, new, &old)
        } else {
            misuse == Misuse::WriteAfterWrite && writes_are_ordered(mine, entry, new, &old)
        };
        if ordered || findings.has(misuse) {
            continue;
        }
        if misuse == Misuse::WriteAfterWrite && new.work == old.work && new.work != UNIQUE {
            continue;
        }
        let Some(theirs) = table.descriptor(other, old.member) else { continue };
        findings.add(&Finding {
            misuse,
            latest: involved((mine.submission, new.member), new.what.operand, descriptor),
            other: Some(involved((entry.submission, old.member), old.what.operand, theirs)),
            address,
            len,
        });
    }
}

/// Marks work that has another result when it is done twice.
const UNIQUE: u64 = 0;

/// A hash of a descriptor's work: two descriptors with the same operation on the same bytes have the same hash, and
/// their order does not matter. Programs that submit the same work repeatedly do this.
fn work_of(descriptor: &Descriptor) -> u64 {
    // Doing it twice must give the same result, which is not the case if it reads what it writes.
    let writes = |range: &Use| range.kind == Kind::Write;
    let reads = |written: &Use| uses_of(descriptor).any(|read| !writes(&read) && read.shared_with(written).is_some());
    if uses_of(descriptor).filter(writes).any(|written| reads(&written)) {
        return UNIQUE;
    }
    // The report and start of the descriptor do not count: record address, its flags, interrupt handle, first dword.
    let telling = Flags::FENCE | Flags::RECORD | Flags::REQUEST_COMPLETION_INTERRUPT | Flags::COMPLETION_RECORD_TC;
    let flags = descriptor.flags().difference(telling);
    let mut plain = descriptor.with_flags(flags).with_interrupt_handle(0).with_completion_address(0);
    plain.0[0] >>= 32;
    sum_of(&plain)
}

/// True if two ranges of a batch's members cannot conflict: they are separated by a fence, or belong to the batch
/// itself.
fn ordered_in_batch(batch: &Descriptor, new: &Range, old: &Range) -> bool {
    match (old.member, old.what.kind) {
        // A member may have its record in its own list entry, which was read before.
        (0, Kind::List) => {
            let position = batch.src().wrapping_add(u64::from(new.member.saturating_sub(1)) * DESCRIPTOR_BYTES);
            new.what.address >= position && new.what.address.saturating_add(new.what.len) <= position + DESCRIPTOR_BYTES
        }
        // The batch's record is written after all members have ended.
        (0, _) => new.what.kind != Kind::Record,
        _ => new.segment != old.segment,
    }
}

/// True if the device keeps the order of two submissions' data writes: same engine, queue, portal address, kind of
/// descriptor and traffic class.
fn writes_are_ordered(new: &InFlight, old: &InFlight, new_range: &Range, old_range: &Range) -> bool {
    let class = |entry: &InFlight| entry.descriptor.flags().contains(Flags::ADDRESS_2_TC);
    let batch = |entry: &InFlight| entry.descriptor.opcode() == Opcode::Batch;
    new.single_engine
        && new.file == old.file
        && new.destination == old.destination
        && batch(new) == batch(old)
        && class(new) == class(old)
        && new_range.what.kind == Kind::Write
        && old_range.what.kind == Kind::Write
}

fn involved((submission, member): (u64, u32), operand: OperandId, descriptor: &Descriptor) -> InvolvedDescriptor {
    InvolvedDescriptor { submission, member, operand: operand as u32, descriptor: descriptor.0 }
}

/// A hash of a descriptor.
fn sum_of(descriptor: &Descriptor) -> u64 {
    descriptor.0.iter().fold(1, |sum: u64, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95))
}
