//! The receiver of what open files have done.

use std::fmt::Debug;
use telpher_vdev_wire::file_memory::{Statistics, TraceEntry};

/// Identifies the open file of a [`Listener`] call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Number of the open file, unique in the run.
    pub open: u64,
    /// Device, `dsaM`.
    pub device: u32,
    /// Queue, `wqM.N`.
    pub wq: u32,
    /// Process that opened it.
    pub process: u32,
    /// Its address space identifier.
    pub pasid: u32,
    /// The queue is dedicated.
    pub dedicated: bool,
}

/// Receives what open files have done, for the trace and the summary. The host's threads call it, for one file at a
/// time.
pub trait Listener: Send + Sync + Debug {
    /// A queue was opened.
    fn opened(&self, file: &FileInfo);
    /// The next entry of a file's trace.
    fn entry(&self, file: &FileInfo, entry: &TraceEntry);
    /// The file was released; these are its final counters. The last call for the file.
    fn released(&self, file: &FileInfo, statistics: &Statistics);
}
