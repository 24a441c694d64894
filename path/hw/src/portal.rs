//! The portal of a real queue.
//!
//! ```text
//! offer ─► this process'? still open? ─► slot ─► SFENCE ─► MOVDIR64B | ENQCMD      or write()
//! health ─► the driver's attributes ─► stopped, or one lost? then the portal is taken away and the file closed, which drains
//! ```
#![allow(unsafe_code, reason = "the promise of an executor; calls the submission instructions on a mapped page")]

use crate::health::Evidence;
use crate::node::Node;
use crate::page::Page;
use crate::submit::{Enqcmd, Movdir64b, rehearse};
use crate::wait::Waitpkg;
use std::fs::File;
use std::hint::spin_loop;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use telpher_abi::registers::{GenCap, OpCap};
use telpher_abi::{COMPLETION_RECORD_BYTES, Descriptor, Opcode};
use telpher_os::Lineage;
use telpher_portal::{Health, Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission, Watch};

/// How descriptors reach the queue.
#[derive(Debug)]
pub(crate) enum Way {
    /// A dedicated queue's portal.
    Posted(Movdir64b, Page),
    /// A shared queue's portal.
    Deferred(Enqcmd, Page),
    /// The driver submits: where the portal must not be mapped, or the processor lacks the instruction.
    Call,
    /// No queue: see [`rehearsal`](crate::rehearsal).
    Rehearsed(Page),
}

impl Way {
    fn page(&self) -> Option<&Page> {
        match self {
            Way::Posted(_, page) | Way::Deferred(_, page) | Way::Rehearsed(page) => Some(page),
            Way::Call => None,
        }
    }
}

/// A client's way into one queue of a real device.
#[derive(Debug)]
pub(crate) struct HwPortal {
    info: QueueInfo,
    way: Way,
    waits: Option<Waitpkg>,
    /// The queue's open file; none for a rehearsal.
    node: Option<Node>,
    evidence: Evidence,
    /// A forked child has neither the page nor the PASID.
    opened_in: Lineage,
    /// Set before the portal is taken away, and once the driver refuses for good, so that offers say Retry from then on.
    closed: AtomicBool,
    /// The errno by which the driver has refused for good; 0 while it has not.
    refused: AtomicI32,
    /// Why it has stopped, once that is certain.
    stopped: OnceLock<String>,
}

impl HwPortal {
    pub(crate) fn new(
        info: QueueInfo,
        way: Way,
        waits: Option<Waitpkg>,
        node: Option<Node>,
        evidence: Evidence,
    ) -> Self {
        let opened_in = Lineage::current();
        let (closed, refused) = (AtomicBool::new(false), AtomicI32::new(0));
        HwPortal { info, way, waits, node, evidence, opened_in, closed, refused, stopped: OnceLock::new() }
    }

    /// The same with other properties, as the queue has turned out to have them. The trials are over: what the device reports
    /// from here on is news.
    pub(crate) fn with_info(self, info: QueueInfo) -> Self {
        self.node.iter().for_each(Node::listen);
        HwPortal { info, ..self }
    }

    /// Offers a descriptor, and tells why the driver has refused a write().
    ///
    /// # Errors
    ///
    /// What write(2) said, other than that the queue is full.
    #[inline]
    pub(crate) fn try_offer(&self, submission: &Submission) -> io::Result<Offer> {
        // Relaxed: whoever comes too late for it stores into ordinary memory, or writes to a file that cannot be written.
        if !self.opened_in.is_current() || self.closed.load(Ordering::Relaxed) {
            return Ok(Offer::Retry);
        }
        match &self.way {
            // SAFETY: slots are aligned and inside the mapped portal; a submission has been vouched for.
            Way::Posted(instruction, page) => Ok(unsafe { instruction.store(page.slot(), submission.descriptor()) }),
            // SAFETY: as above.
            Way::Deferred(instruction, page) => Ok(unsafe { instruction.store(page.slot(), submission.descriptor()) }),
            Way::Call => self.call(submission),
            // SAFETY: as above, and the page is ordinary memory.
            Way::Rehearsed(page) => Ok(unsafe { rehearse(page.slot(), submission.descriptor()) }),
        }
    }

