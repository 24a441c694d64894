//! What comes next after a completion record: the way of one ask through pieces, faults and refusals.
//!
//! ```text
//! Course::next ──► descriptor ──► record ──► Course::arrived ──► Finished(outcome)
//!      ▲                                         │
//!      ├───────────── More ──────────────────────┤   the next piece, or the same one continued
//!      ├───── the page was touched ◄─── Touch ───┤
//!      └  (never again) ◄────────────── OnCpu ───┘   the CPU does what is left
//! ```
//!
//! No memory is touched here and no time passes; whoever drives a course does that. Source of every rule: SPEC §8.3.

use crate::ask::{Ask, Piece, Range};
use crate::error::JobError;
use crate::outcome::{Delta, Outcome, Tags, Via};
use crate::policy::OnFault;
use crate::route::Limits;
use telpher_abi::{CompletionRecord, Descriptor, DifStatus, Opcode, Status};
use telpher_mem::PAGE_BYTES;

/// One ask on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    /// What no finished piece covers yet.
    rest: Ask,
    /// The piece a device works on, or should.
    piece: Option<Piece>,
    /// Bytes of the original ask before `rest` (always 0 for a move that runs backward).
    base: u64,
    /// Bytes done, from whichever end.
    done: u64,
    /// Faults since the last progress.
    stalls: u32,
    /// Page of the last fault, and its faults since the last progress.
    page: (u64, u32),
    /// Furthest a restarted operation (create delta) came.
    furthest: u32,
    /// A device has done something.
    device: bool,
    /// The CPU has done something.
    cpu: bool,
}

/// What to do about a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The course is at its end.
    Finished(Outcome),
    /// Another descriptor.
    More,
    /// Touch this page, then another descriptor; if the page may not be touched, end with the fault.
    Touch(Fault),
    /// The CPU does what is left; if it may not, end with the fault (if there is one) or the status.
    OnCpu(Status, Option<Fault>),
    /// A difference lies at or after this offset; the CPU finds the exact one if it may.
    Refine(Outcome),
    /// The course ends without an outcome.
    Failed(Failure),
}

/// A reported page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) write: bool,
    pub(crate) done: u64,
}

/// The ways a record ends a course without an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    Fault(Fault),
    BadDelta { at: u64, status: Status },
    Refused { op: Opcode, status: Status },
    Nonsense { op: Opcode, status: Status, completed: u32 },
}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fault(Fault { address, write, done }) => JobError::Fault { address, write, done },
            Failure::BadDelta { at, status } => JobError::BadDelta { at, status },
            Failure::Refused { op, status } => JobError::Refused { op, status },
            Failure::Nonsense { op, status, completed } => JobError::Nonsense { op, status, completed },
        }
    }
}

/// Different pages in turn may stall one point of progress: an operation has at most three operands and each may straddle
/// two pages. More than that many times the policy's limit is a device that never progresses.
const PAGES_PER_STEP: u32 = 6;

impl Course {
    pub(crate) fn new(ask: Ask) -> Self {
        let (page, furthest) = ((u64::MAX, 0), 0);
        Course { rest: ask, piece: None, base: 0, done: 0, stalls: 0, page, furthest, device: false, cpu: false }
    }

    pub(crate) fn rest(&self) -> &Ask {
        &self.rest
    }

    /// Bytes of the original ask before what is left.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// True if nobody has begun it.
    pub(crate) fn is_fresh(&self) -> bool {
        self.done == 0 && self.base == 0 && self.piece.is_none_or(|piece| piece.is_fresh())
    }

    /// Reads the record of a descriptor that was the whole ask, as one of the first piece.
    pub(crate) fn arrived_whole(&mut self, record: &CompletionRecord, on_fault: OnFault) -> Next {
        let len = self.rest.len();
        self.piece = Some(Piece { start: 0, whole: len, skip: 0, len });
        self.arrived(record, on_fault)
    }

