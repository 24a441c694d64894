//! Submission: how a queue handles 64 bytes written to its portal. Source: SPEC §3.3, §5.3.

use crate::device::Device;
use crate::errors::ErrorReport;
use crate::wq::{Admission, Push, Submitter};
use telpher_abi::DeviceError;
use telpher_abi::perfmon::Event;
use telpher_abi::registers::PortalKind;
use telpher_portal::{Offer, Submission};

/// The kind of write that carried the 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Write {
    /// A 64-byte posted write (MOVDIR64B), which has no answer.
    Posted,
    /// A 64-byte deferrable write (ENQCMD, ENQCMDS): answered by success or Retry, and stamped with its sender's
    /// identity.
    Deferrable(Identity),
}

/// The first dword of a deferrable write, set by the CPU: the process's PASID for ENQCMD, the kernel's choice for
/// ENQCMDS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Identity {
    /// Process address space identifier.
    pub pasid: u32,
    /// Supervisor privilege; only ENQCMDS can set it.
    pub privileged: bool,
}

impl Device {
    /// Writes a descriptor to a queue's portal; returns what the queue did. A deferrable write is taken or gets Retry,
    /// a posted write is taken or lost. A full dedicated queue also raises SWERROR 0x53.
    ///
    /// A shared queue takes PASID and privilege from the write, a dedicated queue from its configuration. The
    /// descriptor's own first dword is ignored.
    #[inline]
    pub fn submit(&self, wq: usize, kind: PortalKind, write: Write, submission: &Submission) -> Offer {
        let refused = match write {
            Write::Posted => Offer::Lost,
            Write::Deferrable(_) => Offer::Retry,
        };
        if wq >= self.queues() || (kind.is_ims() && self.capabilities.gen_cap.ims_size() == 0) {
            return refused;
        }
        let queue = &self.wqs[wq];
        let dedicated = matches!(write, Write::Posted);
        let admit = || {
            let rules = &queue.rules.0;
            let size = rules.size.get();
            // The kind of write must match the queue's mode.
            if (rules.dedicated.get() != 0) != dedicated {
                return None;
            }
            let (limit, pasid, privileged) = match write {
                Write::Posted => {
                    let identity = rules.identity.get();
                    // Cannot lose bits: masked to 20.
                    let pasid = u32::try_from(identity & 0xf_ffff).unwrap_or_default();
                    (size, (identity >> 33 & 1 == 1).then_some(pasid), identity >> 32 & 1 == 1)
                }
                Write::Deferrable(Identity { pasid, privileged }) => {
                    let threshold = self.wqcfg[wq][0].get() >> 32 & 0xffff;
                    let limit = if kind.is_limited() { size.min(threshold) } else { size };
                    (limit, Some(pasid & 0xf_ffff), privileged)
                }
            };
            let submitter = Submitter { pasid, privileged, ims: kind.is_ims() };
            Some(Admission { slots: self.slots_of(queue), limit, submitter })
        };
        let pushed = queue.ring.push(submission.descriptor(), admit);
        if self.perfmon.is_counting() && matches!(pushed, Push::Taken | Push::Full) {
            self.count_submission(wq, dedicated, kind, pushed == Push::Taken);
        }
        match pushed {
            Push::Taken => Offer::Taken,
            Push::NotEnabled | Push::NotAdmitted => refused,
            Push::Full => {
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
