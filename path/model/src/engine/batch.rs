//! Batches: members one after the other, fences, and the Batch's own end. Source: SPEC §3.8, §3.9, §8.3.2.

use super::{Engine, Outcome, Phase, Step, Work};
use crate::capabilities::MAX_ENGINES;
use crate::device::Device;
use crate::observe::ReportedTo;
use telpher_abi::perfmon::Event;
use telpher_abi::{CompletionRecord, Descriptor, Flags, OperandId, Status, StatusByte};
use telpher_mem::Fault;

/// The batch whose members are being executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) work: Work,
    pub(super) next: u32,
    pub(super) done: u32,
    pub(super) failed: bool,
    /// True if a member's record went to the event log, so that the Batch's own record goes there, too. Such a member
    /// has not failed, but a later member with a fence does not start.
    pub(super) logged: bool,
    /// The fault that ended the reading of the list, if any.
    pub(super) fault: Option<Fault>,
}

/// Converts a member's position to the type in reports.
#[inline]
pub(super) fn batch_index(next: u32) -> u16 {
    // Cannot lose bits: a batch has at most 2^15 members.
    u16::try_from(next).unwrap_or(u16::MAX)
}

impl Engine {
    /// Reads the next member of the batch, or ends the batch. Returns `None` if the phase has changed.
    pub(super) fn next_member(&mut self, device: &Device, batch: Batch) -> Option<Step> {
        if batch.fault.is_none() && batch.next < batch.work.descriptor.size() {
            self.phase = Phase::Fetching;
            let offset = u64::from(batch.next) * telpher_abi::DESCRIPTOR_BYTES;
            return Some(Step::Fetch { address: batch.work.descriptor.src().wrapping_add(offset) });
        }
        self.end_batch(device, batch);
        None
    }

    /// All members to be executed have been executed: completes the Batch itself.
    pub(super) fn end_batch(&mut self, device: &Device, batch: Batch) {
        self.work = batch.work;
        let status = match batch.fault {
            Some(_) => StatusByte::fault(Status::BatchPageFault, false),
            None if batch.failed => StatusByte::new(Status::BatchFail),
            None => StatusByte::new(Status::Success),
        };
        let mut record = CompletionRecord::new(status).with_bytes_completed(batch.done);
        if let Some(fault) = batch.fault {
            record = record.with_fault_address(fault.address);
        }
        if device.capabilities.gen_cap.batch_continuation() {
            record = record.with_result(batch.failed.into());
        }
        let operand = if batch.fault.is_some() { OperandId::Source1 } else { OperandId::Unknown };
        let outcome = Outcome { record, operand, ..Outcome::of(Status::None) };
        self.batch = None;
        self.outcome = outcome;
        if batch.logged && self.wants_anything() {
            // A member's record went to the log, so the Batch's record must go there, too (SPEC §5.9).
            let entry = self.log_entry_with_record(device, Status::BatchEventLog, &outcome.record, true);
            self.reported_to = ReportedTo::Elsewhere;
            self.log(entry, false);
        } else {
            self.phase = Phase::Recording;
        }
    }

    /// Takes the runner's answer to [`Step::Fetch`].
    pub fn fetched(&mut self, device: &Device, member: Result<Descriptor, Fault>) {
        let (Phase::Fetching, Some(batch)) = (self.phase, self.batch.as_mut()) else { return };
        self.phase = Phase::Ready;
        match member {
            Err(fault) => batch.fault = Some(fault),
            Ok(descriptor) if descriptor.flags().contains(Flags::FENCE) && (batch.failed || batch.logged) => {
                // Fence: this member and all later ones are abandoned (SPEC Table 8-3), and the Batch has failed. The
                // device cannot know whether software will be able to write a record from the event log (`dsa_test -e`,
                // case 1b).
                batch.failed = true;
                batch.next = batch.work.descriptor.size();
                self.count_fence(device, false);
            }
            Ok(descriptor) => {
                let batch_index = Some(batch_index(batch.next));
                batch.next += 1;
                self.work.descriptor = descriptor;
                self.work.origin.batch_index = batch_index;
                self.phase = Phase::Deciding;
                if descriptor.flags().contains(Flags::FENCE) {
                    self.count_fence(device, true);
                }
                device.count(Event::FROM_BATCH, 1, Some(self.work.origin.wq), Some(self.index), None);
            }
        }
    }

    /// Returns a number for the batch in this lane; the first 16 lanes of every engine have distinct numbers.
    pub(super) fn batch_identifier(&self) -> u8 {
        u8::try_from((self.index + self.lane * MAX_ENGINES) & 0xff).unwrap_or_default()
    }
}
