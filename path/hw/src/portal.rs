//! The portal of a real queue.
//!
//! ```text
//! offer ─► this process'? still open? ─► slot ─► SFENCE ─► MOVDIR64B | ENQCMD      or write()
//! health ─► the driver's attributes ─► stopped, or a descriptor lost? then remove the portal and close the file, which
//! drains
//! ```
#![allow(unsafe_code, reason = "the promise of an executor; calls the submission instructions on a mapped page")]

use crate::health::HealthAttributes;
use crate::node::Node;
use crate::page::Page;
use crate::submit::{Enqcmd, Movdir64b, simulate_submit};
use crate::wait::Waitpkg;
use crate::window;
use std::fs::File;
use std::hint::spin_loop;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use telpher_abi::registers::{DsaCap0, GenCap, OpCap};
use telpher_abi::{COMPLETION_RECORD_BYTES, Descriptor, Opcode};
use telpher_os::Lineage;
use telpher_portal::{
    AttachedWindow, CreatedWindow, Health, Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission, Watch,
    WindowError,
};

/// How descriptors are submitted to the queue.
#[derive(Debug)]
pub(crate) enum SubmitMethod {
    /// By direct stores to a dedicated queue's portal.
    Posted(Movdir64b, Page),
    /// By enqueue stores to a shared queue's portal.
    Deferred(Enqcmd, Page),
    /// By the driver, if the portal must not be mapped, or the processor lacks the instruction.
    DriverWrite,
    /// To no queue: see [`rehearsal`].
    Rehearsed(Page),
}

impl SubmitMethod {
    fn page(&self) -> Option<&Page> {
        match self {
            SubmitMethod::Posted(_, page) | SubmitMethod::Deferred(_, page) | SubmitMethod::Rehearsed(page) => {
                Some(page)
            }
            SubmitMethod::DriverWrite => None,
        }
    }
}

/// A client's access to one queue of a real device.
#[derive(Debug)]
pub(crate) struct HwPortal {
    info: QueueInfo,
    submit_method: SubmitMethod,
    waits: Option<Waitpkg>,
    /// The queue's open file; none for a rehearsal.
    node: Option<Node>,
    attributes: HealthAttributes,
    /// The process that opened it: a forked child has neither the page nor the PASID.
    opened_in: Lineage,
    /// Set before the portal is removed, and once the driver refuses for good, so that later offers return Retry.
    closed: AtomicBool,
    /// The errno by which the driver has refused for good; 0 if it has not.
    refused: AtomicI32,
    /// The reason why it has stopped, once that is certain.
    stopped: OnceLock<String>,
}

impl HwPortal {
    pub(crate) fn new(
        info: QueueInfo,
        submit_method: SubmitMethod,
        waits: Option<Waitpkg>,
        node: Option<Node>,
        attributes: HealthAttributes,
    ) -> Self {
        let opened_in = Lineage::current();
        let (closed, refused) = (AtomicBool::new(false), AtomicI32::new(0));
        HwPortal { info, submit_method, waits, node, attributes, opened_in, closed, refused, stopped: OnceLock::new() }
    }

    /// Replaces the properties by those found in the tests. The tests are over: errors that the device reports from now
    /// on count.
    pub(crate) fn with_info(self, info: QueueInfo) -> Self {
        self.node.iter().for_each(Node::listen);
        HwPortal { info, ..self }
    }

    /// Offers a descriptor, and returns the driver's error if it refuses a write().
    ///
    /// # Errors
    ///
    /// The error of write(2), except that the queue is full.
    #[inline]
    pub(crate) fn try_offer(&self, submission: &Submission) -> io::Result<Offer> {
        // Relaxed: a thread that sees it too late stores into ordinary memory, or writes to a file that cannot be
        // written.
        if !self.opened_in.is_current() || self.closed.load(Ordering::Relaxed) {
            return Ok(Offer::Retry);
        }
        match &self.submit_method {
            SubmitMethod::Posted(instruction, page) => {
                // SAFETY: slots are aligned and inside the mapped portal; a submission has been vouched for.
                Ok(unsafe { instruction.store(page.slot(), submission.descriptor()) })
            }
            SubmitMethod::Deferred(instruction, page) => {
                // SAFETY: as above.
                Ok(unsafe { instruction.store(page.slot(), submission.descriptor()) })
            }
            SubmitMethod::DriverWrite => self.call(submission),
            // SAFETY: as above, and the page is ordinary memory.
            SubmitMethod::Rehearsed(page) => Ok(unsafe { simulate_submit(page.slot(), submission.descriptor()) }),
        }
    }

