//! Descriptors of programs without the preloaded part: executed here, in the submitter's memory, before write(2) returns.
//!
//! Same replica, same rules as in a guest; only the memory is another process'. What a guest can be asked to do beyond that, to
//! inject faults and to look for misuse, needs the program's own threads and is not done here.
#![allow(unsafe_code, reason = "vouches for descriptors whose addresses are another process', reached by system calls")]

use super::files::OpenFile;
use super::tally::Tally;
use crate::tree::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_abi::registers::{EngCap, GenCap, GrpCap, GrpCfg, OpCap, PortalKind, WqCap, WqCfg};
use telpher_abi::{CompletionRecord, Descriptor, EventLogEntry, Status, StatusByte};
use telpher_device::{Capabilities, ModelDevice, ModelOptions, QueueImage};
use telpher_mem::{Remote, Space};
use telpher_model::{Identity, PciControl, Response, Write};
use telpher_portal::Submission;
use telpher_vdev_wire::board::ENABLED;
use telpher_vdev_wire::message::{DEDICATED, Opened, Report, ReportKind, STRICT};

/// A queue as one process without the preloaded part has it.
#[derive(Debug)]
pub(super) struct Executor {
    device: ModelDevice,
    /// The memory the replica reaches, for what the driver writes there itself.
    memory: Remote,
    tally: Arc<Tally>,
    write: Write,
    /// Descriptors that may wait, of all processes together; 0 for a dedicated queue.
    threshold: u32,
    /// State changes of the queue when it was opened.
    generation: u32,
    /// Batches of which a record could not be written, one bit an identifier.
    failed_batches: [AtomicU64; 4],
}

impl Executor {
    /// Brings the queue up for a process.
    ///
    /// # Errors
    /// EFAULT if the process' memory cannot be reached: it has ended, or may not be traced. EIO if the model refuses, which no
    /// queue that a driver has enabled makes it do.
    pub(super) fn start(file: &OpenFile, process: u32) -> Result<Self, Errno> {
        let opened = &file.opened;
        let memory = || {
            let remote = if opened.flags & STRICT != 0 { Remote::strict(process) } else { Remote::new(process) };
            remote.map_err(|_| Errno::FAULT)
        };
        let tally = Arc::new(Tally::new(Arc::clone(&file.lease), process, opened));
        let capabilities = capabilities(opened);
        let page_requests = capabilities.page_request_capacity;
        let pci = PciControl { prs: page_requests != 0, page_requests, ..PciControl::SHARED_VIRTUAL_MEMORY };
        let options = ModelOptions { capabilities, pci, ..ModelOptions::default() }.with_observer(tally.clone());
        let image = image(opened);
        let device = ModelDevice::replica(options, &image, opened.pasid, Box::new(memory()?)).map_err(|_| Errno::IO)?;
        let dedicated = opened.flags & DEDICATED != 0;
        let threshold = if dedicated { 0 } else { image.wq_cfg.threshold().min(image.wq_cfg.size()).into() };
        let identity = Identity { pasid: opened.pasid, privileged: false };
        Ok(Executor {
            device,
            memory: memory()?,
            tally,
            write: if dedicated { Write::Posted } else { Write::Deferrable(identity) },
            threshold,
            // Acquire: pairs with the Release that published the board's state.
            generation: file.board.memory().generation.load(Ordering::Acquire),
            failed_batches: Default::default(),
        })
    }

    /// Submits one descriptor and executes it, with all that it lets loose.
    pub(super) fn submit(&self, file: &OpenFile, descriptor: Descriptor) -> Response {
        let number = self.tally.begin();
        let response = if self.admits(file) {
            // The first dword is the device's to fill (K612 cdev.c, idxd_submit_user_descriptor), and until it does, carries
            // the submission's number to the observer.
            let mut named = descriptor;
            named.0[0] = named.0[0] & !0xffff_ffff | number & 0xffff_ffff;
            // SAFETY: the replica has two spaces. One is the event log's, memory that the replica owns; no descriptor
            // reaches it, since each is submitted under a PASID. The other is another process', by system calls, of which
            // this process holds no reference.
            let submission = unsafe { Submission::vouch(named) };
            self.device.submit(file.opened.wq, PortalKind::LimitedMsix, self.write, &submission)
        } else if self.write == Write::Posted {
            Response::Dropped
        } else {
            Response::Retry
        };
        self.tally.submitted(number, &descriptor, response);
        response
    }