    /// Lets the driver submit. Nothing is taken unless all 64 bytes are.
    fn call(&self, submission: &Submission) -> io::Result<Offer> {
        let descriptor = submission.descriptor();
        let write = |mut file: &File| file.write(&descriptor.to_bytes());
        let Some(written) = self.node.as_ref().and_then(|node| node.call(write)) else { return Ok(Offer::Retry) };
        match written {
            Ok(64) => Ok(Offer::Taken),
            Ok(_) => Ok(Offer::Retry),
            Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                // The queue is full, or the kernel has other troubles for the moment. Source: K612 `cdev.c`, `submit.c`.
                libc::EAGAIN | libc::EINTR | libc::ENOMEM => Ok(Offer::Retry),
                // Nothing is wrong with the queue.
                libc::EINVAL if !can_be_written(descriptor) => Err(error),
                errno => {
                    // Relaxed: `health` asks again and again, and says it with what it has found by itself.
                    self.refused.store(errno, Ordering::Relaxed);
                    self.closed.store(true, Ordering::Relaxed);
                    Err(error)
                }
            },
        }
    }

    /// Why the queue works no more, or cannot be relied on, if anything says so.
    fn why_stopped(&self) -> Option<String> {
        let refused = || match self.refused.load(Ordering::Relaxed) {
            0 => None,
            errno => {
                let error = io::Error::from_raw_os_error(errno);
                Some(format!("the driver refuses what is written to {}: {error}", self.info.name))
            }
        };
        let lost = || self.is_alarmed().then(|| self.evidence.lost(&self.info)).flatten();
        self.evidence.stopped().or_else(refused).or_else(lost)
    }

    /// True once the device has reported an error of this queue, or of none in particular, since it was opened.
    fn is_alarmed(&self) -> bool {
        self.node.as_ref().is_some_and(Node::is_alarmed)
    }

    /// Stops it for this reason, if it can be made certain.
    fn stop(&self, why: String) -> Health {
        match self.close() {
            Ok(()) => Health::Stopped(self.stopped.get_or_init(|| why).clone()),
            // Not certain yet; whoever asks again tries again.
            Err(_) => Health::Working,
        }
    }

    /// Makes sure that nothing taken is executed any more, whatever becomes of the queue: no thread reaches it from here on,
    /// and the driver waits for what is in progress when the last reference to the file goes (K612 `cdev.c`).
    fn close(&self) -> io::Result<()> {
        // Relaxed: see `try_offer`.
        self.closed.store(true, Ordering::Relaxed);
        self.way.page().map_or(Ok(()), Page::disarm)?;
        self.node.as_ref().map_or(Ok(()), Node::release)
    }
}

/// What the driver takes by write(): no batches, and no record that is not aligned, even if none is asked for. Source: K612
/// `cdev.c`, idxd_submit_user_descriptor.
fn can_be_written(descriptor: &Descriptor) -> bool {
    let aligned = descriptor.completion_address().is_multiple_of(COMPLETION_RECORD_BYTES);
    aligned && descriptor.opcode() != Opcode::Batch
}

// SAFETY: the device executes what its queue has taken once; the instructions and the driver keep nothing, and do not unwind.
// *Stopped* is said after the queue was out of reach and its file closed, which waits for what was in progress.
unsafe impl Portal for HwPortal {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    #[inline]
    fn offer(&self, submission: &Submission) -> Offer {
        // What cannot be written `QueueInfo` says beforehand; what else the driver refuses, `health` does.
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
            // What the parent submitted goes on in the parent's memory.
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

    fn retire(&self) -> Health {
        match self.health() {
            Health::Working => {
                let name = &self.info.name;
                let error = if self.is_alarmed() { self.evidence.error("its device's") } else { String::new() };
                self.stop(format!("{name} left a descriptor unanswered and was given up{error}"))
            }
            stopped => stopped,
        }
    }
}

/// A dedicated queue of no device with so many entries, to measure everything around the submission instruction: ordinary stores to ordinary memory take its
/// place. It takes No-ops only, writes their records itself, and says Retry to everything else.
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
        operations: OpCap::default().with(Opcode::Nop, true),
        numa_node: None,
    };
    Ok(HwPortal::new(info, Way::Rehearsed(Page::ordinary()?), None, None, Evidence::default()))
}
