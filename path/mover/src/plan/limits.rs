//! What a queue and its device can do.

use telpher_abi::Opcode;
use telpher_abi::registers::{DsaCap0, GenCap, OpCap};
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
    /// Scatter-gather capabilities.
    pub(crate) dsa_cap_0: DsaCap0,
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
            dsa_cap_0: info.dsa_cap_0,
            operations: info.operations,
        }
    }

    /// Returns true if the queue accepts lists of this format.
    pub(crate) fn has_list_format(&self, code: u8) -> bool {
        u32::from(self.dsa_cap_0.sgl_formats()) >> code & 1 == 1
    }

    /// Returns the most entries of a list; a descriptor expresses 65,535.
    pub(crate) fn longest_list(&self) -> u64 {
        (1 << self.dsa_cap_0.max_sgl_shift()).min(u64::from(u16::MAX))
    }

    /// Returns the most bytes of a block of Gather Reduce.
    pub(crate) fn longest_gather_block(&self) -> u64 {
        1 << self.dsa_cap_0.max_gather_block_shift()
    }

    /// Returns the members that one batch may have; below 2 a burst has to be submitted one by one.
    #[inline]
    pub(crate) fn batch(&self) -> usize {
        if self.operations.contains(Opcode::Batch) { self.max_batch as usize } else { 1 }
    }
}
