//! The steps of the program's process between fork and exec.
#![allow(unsafe_code, reason = "a closure that runs between fork and exec")]

use super::plan::Plan;
use super::scaffold;
use crate::tree::Errno;
use rustix::process::Pid;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// The steps of the program's process between fork and exec.
#[derive(Debug)]
pub struct NamespaceEntry {
    pub(super) plan: Arc<Plan>,
    pub(super) socket: OwnedFd,
    /// The process that created this value and will fork.
    pub(super) host: Pid,
    /// Only check whether the view is possible.
    pub(super) trial: bool,
}

impl NamespaceEntry {
    /// Makes the command's process enter the view before it executes the program. Drop the command after spawning it;
    /// otherwise [`Running::outcome`](super::Running::outcome) may wait forever if the child never ran.
    pub fn install(self, command: &mut Command) {
        let enter = move || self.enter().map_err(std::io::Error::from);
        // SAFETY: in the child of a process with threads only async-signal-safe functions may run. `enter` makes system
        // calls on memory that was allocated before the fork; it allocates nothing and takes no lock, and creating an
        // error from an errno allocates nothing either.
        unsafe { command.pre_exec(enter) };
    }

    /// Enters the view. Call it in a child with one thread, between fork and exec. Makes only system calls; allocates
    /// nothing.
    ///
    /// # Errors
    /// The errno of the failed step; [`Running::outcome`](super::Running::outcome) names the step.
    pub fn enter(&self) -> Result<(), Errno> {
        let result = if self.trial {
            scaffold::try_out(&self.plan)
        } else {
            scaffold::enter(&self.plan, self.host, self.socket.as_fd())
        };
        match result {
            Ok(()) if self.trial => scaffold::report_success(self.socket.as_fd()).and(Err(Errno::CANCELED)),
            Ok(()) => Ok(()),
            Err(failure) => {
                scaffold::report_failure(self.socket.as_fd(), &failure);
                Err(failure.errno)
            }
        }
    }
}
