//! The data layouts of the Data Streaming Accelerator (DSA), versions 1.x to 3.0: 64-byte descriptors, 32-byte
//! completion records, opcodes, flags, status codes, capability and configuration registers, commands and their errors.
//!
//! ```text
//! Descriptor ──opcode()──► Opcode          CompletionRecord ──status()──► Status
//!            ──flags()───► Flags                            ──bytes_completed()
//!            ──src(), dst(), size(), …                      ──crc(), delta_record_size(), …
//! registers: GenCap WqCap GrpCap EngCap OpCap … WqCfg GrpCfg … Command CmdStatus SwError EventLogEntry
//! ```
//!
//! Layout only: no input or output, no unsafe code, no allocation. Input may be hostile: every bit pattern can be
//! decoded (`Unknown(u8)` variants), so nothing here panics.
//!
//! Citations use short tags: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order
//! 341204-006US, revision 3.0 (June 2025); **UAPI** is Linux `include/uapi/linux/idxd.h` (6.12); **K612** is Linux 6.12
//! `drivers/dma/idxd`. All multi-byte fields are little-endian, except DIF tags inside data buffers (big-endian).
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod word;

mod descriptor;
mod dif;
mod event_log;
mod flags;
mod numeric;
mod opcode;
pub mod perfmon;
mod queue_answer;
mod record;
pub mod registers;
mod status;

pub use descriptor::Descriptor;
pub use dif::{DIF_TUPLE_BYTES, DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
pub use event_log::{EventLogEntry, SwError};
pub use flags::{Flags, OpFlags, WindowFlags};
pub use numeric::{ComputeFlags, ComputeResult, ComputeType, DataType, Rounding, SglFormat};
pub use opcode::Opcode;
pub use queue_answer::Offer;
pub use record::{CompletionRecord, DifStatus, OperandId};
pub use status::{DeviceError, Status, StatusByte};

/// Largest transfer of the delta operations, in bytes (0x80000: a 16-bit offset in units of 8 bytes).
/// Source: SPEC §8.3.8.
pub const MAX_DELTA_TRANSFER: u32 = 0x8_0000;
/// One delta entry: a 16-bit offset in units of 8 bytes, then 8 bytes of data. Source: SPEC §8.3.8.
pub const DELTA_ENTRY_BYTES: u32 = 10;
/// Smallest legal "maximum delta record size" of Create Delta Record, in bytes. Source: SPEC §8.3.8.
pub const MIN_MAX_DELTA_RECORD: u32 = 80;
/// Bytes a descriptor occupies in a portal or a batch list. Source: SPEC §8.1.
pub const DESCRIPTOR_BYTES: u64 = 64;
/// Bytes a completion record occupies; also its alignment. Source: SPEC §8.2.
pub const COMPLETION_RECORD_BYTES: u64 = 32;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
