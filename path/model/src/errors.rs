//! Registers for errors that no completion record reports: SWERROR and the event log. Source: SPEC §5.9, §9.2.14.

use crate::device::Device;
use crate::sync::{AtomicU64, Ordering, Word, fence, load};
use crate::wq::Submitter;
use telpher_abi::registers::{DeviceState, EvlCfg, EvlStatus, GenCtrl, IntCause, WqState};
use telpher_abi::{DeviceError, EventLogEntry, SwError};

/// The error registers.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ErrorState {
    /// SWERROR word 0; a thread claims the register with bit 63 (unused by the register) while it writes the other
    /// words.
    first: AtomicU64,
    rest: [Word; 3],
    /// EVLSTATUS: head, tail and pending bit. They are separate because software writes one and the device the others.
    pub(crate) log_head: Word,
    pub(crate) log_tail: Word,
    pub(crate) log_pending: Word,
    /// Engine lane that is appending to the event log, plus one; 0 if none.
    log_writer: AtomicU64,
}

const CLAIMED: u64 = 1 << 63;

/// The details of one error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ErrorReport {
    pub(crate) code: u8,
    pub(crate) wq: Option<u8>,
    pub(crate) descriptor: Option<ReportedDescriptor>,
    /// Flag mask (0x11), interrupt handle (0x19), operand in bits 31:29 (faults).
    pub(crate) information: Option<u32>,
    pub(crate) write: bool,
    pub(crate) address: u64,
}

/// The descriptor that caused an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReportedDescriptor {
    pub(crate) operation: u8,
    pub(crate) submitter: Submitter,
    /// Position in its batch, for a member.
    pub(crate) batch_index: Option<u16>,
}

impl ErrorReport {
    pub(crate) fn of_queue(code: u8, wq: usize) -> Self {
        ErrorReport { code, wq: u8::try_from(wq).ok(), ..Self::default() }
    }

    pub(crate) fn of_device(error: DeviceError) -> Self {
        ErrorReport { code: error.code(), ..Self::default() }
    }

    fn to_sw_error(self) -> SwError {
        let mut error = SwError::default()
            .with_valid(true)
            .with_error_code(self.code)
            .with_wq_index_valid(self.wq.is_some())
            .with_wq_index(self.wq.unwrap_or_default())
            .with_write(self.write)
            .with_error_information_valid(self.information.is_some())
            .with_error_information(self.information.unwrap_or_default())
            .with_address(self.address);
        if let Some(descriptor) = self.descriptor {
            error = error
                .with_descriptor_valid(true)
                .with_batch_member(descriptor.batch_index.is_some())
                .with_batch_index(descriptor.batch_index.unwrap_or_default())
                .with_operation(descriptor.operation)
                .with_privileged(descriptor.submitter.privileged)
                .with_pasid(descriptor.submitter.pasid_or_zero());
        }
        error
    }

    /// Converts it to an event log entry: the fields of both lie at the same bits, except SWERROR's valid bit (SPEC
    /// §5.9).
    pub(crate) fn to_log_entry(self) -> EventLogEntry {
        let [first, second, third, _] = self.to_sw_error().with_valid(false).0;
        EventLogEntry([first, second, third, 0, 0, 0, 0, 0])
    }
}

/// The answer to an engine that wants to append to the event log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Append {
    /// Granted: write the entry at this address, then call [`Device::finish_append`].
    At(u64),
    /// Another lane is appending, or the log is full and blocks: ask again.
    Wait,
    /// The log is full, and SWERROR reports this instead; the entry is dropped.
    Dropped,
}

impl Device {
    /// Returns SWERROR as software reads it.
    #[must_use]
    pub fn sw_error(&self) -> SwError {
        // Acquire: pairs with the Release in `report_device_error`.
        let first = self.errors.first.load(Ordering::Acquire) & !CLAIMED;
        if first & 1 == 0 {
            return SwError([first & 2, 0, 0, 0]);
        }
        let [a, b, c] = load(&self.errors.rest);
        SwError([first, a, b, c])
    }

    /// Clears the bits that software writes as ones: valid (bit 0), overflow (bit 1).
    pub(crate) fn clear_sw_error(&self, ones: u64) {
        let _ = self.errors.first.fetch_update(Ordering::AcqRel, Ordering::Acquire, |first| {
            let cleared = first & !(ones & 3);
            // Without the valid bit the rest of the register means nothing; the next error may claim it.
            Some(if cleared & 1 == 0 && first & CLAIMED == 0 { cleared & 2 } else { cleared })
        });
    }

