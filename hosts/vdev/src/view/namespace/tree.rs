//! What the file system shows, as seen from here: so little of the host that a test can stand in for it.

use crate::host::Host;
use crate::tree::{Caller, Entry, Errno};
use std::fmt::Debug;
use std::io::Write;

/// The driver's files. All methods may be called by any thread; each answers as [`Host`]'s method of that name.
pub trait Tree: Debug + Send + Sync + 'static {
    /// The topmost paths that are ours.
    fn roots(&self) -> Vec<String>;
    /// Directories of the machine that gain entries.
    fn merged(&self) -> Vec<String>;
    /// What stands at an absolute path that is free of links.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    fn entry(&self, path: &str) -> Result<Entry, Errno>;
    /// Our entries of a directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno>;
    /// An attribute's text.
    ///
    /// # Errors
    /// The driver's.
    fn show(&self, path: &str) -> Result<Vec<u8>, Errno>;
    /// One write(2) to an attribute; returns the bytes taken.
    ///
    /// # Errors
    /// The driver's.
    fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno>;
    /// Bytes of a binary file.
    ///
    /// # Errors
    /// The driver's.
    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;
    /// Writes bytes of a binary file; returns how many were taken.
    ///
    /// # Errors
    /// The driver's.
    fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno>;
    /// Opens a queue's node; returns the open file's number. `caller.process` is any thread of the process, here and below: that
    /// is what a request says.
    ///
    /// # Errors
    /// The driver's.
    fn open(&self, path: &str, caller: Caller) -> Result<u64, Errno>;
    /// The last reference to an open file is gone.
    fn release(&self, open: u64);
    /// write(2) to an open node; returns the bytes submitted.
    ///
    /// # Errors
    /// The driver's.
    fn write(&self, open: u64, caller: Caller, bytes: &[u8]) -> Result<usize, Errno>;
    /// poll(2) of an open node; true for POLLIN.
    ///
    /// # Errors
    /// EPERM from another address space than the opener's.
    fn poll(&self, open: u64, caller: Caller) -> Result<bool, Errno> {
        // A write of nothing asks just that.
        match self.write(open, caller, &[]) {
            Err(Errno::PERM) => Err(Errno::PERM),
            // A kernel without write() answers something else to who may poll.
            _ => Ok(self.poll_ready(open)),
        }
    }
    /// True if poll(2) of an open node by its opener answers POLLIN.
    fn poll_ready(&self, open: u64) -> bool;
    /// Tells the user a sentence.
    fn tell(&self, sentence: &str);
}

impl Tree for Host {
    fn roots(&self) -> Vec<String> {
        Host::roots(self)
    }

    fn merged(&self) -> Vec<String> {
        Host::merged(self)
    }

    fn entry(&self, path: &str) -> Result<Entry, Errno> {
        Host::entry(self, path)
    }

    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        Host::list(self, path)
    }

    fn show(&self, path: &str) -> Result<Vec<u8>, Errno> {
        Host::show(self, path)
    }

    fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno> {
        Host::store(self, path, data)
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        Host::read_at(self, path, offset, into)
    }

    fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        Host::write_at(self, path, offset, data)
    }

    fn open(&self, path: &str, caller: Caller) -> Result<u64, Errno> {
        Host::open(self, path, caller).map(|opened| opened.open)
    }

    fn release(&self, open: u64) {
        Host::release(self, open);
    }

    fn write(&self, open: u64, caller: Caller, bytes: &[u8]) -> Result<usize, Errno> {
        Host::write(self, open, caller, bytes)
    }

    fn poll_ready(&self, open: u64) -> bool {
        Host::poll_ready(self, open)
    }

    fn tell(&self, sentence: &str) {
        // If it cannot be written, the user does not read standard error.
        let _ = writeln!(std::io::stderr(), "telpher run: {sentence}");
    }
}
