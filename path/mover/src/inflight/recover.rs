//! What to do after a completion record: how one request advances through chunks, faults and refusals.
//!
//! ```text
//! Request::next ──► descriptor ──► record ──► Request::arrived ──► Finished(outcome)
//!      ▲                                            │
//!      ├───────────── More ─────────────────────────┤   the next chunk, or the same one continued
//!      ├───── the page was touched ◄─── Touch ──────┤
//!      └  (never again) ◄────────────── OnCpu ──────┘   the CPU does the rest
//! ```
//!
//! This file touches no memory and reads no clock; the owner of the request does that. Source of every rule: SPEC
//! §8.3.

use crate::api::error::JobError;
use crate::api::outcome::{Delta, Outcome, Tags, Via};
use crate::api::policy::OnFault;
use crate::plan::limits::Limits;
use crate::plan::request::{Chunk, Range, Request};
use telpher_abi::{CompletionRecord, Descriptor, DifStatus, OpFlags, Opcode, Status};
use telpher_mem::PAGE_BYTES;

/// What to do after a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The request has ended.
    Finished(Outcome),
    /// Submit another descriptor.
    More,
    /// Touch this page, then submit another descriptor; if the page must not be touched, end with the fault.
    Touch(Fault),
    /// The CPU does the rest; if it must not, end with the fault (if there is one) or the status.
    OnCpu(Status, Option<Fault>),
    /// A difference lies at or after this offset; the CPU finds the exact one if it may.
    Refine(Outcome),
    /// The request ends without an outcome.
    Failed(Failure),
}

/// The outcome of a move, a fill or a CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Done,
    Crc(u32),
}

/// A reported page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) write: bool,
    pub(crate) done: u64,
}

/// How a record ends a request without an outcome.
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

/// The progress of a request; only this file changes it.
impl Request {
    /// Returns true if nothing of it was done.
    pub(crate) fn is_fresh(&self) -> bool {
        self.done == 0 && self.base == 0 && self.chunk.is_none_or(|chunk| chunk.is_fresh())
    }

    /// Reads the record of a descriptor for the whole request, as a record of the first chunk.
    pub(crate) fn arrived_whole(&mut self, record: &CompletionRecord, on_fault: OnFault) -> Next {
        let len = self.len();
        self.chunk = Some(Chunk { start: 0, whole: len, skip: 0, len });
        self.arrived(record, on_fault)
    }

    /// Returns the bytes of a memory move, from its beginning, that are certainly done.
    pub(crate) fn done_in_front(&self) -> u64 {
        self.chunk.map_or(0, |chunk| chunk.skip)
    }

    /// Records that the work was done through another request that included this one.
    pub(crate) fn was_done_by(&mut self, via: Via) {
        self.device |= via != Via::Cpu;
        self.cpu |= via != Via::Device;
    }

    /// Records that the CPU did the rest.
    pub(crate) fn cpu_did_the_rest(&mut self) {
        self.cpu = true;
    }

    /// Returns whether devices, the CPU or both did the work.
    #[inline]
    pub(crate) fn via(&self) -> Via {
        match (self.device, self.cpu) {
            (true, false) => Via::Device,
            (true, true) => Via::Both,
            (false, _) => Via::Cpu,
        }
    }

    /// Returns the next descriptor for this queue, without policy flags and completion record; `None` if the queue
    /// cannot continue the request.
    #[inline]
    pub(crate) fn next(&mut self, limits: &Limits) -> Option<Descriptor> {
        let chunk = match self.chunk {
            Some(begun) if !begun.is_fresh() => (begun.len <= limits.max_transfer).then_some(begun)?,
            _ => self.cut(limits)?,
        };
        self.chunk = Some(chunk);
        Some(self.descriptor(&chunk))
    }

    /// Like [`next`](Request::next), but a raw descriptor is not cut: the device refuses it if it is too long.
    #[inline]
    pub(crate) fn next_for(&mut self, limits: &Limits, raw: bool) -> Option<Descriptor> {
        if raw && self.chunk.is_none() {
            let len = self.len();
            self.chunk = Some(Chunk { start: 0, whole: len, skip: 0, len });
        }
        if raw { Some(self.template()) } else { self.next(limits) }
    }

    /// Returns true if the present chunk is the whole rest.
    pub(crate) fn is_one_chunk(&self) -> bool {
        self.chunk.is_some_and(|chunk| chunk.whole == self.len())
    }

    /// Returns true if repeating the present chunk gives the same result, whatever part of it a device has done. Only a
    /// move can overwrite bytes that it has yet to read, and only if its ranges overlap within the chunk.
    pub(crate) fn may_be_done_again(&self) -> bool {
        let d = self.template();
        let apart = d.dst().abs_diff(d.src());
        self.opcode() != Opcode::MemoryMove || self.chunk.is_none_or(|chunk| apart >= chunk.len)
    }

    /// Returns the rest of a memory move, in the order in which it must be done: at most a begun chunk and the rest
    /// around it.
    pub(crate) fn moves(&self) -> [Request; 2] {
        let mut rest = Request::new(self.template(), self.len());
        let Some(chunk) = self.chunk else { return [rest, Request::new(rest.template(), 0)] };
        let mut part = Request::new(rest.template(), chunk.start + chunk.skip + chunk.len);
        part.advance(chunk.start + chunk.skip);
        rest.remove(&chunk);
        [part, rest]
    }

