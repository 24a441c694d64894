//! Legacy prefixes, in any order, and REX.

use super::Segment;
use super::operand::Cursor;

/// What stands before the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Prefixes {
    /// 66h.
    pub(super) operand: bool,
    /// 67h.
    pub(super) narrow: bool,
    /// The last of F2h and F3h.
    pub(super) repeat: Option<u8>,
    /// The last of FS and GS. Those of the other segments do nothing in 64-bit mode, nor undo these.
    pub(super) segment: Option<Segment>,
    /// REX, or what VEX and EVEX say in its place: bits 0 to 3 are B, X, R, W.
    pub(super) rex: u8,
    /// There was a REX byte, which VEX and EVEX do not allow.
    has_rex: bool,
}

/// The prefix that chooses between instructions of one opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mandatory {
    /// None of them.
    None,
    /// 66h, without the two others.
    Operand,
    /// F3h.
    Rep,
    /// F2h.
    Repne,
}

impl Prefixes {
    /// Reads up to the opcode. `None` where the bytes end, and after LOCK, which none of our instructions bears.
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
                    // Only the one directly before the opcode counts.
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

    /// F2h and F3h come before 66h.
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

    /// Bytes of an operand of the size that REX.W and 66h choose.
    pub(super) fn operand_bytes(self) -> u8 {
        match (self.wide(), self.operand) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 4,
        }
    }

    /// VEX and EVEX stand alone with prefixes of address size and segment.
    pub(super) fn allow_vector(self) -> bool {
        !self.operand && self.repeat.is_none() && !self.has_rex
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}
