//! This process's memory by address, and who answers the faults of doing so: the traps of this library, instead of handlers of
//! `mem`'s own.
#![allow(unsafe_code, reason = "makes the promises of who reaches memory by address, and of who answers the faults")]

use std::sync::OnceLock;
use telpher_mem::Local;

/// Takes the faults over, before any memory is reached.
pub(crate) fn adopt() {
    // SAFETY: `start` installs `submit::Portals`, whose `fixup` lets every such fault go on at its landing, before any operation
    // is driven; threads made by this library have the signals unblocked, and the program's masks do not reach them.
    unsafe { telpher_mem::hook::adopt() };
}

/// This process's memory.
pub(crate) fn memory() -> Local {
    static MEMORY: OnceLock<Local> = OnceLock::new();
    // SAFETY: operations come from descriptors that the process itself submitted (`Replica::offer`), from records the driver owes
    // it, and from addresses that it named to write(2) and UMONITOR. The memory is the program's; ours that lies beside it
    // (heap, tables, stacks) is as exposed to the program's stores as to its descriptors. Faults are answered, see `adopt`.
    *MEMORY.get_or_init(|| unsafe { Local::new() })
}