    /// Removes a finished chunk from what is left.
    fn remove(&mut self, chunk: &Chunk) {
        if chunk.start == 0 { self.advance(chunk.whole) } else { self.shorten(chunk.whole) }
    }

    /// Ends a move, fill or CRC whose last descriptor succeeded; `None` if the record needs [`arrived`](Self::arrived).
    /// Most operations end here, so nothing is kept for a next chunk.
    #[inline]
    pub(crate) fn ended_by(&mut self, record: &CompletionRecord) -> Option<Ending> {
        let chunk = self.chunk.filter(|chunk| chunk.is_all_of(self.len()) && record.status() == Status::Success)?;
        let ending = match self.opcode() {
            Opcode::MemoryMove | Opcode::Fill => Ending::Done,
            Opcode::CrcGeneration | Opcode::CopyCrc if !self.template().flags().contains(OpFlags::CRC64) => {
                Ending::Crc(record.crc())
            }
            _ => return None,
        };
        self.device = true;
        self.base += chunk.whole;
        self.done += chunk.len;
        self.stalls = 0;
        self.finish();
        Some(ending)
    }

    /// Reads the record of the last descriptor.
    #[inline]
    pub(crate) fn arrived(&mut self, record: &CompletionRecord, on_fault: OnFault) -> Next {
        let status = record.status();
        let op = self.opcode();
        let refused = Next::Failed(Failure::Refused { op, status });
        match status {
            Status::Success | Status::SuccessPredicateFalse => self.succeeded(record),
            Status::PageFault | Status::PageFaultRefused => self.faulted(record, on_fault),
            Status::DifError if matches!(op, Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate) => {
                self.mismatched(record)
            }
            // The other operations check nothing.
            Status::DifError => self.nonsense(record),
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
            | Status::DescriptorCountRange
            | Status::DualcastAlignment
            | Status::AddressAlignment
            | Status::TrafficClass
            | Status::InterruptHandle => Next::OnCpu(status, None),
            // It is not known how much was done: the CPU may repeat only operations that can be repeated.
            Status::HardwareReadError | Status::HardwareWriteError | Status::TranslationFailure => {
                if self.may_be_done_again() { Next::OnCpu(status, None) } else { refused }
            }
            // Codes that no single operation of this crate can end with.
            Status::None
            | Status::BatchFail
            | Status::BatchPageFault
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
        let (op, status, completed) = (self.opcode(), record.status(), record.bytes_completed());
        Next::Failed(Failure::Nonsense { op, status, completed })
    }

    #[inline]
    fn succeeded(&mut self, record: &CompletionRecord) -> Next {
        let Some(chunk) = self.chunk else { return self.nonsense(record) };
        let completed = u64::from(record.bytes_completed());
        self.device = true;
        match self.opcode() {
            Opcode::Compare
            | Opcode::ComparePattern
            | Opcode::InterDomainCompare
            | Opcode::InterDomainComparePattern
                if record.result() & 1 == 1 =>
            {
                if completed >= chunk.len {
                    return self.nonsense(record);
                }
                let outcome = Outcome::Different { at: self.base + completed };
                if self.opcode() != Opcode::ComparePattern {
                    return Next::Finished(outcome);
                }
                self.advance_by(completed, record);
                Next::Refine(outcome)
            }
            Opcode::CreateDelta => {
                let bytes = record.delta_record_size();
                if bytes > self.template().max_delta_size() {
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
                self.remove(&chunk);
                self.carry(chunk.whole, record);
                self.base += if chunk.start == 0 { chunk.whole } else { 0 };
                self.done += chunk.len;
                self.chunk = None;
                self.stalls = 0;
                if self.len() > 0 { Next::More } else { Next::Finished(self.end()) }
            }
        }
    }

    /// Returns the outcome of a request without a rest.
    fn end(&self) -> Outcome {
        let d = self.template();
        match self.opcode() {
            Opcode::Compare
            | Opcode::ComparePattern
            | Opcode::InterDomainCompare
            | Opcode::InterDomainComparePattern => Outcome::Equal,
            Opcode::CrcGeneration | Opcode::CopyCrc if d.flags().contains(OpFlags::CRC64) => {
                Outcome::Crc64(d.crc64_seed())
            }
            Opcode::CrcGeneration | Opcode::CopyCrc => Outcome::Crc(d.crc_seed()),
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate | Opcode::DixGenerate => {
                Outcome::Dif { source: source_tags(&d), dest: dest_tags(&d) }
            }
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast | Opcode::GatherReduce => {
                Outcome::Computed(self.seen)
            }
            _ => Outcome::Done,
        }
    }

    fn mismatched(&mut self, record: &CompletionRecord) -> Next {
        let completed = u64::from(record.bytes_completed());
        match self.chunk {
            Some(chunk) if completed < chunk.len && completed.is_multiple_of(self.unit()) => {
                self.device = true;
                let what = DifStatus::from_bits_retain(record.result());
                Next::Finished(Outcome::DifMismatch { at: self.base + completed, what })
            }
            _ => self.nonsense(record),
        }
    }

    fn faulted(&mut self, record: &CompletionRecord, on_fault: OnFault) -> Next {
        let op = self.opcode();
        if op == Opcode::TranslationFetch {
            // Its bytes completed are undefined (SPEC §8.3.11). It is quicker to touch the rest than to ask for each
            // page.
            let fault = Fault { address: record.fault_address(), write: false, done: self.done };
            let touches = matches!(on_fault, OnFault::TouchAndResubmit { .. });
            let on_fault = if touches { OnFault::FinishOnCpu } else { on_fault };
            return self.decide(record.status(), fault, record.fault_address_masked(), on_fault);
        }
        let completed = u64::from(record.bytes_completed());
        let Some(chunk) = self.chunk.filter(|chunk| completed < chunk.len) else { return self.nonsense(record) };
        let moved_on = match op {
            // A new record's offsets would restart at 0, so the whole operation is repeated. How far it came still
            // tells progress from a standstill.
            Opcode::CreateDelta => {
                let further = record.bytes_completed() > self.furthest;
                self.furthest = self.furthest.max(record.bytes_completed());
                further
            }
            // The results exist only at the end, so the whole operation is repeated.
            Opcode::GatherReduce => {
                let entries = u32::from(record.sgl_entries_done());
                let further = entries > self.furthest;
                self.furthest = self.furthest.max(entries);
                further
            }
            Opcode::MemoryMove => {
                let backward = record.result() & 1 == 1;
                let skip = if backward { 0 } else { completed };
                self.chunk = Some(Chunk { skip: chunk.skip + skip, len: chunk.len - completed, ..chunk });
                self.done += completed;
                completed > 0
            }
            // Whole units only: a unit that was begun is repeated.
            _ => self.advance_by(completed / self.unit() * self.unit(), record),
        };
        self.device |= moved_on;
        let fault = Fault { address: record.fault_address(), write: record.status_byte().is_write(), done: self.done };
        if moved_on {
            self.stalls = 0;
            self.page.1 = 0;
        }
        self.decide(record.status(), fault, record.fault_address_masked(), on_fault)
    }

    /// Records that the first `n` bytes of a request that is not a move are done; returns true if `n` is not 0.
    fn advance_by(&mut self, n: u64, record: &CompletionRecord) -> bool {
        self.advance(n);
        self.carry(n, record);
        self.base += n;
        self.done += n;
        if let Some(chunk) = &mut self.chunk {
            chunk.whole -= n;
            chunk.len -= n;
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
                // Different pages in turn may stall one point of progress. A device that faults more often than on each
                // of them, as many times as the limit allows, never progresses.
                if times > limit || self.stalls > limit.saturating_mul(self.pages_per_step()) {
                    // Touching the page did not help: the CPU can reach it, so the device cannot.
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

    /// Returns the part of the request's own memory that lies in the faulting page, if any does; only that may be
    /// touched.
    pub(crate) fn touchable(&self, fault: &Fault) -> Option<Range> {
        let page = fault.address / PAGE_BYTES * PAGE_BYTES;
        self.ranges().into_iter().flatten().filter(|range| range.written || !fault.write).find_map(|range| {
            let start = page.max(range.address);
            let end = page.saturating_add(PAGE_BYTES).min(range.address.saturating_add(range.len));
            (start < end).then(|| Range { address: start, len: end - start, written: range.written && fault.write })
        })
    }
}

/// Returns the source tags that a DIF descriptor begins with.
pub(crate) fn source_tags(d: &Descriptor) -> Tags {
    Tags { ref_tag: d.source_ref_tag(), app_mask: d.source_app_tag_mask(), app_tag: d.source_app_tag() }
}

/// Returns the destination tags that a DIF descriptor begins with.
pub(crate) fn dest_tags(d: &Descriptor) -> Tags {
    Tags { ref_tag: d.dest_ref_tag(), app_mask: d.dest_app_tag_mask(), app_tag: d.dest_app_tag() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use telpher_abi::{ComputeType, DataType, SglFormat, StatusByte};

    /// Regression: a fault record of a Gather Reduce with more bytes than it has elements was taken for nonsense.
    #[test]
    fn a_fault_record_of_a_gather_reduce_counts_bytes_of_its_blocks() {
        let d = Descriptor::gather_reduce(ComputeType::Add, (0x1000, 3), SglFormat::Offset64, 0x2000, 0x9000, 5);
        // Five elements of two bytes; the types are the lowest bits of byte 56.
        let mut d = Descriptor(d.0);
        d.0[7] |= u64::from(DataType::Int16.code()) | u64::from(DataType::Int16.code()) << 4;
        let record = CompletionRecord::new(StatusByte::new(Status::PageFault)).with_bytes_completed(10);
        let next = Request::of(d).arrived_whole(&record, OnFault::FinishOnCpu);
        assert!(matches!(next, Next::OnCpu(Status::PageFault, Some(_))), "{next:?}");
    }
}
