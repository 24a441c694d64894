//! The receiver's half of accesses: does what an entry asks in the memory of this process.
//!
//! The table of regions checks key, range and permission before any byte is copied. The CPU copies, since a region may
//! be closed at any time, and a device could still write its memory then.

use crate::copier::Copier;
use crate::entry::AccessPiece;
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
