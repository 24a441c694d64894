//! This library's own table of descriptors.
//!
//! A program closes descriptors that it does not know (`close_range`, a daemon's loop), and opens files at numbers it
//! chooses (a shell's `exec 3<file`). The descriptors for moving pages must not be affected. So the library's threads
//! leave the program's table, and the program never sees theirs.
#![allow(unsafe_code, reason = "leaves a table of descriptors, in which others may rely on numbers")]

use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::AsRawFd;

/// Gives this thread, and the threads that it starts, a table of their own that contains only standard error.
///
/// Standard input and output are replaced as well: a process that waits for their end would otherwise wait for this
/// library's end.
///
/// # Errors
/// A sentence with the system's error.
pub(crate) fn unshare() -> Result<(), String> {
    /// Source: linux/close_range.h.
    const UNSHARE: libc::c_uint = 1 << 1;
    /// The first descriptor behind standard error.
    const FIRST: libc::c_uint = 3;
    // SAFETY: this thread has just started and uses no descriptor; no other thread has the new table.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, UNSHARE) };
    if done != 0 {
        let error = io::Error::last_os_error();
        return Err(format!(
            "cannot give the library's threads their own descriptors (close_range, Linux 5.9): {error}"
        ));
    }
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("cannot open /dev/null: {error}"))?;
    for number in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: as above; replacing a descriptor in the table always has room.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
    }
    Ok(())
}
