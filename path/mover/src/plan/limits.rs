//! What a queue and its device can do.

use telpher_abi::Opcode;
use telpher_abi::registers::{GenCap, OpCap};
use telpher_portal::QueueInfo;

/// What a queue and its device can do, as the state machines need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest transfer in bytes; fits the descriptor's 32-bit size.
    pub(crate) max_transfer: u64,
    /// Largest batch in descriptors.
    pub(crate) max_batch: u32,
    /// Block On Fault is accepted.
    pub(crate) block_on_fault: bool,
    /// General capabilities.
    pub(crate) gen_cap: GenCap,
    /// Operations.
    pub(crate) operations: OpCap,
}

impl Limits {
    pub(crate) fn of(info: &QueueInfo) -> Self {
        Limits {
            max_transfer: info.max_transfer.min(u64::from(u32::MAX)),
            max_batch: info.max_batch,
            block_on_fault: info.block_on_fault,
            gen_cap: info.gen_cap,
            operations: info.operations,
        }
    }

    /// Returns the members that one batch may have; below 2 a burst has to be submitted one by one.
    #[inline]
    pub(crate) fn batch(&self) -> usize {
        if self.operations.contains(Opcode::Batch) { self.max_batch as usize } else { 1 }
    }
}
