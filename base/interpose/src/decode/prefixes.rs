//! Legacy prefixes, in any order, and REX.

use super::cursor::Cursor;
use super::instruction::Segment;

/// The prefixes before the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Prefixes {
    /// 66h.
    pub(super) operand: bool,
    /// 67h.
    pub(super) narrow: bool,
    /// The last of F2h and F3h.
    pub(super) repeat: Option<u8>,
    /// The last of FS and GS. Prefixes of the other segments have no effect in 64-bit mode, and do not undo these.
    pub(super) segment: Option<Segment>,
    /// REX, or the corresponding bits of VEX and EVEX: bits 0 to 3 are B, X, R, W.
    pub(super) rex: u8,
    /// True if there was a REX byte, which VEX and EVEX do not allow.
    has_rex: bool,
}

/// The prefix that selects between instructions with the same opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mandatory {
    /// None of them.
    None,
    /// 66h, without the other two.
    Operand,
    /// F3h.
    Rep,
    /// F2h.
    Repne,
}

impl Prefixes {
    /// Reads up to the opcode. Returns `None` at the end of the bytes, and after LOCK, which none of our instructions
    /// allows.
    pub(super) fn read(cursor: &mut Cursor) -> Option<Self> {
        let mut found = Self::default();
        loop {
            let byte = cursor.peek()?;
            match byte {
                0x66 => found.operand = true,
                0x67 => found.narrow = true,
                0xf2 | 0xf3 => found.repeat = Some(byte),
                0x64 => found.segment = Some(Segment::Fs),
                0x65 => found.segment = Some(Segment::Gs),
                0x26 | 0x2e | 0x36 | 0x3e => {}
                0x40..=0x4f => {
                    // Only a REX directly before the opcode counts.
                    cursor.next()?;
                    found.rex = byte & 0xf;
                    found.has_rex = true;
                    if !is_prefix(cursor.peek()?) {
                        return Some(found);
                    }
                    found.rex = 0;
                    found.has_rex = false;
                    continue;
                }
                0xf0 => return None,
                _ => return Some(found),
            }
            cursor.next()?;
        }
    }

    /// F2h and F3h take precedence over 66h.
    pub(super) fn mandatory(self) -> Mandatory {
        match self.repeat {
            Some(0xf3) => Mandatory::Rep,
            Some(_) => Mandatory::Repne,
            None if self.operand => Mandatory::Operand,
            None => Mandatory::None,
        }
    }

    /// REX.W.
    pub(super) fn wide(self) -> bool {
        self.rex & 8 != 0
    }

    /// Returns the operand size in bytes that REX.W and 66h select.
    pub(super) fn operand_bytes(self) -> u8 {
        match (self.wide(), self.operand) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 4,
        }
    }

    /// True if VEX and EVEX may follow: they allow only prefixes of address size and segment.
    pub(super) fn allow_vector(self) -> bool {
        !self.operand && self.repeat.is_none() && !self.has_rex
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}
