//! The part of the host that the file system uses; tests implement it with a fake driver.

use crate::host::Host;
use crate::tree::{Caller, Entry, Errno};
use std::fmt::Debug;
use std::io::Write;

/// The driver's files. All methods may be called by any thread; each behaves like [`Host`]'s method of the same name.
pub trait Tree: Debug + Send + Sync + 'static {
    /// The topmost paths of the driver's tree.
    fn roots(&self) -> Vec<String>;
    /// Directories of the machine in which the driver adds entries.
    fn merged(&self) -> Vec<String>;
    /// The entry at an absolute path without links.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    fn entry(&self, path: &str) -> Result<Entry, Errno>;
    /// The driver's entries of a directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno>;
    /// An attribute's text.
    ///
    /// # Errors
    /// The driver's.
    fn show(&self, path: &str) -> Result<Vec<u8>, Errno>;
    /// Does one write(2) to an attribute; returns the bytes accepted.
    ///
    /// # Errors
    /// The driver's.
    fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno>;
    /// Reads bytes of a binary file.
    ///
    /// # Errors
    /// The driver's.
    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;
    /// Writes bytes of a binary file; returns how many were accepted.
    ///
    /// # Errors
    /// The driver's.
    fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno>;
    /// Opens a queue's node; returns the open file's number. Here and below, `caller.process` is any thread of the
    /// process, because a FUSE request contains a thread.
    ///
    /// # Errors
    /// The driver's.
    fn open(&self, path: &str, caller: Caller) -> Result<u64, Errno>;
    /// Releases an open file whose last reference is gone.
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
        // An empty write makes exactly this check.
        match self.write(open, caller, &[]) {
            Err(Errno::PERM) => Err(Errno::PERM),
            // A kernel version without write() returns another errno to callers that may poll.
            _ => Ok(self.poll_ready(open)),
        }
    }
    /// True if poll(2) of an open node by its opener reports POLLIN.
    fn poll_ready(&self, open: u64) -> bool;
    /// Prints a message for the user.
    fn print(&self, message: &str);
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

    fn print(&self, message: &str) {
        // If standard error is closed, the message is lost.
        let _ = writeln!(std::io::stderr(), "telpher run: {message}");
    }
}
