//! The two operations on the whole process between fork and exec.
#![allow(unsafe_code, reason = "unshare(2), and a closure that runs between fork and exec")]

use super::NamespaceEntry;
use crate::tree::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the calling process its own mount namespace; with `user` also its own user namespace, in which it may mount
/// without privilege.
///
/// # Errors
/// EPERM, EINVAL, ENOSPC: not allowed here, or too many namespaces.
pub(super) fn leave(user: bool) -> Result<(), Errno> {
    let flags = if user { UnshareFlags::NEWUSER | UnshareFlags::NEWNS } else { UnshareFlags::NEWNS };
    // SAFETY: the call is unsafe only because of CLONE_FILES, with which threads stop sharing their descriptors;
    // neither set of flags contains it.
    unsafe { unshare_unsafe(flags) }
}

/// Makes the command's process enter the view before it executes the program.
pub(super) fn enter_before_exec(command: &mut Command, entrance: NamespaceEntry) {
    let enter = move || entrance.enter().map_err(std::io::Error::from);
    // SAFETY: in the child of a process with threads only async-signal-safe functions may run. `NamespaceEntry::enter`
    // makes system calls on memory that was allocated before the fork; it allocates nothing and takes no lock, and
    // creating an error from an errno allocates nothing either.
    unsafe { command.pre_exec(enter) };
}