    /// True if the queue is still the one that was opened, and has room.
    fn admits(&self, file: &OpenFile) -> bool {
        let board = file.board.memory();
        // Acquire: pairs with the Release of whoever changed the state.
        board.state.load(Ordering::Acquire) == ENABLED
            && board.generation.load(Ordering::Acquire) == self.generation
            // Its own descriptors have ended when the next one comes.
            && (self.threshold == 0 || board.occupancy_of_others(file.opened.row) < self.threshold)
    }

    /// Hands on what the device has reported since. Does on the way what the driver does in its interrupt handler.
    pub(super) fn reports(&self, mut hear: impl FnMut(&Report)) {
        if !self.device.has_reports() {
            return;
        }
        let report = |kind: ReportKind, words: [u64; 8]| Report { kind: kind as u32, reserved: 0, words };
        self.device.take_log_entries(|entry| {
            let settled = self.settle(entry);
            hear(&report(ReportKind::EventLog, entry.0));
            if !settled {
                hear(&report(ReportKind::EventLogFailed, entry.0));
            }
        });
        // What waited for room in the log.
        self.device.advance();
        if let Some(error) = self.device.take_sw_error() {
            let kind = if self.device.is_halted() { ReportKind::Halted } else { ReportKind::SwError };
            let mut words = [0; 8];
            words[..4].copy_from_slice(&error.0);
            hear(&report(kind, words));
        }
    }

    /// Writes the record that an entry owes; `false` if that is not possible either. Source: K612 `irq.c`,
    /// idxd_evl_fault_work().
    fn settle(&self, entry: &EventLogEntry) -> bool {
        let identifier = entry.batch_identifier();
        let failed = &self.failed_batches[usize::from(identifier / 64)];
        let bit = 1_u64 << (identifier % 64);
        // Relaxed, here and below: one thread at a time writes to a file.
        let mut record = entry.record();
        match Status::from_code(entry.error_code()) {
            Status::CompletionRecordFault => {
                if entry.batch_member() && entry.first_error_in_batch() {
                    failed.fetch_and(!bit, Ordering::Relaxed);
                }
            }
            Status::BatchEventLog => {
                if failed.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                    let status = StatusByte::new(Status::BatchFail);
                    record = record.with_status_code(status.0).with_result(1);
                } else if !entry.record_required() {
                    return true;
                }
            }
            Status::DrainEventLog => {}
            _ => return true,
        }
        let written = self.memory.write_record(entry.address(), &CompletionRecord(record.0).0).is_ok();
        if !written && entry.batch_member() {
            failed.fetch_or(bit, Ordering::Relaxed);
        }
        written
    }
}

fn capabilities(opened: &Opened) -> Capabilities {
    Capabilities {
        version: opened.version,
        gen_cap: GenCap([opened.gen_cap]),
        wq_cap: WqCap([opened.wq_cap]),
        grp_cap: GrpCap([opened.grp_cap]),
        eng_cap: EngCap([opened.eng_cap]),
        op_cap: OpCap(opened.op_cap),
        cmd_cap: opened.cmd_cap,
        page_request_capacity: opened.page_request_capacity,
        // Wider on the wire than in the device they came from.
        msix_entries: u16::try_from(opened.msix_entries).unwrap_or(u16::MAX),
        counters: u8::try_from(opened.counters).unwrap_or(u8::MAX),
        traffic_classes: u8::try_from(opened.traffic_classes).unwrap_or(u8::MAX),
    }
}

fn image(opened: &Opened) -> QueueImage {
    let config = WqCfg(opened.wq_cfg);
    QueueImage {
        wq: opened.wq,
        group: opened.group,
        gen_cfg: opened.gen_cfg,
        grp_cfg: GrpCfg(opened.grp_cfg),
        // A request without a PASID would be taken for the device's own, whose memory is this process'.
        wq_cfg: config.with_pasid(opened.pasid).with_pasid_enable(true),
        event_log_entries: u16::try_from(opened.event_log_entries).unwrap_or(u16::MAX),
    }
}
