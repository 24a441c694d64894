//! The one place where the target computes digests of data, copies blocks, and checks their protection information.
//!
//! ```text
//! Connection ─► DigestEngine::prepare … prepare ─► submit ─► … ─► completed ─► Connection::digest_done
//! ```
//!
//! A job owns its buffers from `prepare` until it is returned by `completed`. So no buffer is freed or reused while a
//! device may touch it, even if its connection has ended. [`CpuEngine`] computes at once; an engine on a device
//! collects jobs, submits them as one batch, and returns them later in any order.

use crate::digest::digest_after;
use crate::protection::ProtectionWork;
use std::collections::VecDeque;
use std::fmt;
use telpher_mem::BlockRun;
use telpher_mover::{Finished, JobError};
use telpher_ops::Hint;
use telpher_ops::crc::{CrcMode, copy_crc32c};

pub use crate::segment::{Segment, Segments, Shared};

/// Identifies a job: a connection, one of its commands, and a part of that command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct JobId {
    /// The connection's number, which is not used twice.
    pub connection: u64,
    /// The command's slot in its connection.
    pub slot: u32,
    /// Counts the commands in the slot, so that a late answer is not taken for another command's.
    pub generation: u32,
    /// The part of the command's data.
    pub part: u32,
}

/// What a job does.
#[derive(Debug)]
pub enum Work {
    /// Computes the digest of segments, in their order.
    Digest(Vec<Segment>),
    /// Copies `source` to runs of free blocks, in their order, and computes its digest. An engine may return
    /// [`Work::Digest`] of the source instead, if a late device may still write to a run.
    Place {
        /// The bytes, exactly as many as all runs have.
        source: Shared,
        /// Free blocks of the backend.
        runs: Vec<BlockRun>,
    },
    /// Inserts, checks or strips the tuples of protected blocks. The result is in the work; the digest is 0.
    Protect(Box<ProtectionWork>),
}

impl Work {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Work::Digest(segments) => segments.iter().map(|segment| segment.len()).sum(),
            Work::Place { source, .. } => source.len(),
            Work::Protect(work) => work.source().len(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does the work on this thread, and returns the digest.
    pub fn run(&mut self) -> u32 {
        match self {
            Work::Digest(segments) => digest_of(segments),
            Work::Place { source, runs } => {
                let mut rest = &source[..];
                runs.iter_mut().fold(0, |seed, run| {
                    let (now, later) = rest.split_at(run.len());
                    rest = later;
                    copy_crc32c(now, run, seed, CrcMode::default(), Hint::Cache)
                })
            }
            Work::Protect(work) => {
                work.run();
                0
            }
        }
    }
}

/// The digest of segments, in their order, by this thread.
fn digest_of(segments: &[Segment]) -> u32 {
    segments.iter().fold(0, |seed, segment| digest_after(seed, segment.as_slice()))
}

/// What executed a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DoneBy {
    /// The CPU, because there is no device or the job is short.
    Cpu,
    /// A device.
    Device,
    /// The CPU, because a device refused or failed, or because blocks that were never written need the CPU.
    Fallback(FallbackReason),
}

/// Why the CPU did all or a part of a job that was meant for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum FallbackReason {
    /// The channel to the device had no room, or does not do the operation.
    NoRoom,
    /// The device's queues were full, or have stopped.
    Queue,
    /// A page was not present.
    PageFault,
    /// The device ended the operation with an error.
    Device,
    /// The device did not answer in time.
    Deadline,
    /// Blocks that were never written need the CPU.
    Unwritten,
}

impl FallbackReason {
    /// The reasons as values of a label, in their order.
    pub const NAMES: [&'static str; 6] =
        ["channel full", "queue full or stopped", "page fault", "error of device", "deadline", "blocks never written"];

    /// The reason of an operation that the device did not do alone.
    pub(crate) fn of<S, D>(finished: &Finished<S, D>) -> FallbackReason {
        match (&finished.result, &finished.record) {
            (Err(JobError::Deadline { .. }), _) => FallbackReason::Deadline,
            (Err(JobError::Fault { .. }), _) => FallbackReason::PageFault,
            (Err(JobError::QueueFull { .. } | JobError::Stopped { .. } | JobError::Unsupported { .. }), _)
            | (Ok(_), None) => FallbackReason::Queue,
            (_, Some(record)) if record.status().is_page_fault() => FallbackReason::PageFault,
            _ => FallbackReason::Device,
        }
    }
}

/// A job for an engine.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What it does, with the buffers.
    pub work: Work,
}

/// A job that an engine has done.
#[derive(Debug)]
pub struct FinishedJob {
    /// Its number.
    pub id: JobId,
    /// What it did, with the buffers.
    pub work: Work,
    /// The digest.
    pub digest: u32,
    /// What executed it.
    pub by: DoneBy,
}

/// What an engine has submitted to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submissions {
    /// Submissions, each of one or several operations.
    pub batches: u64,
    /// The operations in them.
    pub operations: u64,
}

/// Computes digests and copies. Every prepared job comes back exactly once, with the right digest: an engine on a
/// device repeats on the CPU what the device fails to do.
pub trait DigestEngine: Send {
    /// Takes a job. Nothing has to happen before [`DigestEngine::submit`].
    fn prepare(&mut self, job: Job);

    /// Starts the prepared jobs, as one batch where that is possible. The engine's owner calls it after a burst, for
    /// all of its connections at once.
    fn submit(&mut self);

    /// Returns whether the engine leaves a digest of so many bytes to the CPU. Then the caller may use
    /// [`DigestEngine::digest_now`] in place of a job, which costs more than a short digest. By default, every digest
    /// is a job.
    fn is_immediate(&self, bytes: usize) -> bool {
        let _ = bytes;
        false
    }

    /// The digest of segments, in their order, by the calling thread.
    fn digest_now(&mut self, segments: &[Segment]) -> u32 {
        digest_of(segments)
    }

    /// Appends the jobs that are done, without waiting.
    fn completed(&mut self, done: &mut Vec<FinishedJob>);

    /// The number of jobs that were prepared and not yet returned.
    fn pending(&self) -> usize;

    /// What was submitted to a device so far.
    fn submissions(&self) -> Submissions {
        Submissions::default()
    }
}

impl<E: DigestEngine + ?Sized> DigestEngine for Box<E> {
    fn prepare(&mut self, job: Job) {
        (**self).prepare(job);
    }

    fn submit(&mut self) {
        (**self).submit();
    }

    fn is_immediate(&self, bytes: usize) -> bool {
        (**self).is_immediate(bytes)
    }

    fn digest_now(&mut self, segments: &[Segment]) -> u32 {
        (**self).digest_now(segments)
    }

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        (**self).completed(done);
    }

    fn pending(&self) -> usize {
        (**self).pending()
    }

    fn submissions(&self) -> Submissions {
        (**self).submissions()
    }
}

impl fmt::Debug for dyn DigestEngine + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DigestEngine({} pending)", self.pending())
    }
}

/// Computes on the calling thread.
#[derive(Debug, Default)]
pub struct CpuEngine {
    done: VecDeque<FinishedJob>,
}

impl DigestEngine for CpuEngine {
    fn prepare(&mut self, Job { id, mut work }: Job) {
        // The received bytes are most likely still in the cache.
        let digest = work.run();
        self.done.push_back(FinishedJob { id, work, digest, by: DoneBy::Cpu });
    }

    fn is_immediate(&self, _bytes: usize) -> bool {
        true
    }

    fn submit(&mut self) {}

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        done.extend(self.done.drain(..));
    }

    fn pending(&self) -> usize {
        self.done.len()
    }
}
