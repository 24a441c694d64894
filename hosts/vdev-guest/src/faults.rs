//! Access to this process's memory by address. Faults during such an access are handled by this library's traps instead
//! of `mem`'s own handlers.
#![allow(unsafe_code, reason = "calls the unsafe constructor of `Local`, and takes over fault handling from `mem`")]

use std::sync::OnceLock;
use telpher_mem::Local;

/// Takes over the handling of faults, before any memory is accessed.
pub(crate) fn adopt() {
    // SAFETY: `start` installs `submit::Portals` before any operation runs; its `fixup` resumes every such fault at its
    // landing. Threads created by this library have the signals unblocked, and the program's signal masks do not apply
    // to them.
    unsafe { telpher_mem::hook::adopt() };
}

/// Returns access to this process's memory.
pub(crate) fn memory() -> Local {
    static MEMORY: OnceLock<Local> = OnceLock::new();
    // SAFETY: operations come from descriptors that the process itself submitted (`Replica::offer`), from records that
    // the driver writes for it, and from addresses that it passed to write(2) and UMONITOR. The memory belongs to the
    // program. This library's memory beside it (heap, tables, stacks) is as exposed to the program's stores as to its
    // descriptors. Faults are handled, see `adopt`.
    *MEMORY.get_or_init(|| unsafe { Local::new() })
}
