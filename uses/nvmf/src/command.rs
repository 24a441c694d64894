//! Commands and completions: byte layouts and the numbers in them.
//!
//! Source: NVMe Base 2.0 §3.3.3, NVM Command Set 1.0 §3, NVMe over Fabrics 1.1 §3.

use crate::status::Status;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The opcode of all Fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// Types of Fabrics commands (byte 4 of the command).
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Opcodes of admin commands.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const EVENT_REQUEST: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of I/O commands.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// PSDT in the second byte of a command: the data is described by an SGL.
pub const USES_SGL: u8 = 0x40;
/// Bits of the second byte of a command that say whether it is fused.
pub const FUSED: u8 = 0x03;
/// The value of these bits for the first command of a fused pair.
pub const FUSED_FIRST: u8 = 0x01;
/// The value of these bits for the second command of a fused pair.
pub const FUSED_SECOND: u8 = 0x02;

/// Identifier of an SGL descriptor: a data block at an offset in the capsule.
pub const SGL_IN_CAPSULE: u8 = 0x01;
/// Identifier of an SGL descriptor: the transport moves the data.
pub const SGL_TRANSPORT: u8 = 0x5a;

/// A submission queue entry (SQE).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Submission {
    /// The opcode.
    pub opcode: u8,
    /// FUSE (bits 1:0) and PSDT (bits 7:6).
    pub flags: u8,
    /// The command's identifier.
    pub cid: U16,
    /// The namespace's identifier; of a Fabrics command, byte 0 is its type.
    pub nsid: U32,
    /// Command dwords 2 to 5.
    pub reserved: [U32; 4],
    /// The address of the SGL descriptor.
    pub sgl_address: U64,
    /// The length of the SGL descriptor: the bytes of the command's data.
    pub sgl_length: U32,
    /// Reserved bytes of the SGL descriptor.
    pub sgl_reserved: [u8; 3],
    /// The identifier of the SGL descriptor.
    pub sgl_kind: u8,
    /// Command dwords 10 to 15.
    pub dwords: [U32; 6],
}

const _: () = assert!(size_of::<Submission>() == 64 && size_of::<Completion>() == 16);

/// Which way a command's data goes. Source: NVMe Base 2.0 §3.3.3.1: the lowest two bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// No data.
    None,
    /// To the controller.
    ToController,
    /// To the host.
    ToHost,
    /// Both; no command that is served does so.
    Both,
}

impl Submission {
    /// A command without data.
    #[must_use]
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Submission {
        Submission {
            opcode,
            flags: USES_SGL,
            cid: U16::new(cid),
            nsid: U32::new(nsid),
            reserved: [U32::ZERO; 4],
            sgl_address: U64::ZERO,
            sgl_length: U32::ZERO,
            sgl_reserved: [0; 3],
            sgl_kind: SGL_TRANSPORT,
            dwords: [U32::ZERO; 6],
        }
    }

    /// A Fabrics command without data.
    #[must_use]
    pub fn fabrics(kind: u8, cid: u16) -> Submission {
        Submission::new(FABRICS, cid, kind.into())
    }

    /// The type of a Fabrics command.
    #[must_use]
    pub fn fabrics_kind(&self) -> u8 {
        self.nsid.as_bytes()[0]
    }

    /// Command dword `number`, from 10 to 15.
    ///
    /// # Panics
    /// For any other number.
    #[must_use]
    pub fn dword(&self, number: usize) -> u32 {
        self.dwords[number - 10].get()
    }

    /// Sets command dword `number`, from 10 to 15.
    ///
    /// # Panics
    /// For any other number.
    pub fn set_dword(&mut self, number: usize, value: u32) {
        self.dwords[number - 10] = U32::new(value);
    }

    /// Command dwords `number` and `number + 1` as one number.
    #[must_use]
    pub fn long(&self, number: usize) -> u64 {
        u64::from(self.dword(number)) | u64::from(self.dword(number + 1)) << 32
    }

    /// Sets command dwords `number` and `number + 1`.
    pub fn set_long(&mut self, number: usize, value: u64) {
        let [low, high] = halves(value);
        self.set_dword(number, low);
        self.set_dword(number + 1, high);
    }

    /// Which way the command's data goes.
    #[must_use]
    pub fn direction(&self) -> Direction {
        let byte = if self.opcode == FABRICS { self.fabrics_kind() } else { self.opcode };
        match byte & 3 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }
}

/// The low and the high half of a number.
#[must_use]
pub fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// A completion queue entry (CQE).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// The result of the command, dwords 0 and 1.
    pub result: U64,
    /// SQHD: the head of the submission queue.
    pub sq_head: U16,
    /// SQID; reserved in fabrics.
    pub sq_id: U16,
    /// The command's identifier.
    pub cid: U16,
    /// The status word.
    pub status: U16,
}

impl Completion {
    /// The command's status.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }
}
