//! The portal of a modelled device: it does what the submit instructions do, and notifies the runner.
#![allow(unsafe_code, reason = "the promises of an executor, and of a submitter whose descriptor gets a ticket")]

use crate::imposed::Schedule;
use crate::model::{Inner, RunnerState};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use telpher_abi::DeviceError;
use telpher_abi::registers::{DeviceState, PortalKind};
use telpher_model::Write;
use telpher_portal::{AttachedWindow, Health, Offer, Portal, QueueInfo, Submission, WindowError};

/// A client's access to one queue of a modelled device.
#[derive(Debug)]
pub(crate) struct ModelPortal {
    inner: Arc<Inner>,
    info: QueueInfo,
    wq: usize,
    kind: PortalKind,
    write: Write,
}

impl ModelPortal {
    pub(crate) fn new(inner: Arc<Inner>, info: QueueInfo, wq: usize, kind: PortalKind, write: Write) -> Self {
        ModelPortal { inner, info, wq, kind, write }
    }

    /// Submits a descriptor whose record is written when a simulated device would have written it.
    #[cold]
    fn submit_with_times(&self, schedule: &Schedule, submission: &Submission) -> Offer {
        let submit =
            |submission: &Submission| self.inner.core.device.submit(self.wq, self.kind, self.write, submission);
        let Some(planned) = schedule.plan(submission.descriptor()) else { return submit(submission) };
        // SAFETY: the submission's promise. Only the PASID differs, which the device takes from elsewhere.
        let ticketed = unsafe { Submission::vouch(submission.descriptor().with_pasid(planned.ticket())) };
        let offer = submit(&ticketed);
        match offer {
            Offer::Taken => schedule.taken(planned),
            _ => schedule.refused(planned),
        }
        offer
    }
}

// SAFETY: the model executes each accepted descriptor once, keeps nothing after the record is written, and does not
// unwind: it accepts hostile values as normal input.
unsafe impl Portal for ModelPortal {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    #[inline]
    fn offer(&self, submission: &Submission) -> Offer {
        let core = &self.inner.core;
        let offer = match &self.inner.schedule {
            None => core.device.submit(self.wq, self.kind, self.write, submission),
            Some(schedule) => self.submit_with_times(schedule, submission),
        };
        if offer == Offer::Taken {
            match &self.inner.runner {
                RunnerState::Inline(inline) => inline.submitted(core, self.wq),
                RunnerState::Threaded(threaded) => threaded.notify(),
                RunnerState::Auto(threaded) => {
                    threaded.submitted(core, core.device.group_of_wq(self.wq), submission.descriptor());
                }
            }
        } else if let Some(counts) = core.counts.words() {
            counts.offered(self.wq, offer);
        }
        offer.seen_by_submitter()
    }

    fn attach_window(&self, file: BorrowedFd<'_>) -> Result<AttachedWindow, WindowError> {
        self.inner.attach_window(file)
    }

    fn drive(&self) {
        self.inner.drive(Some(self.inner.core.device.group_of_wq(self.wq)));
    }

    /// A queue that is enabled again works again. The descriptors it held when it was disabled are lost all the same.
    fn health(&self) -> Health {
        let device = &self.inner.core.device;
        if !device.has_stopped(self.wq) {
            return Health::Working;
        }
        self.inner.publish_state();
        let name = &self.info.name;
        Health::Stopped(match (device.state(), device.sw_error()) {
            (DeviceState::Halted, error) if error.valid() => {
                format!("{name}: the device has halted: {}", DeviceError::from_code(error.error_code()))
            }
            (DeviceState::Halted, _) => format!("{name}: the device has halted"),
            _ => format!("{name} is disabled"),
        })
    }
}
