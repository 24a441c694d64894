//! Decodes instructions from bytes. Pure: accesses no memory but the slice.

mod operand;
mod prefixes;
mod stores;

use operand::{Cursor, ModRm};
use prefixes::{Mandatory, Prefixes};

/// A decoded instruction that this crate can emulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Its length in bytes, 2 to 15.
    pub length: u8,
    /// Its operation.
    pub operation: Operation,
}

/// The operation of an instruction. Registers are numbered as the processor does: 0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5
/// rbp, 6 rsi, 7 rdi, 8 to 15 r8 to r15.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// MOVDIR64B: 64 bytes from memory to the address in a register.
    Movdir64b {
        /// The register with the destination's address.
        destination: Pointer,
        /// The 64 bytes.
        source: Memory,
    },
    /// ENQCMD, ENQCMDS.
    Enqcmd {
        /// ENQCMDS, which user programs may not execute.
        supervisor: bool,
        /// The register with the destination's address.
        destination: Pointer,
        /// The 64 bytes.
        source: Memory,
    },
    /// MOVDIRI: a direct store of 4 or 8 bytes.
    Movdiri {
        /// The destination.
        destination: Memory,
        /// The stored register.
        source: u8,
        /// 4 or 8.
        bytes: u8,
    },
    /// UMONITOR: arms the monitor on a line.
    Umonitor {
        /// The register with the address.
        address: Pointer,
    },
    /// UMWAIT.
    Umwait {
        /// Register with the control bits.
        control: u8,
    },
    /// TPAUSE.
    Tpause {
        /// Register with the control bits.
        control: u8,
    },
    /// A 64-byte vector store.
    Store64 {
        /// The destination.
        destination: Memory,
        /// zmm register, 0 to 31.
        source: u8,
        /// Mask register, 1 to 7; 0 for no mask.
        mask: u8,
        /// Number of elements that the mask selects from: 8, 16, 32 or 64.
        elements: u8,
    },
    /// Any shorter store. A portal drops it.
    Store {
        /// The destination.
        destination: Memory,
        /// The number of bytes.
        bytes: u8,
    },
    /// STOS or MOVS: stores at ES:rdi and advances the pointers. A portal drops the stored data.
    StringStore {
        /// True for MOVS, which advances rsi as well.
        moves: bool,
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// With a repeat prefix: decrements rcx.
        repeat: bool,
        /// With 67h: rcx, rsi and rdi have 32 bits.
        narrow: bool,
    },
}

/// A register that contains an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The register.
    pub register: u8,
    /// With 67h: only its low 32 bits are used.
    pub narrow: bool,
    /// The segment whose base is added. Destinations of MOVDIR64B and ENQCMD are in ES and have none.
    pub segment: Segment,
}

/// A memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The base, to which the displacement is added.
    pub base: Base,
    /// Index register and its scale as a power of two, if present.
    pub index: Option<(u8, u8)>,
    /// Signed displacement, already scaled if the encoding scales it.
    pub displacement: i64,
    /// The segment whose base is added to the sum.
    pub segment: Segment,
    /// With 67h: the sum, without the segment, has 32 bits.
    pub narrow: bool,
}

/// The base of a memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// None.
    Absent,
    /// A register.
    Register(u8),
    /// The address of the next instruction.
    NextInstruction,
}

/// The segments that have an effect in 64-bit mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// A base of zero.
    Flat,
    /// A base of zero, by the stack segment: an address that is not canonical raises #SS instead of #GP.
    Stack,
    /// FS.
    Fs,
    /// GS.
    Gs,
}

/// The length of the longest instruction.
pub const LONGEST: usize = 15;

/// Decodes the instruction at the start of `bytes`; `None` if this crate does not emulate it, or it is longer than
/// `bytes`.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Instruction> {
    let mut cursor = Cursor { bytes: &bytes[..bytes.len().min(LONGEST)], at: 0 };
    let prefixes = Prefixes::read(&mut cursor)?;
    let operation = match cursor.next()? {
        0x0f => match cursor.next()? {
            0x38 => match cursor.next()? {
                0xf8 => submission(prefixes, &mut cursor)?,
                0xf9 if prefixes.mandatory() == Mandatory::None => {
                    let modrm = ModRm::read(&mut cursor, prefixes)?;
                    let bytes = if prefixes.wide() { 8 } else { 4 };
                    Operation::Movdiri { destination: modrm.memory(&mut cursor, 1)?, source: modrm.register, bytes }
                }
                opcode => stores::movbe(opcode, prefixes, &mut cursor)?,
            },
            0xae => waiting(prefixes, &mut cursor)?,
            opcode => stores::legacy_0f(opcode, prefixes, &mut cursor)?,
        },
        first @ (0xc4 | 0xc5) if prefixes.allow_vector() => stores::vex(first, prefixes, &mut cursor)?,
        0x62 if prefixes.allow_vector() => stores::evex(prefixes, &mut cursor)?,
        opcode => stores::legacy(opcode, prefixes, &mut cursor)?,
    };
    // At most LONGEST, so it fits.
    Some(Instruction { length: cursor.at.try_into().ok()?, operation })
}

/// 0F 38 F8: MOVDIR64B, ENQCMD, ENQCMDS.
fn submission(prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    let modrm = ModRm::read(cursor, prefixes)?;
    let source = modrm.memory(cursor, 1)?;
    let destination = Pointer { register: modrm.register, narrow: prefixes.narrow, segment: Segment::Flat };
    match prefixes.mandatory() {
        Mandatory::Operand => Some(Operation::Movdir64b { destination, source }),
        Mandatory::Repne => Some(Operation::Enqcmd { supervisor: false, destination, source }),
        Mandatory::Rep => Some(Operation::Enqcmd { supervisor: true, destination, source }),
        Mandatory::None => None,
    }
}

/// 0F AE /6 with a register: UMONITOR, UMWAIT, TPAUSE.
fn waiting(prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    let modrm = ModRm::read(cursor, prefixes)?;
    if modrm.register & 7 != 6 {
        return None;
    }
    let register = modrm.direct()?;
    match prefixes.mandatory() {
        Mandatory::Operand => Some(Operation::Tpause { control: register }),
        Mandatory::Repne => Some(Operation::Umwait { control: register }),
        Mandatory::Rep => {
            let segment = prefixes.segment.unwrap_or(Segment::Flat);
            Some(Operation::Umonitor { address: Pointer { register, narrow: prefixes.narrow, segment } })
        }
        Mandatory::None => None,
    }
}
