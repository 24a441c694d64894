//! ModRM, SIB and displacement.

use super::cursor::Cursor;
use super::instruction::{Base, Memory, Segment};
use super::prefixes::Prefixes;

/// A ModRM byte whose register fields are extended by REX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ModRm {
    /// The register operand, or an extension of the opcode in its low three bits.
    pub(super) register: u8,
    mode: u8,
    rm: u8,
    prefixes: Prefixes,
}

impl ModRm {
    pub(super) fn read(cursor: &mut Cursor, prefixes: Prefixes) -> Option<Self> {
        let byte = cursor.next()?;
        let register = (byte >> 3 & 7) | (prefixes.rex & 4) << 1;
        Some(Self { register, mode: byte >> 6, rm: byte & 7, prefixes })
    }

    /// Returns the other operand if it is a register.
    pub(super) fn direct(self) -> Option<u8> {
        (self.mode == 3).then_some(self.rm | (self.prefixes.rex & 1) << 3)
    }

    /// Returns the other operand if it is memory. An 8-bit displacement counts in units of `unit`.
    pub(super) fn memory(self, cursor: &mut Cursor, unit: i64) -> Option<Memory> {
        let extended = |low: u8, bit: u8| low | (self.prefixes.rex >> bit & 1) << 3;
        let (base, index) = match (self.mode, self.rm) {
            (3, _) => return None,
            // A SIB byte follows.
            (mode, 4) => {
                let sib = cursor.next()?;
                let base = match sib & 7 {
                    5 if mode == 0 => Base::Absent,
                    low => Base::Register(extended(low, 0)),
                };
                let index = extended(sib >> 3 & 7, 1);
                // rsp cannot be an index.
                (base, (index != 4).then_some((index, sib >> 6)))
            }
            (0, 5) => (Base::NextInstruction, None),
            (_, low) => (Base::Register(extended(low, 0)), None),
        };
        let displacement = match self.mode {
            1 => i64::from(i8::from_le_bytes(cursor.take()?)) * unit,
            0 if !matches!(base, Base::Absent | Base::NextInstruction) => 0,
            _ => i64::from(i32::from_le_bytes(cursor.take()?)),
        };
        let segment = self.prefixes.segment.unwrap_or(match base {
            // rsp and rbp, but not r12 and r13.
            Base::Register(4 | 5) => Segment::Stack,
            _ => Segment::Flat,
        });
        Some(Memory { base, index, displacement, segment, narrow: self.prefixes.narrow })
    }
}
