//! Decodes instructions from bytes. Pure: accesses no memory but the slice.

mod cursor;
mod instruction;
mod operand;
mod prefixes;
mod stores;

pub use instruction::{Base, Instruction, Memory, Operation, Pointer, Segment};

use cursor::Cursor;
use operand::ModRm;
use prefixes::{Mandatory, Prefixes};

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
