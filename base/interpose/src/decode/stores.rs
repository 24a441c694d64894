//! Plain stores: 64-byte stores, which a portal accepts like MOVDIR64B, and shorter stores, which it drops.

use super::cursor::Cursor;
use super::instruction::{Base, Memory, Operation, Segment};
use super::operand::ModRm;
use super::prefixes::{Mandatory, Prefixes};

fn store(prefixes: Prefixes, cursor: &mut Cursor, bytes: u8) -> Option<Operation> {
    let destination = ModRm::read(cursor, prefixes)?.memory(cursor, 1)?;
    Some(Operation::Store { destination, bytes })
}

/// One-byte opcodes: MOV, STOS, MOVS.
pub(super) fn legacy(opcode: u8, prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    let bytes = if opcode & 1 == 0 { 1 } else { prefixes.operand_bytes() };
    match opcode {
        0x88 | 0x89 => store(prefixes, cursor, bytes),
        0xc6 | 0xc7 => {
            let modrm = ModRm::read(cursor, prefixes)?;
            if modrm.register & 7 != 0 {
                return None;
            }
            let destination = modrm.memory(cursor, 1)?;
            // Immediates have no 64-bit form.
            match bytes {
                1 => cursor.take::<1>().map(|_| ())?,
                2 => cursor.take::<2>().map(|_| ())?,
                _ => cursor.take::<4>().map(|_| ())?,
            }
            Some(Operation::Store { destination, bytes })
        }
        0xa2 | 0xa3 => {
            let displacement = if prefixes.narrow {
                i64::from(u32::from_le_bytes(cursor.take()?))
            } else {
                i64::from_le_bytes(cursor.take()?)
            };
            let segment = prefixes.segment.unwrap_or(Segment::Flat);
            let destination =
                Memory { base: Base::Absent, index: None, displacement, segment, narrow: prefixes.narrow };
            Some(Operation::Store { destination, bytes })
        }
        0xa4 | 0xa5 | 0xaa | 0xab => Some(Operation::StringStore {
            moves: opcode < 0xaa,
            bytes,
            repeat: prefixes.repeat.is_some(),
            narrow: prefixes.narrow,
        }),
        _ => None,
    }
}

/// 0F opcodes: MMX and SSE, MOVNTI.
pub(super) fn legacy_0f(opcode: u8, prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    use Mandatory::{None as Plain, Operand, Rep, Repne};
    let wide = if prefixes.wide() { 8 } else { 4 };
    let bytes = match (opcode, prefixes.mandatory()) {
        (0x11 | 0x29 | 0x2b, Plain | Operand) | (0x7f, Operand | Rep) | (0xe7, Operand) => 16,
        // 2B with F3 and F2: AMD's MOVNTSS and MOVNTSD.
        (0x11 | 0x2b, Rep) => 4,
        (0x11 | 0x2b, Repne) | (0x13 | 0x17, Plain | Operand) | (0x7f | 0xe7, Plain) | (0xd6, Operand) => 8,
        (0x7e, Plain | Operand) | (0xc3, Plain) => wide,
        _ => return None,
    };
    store(prefixes, cursor, bytes)
}

/// 0F 38 opcodes: MOVBE.
pub(super) fn movbe(opcode: u8, prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    match (opcode, prefixes.repeat) {
        (0xf1, None) => store(prefixes, cursor, prefixes.operand_bytes()),
        _ => None,
    }
}

/// Returns the prefix that the two `pp` bits of VEX and EVEX represent.
fn implied(bits: u8) -> Mandatory {
    match bits & 3 {
        0 => Mandatory::None,
        1 => Mandatory::Operand,
        2 => Mandatory::Rep,
        _ => Mandatory::Repne,
    }
}

