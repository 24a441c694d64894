//! The portal of a real queue.
#![allow(unsafe_code, reason = "the promise of an executor; calls the submission instructions on a mapped page")]

use crate::instructions::{Enqcmd, Movdir64b};
use crate::page::Page;
use std::fs::File;
use std::io::Write;
use telpher_mem::Lineage;
use telpher_portal::{Health, Offer, Portal, QueueInfo, Submission};

/// How descriptors reach the queue.
#[derive(Debug)]
pub(crate) enum Way {
    /// A dedicated queue's portal.
    Posted(Movdir64b, Page),
    /// A shared queue's portal.
    Deferred(Enqcmd, Page),
    /// The driver submits: where the portal must not be mapped, or the processor lacks the instruction.
    Call,
}

/// A client's way into one queue of a real device.
#[derive(Debug)]
pub(crate) struct HwPortal {
    pub(crate) info: QueueInfo,
    pub(crate) way: Way,
    pub(crate) node: File,
    /// A forked child has neither the page nor the PASID.
    pub(crate) opened_in: Lineage,
}

impl HwPortal {
    /// Lets the driver submit. Nothing is taken unless all 64 bytes are: EAGAIN is a full queue; a Batch or a record that is not
    /// aligned (EINVAL) cannot be sent this way, which [`QueueInfo`] says beforehand.
    fn call(&self, submission: &Submission) -> Offer {
        match (&self.node).write(&submission.descriptor().to_bytes()) {
            Ok(64) => Offer::Taken,
            _ => Offer::Retry,
        }
    }
}

// SAFETY: the device executes what its queue has taken once; the instructions and the driver keep nothing, and do not unwind.
unsafe impl Portal for HwPortal {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    #[inline]
    fn offer(&self, submission: &Submission) -> Offer {
        if !self.opened_in.is_current() {
            return Offer::Retry;
        }
        match &self.way {
            // SAFETY: slots are aligned and inside the mapped portal; a submission has been vouched for.
            Way::Posted(instruction, page) => unsafe { instruction.store(page.slot(), submission.descriptor()) },
            // SAFETY: as above.
            Way::Deferred(instruction, page) => unsafe { instruction.store(page.slot(), submission.descriptor()) },
            Way::Call => self.call(submission),
        }
    }
    fn health(&self) -> Health {
        if !self.opened_in.is_current() {
            // What the parent submitted goes on in the parent's memory.
            return Health::Stopped(format!(
                "{} was opened before this process was forked; a child opens its own queues",
                self.info.name
            ));
        }
        Health::Working
    }
}
