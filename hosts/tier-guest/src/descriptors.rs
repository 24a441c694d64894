//! A table of descriptors of this library's own.
//!
//! A program closes descriptors that it does not know (`close_range`, a daemon's loop), and opens files at numbers it chooses (a shell's `exec 3<file`).
//! What pages move by must not be among them; so the library's threads leave the program's table, and the program never sees theirs.
#![allow(unsafe_code, reason = "leaves a table of descriptors, in which others may rely on numbers")]

use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::AsRawFd;

/// This thread has a table of its own from now on, as have those that it begins, with nothing in it but standard error.
///
/// Standard input and output are let go as well: who waits for their end would wait for this library's.
///
/// # Errors
/// In a sentence, what the system refuses.
pub(crate) fn leave_programs() -> Result<(), String> {
    /// Source: linux/close_range.h.
    const UNSHARE: libc::c_uint = 1 << 1;
    /// The first behind standard error.
    const FIRST: libc::c_uint = 3;
    // SAFETY: this thread has just begun, and knows no descriptor; no other has this table then.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, UNSHARE) };
    if done != 0 {
        let error = io::Error::last_os_error();
        return Err(format!(
            "cannot give its threads a table of descriptors of their own (close_range, Linux 5.9): {error}"
        ));
    }
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("cannot open /dev/null: {error}"))?;
    for number in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: as above; a descriptor in the table always has room for another one in its place.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
    }
    Ok(())
}