    /// Submits through the driver. It takes either all 64 bytes or nothing.
    fn call(&self, submission: &Submission) -> io::Result<Offer> {
        let descriptor = submission.descriptor();
        let write = |mut file: &File| file.write(&descriptor.to_bytes());
        let Some(written) = self.node.as_ref().and_then(|node| node.call(write)) else { return Ok(Offer::Retry) };
        match written {
            Ok(64) => Ok(Offer::Taken),
            Ok(_) => Ok(Offer::Retry),
            Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                // The queue is full, or the kernel has a temporary problem. Source: K612 `cdev.c`, `submit.c`.
                libc::EAGAIN | libc::EINTR | libc::ENOMEM => Ok(Offer::Retry),
                // The descriptor is at fault, not the queue.
                libc::EINVAL if !can_be_written(descriptor) => Err(error),
                errno => {
                    // Relaxed: `health` reads it repeatedly, and reports it with its own findings.
                    self.refused.store(errno, Ordering::Relaxed);
                    self.closed.store(true, Ordering::Relaxed);
                    Err(error)
                }
            },
        }
    }

    /// Asks the driver of an open queue about windows.
    fn driver<T>(&self, call: impl FnOnce(&File) -> Result<T, WindowError>) -> Result<T, WindowError> {
        let node = self.node.as_ref().filter(|_| self.opened_in.is_current());
        let stopped = || WindowError::Refused { why: format!("{} is not open in this process", self.info.name) };
        node.ok_or(WindowError::Unsupported)?.call(call).unwrap_or_else(|| Err(stopped()))
    }

    /// Returns the reason why the queue has stopped, or is no longer reliable, if there is one.
    fn why_stopped(&self) -> Option<String> {
        let refused = || match self.refused.load(Ordering::Relaxed) {
            0 => None,
            errno => {
                let error = io::Error::from_raw_os_error(errno);
                Some(format!("the driver refuses what is written to {}: {error}", self.info.name))
            }
        };
        let lost = || self.has_new_error().then(|| self.attributes.lost(&self.info)).flatten();
        self.attributes.stopped().or_else(refused).or_else(lost)
    }

    /// True once the device has reported an error of this queue, or of no particular queue, since it was opened.
    fn has_new_error(&self) -> bool {
        self.node.as_ref().is_some_and(Node::has_new_error)
    }

    /// Stops the queue for this reason, if that can be made certain.
    fn stop(&self, why: String) -> Health {
        match self.close() {
            Ok(()) => Health::Stopped(self.stopped.get_or_init(|| why).clone()),
            // Not certain yet; the next call tries again.
            Err(_) => Health::Working,
        }
    }

    /// Makes sure that nothing taken is executed any more, whatever happens to the queue. No thread reaches the queue
    /// from now on, and the driver waits for work in progress when the last reference to the file goes (K612 `cdev.c`).
    fn close(&self) -> io::Result<()> {
        // Relaxed: see `try_offer`.
        self.closed.store(true, Ordering::Relaxed);
        self.submit_method.page().map_or(Ok(()), Page::disarm)?;
        self.node.as_ref().map_or(Ok(()), Node::release)
    }
}

/// True if the driver takes the descriptor by write(): no batches, and no unaligned record address, even if no record
/// is requested. Source: K612 `cdev.c`, idxd_submit_user_descriptor.
fn can_be_written(descriptor: &Descriptor) -> bool {
    let aligned = descriptor.completion_address().is_multiple_of(COMPLETION_RECORD_BYTES);
    aligned && descriptor.opcode() != Opcode::Batch
}

// SAFETY: the device executes once what its queue has taken. The instructions and the driver keep nothing and do not
// unwind. *Stopped* is returned only after the queue was unreachable and its file closed, which waits for work in
// progress.
unsafe impl Portal for HwPortal {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    #[inline]
    fn offer(&self, submission: &Submission) -> Offer {
        // `QueueInfo` tells clients what cannot be written; `health` reports what else the driver refuses.
        self.try_offer(submission).unwrap_or(Offer::Retry)
    }

    fn watch(&self, record: &RecordCell, how: Watch, at_most: Duration) {
        match (how, self.waits) {
            (Watch::Pause, _) | (_, None) => spin_loop(),
            (Watch::Timed, Some(waits)) => waits.pause(at_most),
            (Watch::Monitor, Some(waits)) => waits.monitor(record, at_most),
        }
    }

    fn health(&self) -> Health {
        if !self.opened_in.is_current() {
            // The parent's submissions continue in the parent's memory.
            let name = &self.info.name;
            return Health::Stopped(format!(
                "{name} was opened before this process was forked; a child opens its own queues"
            ));
        }
        if let Some(why) = self.stopped.get() {
            return Health::Stopped(why.clone());
        }
        match self.why_stopped() {
            Some(why) => self.stop(why),
            None => Health::Working,
        }
    }

    unsafe fn create_window(&self, base: u64, size: u64, writable: bool) -> Result<CreatedWindow, WindowError> {
        // SAFETY: our caller's promise.
        self.driver(|file| unsafe { window::create(file, base, size, writable) })
    }

    fn attach_window(&self, file: BorrowedFd<'_>) -> Result<AttachedWindow, WindowError> {
        self.driver(|queue| window::attach(queue, file))
    }

    fn retire(&self) -> Health {
        match self.health() {
            Health::Working => {
                let name = &self.info.name;
                let error = if self.has_new_error() { self.attributes.error("its device's") } else { String::new() };
                self.stop(format!("{name} did not complete a descriptor and was given up{error}"))
            }
            stopped => stopped,
        }
    }
}

/// Creates a dedicated queue of `size` entries without a device, to measure everything around the submission
/// instruction. Ordinary stores to ordinary memory replace the instruction. It takes only No-ops, writes their records
/// itself, and answers Retry to everything else.
///
/// # Errors
///
/// If there is no memory for a page.
pub fn rehearsal(size: u32) -> io::Result<impl Portal> {
    let info = QueueInfo {
        name: "rehearsal".into(),
        mode: QueueMode::Dedicated,
        size,
        max_transfer: 1 << 21,
        max_batch: 1,
        block_on_fault: false,
        gen_cap: GenCap::default(),
        dsa_cap_0: DsaCap0::default(),
        operations: OpCap::default().with(Opcode::Nop, true),
        numa_node: None,
    };
    Ok(HwPortal::new(info, SubmitMethod::Rehearsed(Page::ordinary()?), None, None, HealthAttributes::default()))
}