    /// Bytes of a memory move, from its beginning, that are done for certain.
    pub(crate) fn done_in_front(&self) -> u64 {
        self.piece.map_or(0, |piece| piece.skip)
    }

    /// Another course did it, in whose name it went.
    pub(crate) fn was_done_by(&mut self, via: Via) {
        self.device |= via != Via::Cpu;
        self.cpu |= via != Via::Device;
    }

    /// The CPU did the rest.
    pub(crate) fn cpu_did_the_rest(&mut self) {
        self.cpu = true;
    }

    /// Who did the work.
    pub(crate) fn via(&self) -> Via {
        match (self.device, self.cpu) {
            (true, false) => Via::Device,
            (true, true) => Via::Both,
            (false, _) => Via::Cpu,
        }
    }

    /// The next descriptor for this queue, without policy flags and record; nothing if the queue cannot go on with it.
    pub(crate) fn next(&mut self, limits: &Limits) -> Option<Descriptor> {
        let piece = match self.piece {
            Some(begun) if !begun.is_fresh() => (begun.len <= limits.max_transfer).then_some(begun)?,
            _ => self.rest.cut(limits)?,
        };
        self.piece = Some(piece);
        Some(self.rest.descriptor(&piece))
    }

    /// The same; a raw descriptor goes as it is, since refusing it is the device's part.
    pub(crate) fn next_for(&mut self, limits: &Limits, raw: bool) -> Option<Descriptor> {
        if raw && self.piece.is_none() {
            let len = self.rest.len();
            self.piece = Some(Piece { start: 0, whole: len, skip: 0, len });
        }
        match self.piece.filter(|_| raw) {
            Some(piece) => Some(self.rest.descriptor(&piece)),
            None => self.next(limits),
        }
    }

    /// True if the present piece is all there is.
    pub(crate) fn is_in_one_piece(&self) -> bool {
        self.piece.is_some_and(|piece| piece.whole == self.rest.len())
    }

    /// True if the present piece, of which a device may have done any part, gives the same when it is done again. Only a move
    /// may overwrite what it has yet to read, and only if its ranges overlap within the piece.
    pub(crate) fn may_be_done_again(&self) -> bool {
        let d = self.rest.template();
        let apart = d.dst().abs_diff(d.src());
        self.rest.opcode() != Opcode::MemoryMove || self.piece.is_none_or(|piece| apart >= piece.len)
    }

    /// What is left of a memory move, in the order it must be done: at most a begun piece and the rest around it.
    pub(crate) fn moves(&self) -> [Ask; 2] {
        let mut rest = self.rest;
        let Some(piece) = self.piece else { return [rest, Ask::new(rest.template(), 0)] };
        let mut part = Ask::new(rest.template(), piece.start + piece.skip + piece.len);
        part.advance(piece.start + piece.skip);
        finish(&mut rest, &piece);
        [part, rest]
    }

