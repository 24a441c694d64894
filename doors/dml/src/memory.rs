//! This process' memory for operations of the CPU, and descriptors for queues: the two promises about addresses.
#![allow(unsafe_code, reason = "the caller of the C interface vouches for the addresses of its operations")]

use std::sync::OnceLock;
use telpher_abi::Descriptor;
use telpher_mem::Local;
use telpher_portal::Submission;

/// Returns this process' memory. An address that is not mapped is a page fault in the record, not a signal.
#[inline]
pub(crate) fn own_memory() -> &'static Local {
    static MEMORY: OnceLock<Local> = OnceLock::new();
    // SAFETY: only descriptors of the C interface reach it. Their submitter lends the ranges until the record is
    // written (dml.h, "What must stay alive"), and no Rust reference of this library points at them.
    MEMORY.get_or_init(|| unsafe { Local::new() })
}

/// Vouches for a descriptor of the C interface.
#[inline]
pub(crate) fn lent(descriptor: Descriptor) -> Submission {
    // SAFETY: the submitter lends every range of the descriptor and of its batch members, and the memory of its
    // records, until the records are written (dml.h, "What must stay alive").
    unsafe { Submission::vouch(descriptor) }
}
