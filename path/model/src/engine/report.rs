//! Reports ends that the completion record does not report, or not alone: in the event log and SWERROR. Source: SPEC
//! §5.9, Table 5-6.

use super::{Engine, Outcome, Phase, Work};
use crate::device::Device;
use crate::errors::{ErrorReport, ReportedDescriptor};
use crate::legality::Refusal;
use crate::observe::ReportedTo;
use telpher_abi::{CompletionRecord, EventLogEntry, Flags, Opcode, OperandId, Status};
use telpher_mem::Fault;

impl Engine {
    /// Reports a refused descriptor's status. Source: SPEC Table 5-6, last column.
    #[cold]
    pub(super) fn refuse(&mut self, device: &Device, refusal: Refusal) {
        let mut outcome = Outcome::of(refusal.status);
        outcome.record = match refusal.handle {
            Some(handle) => outcome.record.with_fault_handle(handle),
            None => outcome.record.with_invalid_flags(refusal.flags),
        };
        let record_unusable = refusal.status == Status::TrafficClass && self.record_class_unusable(device);
        match refusal.status {
            Status::CompletionRecordAlignment | Status::PrivilegeBad => {
                self.report(device, &outcome, None);
            }
            Status::TrafficClass if record_unusable => self.report(device, &outcome, None),
            Status::InterruptHandle => {
                // Reported twice: in the record, and in the event log or SWERROR (SPEC Table 5-6, 0x19).
                let handle = Some(self.work.descriptor.interrupt_handle().into());
                let entry = device.event_log_enabled().then(|| {
                    let record = &outcome.record;
                    self.log_entry_with_record(device, refusal.status, record, false).with_address(0).with_write(false)
                });
                if self.wants_record(refusal.status) {
                    match entry {
                        Some(entry) => self.pending_entry = Some(entry),
                        None => device.report_device_error(&self.report_of(&outcome, handle)),
                    }
                    self.end_with(outcome);
                } else {
                    self.report(device, &outcome, handle);
                    if let Some(entry) = entry {
                        self.log(entry, false);
                    }
                }
            }
            _ => self.end_with(outcome),
        }
    }

    pub(super) fn record_class_unusable(&self, device: &Device) -> bool {
        let flags = self.work.descriptor.flags();
        let classes = device.wqs[self.work.origin.wq].rules.0.classes.get();
        flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID)
            && classes >> u64::from(flags.contains(Flags::COMPLETION_RECORD_TC)) & 1 == 0
    }

    pub(super) fn log(&mut self, entry: EventLogEntry, notify: bool) {
        self.entry = entry;
        self.notify_after_log = notify;
        self.phase = Phase::Logging;
    }

    pub(super) fn after_log(&mut self) {
        self.phase = if self.notify_after_log { Phase::Notifying } else { Phase::Ending };
    }

    /// A Drain's success goes to the event log if completion records may fault (SPEC §3.12).
    pub(super) fn drains_to_log(&self, device: &Device, status: Status) -> bool {
        self.work.descriptor.opcode() == Opcode::Drain
            && status == Status::Success
            && device.event_log_enabled()
            && !self.has_page_requests(device)
    }

    /// The completion record could not be written: reports status 0x1a in the log, with the record, or in SWERROR,
    /// without it.
    #[cold]
    pub(super) fn record_faulted(&mut self, device: &Device, fault: Fault) {
        // The pending entry says less than the one that replaces the record.
        self.pending_entry = None;
        self.reported_to = ReportedTo::Unwritable(fault);
        let outcome = self.outcome;
        if device.event_log_enabled() {
            let first = self.batch.as_ref().is_none_or(|batch| !batch.logged);
            if let Some(batch) = self.batch.as_mut() {
                batch.logged = true;
            }
            let entry = self
                .log_entry_with_record(device, Status::CompletionRecordFault, &outcome.record, first)
                .with_operand(OperandId::CompletionRecord as u8);
            self.log(entry, false);
            return;
        }
        // The record is lost for good, and the member's status is 0x1a, not Success.
        if let Some(batch) = self.batch.as_mut() {
            batch.failed = true;
        }
        let mut report = self.report_of(&outcome, Some((OperandId::CompletionRecord as u32) << 29));
        report.code = Status::CompletionRecordFault.code();
        report.write = true;
        report.address = fault.address;
        device.report_device_error(&report);
        self.phase = Phase::Notifying;
    }

    /// Builds an event log entry with the completion record that software shall write.
    pub(super) fn log_entry_with_record(
        &self,
        device: &Device,
        code: Status,
        record: &CompletionRecord,
        first: bool,
    ) -> EventLogEntry {
        let descriptor = &self.work.descriptor;
        let flags = descriptor.flags();
        let in_batch = self.work.origin.batch_index.is_some() || descriptor.opcode() == Opcode::Batch;
        debug_assert!(device.event_log_enabled());
        let mut report = self.report_of(&Outcome::of(code), Some(0));
        report.write = true;
        report.address = descriptor.completion_address();
        report
            .to_log_entry()
            .with_batch_identifier(if in_batch { self.batch_identifier() } else { 0 })
            .with_interrupt_handle(descriptor.interrupt_handle())
            .with_interrupt_required(flags.contains(Flags::REQUEST_COMPLETION_INTERRUPT))
            .with_ims_portal(self.work.origin.submitter.ims)
            .with_record_required(self.wants_record(record.status()))
            .with_first_error_in_batch(in_batch && first)
            .with_record(*record)
    }

    pub(super) fn report_of(&self, outcome: &Outcome, information: Option<u32>) -> ErrorReport {
        let Work { descriptor, origin, .. } = &self.work;
        let byte = outcome.record.status_byte();
        ErrorReport {
            code: byte.status().code(),
            wq: u8::try_from(origin.wq).ok(),
            descriptor: Some(ReportedDescriptor {
                operation: descriptor.opcode().code(),
                submitter: origin.submitter,
                batch_index: origin.batch_index,
            }),
            information,
            write: byte.is_write(),
            address: outcome.record.fault_address(),
        }
    }

    /// Reports an error that no completion record reports: in the event log if it is enabled, else in SWERROR.
    #[cold]
    pub(super) fn report(&mut self, device: &Device, outcome: &Outcome, information: Option<u32>) {
        // Refused descriptors come here without passing `record`.
        if matches!(self.phase, Phase::Deciding) {
            if let Some(batch) = self.batch.as_mut() {
                batch.done += 1;
                batch.failed = true;
            }
            self.count_completion(device, outcome.record.status());
        }
        self.outcome = *outcome;
        self.reported_to = ReportedTo::Elsewhere;
        let report = self.report_of(outcome, information);
        let notify = outcome.record.status() != Status::InterruptHandle;
        if device.event_log_enabled() {
            self.log(report.to_log_entry(), notify);
        } else {
            device.report_device_error(&report);
            self.phase = if notify { Phase::Notifying } else { Phase::Ending };
        }
    }

    /// Takes the runner's answer to [`Step::Log`](super::Step::Log).
    pub fn logged(&mut self, device: &Device, written: Result<(), Fault>) {
        if self.phase != Phase::Logged {
            return;
        }
        device.finish_append(written.is_ok());
        self.after_log();
    }
}
