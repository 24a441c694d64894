//! Errors. One enum for each action, one sentence for each variant, values with units.

use std::sync::Arc;
use std::time::Duration;
use telpher_abi::{Opcode, Status};

/// Why a job ended without an outcome.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Two buffers, or a buffer and a range of it, do not fit together.
    #[error("lengths of {first} and {second} bytes do not fit together")]
    Lengths {
        /// Bytes of the first buffer, or needed.
        first: u64,
        /// Bytes of the other one, or of the end of the range.
        second: u64,
    },
    /// A buffer's length is not a multiple of the operation's unit.
    #[error("{op} works on multiples of {unit} bytes, the buffer has {len} bytes")]
    Unit {
        /// The operation.
        op: Opcode,
        /// Bytes of the buffer.
        len: u64,
        /// Bytes of the unit.
        unit: u64,
    },
    /// Longer than the operation can express.
    #[error("{op} takes at most {max} bytes, the buffer has {len} bytes")]
    TooLong {
        /// The operation.
        op: Opcode,
        /// Bytes of the buffer.
        len: u64,
        /// The operation's limit in bytes.
        max: u64,
    },
    /// Types or options that the operation does not have.
    #[error("{op} {why}")]
    Options {
        /// The operation.
        op: Opcode,
        /// What it cannot do.
        why: &'static str,
    },
    /// An entry of a list names a block that is not inside the memory.
    #[error("entry {entry} of the list names a block at offset {offset}, which ends outside the memory of {len} bytes")]
    Outside {
        /// Index of the entry.
        entry: u64,
        /// Offset of its block in the memory, in bytes.
        offset: u64,
        /// Bytes of the memory.
        len: u64,
    },
    /// A delta record that Create Delta Record cannot have written.
    #[error("the delta record is not valid from byte {at} on: {status}")]
    BadDelta {
        /// Offset in the delta record, in bytes.
        at: u64,
        /// What is wrong with it.
        status: Status,
    },
    /// The system refused the page ([`OnFault::Block`](crate::OnFault::Block)), or the mover must not touch the memory.
    #[error("page fault on a {} at {address:#x} after {done} bytes", if *.write { "write" } else { "read" })]
    Fault {
        /// What the device reported; hardware may clear the low 12 bits.
        address: u64,
        /// True if the access was a write.
        write: bool,
        /// Bytes of the job completed before, by any path.
        done: u64,
    },
    /// No queue had room within the retry policy, and the CPU may not do the work instead.
    #[error("every queue stayed full through {offers} offers")]
    QueueFull {
        /// Offers made.
        offers: u32,
    },
    /// The device refused or failed, and the CPU may not or cannot do the work instead.
    #[error("the device ended {op} with: {status}")]
    Refused {
        /// The operation.
        op: Opcode,
        /// Its answer.
        status: Status,
    },
    /// No queue offers the operation, and the CPU has no equivalent.
    #[error("no queue offers {op}, and it has no equivalent on the CPU")]
    Unsupported {
        /// The operation.
        op: Opcode,
    },
    /// The device's completion record contradicts its descriptor.
    #[error("the completion record of {op} contradicts its descriptor: status {status}, {completed} bytes completed")]
    Nonsense {
        /// The operation.
        op: Opcode,
        /// The record's status.
        status: Status,
        /// The record's bytes completed.
        completed: u32,
    },
    /// The queue stopped (halted, disabled, reset, or left behind by a fork) while it worked on something that may not
    /// be done twice: a move whose ranges overlap, or a raw descriptor. The content of the destination is not known.
    #[error("the queue stopped, and {op} cannot be done again elsewhere: {why}")]
    Stopped {
        /// The operation.
        op: Opcode,
        /// The portal's reason.
        why: Arc<str>,
    },
    /// A batch member behind a fence, abandoned because an earlier member did not succeed.
    #[error("abandoned at a fence because member {because} did not succeed")]
    Abandoned {
        /// Index of the first earlier member that did not succeed.
        because: usize,
    },
    /// The deadline passed before the device answered (a channel's operation; jobs have [`Expired`]).
    #[error("no answer within {after:?}; the buffers are kept until the device has written its record")]
    Deadline {
        /// The channel's limit.
        after: Duration,
    },
}

/// A job ended because its deadline passed.
///
/// Buffers that a device may still write are quarantined: the mover keeps them until the completion record appears,
/// then frees them. Buffers that no device has are given back.
#[derive(Debug, thiserror::Error)]
#[error("the deadline passed before the job was done; its buffers are {}",
    if .buffers.is_some() { "returned" } else { "quarantined" }
)]
pub struct Expired<B> {
    /// The buffers, if no device had them when the deadline passed.
    pub buffers: Option<B>,
}

/// Why a channel could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A capacity of 0, or one that cannot be addressed.
    #[error("a channel holds between 1 and {max} operations, and {asked} were requested")]
    Capacity {
        /// The capacity that was asked for.
        asked: u32,
        /// The limit.
        max: u32,
    },
}