    /// Latches an error in SWERROR, or sets its overflow bit if it already holds an error.
    #[cold]
    pub(crate) fn report_device_error(&self, report: &ErrorReport) {
        let first = &self.errors.first;
        let claim = first.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            Some(if word & (CLAIMED | 1) == 0 { word | CLAIMED } else { word | 2 })
        });
        if claim.is_ok_and(|word| word & (CLAIMED | 1) != 0) {
            return;
        }
        let error = report.to_sw_error();
        for (word, value) in self.errors.rest.iter().zip(&error.0[1..]) {
            word.set(*value);
        }
        // Release: pairs with the Acquire in `sw_error`. An overflow bit that was set meanwhile is kept.
        let _ = first.fetch_update(Ordering::Release, Ordering::Acquire, |word| Some(word & 2 | error.0[0]));
        self.cause(IntCause::SW_ERROR, |control| control.sw_error_interrupt());
    }

    /// Raises the device's own interrupt for a cause, if its control bit enables it.
    pub(crate) fn cause(&self, cause: IntCause, enabled: impl Fn(GenCtrl) -> bool) {
        if enabled(GenCtrl([self.general.genctrl.get()])) {
            self.general.intcause.or(cause.bits().into());
            self.interrupts.deliver_msix(self, 0);
        }
    }

    /// True if errors go to the event log.
    pub(crate) fn event_log_enabled(&self) -> bool {
        self.gen_cfg().event_log()
    }

    pub(crate) fn evl_cfg(&self) -> EvlCfg {
        EvlCfg(load(&self.general.evlcfg))
    }

    /// Returns EVLSTATUS as software reads it.
    pub(crate) fn evl_status(&self) -> EvlStatus {
        #[allow(clippy::cast_possible_truncation, reason = "both words are kept below the entry count, a u16")]
        EvlStatus::default()
            .with_head(self.errors.log_head.get() as u16)
            .with_tail(self.errors.log_tail.observe() as u16)
            .with_interrupt_pending(self.errors.log_pending.get() != 0)
    }

    /// Requests the address of the next event log entry for an engine lane.
    pub(crate) fn begin_append(&self, lane: u64) -> Append {
        // Acquire: pairs with the Release in `finish_append`; the previous writer's tail is visible.
        match self.errors.log_writer.compare_exchange(0, lane + 1, Ordering::Acquire, Ordering::Relaxed) {
            Err(holder) if holder != lane + 1 => return Append::Wait,
            _ => {}
        }
        let config = self.evl_cfg();
        let entries = u64::from(config.entries().max(1));
        let tail = self.errors.log_tail.get() % entries;
        if (tail + 1) % entries == self.errors.log_head.observe() % entries {
            if !self.capabilities.gen_cap.event_log_overflow() {
                return Append::Wait;
            }
            self.report_device_error(&ErrorReport::of_device(DeviceError::EventLogFailure));
            self.errors.log_writer.store(0, Ordering::Release);
            return Append::Dropped;
        }
        Append::At((config.base_page() << 12).wrapping_add(tail * self.capabilities.event_log_entry_bytes()))
    }

    /// Makes an entry visible (or reports that it could not be written), and lets the next writer in.
    pub(crate) fn finish_append(&self, written: bool) {
        if written {
            let entries = u64::from(self.evl_cfg().entries().max(1));
            self.errors.log_tail.publish(self.errors.log_tail.get().wrapping_add(1) % entries);
            // SeqCst: orders the tail before the read of the pending bit; pairs with the clearing in `write_fixed`.
            fence(Ordering::SeqCst);
            if self.errors.log_pending.swap(1) == 0 {
                self.cause(IntCause::EVENT_LOG, |control| control.event_log_interrupt());
            }
        } else {
            self.report_device_error(&ErrorReport::of_device(DeviceError::EventLogFailure));
        }
        // Release: pairs with the Acquire in `begin_append`.
        self.errors.log_writer.store(0, Ordering::Release);
    }

    /// Halts the device, unless it is disabled, for an error that only a reset clears.
    pub(crate) fn halt(&self, error: DeviceError) {
        use DeviceState::{Draining, Enabled, Halted};
        if !self.general.state.change(&[Enabled, Draining, Halted], Halted) {
            return;
        }
        for wq in 0..self.queues() {
            if self.wq_state(wq) == WqState::Enabled {
                self.wqs[wq].ring.set_state(WqState::Draining);
            }
        }
        self.report_device_error(&ErrorReport::of_device(error));
        self.cause(IntCause::HALT, |control| control.halt_interrupt());
    }
}
