//! Which members of a group live: each has locked a byte of the group's file.
//!
//! The kernel releases the lock when the process ends, whatever ends it. A lock of this kind belongs to the process: a
//! forked child does not inherit it, and a file that travels through a socket does not carry it. It depends on no
//! process number, so it works across PID namespaces.
#![allow(unsafe_code, reason = "fcntl(2) with a struct flock; rustix locks whole files only")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The lock of this member, and the locks of the others.
#[derive(Debug)]
pub(crate) struct MemberLock {
    file: OwnedFd,
}

impl MemberLock {
    /// Locks the byte of this member. This process must close no other descriptor of the file afterwards: that would
    /// release the lock.
    pub(crate) fn take(file: OwnedFd, member: usize) -> io::Result<MemberLock> {
        call(&file, libc::F_SETLK, member)?;
        Ok(MemberLock { file })
    }

    /// Returns whether another process has locked the byte of a member.
    pub(crate) fn is_held(&self, member: usize) -> io::Result<bool> {
        Ok(i32::from(call(&self.file, libc::F_GETLK, member)?.l_type) != libc::F_UNLCK)
    }
}

/// Calls fcntl(2) for a write lock of a member's byte.
fn call(file: &OwnedFd, command: i32, member: usize) -> io::Result<libc::flock> {
    // SAFETY: all bits zero are a valid structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    // The constants are 0 and 1.
    lock.l_type = i16::try_from(libc::F_WRLCK).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = i64::try_from(member).map_err(io::Error::other)?;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the kernel reads and writes the structure during the call only.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(lock),
    }
}
