//! Access to the memory that messages are read from and written to.
#![allow(unsafe_code, reason = "takes the address space of this process, for buffers that callers vouch for")]

use telpher_mem::Local;

/// Returns the memory of this process. In this crate, its addresses are of two kinds: those of a [`Buffer`], for which
/// the caller vouches until the operation has completed, and those of a connection's memory, which were checked against
/// its size, and to which no Rust references exist.
///
/// [`Buffer`]: crate::Buffer
pub(crate) fn own_memory() -> Local {
    // SAFETY: all accesses are to the addresses above, for which the promise holds. No code of this crate installs
    // handlers of SIGSEGV or SIGBUS, or blocks these signals.
    unsafe { Local::new() }
}
