//! A device with one queue, for a client's process, whose driver is in another process and has configured the whole
//! device.
//!
//! Capabilities and the queue's registers come as an image. The replica has this queue, its group and the group's
//! engines, and nothing else. Its creator takes its reports (SWERROR, event log) and sends them to the driver.

use crate::apply::write_table;
use crate::model::Residency;
use crate::model::{ModelDevice, ModelOptions, RunnerState, StartError};
use crate::own_memory::own_memory;
use crate::spaces::WindowSpaces;
use crate::sync::{AtomicU32, Ordering};
use telpher_abi::registers::{
    Command, CommandCode, DeviceState, EvlCfg, EvlStatus, GrpCfg, IdptEntry, PortalKind, WqCfg, offset,
};
use telpher_abi::{Descriptor, EventLogEntry, Status, StatusByte, SwError};
use telpher_mem::{PAGE_BYTES, PageSize, Region, Space, StableBufMut, WriteHint};
use telpher_model::{PciControl, Submitter, Write, layout};
use telpher_portal::{Offer, Submission};

/// The registers of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueImage {
    /// The number of the queue.
    pub wq: u32,
    /// Its group.
    pub group: u32,
    /// GENCFG.
    pub gen_cfg: u64,
    /// GRPCFG of the group; other queues in it are ignored.
    pub grp_cfg: GrpCfg,
    /// WQCFG of the queue.
    pub wq_cfg: WqCfg,
    /// Entries of the event log; if 0, GENCFG's bit for it is ignored.
    pub event_log_entries: u16,
}

/// A report of a replica to its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaReport {
    /// An error that SWERROR has latched.
    Error(SwError),
    /// The device has halted for this reason.
    Halt(SwError),
    /// An entry of the event log.
    Logged {
        /// The entry as the device wrote it.
        entry: EventLogEntry,
        /// True if the record in the entry has been written, or none had to be; `false` if it could not be written here
        /// either.
        settled: bool,
    },
}

/// The memory of a replica's event log, accessed by address only, and the driver's state about its entries.
#[derive(Debug)]
pub(crate) struct EventLog {
    address: u64,
    entries: u16,
    entry_bytes: u64,
    /// Batches with a record that the driver could not write either, one bit per identifier.
    failed_batches: [AtomicU32; 8],
    /// Keeps the memory mapped.
    _memory: Region,
}

impl EventLog {
    fn new(entries: u16, entry_bytes: u64, space: &dyn Space) -> Result<Self, StartError> {
        let len = usize::from(entries) * usize::try_from(entry_bytes).unwrap_or_default();
        let mut memory = Region::new(len, PageSize::Small)?;
        let failed_batches = std::array::from_fn(|_| AtomicU32::new(0));
        let log = EventLog { address: memory.address_mut(), entries, entry_bytes, failed_batches, _memory: memory };
        // Touched, so that the device finds every page present.
        let _ = space.fill(log.address, [0; 2], len as u64, WriteHint::Cache);
        Ok(log)
    }

    fn registers(&self) -> EvlCfg {
        EvlCfg::default().with_base_page(self.address / PAGE_BYTES).with_entries(self.entries)
    }

    /// Writes the record in an entry, faulting its page in; returns `false` if that is not possible either. Source:
    /// K612 `irq.c`, idxd_evl_fault_work().
    fn write_owed_record(&self, entry: &EventLogEntry, memory: &dyn Space) -> bool {
        let identifier = entry.batch_identifier();
        let (failed, bit) = (&self.failed_batches[usize::from(identifier / 32)], 1 << (identifier % 32));
        let mut record = entry.record();
        // Relaxed, here and below: one caller at a time takes reports, and a handover between callers orders them.
        match Status::from_code(entry.error_code()) {
            Status::CompletionRecordFault => {
                if entry.batch_member() && entry.first_error_in_batch() {
                    failed.fetch_and(!bit, Ordering::Relaxed);
                }
            }
            Status::BatchEventLog => {
                if failed.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                    record = record.with_result(1);
                    // Only a Success is changed: the device's status for an unreadable list is kept.
                    if record.status() == Status::Success {
                        record = record.with_status_code(StatusByte::new(Status::BatchFail).0);
                    }
                } else if !entry.record_required() {
                    return true;
                }
            }
            Status::DrainEventLog => {}
            _ => return true,
        }
        let written = memory.write_record(entry.address(), &record.0).is_ok();
        if !written && entry.batch_member() {
            failed.fetch_or(bit, Ordering::Relaxed);
        }
        written
    }
}

