//! The seam: offer one descriptor, hear `Taken` or `Retry`; later, look at its completion record.
//!
//! ```text
//! mover ──offer(&Submission)──► Portal ──► hw      the real device
//!       ◄──── Taken | Retry ───        └─► model   the modelled device
//! mover ──RecordCell::status()── written by whoever executed
//! ```
//!
//! Everything above the seam builds [`Descriptor`]s and reads [`CompletionRecord`]s; everything below executes them. A
//! [`Portal`] is a capability to one work queue. What crosses it is a [`Submission`]: a descriptor whose addresses somebody
//! has vouched for, because a device reads and writes them behind the compiler's back.
//!
//! [`Descriptor`]: telpher_abi::Descriptor
//! [`CompletionRecord`]: telpher_abi::CompletionRecord
#![deny(unsafe_code)]

#[cfg(any(test, feature = "test-util"))]
pub mod mock;
mod record;
mod submission;
mod sync;

pub use record::RecordCell;
pub use submission::Submission;

use std::fmt::Debug;
use std::time::Duration;
use telpher_abi::registers::{GenCap, OpCap};

/// What the queue said to one descriptor. `Retry` is an answer, not an error.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// The queue owns it now.
    Taken,
    /// The queue is full, disabled, or draining; nothing was taken.
    Retry,
}

/// How a queue takes descriptors. Source: SPEC §3.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QueueMode {
    /// One client, posted writes (MOVDIR64B). A descriptor written to a full queue is **lost** without an answer: the
    /// client must never have more than [`QueueInfo::size`] descriptors uncompleted.
    Dedicated,
    /// Many clients, deferrable writes (ENQCMD). A full queue answers [`Offer::Retry`].
    Shared,
}

/// What a client needs to know of a queue before it builds descriptors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueInfo {
    /// The device's and queue's name, for example `wq0.1`.
    pub name: String,
    /// Dedicated or shared.
    pub mode: QueueMode,
    /// Descriptors a client may have uncompleted: entries of a dedicated queue, threshold of a shared one.
    pub size: u32,
    /// Largest transfer in bytes.
    pub max_transfer: u64,
    /// Largest batch in descriptors; 1 or less if batches are not offered.
    pub max_batch: u32,
    /// The queue accepts the Block On Fault flag.
    pub block_on_fault: bool,
    /// General capabilities of the device.
    pub gen_cap: GenCap,
    /// Operations this queue accepts.
    pub operations: OpCap,
    /// NUMA node of the device, if known.
    pub numa_node: Option<u32>,
}

/// Whether a queue still works.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// As far as anybody knows, what it took will be answered.
    Working,
    /// It takes nothing any more, and **nothing it took touches memory any more**: what has no completion record now never
    /// gets one. The sentence says what the machine said.
    Stopped(String),
}

/// How to pass the time while a record is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Watch {
    /// One PAUSE.
    Pause,
    /// A light sleep for a time (TPAUSE).
    Timed,
    /// A light sleep that a write to the record's line ends (UMONITOR, UMWAIT).
    Monitor,
}

/// A client's way into one work queue.
///
/// Implementations: the real device, the modelled device (inline and threaded), and the mock of the other side.
///
/// # Safety
///
/// Whoever vouched for a [`Submission`] relies on its executor. An implementation promises that
/// - a submission is executed at most once, and not at all after [`Offer::Retry`] was answered;
/// - its ranges are not touched any more once its completion record is written (or its queue has drained);
/// - nothing of it is kept, handed on or offered again beyond that;
/// - `offer` does not unwind once it has taken a submission;
/// - once [`health`](Portal::health) or [`retire`](Portal::retire) has answered [`Health::Stopped`], no submission taken before is executed or touches
///   memory any more.
#[allow(unsafe_code, reason = "implementations make the promise above")]
pub unsafe trait Portal: Send + Sync + Debug {
    /// What this queue accepts; constant while the portal lives.
    fn info(&self) -> &QueueInfo;

    /// Submits one descriptor.
    ///
    /// `Taken` means what the instruction means: for a shared queue the device owns the descriptor; for a dedicated queue
    /// the write was posted, and is lost if the queue was full or disabled.
    fn offer(&self, submission: &Submission) -> Offer;

    /// Gives an executor that has no thread of its own a chance to work; called by whoever waits for a record. Must
    /// return soon. The default does nothing.
    fn drive(&self) {}

    /// Rests the calling thread until `record` may have been written, or `at_most` has passed; returning early proves
    /// nothing. What the machine lacks becomes the next lighter way. The default is one PAUSE.
    fn watch(&self, _record: &RecordCell, _how: Watch, _at_most: Duration) {
        std::hint::spin_loop();
    }

    /// Whether the queue still works. May make system calls: for waiters whose record is late, not for each look.
    fn health(&self) -> Health {
        Health::Working
    }

    /// Gives the queue up, because it says that it works and has left something unanswered for longer than whoever waits for it
    /// is willing to: makes sure that nothing taken touches memory any more, if that can be done, and then says
    /// [`Health::Stopped`] for ever. May wait for what is in progress. The default cannot, and asks for the health.
    fn retire(&self) -> Health {
        self.health()
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
