//! The interface between programs and devices: offer one descriptor, get `Taken` or `Retry`; later, read its completion
//! record.
//!
//! ```text
//! mover ──offer(&Submission)──► Portal ──► hw      the real device
//!       ◄──── Taken | Retry ───        └─► model   the modelled device
//! mover ──RecordCell::status()── written by the executor
//! ```
//!
//! Code above this interface builds [`Descriptor`]s and reads [`CompletionRecord`]s; code below it executes them. A
//! [`Portal`] is a capability to one work queue. It takes [`Submission`]s: descriptors for whose addresses the caller
//! has vouched, because a device reads and writes memory that the compiler does not see.
//!
//! [`Descriptor`]: telpher_abi::Descriptor
//! [`CompletionRecord`]: telpher_abi::CompletionRecord
#![deny(unsafe_code)]

#[cfg(any(test, feature = "test-util"))]
pub mod mock;
mod record;
mod submission;
mod sync;
mod window;

pub use record::RecordCell;
pub use submission::Submission;
pub use telpher_abi::Offer;
pub use window::{AttachedWindow, CreatedWindow, WindowError};

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use telpher_abi::registers::{DsaCap0, GenCap, OpCap};

/// How a queue takes descriptors. Source: SPEC §3.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QueueMode {
    /// One client, posted writes (MOVDIR64B). A descriptor written to a full queue is **lost** without an answer: the
    /// client must never have more than [`QueueInfo::size`] uncompleted descriptors.
    Dedicated,
    /// Many clients, deferrable writes (ENQCMD). A full queue answers [`Offer::Retry`].
    Shared,
}

/// The properties of a queue that a client needs before it builds descriptors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueInfo {
    /// The device's and queue's name, for example `wq0.1`.
    pub name: String,
    /// Dedicated or shared.
    pub mode: QueueMode,
    /// The most uncompleted descriptors of a client: the entries of a dedicated queue, the threshold of a shared one.
    pub size: u32,
    /// Largest transfer in bytes.
    pub max_transfer: u64,
    /// Largest batch in descriptors; 1 or less if batches are not offered.
    pub max_batch: u32,
    /// True if the queue accepts the Block On Fault flag.
    pub block_on_fault: bool,
    /// General capabilities of the device.
    pub gen_cap: GenCap,
    /// Scatter-gather capabilities (3.0), with the longest list that this queue accepts; zero for earlier devices.
    pub dsa_cap_0: DsaCap0,
    /// Operations this queue accepts.
    pub operations: OpCap,
    /// NUMA node of the device, if known.
    pub numa_node: Option<u32>,
}

/// Whether a queue still works.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// No failure is known; the queue is expected to complete what it took.
    Working,
    /// The queue takes nothing any more, and **nothing it took accesses memory any more**: a descriptor without a
    /// completion record now never gets one. The text is the machine's reason.
    Stopped(String),
}

/// How to pass the time while a record is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Watch {
    /// One PAUSE.
    Pause,
    /// A short light sleep (TPAUSE).
    Timed,
    /// A light sleep that a write to the record's cache line ends (UMONITOR, UMWAIT).
    Monitor,
}

/// A client's access to one work queue.
///
/// Implementations: the real device, the modelled device (inline and threaded), and a mock device.
///
/// # Safety
///
/// The caller that vouched for a [`Submission`] relies on its executor. An implementation promises:
/// - It executes a submission at most once, and never if it returned [`Offer::Retry`].
/// - It does not access a submission's ranges once its completion record is written (or the queue has drained).
/// - It keeps, forwards or offers no part of a submission after that.
/// - `offer` does not unwind once it has taken a submission.
/// - Once [`health`](Portal::health) or [`retire`](Portal::retire) has returned [`Health::Stopped`], no submission
///   taken before is executed or accesses memory any more.
#[allow(unsafe_code, reason = "implementations make the promise above")]
pub unsafe trait Portal: Send + Sync + Debug {
    /// Returns the properties of the queue; constant while the portal lives.
    fn info(&self) -> &QueueInfo;

    /// Submits one descriptor; returns what the submit instruction tells its program, so never [`Offer::Lost`].
    ///
    /// For a shared queue, `Taken` means that the device owns the descriptor. For a dedicated queue it means that the
    /// write was posted; the device may have lost it, if the queue was full or disabled.
    fn offer(&self, submission: &Submission) -> Offer;

    /// Lets an executor work that has no thread of its own, or whose thread does not run. Callers that wait for a
    /// record call it. It must return soon. The default does nothing.
    fn drive(&self) {}

    /// Rests the calling thread until `record` may have been written, or `at_most` has passed; an early return proves
    /// nothing. If the machine lacks a mechanism, the next lighter one is used. The default is one PAUSE.
    fn watch(&self, _record: &RecordCell, _how: Watch, _at_most: Duration) {
        std::hint::spin_loop();
    }

    /// Reports whether the queue still works. May make system calls: for callers whose record is late, not for each
    /// poll.
    fn health(&self) -> Health {
        Health::Working
    }

    /// Gives the queue up, if it reports that it works but has not completed its work for longer than the caller is
    /// willing to wait. Makes sure that nothing taken accesses memory any more, if that is possible, and from then on
    /// returns [`Health::Stopped`]. May wait for work in progress. The default cannot do this, and returns the health.
    fn retire(&self) -> Health {
        self.health()
    }

    /// Has the driver make a window to `size` bytes of this process' memory from `base` on, for other processes that
    /// use the same device. Descriptors name bytes of it by their addresses in this process. The default has no driver
    /// that can do this.
    ///
    /// # Safety
    /// Other processes access the bytes until the window's permissions have been taken away (Update Window) and all
    /// descriptors that used them have ended. Until then:
    /// - the bytes stay mapped;
    /// - no code of this process reads or writes them through references, or relies on their values;
    /// - if `writable`, they are bytes that this process may write.
    ///
    /// # Errors
    /// [`WindowError`].
    unsafe fn create_window(&self, _base: u64, _size: u64, _writable: bool) -> Result<CreatedWindow, WindowError> {
        Err(WindowError::Unsupported)
    }

    /// Gets the right to use a window of another process in descriptors for this queue. The file is that
    /// of [`create_window`](Portal::create_window) there, or for a modelled device the file of a grant of memory.
    /// The default has no windows.
    ///
    /// # Errors
    /// [`WindowError`].
    fn attach_window(&self, _file: BorrowedFd<'_>) -> Result<AttachedWindow, WindowError> {
        Err(WindowError::Unsupported)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
