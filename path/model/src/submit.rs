//! Submission: what a queue does with 64 bytes that reach a portal. Source: SPEC §3.3, §5.3.

use crate::device::Device;
use crate::errors::ErrorReport;
use crate::wq::{Push, Submitter};
use telpher_abi::DeviceError;
use telpher_abi::perfmon::Event;
use telpher_abi::registers::PortalKind;
use telpher_portal::Submission;

/// How the 64 bytes arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Write {
    /// A 64-byte posted write (MOVDIR64B): no answer exists.
    Posted,
    /// A 64-byte deferrable write (ENQCMD, ENQCMDS): answered by success or Retry.
    Deferrable,
}

/// What became of them. A posted write's submitter never learns it.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Response {
    /// The queue holds the descriptor.
    Accepted,
    /// Deferrable write: full, disabled, draining, or not a queue for this kind of write.
    Retry,
    /// Posted write: lost. A full dedicated queue also raises SWERROR 0x53.
    Dropped,
}

impl Device {
    /// Brings a descriptor to a queue's portal.
    ///
    /// A shared queue takes PASID and privilege from the descriptor's first dword, where ENQCMD's emulation has put them;
    /// a dedicated queue takes them from its configuration.
    #[inline]
    pub fn submit(&self, wq: usize, kind: PortalKind, write: Write, submission: &Submission) -> Response {
        let descriptor = submission.descriptor();
        let refused = match write {
            Write::Posted => Response::Dropped,
            Write::Deferrable => Response::Retry,
        };
        if wq >= self.queues() || (kind.is_ims() && self.capabilities.gen_cap.ims_size() == 0) {
            return refused;
        }
        let queue = &self.wqs[wq];
        let rules = &queue.rules.0;
        let size = rules.size.get();
        let dedicated = rules.dedicated.get() != 0;
        let (limit, submitter) = match (write, dedicated) {
            (Write::Posted, true) => {
                let identity = rules.identity.get();
                // Cannot lose bits: masked to 20.
                let pasid = u32::try_from(identity & 0xf_ffff).unwrap_or_default();
                let pasid = (identity >> 33 & 1 == 1).then_some(pasid);
                (size, Submitter { pasid, privileged: identity >> 32 & 1 == 1, ims: kind.is_ims() })
            }
            (Write::Deferrable, false) => {
                let limit = if kind.is_limited() { size.min(self.wqcfg[wq][0].get() >> 32 & 0xffff) } else { size };
                let submitter = Submitter {
                    pasid: Some(descriptor.pasid()),
                    privileged: descriptor.privileged(),
                    ims: kind.is_ims(),
                };
                (limit, submitter)
            }
            _ => return refused,
        };
        match queue.ring.push(self.slots_of(queue), limit, descriptor, submitter) {
            Push::Taken => {
                if self.perfmon.is_counting() {
                    self.count_submission(wq, dedicated, kind, true);
                }
                Response::Accepted
            }
            Push::NotEnabled => refused,
            Push::Full => {
                if self.perfmon.is_counting() {
                    self.count_submission(wq, dedicated, kind, false);
                }
                if dedicated {
                    self.report_device_error(&ErrorReport::of_queue(DeviceError::QueueOverflow.code(), wq));
                }
                refused
            }
        }
    }

    #[cold]
    fn count_submission(&self, wq: usize, dedicated: bool, kind: PortalKind, accepted: bool) {
        let event = match (dedicated, kind.is_limited(), accepted) {
            (true, _, true) => Event::DWQ_ACCEPTED,
            (true, _, false) => Event::DWQ_FULL,
            (false, true, true) => Event::SWQ_LIMITED_ACCEPTED,
            (false, true, false) => Event::SWQ_LIMITED_RETRY,
            (false, false, true) => Event::SWQ_UNLIMITED_ACCEPTED,
            (false, false, false) => Event::SWQ_UNLIMITED_RETRY,
        };
        self.count(event, 1, Some(wq), None, None);
    }
}