    /// Reads the record of the last descriptor.
    pub(crate) fn arrived(&mut self, record: &CompletionRecord, on_fault: OnFault) -> Next {
        let status = record.status();
        let op = self.rest.opcode();
        let refused = Next::Failed(Failure::Refused { op, status });
        match status {
            Status::Success | Status::SuccessPredicateFalse => self.succeeded(record),
            Status::PageFault | Status::PageFaultRefused => self.faulted(record, on_fault),
            Status::DifError => self.mismatched(record),
            Status::DeltaOffsetOrder | Status::DeltaOffsetRange => {
                Next::Failed(Failure::BadDelta { at: self.base + u64::from(record.bytes_completed()), status })
            }
            // Found before execution: nothing was done (SPEC §5.4), so the CPU may do it all.
            Status::BadOpcode
            | Status::InvalidFlags
            | Status::NonZeroReserved
            | Status::TransferSizeRange
            | Status::FieldRange
            | Status::Overlap
            | Status::DualcastAlignment
            | Status::AddressAlignment
            | Status::TrafficClass
            | Status::InterruptHandle => Next::OnCpu(status, None),
            // Nobody knows how much was done: the CPU may only do again what can be done again.
            Status::HardwareReadError | Status::HardwareWriteError | Status::TranslationFailure => {
                if self.may_be_done_again() { Next::OnCpu(status, None) } else { refused }
            }
            // Codes that no single operation of ours can end with.
            Status::None
            | Status::BatchFail
            | Status::BatchPageFault
            | Status::DescriptorCountRange
            | Status::DescriptorListAlignment
            | Status::CompletionRecordFault
            | Status::CompletionRecordAlignment
            | Status::PrivilegeBad
            | Status::ReadbackFault
            | Status::DrainEventLog
            | Status::BatchEventLog
            | Status::InterDomainNoPasid
            | Status::InterDomainHandle
            | Status::InterDomainPermission
            | Status::InterDomainWindow
            | Status::UpdateWindowEntry
            | Status::UpdateWindowFields
            | Status::InterDomainAborted
            | Status::Unknown(_) => refused,
        }
    }

    fn nonsense(&self, record: &CompletionRecord) -> Next {
        let (op, status, completed) = (self.rest.opcode(), record.status(), record.bytes_completed());
        Next::Failed(Failure::Nonsense { op, status, completed })
    }

    fn succeeded(&mut self, record: &CompletionRecord) -> Next {
        let Some(piece) = self.piece else { return self.nonsense(record) };
        let completed = u64::from(record.bytes_completed());
        self.device = true;
        match self.rest.opcode() {
            Opcode::Compare | Opcode::ComparePattern if record.result() & 1 == 1 => {
                if completed >= piece.len {
                    return self.nonsense(record);
                }
                let outcome = Outcome::Different { at: self.base + completed };
                if self.rest.opcode() == Opcode::Compare {
                    return Next::Finished(outcome);
                }
                self.progress(completed, record);
                Next::Refine(outcome)
            }
            Opcode::CreateDelta => {
                let bytes = record.delta_record_size();
                if bytes > self.rest.template().max_delta_size() {
                    return self.nonsense(record);
                }
                match record.result() {
                    0 => Next::Finished(Outcome::Delta(Delta::Identical)),
                    1 => Next::Finished(Outcome::Delta(Delta::Complete { bytes })),
                    2 => Next::Finished(Outcome::Delta(Delta::Overflow { bytes, compared: completed })),
                    _ => self.nonsense(record),
                }
            }
            _ => {
                finish(&mut self.rest, &piece);
                self.rest.carry(piece.whole, record);
                self.base += if piece.start == 0 { piece.whole } else { 0 };
                self.done += piece.len;
                self.piece = None;
                self.stalls = 0;
                if self.rest.len() > 0 { Next::More } else { Next::Finished(self.end()) }
            }
        }
    }

