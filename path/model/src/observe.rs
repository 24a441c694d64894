//! The observer interface: it is called for every descriptor from dispatch to end, and may interfere where real devices
//! and systems do.
//!
//! ```text
//! dispatched() ─► execute() around the action ─► concluding() ─► record() around the write ─► ended()
//! ```
//!
//! An observer can delay a descriptor at two points: before the action starts, and before the outcome is reported. The
//! runner must then have other lanes or other work.
//!
//! [`NoObserver`] does nothing and compiles to nothing.

use crate::engine::Outcome;
use crate::wq::Submitter;
use std::fmt::Debug;
use telpher_abi::{CompletionRecord, Descriptor, Status};
use telpher_mem::{Fault, Space};

/// A descriptor that an engine is executing.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The descriptor. Its first dword is what the submitter wrote. The device takes PASID and privilege from
    /// elsewhere, so the dword may carry an identifier of the submission.
    pub descriptor: &'a Descriptor,
    /// Index of its queue.
    pub wq: usize,
    /// Index of the engine.
    pub engine: usize,
    /// The lane of the engine.
    pub lane: usize,
    /// The submitter of the descriptor or of its batch.
    pub submitter: Submitter,
    /// Its batch, if it is a member of one.
    pub member: Option<Member<'a>>,
    /// The observer was [watching](Observer::is_watching) when it was dispatched, and was told.
    pub is_watched: bool,
}

/// The batch of a member.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The Batch descriptor.
    pub batch: &'a Descriptor,
    /// Position in its list, from 0.
    pub index: u16,
}

/// Where the end of a descriptor was reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportedTo {
    /// Its completion record was written.
    Record,
    /// No record was requested, and no error had to be reported.
    NotRequested,
    /// In the event log or SWERROR.
    Elsewhere,
    /// The record could not be written; the event log or SWERROR reports this.
    Unwritable(Fault),
    /// A command abandoned the descriptor while it waited: its end is not reported.
    Abandoned,
}

/// An observer's decision about a dispatched descriptor.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DispatchDecision {
    /// Continue.
    Go,
    /// Not yet; ask again.
    Wait,
    /// End it with this status, without checking it.
    End(Status),
}

/// Receives calls for descriptors, in the thread that steps the engine. The defaults behave like a device without an
/// observer.
pub trait Observer: Send + Sync + Debug {
    /// False if the observer does nothing until a descriptor ends: descriptors may then take fast paths that skip the
    /// calls below, and are not reported when they are dispatched.
    #[inline]
    fn is_watching(&self) -> bool {
        true
    }

    /// A descriptor was taken from its queue or its batch's list.
    #[inline]
    fn dispatched(&self, job: &Job<'_>) -> DispatchDecision {
        let _ = job;
        DispatchDecision::Go
    }

    /// The descriptor's action is about to be executed: `act` does it, on `space` or on another space instead.
    #[inline]
    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        let _ = job;
        act(space)
    }

    /// An Update Window has written its entry of the table, which has this
    /// [generation](crate::Window::generation), and has waited for the descriptors that used the former values. A
    /// driver that keeps the table in another place changes it there now.
    ///
    /// # Errors
    /// The status to end the descriptor with instead of success.
    #[inline]
    fn window_updated(&self, job: &Job<'_>, generation: u64) -> Result<(), Status> {
        let _ = (job, generation);
        Ok(())
    }

    /// The outcome is known, and `record` would report it. If this returns `false`, the engine keeps the descriptor and
    /// asks again.
    #[inline]
    fn concluding(&self, job: &Job<'_>, record: &CompletionRecord) -> bool {
        let _ = (job, record);
        true
    }

    /// The completion record is about to be written: `write` writes it when called.
    ///
    /// # Errors
    /// The fault that the device shall treat as the write's.
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

    /// The descriptor has ended: the device accesses nothing of it any more. `record` is the content of its record,
    /// even if none was written. Not meaningful for an abandoned descriptor.
    #[inline]
    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, reported_to: ReportedTo) {
        let _ = (job, record, reported_to);
    }

    /// The descriptor has succeeded on the fast path, which makes no other call for it. Only an observer that
    /// [does nothing else](Observer::is_watching) is called.
    #[inline]
    fn ended_fast(&self, job: &Job<'_>) {
        let _ = job;
    }
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    #[inline]
    fn is_watching(&self) -> bool {
        false
    }
}
