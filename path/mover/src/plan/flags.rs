//! The descriptor flags that follow from the policy.

use crate::api::policy::{Hint, OnFault, Policy};
use crate::plan::limits::Limits;
use telpher_abi::{Descriptor, Flags, Opcode};

/// Adds the flags that the policy asks for and the queue allows.
#[inline]
pub(crate) fn with_policy_flags(d: Descriptor, limits: &Limits, policy: &Policy, writes: bool) -> Descriptor {
    let mut flags = Flags::empty();
    // Durable writes go to memory, whatever the policy says.
    let to_memory = d.flags().contains(Flags::DESTINATION_READBACK);
    if writes && policy.hint == Hint::Cache && limits.gen_cap.cache_control() && !to_memory {
        flags |= Flags::CACHE_CONTROL_1;
    }
    // Reserved for operations without buffers (SPEC Table 8-3).
    let has_buffers = !matches!(d.opcode(), Opcode::Nop | Opcode::Drain | Opcode::Batch | Opcode::UpdateWindow);
    if has_buffers && policy.on_fault == OnFault::Block && limits.block_on_fault {
        flags |= Flags::BLOCK_ON_FAULT;
    }
    d.and_flags(flags)
}