    /// The outcome of an ask of which nothing is left.
    fn end(&self) -> Outcome {
        let d = self.rest.template();
        match self.rest.opcode() {
            Opcode::Compare | Opcode::ComparePattern => Outcome::Equal,
            Opcode::CrcGeneration | Opcode::CopyCrc => Outcome::Crc(d.crc_seed()),
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
                Outcome::Dif { source: source_tags(&d), dest: dest_tags(&d) }
            }
            _ => Outcome::Done,
        }
    }

    fn mismatched(&mut self, record: &CompletionRecord) -> Next {
        let completed = u64::from(record.bytes_completed());
        match self.piece {
            Some(piece) if completed < piece.len && completed.is_multiple_of(self.rest.unit()) => {
                self.device = true;
                let what = DifStatus::from_bits_retain(record.result());
                Next::Finished(Outcome::DifMismatch { at: self.base + completed, what })
            }
            _ => self.nonsense(record),
        }
    }

    fn faulted(&mut self, record: &CompletionRecord, on_fault: OnFault) -> Next {
        let completed = u64::from(record.bytes_completed());
        let Some(piece) = self.piece.filter(|piece| completed < piece.len) else { return self.nonsense(record) };
        let op = self.rest.opcode();
        let moved_on = match op {
            // A new record's offsets would restart at 0, so the whole operation is done again; how far it came still tells
            // progress from a standstill.
            Opcode::CreateDelta => {
                let further = record.bytes_completed() > self.furthest;
                self.furthest = self.furthest.max(record.bytes_completed());
                further
            }
            Opcode::MemoryMove => {
                let backward = record.result() & 1 == 1;
                let skip = if backward { 0 } else { completed };
                self.piece = Some(Piece { skip: piece.skip + skip, len: piece.len - completed, ..piece });
                self.done += completed;
                completed > 0
            }
            // Whole units only: a unit begun is done again.
            _ => self.progress(completed / self.rest.unit() * self.rest.unit(), record),
        };
        self.device |= moved_on;
        let fault = Fault { address: record.fault_address(), write: record.status_byte().is_write(), done: self.done };
        if moved_on {
            self.stalls = 0;
            self.page.1 = 0;
        }
        self.decide(record.status(), fault, record.fault_address_masked(), on_fault)
    }

    /// The first `n` bytes of an ask that is not a move are done; true if that is any.
    fn progress(&mut self, n: u64, record: &CompletionRecord) -> bool {
        self.rest.advance(n);
        self.rest.carry(n, record);
        self.base += n;
        self.done += n;
        if let Some(piece) = &mut self.piece {
            piece.whole -= n;
            piece.len -= n;
        }
        n > 0
    }

    fn decide(&mut self, status: Status, fault: Fault, masked: bool, on_fault: OnFault) -> Next {
        match on_fault {
            OnFault::TouchAndResubmit { limit } if !masked => {
                let page = fault.address / PAGE_BYTES;
                let times = if self.page.0 == page { self.page.1 + 1 } else { 1 };
                self.page = (page, times);
                self.stalls += 1;
                if times > limit || self.stalls > limit.saturating_mul(PAGES_PER_STEP) {
                    // Touched in vain: the page is there for the CPU, so it is the device that cannot have it.
                    Next::OnCpu(status, Some(fault))
                } else {
                    Next::Touch(fault)
                }
            }
            OnFault::Block if status == Status::PageFaultRefused => Next::Failed(Failure::Fault(fault)),
            OnFault::FinishOnCpu | OnFault::Block | OnFault::TouchAndResubmit { .. } => {
                Next::OnCpu(status, Some(fault))
            }
        }
    }

    /// The part of the ask's own memory that lies in the faulting page, if any does; only that may be touched.
    pub(crate) fn touchable(&self, fault: &Fault) -> Option<Range> {
        let page = fault.address / PAGE_BYTES * PAGE_BYTES;
        self.rest.ranges().into_iter().flatten().filter(|range| range.written || !fault.write).find_map(|range| {
            let start = page.max(range.address);
            let end = page.saturating_add(PAGE_BYTES).min(range.address.saturating_add(range.len));
            (start < end).then(|| Range { address: start, len: end - start, written: range.written && fault.write })
        })
    }
}

/// Takes a done piece from an ask.
fn finish(rest: &mut Ask, piece: &Piece) {
    if piece.start == 0 { rest.advance(piece.whole) } else { rest.shorten(piece.whole) }
}

/// The source tags a DIF descriptor begins with.
pub(crate) fn source_tags(d: &Descriptor) -> Tags {
    Tags { ref_tag: d.source_ref_tag(), app_mask: d.source_app_tag_mask(), app_tag: d.source_app_tag() }
}

/// The destination tags a DIF descriptor begins with.
pub(crate) fn dest_tags(d: &Descriptor) -> Tags {
    Tags { ref_tag: d.dest_ref_tag(), app_mask: d.dest_app_tag_mask(), app_tag: d.dest_app_tag() }
}
