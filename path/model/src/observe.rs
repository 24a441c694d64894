//! Who looks over a device's shoulder: hears of every descriptor from its dispatch to its end, and may interfere where real
//! devices and systems do.
//!
//! ```text
//! dispatched() ─► execute() around the action ─► concluding() ─► record() around the write ─► ended()
//! ```
//!
//! A descriptor can be kept waiting at the two bends, before anything was done and before anybody is told; whoever steps the
//! engine must then have other lanes or other things to do.
//!
//! [`Unobserved`] does nothing and compiles to nothing.

use crate::engine::Outcome;
use crate::wq::Submitter;
use std::fmt::Debug;
use telpher_abi::{CompletionRecord, Descriptor, Status};
use telpher_mem::{Fault, Space};

/// A descriptor in an engine's hand.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The descriptor. Its first dword is what the submitter wrote: the device takes PASID and privilege from elsewhere, so
    /// it may carry whatever names the submission.
    pub descriptor: &'a Descriptor,
    /// Index of its queue.
    pub wq: usize,
    /// Who submitted it, or its batch.
    pub submitter: Submitter,
    /// Its batch, if it is a member of one.
    pub member: Option<Member<'a>>,
}

/// Whose member a descriptor is.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The Batch descriptor.
    pub batch: &'a Descriptor,
    /// Position in its list, from 0.
    pub index: u16,
}

/// Who was told how a descriptor ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Its completion record was written.
    Record,
    /// No record was wanted, and nothing went wrong that must be told.
    Nobody,
    /// The event log or SWERROR.
    Elsewhere,
    /// The record could not be written; event log or SWERROR say so.
    Unwritable(Fault),
    /// It was abandoned by a command while it waited: nobody hears of it.
    Abandoned,
}

/// What an observer says to a descriptor that was dispatched.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Go on.
    Go,
    /// Not yet; ask again.
    Wait,
    /// It ends with this status, and is not looked at.
    End(Status),
}

/// Hears of descriptors, in the thread that steps the engine. The defaults do what a device without an observer does.
pub trait Observer: Send + Sync + Debug {
    /// False if nobody looks: descriptors may then take short ways past all that is below.
    #[inline]
    fn is_watching(&self) -> bool {
        true
    }

    /// A descriptor was taken from its queue or its batch's list.
    #[inline]
    fn dispatched(&self, job: &Job<'_>) -> Verdict {
        let _ = job;
        Verdict::Go
    }

    /// The descriptor's action is to be carried out: `act` does it, on `space` or on another in its place.
    #[inline]
    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        let _ = job;
        act(space)
    }

    /// The outcome is known, and `record` would tell it; `false` keeps the descriptor in the engine's hand, and the question is
    /// asked again.
    #[inline]
    fn concluding(&self, job: &Job<'_>, record: &CompletionRecord) -> bool {
        let _ = (job, record);
        true
    }

    /// The completion record is to be written: `write` does it, and not before it is called.
    ///
    /// # Errors
    /// The fault that the device shall take for the write's.
    #[inline]
    fn record(
        &self,
        job: &Job<'_>,
        record: &CompletionRecord,
        write: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let _ = (job, record);
        write()
    }

    /// The descriptor has ended: the device touches nothing of it any more. `record` is what its record says or would say;
    /// nothing for what was abandoned.
    #[inline]
    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, told: Told) {
        let _ = (job, record, told);
    }
}

/// Nobody looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    #[inline]
    fn is_watching(&self) -> bool {
        false
    }
}
