//! Gives the child its own namespace between fork and exec.
#![allow(unsafe_code, reason = "unshare(2)")]

use crate::tree::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

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