/// VEX: AVX and AVX2.
pub(super) fn vex(first: u8, mut prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    use Mandatory::{None as Plain, Operand, Rep, Repne};
    let (map, last) = if first == 0xc5 {
        let last = cursor.next()?;
        prefixes.rex = (!last >> 7) << 2;
        (1, last & 0x7f)
    } else {
        let second = cursor.next()?;
        let last = cursor.next()?;
        prefixes.rex = !second >> 5 | (last >> 7) << 3;
        (second & 0x1f, last)
    };
    // Stores have no third operand.
    if last & 0x78 != 0x78 {
        return None;
    }
    let long = last & 4 != 0;
    let whole = if long { 32 } else { 16 };
    let opcode = cursor.next()?;
    let (bytes, immediate) = match (map, opcode, implied(last)) {
        (1, 0x11 | 0x29 | 0x2b, Plain | Operand) | (1, 0x7f, Operand | Rep) | (1, 0xe7, Operand) => (whole, false),
        (1, 0x11, Rep) => (4, false),
        (1, 0x11, Repne) => (8, false),
        (1, 0x13 | 0x17, Plain | Operand) | (1, 0xd6, Operand) if !long => (8, false),
        (1, 0x7e, Operand) if !long => (if prefixes.wide() { 8 } else { 4 }, false),
        // VEXTRACTF128, VEXTRACTI128.
        (3, 0x19 | 0x39, Operand) if long && !prefixes.wide() => (16, true),
        _ => return None,
    };
    let operation = store(prefixes, cursor, bytes)?;
    if immediate {
        cursor.next()?;
    }
    Some(operation)
}

/// EVEX: AVX-512.
pub(super) fn evex(mut prefixes: Prefixes, cursor: &mut Cursor) -> Option<Operation> {
    use Mandatory::{None as Plain, Operand, Rep, Repne};
    let [p0, p1, p2] = cursor.take()?;
    prefixes.rex = !p0 >> 5 | (p1 >> 7) << 3;
    // Map 1; the fixed bits; no third operand; neither zeroing nor broadcast, which stores do not have.
    if p0 & 0x0f != 1 || p1 & 0x7c != 0x7c || p2 & 0x98 != 0x08 {
        return None;
    }
    let (wide, mask) = (prefixes.wide(), p2 & 7);
    let whole: u8 = match p2 >> 5 & 3 {
        0 => 16,
        1 => 32,
        2 => 64,
        _ => return None,
    };
    let opcode = cursor.next()?;
    let words = if wide { 8 } else { 4 };
    // Bytes stored, and bytes of the elements that the mask selects from, if a mask is allowed.
    let (bytes, element) = match (opcode, implied(p1)) {
        (0x11 | 0x29, Plain) if !wide => (whole, Some(4)),
        (0x11 | 0x29, Operand) if wide => (whole, Some(8)),
        (0x7f, Operand | Rep) => (whole, Some(words)),
        (0x7f, Repne) => (whole, Some(if wide { 2 } else { 1 })),
        (0x2b, Plain) | (0xe7, Operand) if !wide => (whole, None),
        (0x2b, Operand) if wide => (whole, None),
        (0x11, Rep) if !wide => (4, Some(4)),
        (0x11, Repne) if wide => (8, Some(8)),
        (0x13 | 0x17, Plain) if !wide && whole == 16 => (8, None),
        (0x13 | 0x17 | 0xd6, Operand) if wide && whole == 16 => (8, None),
        (0x7e, Operand) if whole == 16 => (words, None),
        _ => return None,
    };
    if mask != 0 && element.is_none() {
        return None;
    }
    let modrm = ModRm::read(cursor, prefixes)?;
    let destination = modrm.memory(cursor, i64::from(bytes))?;
    if bytes < 64 {
        return Some(Operation::Store { destination, bytes });
    }
    // R' is the fifth bit of the register, inverted.
    let source = modrm.register | (!p0 & 0x10);
    Some(Operation::Store64 { destination, source, mask, elements: 64 / element.unwrap_or(8) })
}
