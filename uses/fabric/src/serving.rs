//! The receiver's half of accesses: does what an entry asks in the memory of this process.
//!
//! The table of regions checks key, range and permission before any byte is copied. The CPU copies, since a region may
//! be closed at any time, and a device could still write its memory then.

use crate::atomics::{self, AtomicOp};
use crate::copier::Copier;
use crate::entry::{AccessPiece, AtomicEntry};
use crate::incoming::Payload;
use crate::regions::{AccessError, Permissions, Regions, RemoteRange};
use telpher_mem::Fault;

const TO_READ: Permissions = Permissions { read: true, write: false };
const TO_WRITE: Permissions = Permissions { read: false, write: true };

/// A region's memory cannot be accessed. Pages that the connection has lost do not fault.
fn not_mapped(_: Fault) -> AccessError {
    AccessError::NotMapped
}

/// Writes the bytes of an entry.
pub(crate) fn write(
    regions: &Regions,
    copier: &Copier,
    range: &RemoteRange,
    payload: &Payload,
) -> Result<(), AccessError> {
    regions.access(range, TO_WRITE, |memory, offset| {
        let copied = match payload {
            Payload::Inline(bytes) => copier.scatter_at(bytes, memory, offset, range.len),
            Payload::Shared { address, .. } => copier.copy_out_at(*address, memory, offset, range.len),
        };
        copied.map_err(not_mapped)
    })
}

/// Writes the bytes of a slot.
pub(crate) fn write_piece(
    regions: &Regions,
    copier: &Copier,
    piece: &AccessPiece,
    slot: u64,
) -> Result<(), AccessError> {
    regions.access(&piece.range, TO_WRITE, |memory, offset| {
        copier.copy_out_at(slot, memory, offset + piece.offset, piece.len.into()).map_err(not_mapped)
    })
}

/// Reads bytes into a slot.
pub(crate) fn read_piece(
    regions: &Regions,
    copier: &Copier,
    piece: &AccessPiece,
    slot: u64,
) -> Result<(), AccessError> {
    regions.access(&piece.range, TO_READ, |memory, offset| {
        copier.copy_in_from(slot, memory, offset + piece.offset, piece.len.into()).map_err(not_mapped)
    })
}

/// Does an atomic operation, and puts the elements as they were before into a slot if there is one.
pub(crate) fn atomic(
    regions: &Regions,
    copier: &Copier,
    entry: &AtomicEntry,
    payload: &Payload,
    slot: Option<u64>,
) -> Result<(), AccessError> {
    let shared: Vec<u8>;
    let operands = match payload {
        Payload::Inline(bytes) => {
            let len = entry.atomic.operand_bytes(entry.range.len);
            bytes.get(..usize::try_from(len).expect("at most 24")).unwrap_or_default()
        }
        Payload::Shared { address, len } => {
            let mut bytes = vec![0; *len as usize];
            copier.read(*address, &mut bytes).map_err(not_mapped)?;
            shared = bytes;
            &shared[..]
        }
    };
    let needs = Permissions { read: slot.is_some(), write: entry.atomic.op != AtomicOp::Read };
    regions.access(&entry.range, needs, |memory, offset| {
        // An element must be in one segment; it is enough that all are.
        let Some((address, _)) = memory.pieces(offset, entry.range.len).find(|(_, part)| *part == entry.range.len)
        else {
            return Err(AccessError::OutOfRange);
        };
        let len = usize::try_from(entry.range.len).expect("checked by the decoder");
        let before = atomics::execute(copier.local(), entry.atomic, address, len, operands)?;
        slot.map_or(Ok(()), |slot| copier.write(slot, &before).map_err(not_mapped))
    })
}
