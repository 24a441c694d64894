//! The two calls that concern the process as a whole, made between fork and exec.
#![allow(unsafe_code, reason = "unshare(2), and a closure that runs between fork and exec")]

use super::Entrance;
use crate::tree::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the calling process mounts of its own; with `user`, ids of its own too, which lets it mount without privilege.
///
/// # Errors
/// EPERM, EINVAL, ENOSPC: not allowed here, or too many.
pub(super) fn leave(user: bool) -> Result<(), Errno> {
    let flags = if user { UnshareFlags::NEWUSER | UnshareFlags::NEWNS } else { UnshareFlags::NEWNS };
    // SAFETY: the call is unsafe for the sake of CLONE_FILES alone, by which threads would stop sharing their descriptors;
    // it is in neither set of flags.
    unsafe { unshare_unsafe(flags) }
}

/// Has the command's process enter the view before it executes the program.
pub(super) fn enter_before_exec(command: &mut Command, entrance: Entrance) {
    let enter = move || entrance.enter().map_err(std::io::Error::from);
    // SAFETY: in the child of a process with threads only async-signal-safe functions may run. `Entrance::enter` makes system
    // calls on memory that was made before the fork; it allocates nothing, takes no lock, and an error made of an errno
    // allocates nothing either.
    unsafe { command.pre_exec(enter) };
}
