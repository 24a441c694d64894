//! The outcomes of operations.

use telpher_abi::{ComputeResult, DifStatus};
pub use telpher_ops::dif::Tags;

/// The outcome of an operation that was carried out. A difference found or a tag that does not match is an outcome, not
/// an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Done: no-op, copy, fill, dualcast, apply delta, gather, scatter, flush, drain.
    Done,
    /// Compare, compare pattern: no difference.
    Equal,
    /// Compare, compare pattern: the first difference.
    Different {
        /// Offset of the first byte that differs. For a compare pattern at raw addresses a lower bound (SPEC §8.3.7).
        at: u64,
    },
    /// CRC, copy with CRC.
    Crc(u32),
    /// CRC of 64 bits, copy with such a CRC.
    Crc64(u64),
    /// Convert, reduce: what happened to any of the elements; empty if every result is exact or rounded.
    Computed(ComputeResult),
    /// Create delta.
    Delta(Delta),
    /// DIF check, insert, strip, update, DIX generate: every block was processed.
    Dif {
        /// Source tags the next block would have (check, strip, update).
        source: Tags,
        /// Destination tags the next block would have (insert, update, generate).
        dest: Tags,
    },
    /// DIF check, strip, update: a block's integrity field does not match; this block and the following ones were not
    /// processed.
    DifMismatch {
        /// Offset of the block in the source, in bytes.
        at: u64,
        /// What does not match.
        what: DifStatus,
    },
}

/// Result of create delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delta {
    /// The sources are equal; nothing was written.
    Identical,
    /// Every difference was recorded.
    Complete {
        /// Bytes of the delta record.
        bytes: u32,
    },
    /// The record is full; it must not be applied.
    Overflow {
        /// Bytes of the delta record.
        bytes: u32,
        /// Source bytes compared before the record was full.
        compared: u64,
    },
}

impl Outcome {
    /// Returns the checksum, if the operation computes one.
    #[must_use]
    pub fn crc(&self) -> Option<u32> {
        match self {
            Outcome::Crc(crc) => Some(*crc),
            _ => None,
        }
    }

    /// Returns the checksum of 64 bits, if the operation computes one.
    #[must_use]
    pub fn crc64(&self) -> Option<u64> {
        match self {
            Outcome::Crc64(crc) => Some(*crc),
            _ => None,
        }
    }

    /// Returns what happened to any of the elements, if the operation computes numbers.
    #[must_use]
    pub fn computed(&self) -> Option<ComputeResult> {
        match self {
            Outcome::Computed(seen) => Some(*seen),
            _ => None,
        }
    }

    /// Returns the offset of the first difference that a comparison found.
    #[must_use]
    pub fn difference(&self) -> Option<u64> {
        match self {
            Outcome::Different { at } => Some(*at),
            _ => None,
        }
    }

    /// Returns the outcome with offsets counted from `base` bytes earlier.
    pub(crate) fn shifted(self, base: u64) -> Outcome {
        match self {
            Outcome::Different { at } => Outcome::Different { at: at + base },
            Outcome::DifMismatch { at, what } => Outcome::DifMismatch { at: at + base, what },
            other => other,
        }
    }
}

/// Whether a device, the CPU or both did the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Via {
    /// The CPU alone.
    Cpu,
    /// A device alone.
    Device,
    /// A device began, the CPU finished.
    Both,
}
