//! SIGILL, SIGSEGV and SIGBUS.

use crate::{Errno, Handler};

/// What [`install`] may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Rewrite sites of five bytes and more after their first trap.
    pub rewrite: bool,
}

/// Takes over the process' signals. To be called once, before the program's first thread if possible; the actions that are
/// installed already become the program's. A second call changes nothing.
///
/// # Errors
/// What the kernel said to `rt_sigaction`.
pub fn install(_handler: &'static dyn Handler, _options: Options) -> Result<(), Errno> {
    Ok(())
}

/// To be called first thing in the child of a `fork`, before its signal actions change: what other threads of the parent held is
/// free again.
pub fn after_fork_child() {}