impl ModelDevice {
    /// Starts a replica that uses `space` as its clients' memory under `pasid`. No request of the queue uses other
    /// memory, whatever the image says. The options' configuration, residency and PCI settings are ignored: image and
    /// space replace the first two. The PCI function is as idxd leaves it, with as many page requests as it can have.
    ///
    /// # Errors
    /// If the capabilities exceed the model, a command is refused (no driver could have enabled such an image), or the
    /// system has no memory or thread.
    pub fn replica(
        options: ModelOptions,
        image: &QueueImage,
        pasid: u32,
        space: Box<dyn Space>,
    ) -> Result<Self, StartError> {
        options.capabilities.validate()?;
        let entry_bytes = options.capabilities.event_log_entry_bytes();
        let own = own_memory(Residency::Lenient);
        let log = match image.event_log_entries {
            0 => None,
            _ if entry_bytes == 0 => None,
            entries => Some(EventLog::new(entries, entry_bytes, own.as_ref())?),
        };
        let log_registers = log.as_ref().map(EventLog::registers);
        // The first space serves requests without a PASID, which are only those of the log.
        let page_requests = options.capabilities.page_request_capacity;
        let pci = PciControl { prs: page_requests != 0, page_requests, ..PciControl::SHARED_VIRTUAL_MEMORY };
        let options = ModelOptions { pci, ..options };
        let device = Self::assemble(options, vec![(NO_PASID, own), (pasid, space)], log, None)?;
        device.unmask_interrupts();
        // Without a PASID a request would count as the device's own.
        let wq_cfg = image.wq_cfg.with_pasid(pasid).with_pasid_enable(true);
        device.write_image(&QueueImage { wq_cfg, ..*image }, log_registers);
        device.command(Command::new(CommandCode::EnableDevice, 0))?;
        device.command(Command::new(CommandCode::EnableWq, image.wq))?;
        Ok(device)
    }

    fn write_image(&self, image: &QueueImage, log: Option<EvlCfg>) {
        let device = &self.inner.core.device;
        let log_bit = telpher_abi::registers::GenCfg::default().with_event_log(true).0[0];
        let gen_cfg = if log.is_some() { image.gen_cfg } else { image.gen_cfg & !log_bit };
        device.write_register(offset::GENCFG, 8, gen_cfg);
        if let Some(EvlCfg(words)) = log {
            write_table(device, offset::EVLCFG, &words);
        }
        let group = image.grp_cfg.with_wqs(1 << image.wq.min(63));
        write_table(device, layout::GRPCFG + u64::from(image.group) * 64, &group.0);
        // 32 or 64 bytes; the model supports no other size.
        let (stride, words) = if device.capabilities().wq_cap.wqcfg_size_shift() == 0 { (32, 4) } else { (64, 8) };
        write_table(device, layout::WQCFG + u64::from(image.wq) * stride, &image.wq_cfg.0[..words]);
    }

    /// Replaces the table of windows: entry `index` and its [generation](telpher_model::Window::generation) become what
    /// `entry` returns for it. A driver in another process keeps the table; the replica has a copy with the entries
    /// that concern its clients.
    pub fn replace_windows(&self, mut entry: impl FnMut(usize) -> (IdptEntry, u64)) {
        let device = &self.inner.core.device;
        for index in 0..usize::from(device.capabilities().id_cap.entries()) {
            let (entry, generation) = entry(index);
            device.replace_window(index, &entry, generation);
        }
    }

    /// Gives the windows of that table their memory; returns `false` if they have it already.
    #[must_use]
    pub fn set_window_spaces(&self, windows: Box<dyn WindowSpaces>) -> bool {
        self.inner.core.spaces.set_windows(windows)
    }

    /// Submits a descriptor to a queue as a submit instruction does. If it was accepted, an inline runner executes it.
    #[inline]
    pub fn submit(&self, wq: u32, kind: PortalKind, write: Write, submission: &Submission) -> Offer {
        let core = &self.inner.core;
        let offer = core.device.submit(wq as usize, kind, write, submission);
        if offer == Offer::Taken {
            match &self.inner.runner {
                RunnerState::Inline(inline) => inline.submitted(core, wq as usize),
                RunnerState::Threaded(threaded) => threaded.notify(),
                RunnerState::Auto(threaded) => {
                    threaded.submitted(core, core.device.group_of_wq(wq as usize), submission.descriptor());
                }
            }
        }
        offer
    }

