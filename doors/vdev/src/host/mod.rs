//! The virtual device's host: files, leases and boards, and the answers to those who ask.

use crate::tree::{Caller, Entry, Errno};
use std::fmt::Debug;
use telpher_vdev_wire::lease::{Statistics, TraceEntry};
use telpher_vdev_wire::message::{Inject, Opened, Report};

/// How open files behave, as `telpher run` was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Behaviour {
    /// A page that is not present faults when block on fault is clear.
    pub strict: bool,
    /// Engines run on a thread of their own in the submitting process.
    pub threaded: bool,
    /// Every descriptor and record is handed to the [`Listener`].
    pub trace: bool,
    /// Misuse is looked for and handed to the [`Listener`].
    pub check: bool,
    /// What shall go wrong.
    pub inject: Inject,
}

/// Which open file something is told of.
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

/// Who hears what open files have done: the trace and the summary. Called by the host's threads, one file at a time.
pub trait Listener: Send + Sync + Debug {
    /// A queue was opened.
    fn opened(&self, file: &FileInfo);
    /// The next entry of a file's trace.
    fn entry(&self, file: &FileInfo, entry: &TraceEntry);
    /// The file is gone; these are its final numbers. The last call for the file.
    fn released(&self, file: &FileInfo, statistics: &Statistics);
}

/// The device as the run's processes share it. All methods may be called by any thread.
#[derive(Debug)]
pub struct Host {
    behaviour: Behaviour,
}

impl Host {
    /// What stands at an absolute path that is free of links, `.` and `..`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR: nothing of ours.
    pub fn entry(&self, path: &str) -> Result<Entry, Errno> {
        let _ = path;
        Err(Errno::NOSYS)
    }

    /// Our entries of a directory, of one that the machine has too as well (see [`merged`](Host::merged)).
    ///
    /// # Errors
    /// As for [`entry`](Host::entry).
    pub fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        let _ = path;
        Err(Errno::NOSYS)
    }

    /// The topmost paths that are ours.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        Vec::new()
    }

    /// Directories of the machine that gain entries.
    #[must_use]
    pub fn merged(&self) -> Vec<String> {
        Vec::new()
    }

    /// Changes whenever an answer of `entry` or `list` does.
    #[must_use]
    pub fn structure(&self) -> u64 {
        0
    }

    /// An attribute's text, as one read(2) from its beginning.
    ///
    /// # Errors
    /// The driver's.
    pub fn show(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let _ = path;
        Err(Errno::NOSYS)
    }

    /// One write(2) to an attribute; returns the bytes taken.
    ///
    /// # Errors
    /// The driver's.
    pub fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno> {
        let _ = (path, data);
        Err(Errno::NOSYS)
    }

    /// Bytes of a binary file; fewer than asked for at its end.
    ///
    /// # Errors
    /// The driver's.
    pub fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let _ = (path, offset, into);
        Err(Errno::NOSYS)
    }

    /// Writes bytes of a binary file; returns how many were taken.
    ///
    /// # Errors
    /// The driver's.
    pub fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let _ = (path, offset, data);
        Err(Errno::NOSYS)
    }

    /// Opens a queue's node for a process; `space` is 0 for those who come through the file system.
    ///
    /// # Errors
    /// The driver's: EBUSY, ENXIO, …
    pub fn open(&self, path: &str, caller: Caller) -> Result<Opened, Errno> {
        let _ = (path, caller, self.behaviour);
        Err(Errno::NOSYS)
    }

    /// The last reference to an open file is gone. A number that is no open file's is passed over.
    pub fn release(&self, open: u64) {
        let _ = open;
    }

    /// write(2) to an open node by a process that has no preloaded part: the descriptors are executed here, in that process's
    /// memory, before this returns. Returns the bytes submitted.
    ///
    /// # Errors
    /// The driver's: EPERM, EINVAL, EAGAIN.
    pub fn write(&self, open: u64, caller: Caller, bytes: &[u8]) -> Result<usize, Errno> {
        let _ = (open, caller, bytes);
        Err(Errno::NOSYS)
    }

    /// True if poll(2) of an open node answers POLLIN: the device has latched an error.
    #[must_use]
    pub fn poll_ready(&self, open: u64) -> bool {
        let _ = open;
        false
    }

    /// What a guest reports to the driver.
    ///
    /// # Errors
    /// The driver's.
    pub fn report(&self, open: u64, report: &Report) -> Result<(), Errno> {
        let _ = (open, report);
        Err(Errno::NOSYS)
    }
}