    /// True if a queue's engine would end a descriptor of this PASID, submitted directly or as a batch's `member`,
    /// without accessing any memory but its completion record, because it fails a check.
    #[must_use]
    pub fn refuses(&self, wq: u32, pasid: u32, descriptor: &Descriptor, member: bool) -> bool {
        let submitter = Submitter { pasid: Some(pasid), ..Submitter::default() };
        self.inner.core.device.refuses(wq as usize, submitter, descriptor, member)
    }

    /// Returns the number of descriptors waiting in a queue.
    ///
    /// **Staleness.** Other threads submit and take descriptors meanwhile.
    #[must_use]
    pub fn occupancy(&self, wq: u32) -> u64 {
        self.inner.core.device.wq_occupancy(wq as usize)
    }

    /// True once the device has halted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.inner.core.device.state() == DeviceState::Halted
    }

    /// Halts the device, as a change of its PCI function would (SPEC §9.1).
    pub fn halt(&self) {
        let device = &self.inner.core.device;
        device.set_pci(PciControl { bus_master: false, ..device.pci() });
    }

    /// True if SWERROR or the event log has reports. Costs two loads.
    #[must_use]
    #[inline]
    pub fn has_reports(&self) -> bool {
        let device = &self.inner.core.device;
        device.sw_error().valid()
            || (self.inner.log.is_some() && device.read_register(offset::EVLSTATUS, 8) >> 62 & 1 == 1)
    }

    /// Takes the error that SWERROR has latched, and clears it, as the driver's interrupt handler does.
    #[must_use]
    pub fn take_sw_error(&self) -> Option<SwError> {
        let device = &self.inner.core.device;
        let error = device.sw_error();
        error.valid().then(|| {
            // Writing ones clears valid and overflow.
            device.write_register(offset::SWERROR, 8, 0b11);
            error
        })
    }

    /// Takes the contents of the event log and SWERROR, oldest first. Like the driver's interrupt handler, it writes
    /// the records in the log's entries to `memory`. One caller at a time.
    pub fn take_reports(&self, memory: &dyn Space, mut hear: impl FnMut(ReplicaReport)) {
        if let Some(log) = &self.inner.log {
            let mut any = false;
            self.take_log_entries(log, |entry| {
                any = true;
                hear(ReplicaReport::Logged { entry, settled: log.write_owed_record(&entry, memory) });
            });
            if any {
                // Continues engines that waited for space in the log.
                self.advance();
            }
        }
        if let Some(error) = self.take_sw_error() {
            hear(if self.is_halted() { ReplicaReport::Halt(error) } else { ReplicaReport::Error(error) });
        }
    }

    fn take_log_entries(&self, log: &EventLog, mut hear: impl FnMut(EventLogEntry)) {
        let device = &self.inner.core.device;
        // Clears the pending bit first: a later entry sets it again.
        device.write_register(offset::EVLSTATUS + 4, 4, 1 << 30);
        let mut head = u64::from(EvlStatus([device.read_register(offset::EVLSTATUS, 8)]).head());
        while head != u64::from(EvlStatus([device.read_register(offset::EVLSTATUS, 8)]).tail()) {
            let mut bytes = [0; 64];
            if self.inner.own_space().read(log.address + head * log.entry_bytes, &mut bytes).is_ok() {
                hear(EventLogEntry(Descriptor::from_bytes(&bytes).0));
            }
            head = (head + 1) % u64::from(log.entries);
            device.write_register(offset::EVLSTATUS, 4, head);
        }
    }

    /// Waits until nothing is waiting or in progress, as closing a queue's file does; returns `false` if `give_up`
    /// returned true before.
    pub fn drain(&self, mut give_up: impl FnMut() -> bool) -> bool {
        let device = &self.inner.core.device;
        let mut started = false;
        loop {
            if !started && !device.cmd_status().active() {
                started = device.start_command(Command::new(CommandCode::DrainAll, 0));
            }
            self.advance();
            if started && !device.cmd_status().active() {
                return true;
            }
            if give_up() {
                return false;
            }
        }
    }
}

/// The key of requests without a PASID in the table of spaces; no PASID has more than 20 bits.
const NO_PASID: u32 = u32::MAX;
