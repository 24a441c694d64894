//! Move, fill, compare, dualcast, flush. Source: SPEC §8.3.4 to §8.3.7, §8.3.10, §8.3.16.

use super::{End, Ended, Pages, Scratch, Stop, index};
use crate::overlap::overlaps;
use telpher_abi::{CompletionRecord, OperandId};
use telpher_mem::{PAGE_BYTES, WriteHint};

/// Returns source or destination, by the direction of the access that faulted.
fn by_direction(stop: &Stop) -> OperandId {
    if stop.fault.write { OperandId::Destination1 } else { OperandId::Source1 }
}

#[inline]
pub(super) fn memory_move(
    pages: &mut Pages<'_>,
    src: u64,
    dst: u64,
    len: u64,
    backward: bool,
    hint: WriteHint,
) -> Ended {
    if backward {
        pages
            .retry(|space, done| space.move_backward(dst, src, len - done, hint))
            .map_err(|(done, stop)| stop.after(done, by_direction(&stop)).map_record(|record| record.with_result(1)))?;
    } else {
        pages
            .retry(|space, done| space.move_forward(dst.wrapping_add(done), src.wrapping_add(done), len - done, hint))
            .map_err(|(done, stop)| stop.after(done, by_direction(&stop)))?;
    }
    Ok(End::success())
}

pub(super) fn fill(pages: &mut Pages<'_>, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Ended {
    fill_part(pages, dst, pattern, len, hint).map_err(|(done, stop)| stop.after(done, OperandId::Destination1))?;
    Ok(End::success())
}

/// Fills one of several ranges; an error includes the bytes filled.
pub(super) fn fill_part(
    pages: &mut Pages<'_>,
    dst: u64,
    pattern: [u64; 2],
    len: u64,
    hint: WriteHint,
) -> Result<(), (u64, Stop)> {
    pages.retry(|space, done| space.fill(dst.wrapping_add(done), rotate(pattern, done), len - done, hint))
}

/// Rotates the pattern to continue after `done` bytes.
fn rotate(pattern: [u64; 2], done: u64) -> [u64; 2] {
    let whole = u128::from(pattern[0]) | u128::from(pattern[1]) << 64;
    // Cannot lose bits: below 128.
    #[allow(clippy::cast_possible_truncation, reason = "below 128, and the halves of a u128")]
    {
        let rotated = whole.rotate_right(8 * (done % 16) as u32);
        [rotated as u64, (rotated >> 64) as u64]
    }
}

/// Returns the record of a comparison: takes the offset of the first difference, if any, and the result to check
/// against.
#[must_use]
pub fn compared_record(difference: Option<u64>, expected: Option<u8>) -> CompletionRecord {
    let result = u8::from(difference.is_some());
    let as_expected = expected.is_none_or(|expected| expected == result);
    End::checked(result, as_expected).with_bytes_completed(difference.unwrap_or(0)).record
}

/// Ends a comparison, as [`compared_record`].
pub(super) fn compared(difference: Option<u64>, expected: Option<u8>) -> End {
    End { record: compared_record(difference, expected), operand: OperandId::Unknown }
}

pub(super) fn compare(pages: &mut Pages<'_>, src1: u64, src2: u64, len: u64, expected: Option<u8>) -> Ended {
    let mut difference = None;
    pages
        .retry(|space, done| {
            let found = space.compare(src1.wrapping_add(done), src2.wrapping_add(done), len - done)?;
            difference = found.map(|offset| done + offset);
            Ok(())
        })
        .map_err(|(done, stop)| {
            let first = overlaps(src1, len, stop.fault.address, 1);
            stop.after(done, if first { OperandId::Source1 } else { OperandId::Source2 })
        })?;
    Ok(compared(difference, expected))
}

pub(super) fn compare_pattern(pages: &mut Pages<'_>, src: u64, pattern: u64, len: u64, expected: Option<u8>) -> Ended {
    let mut difference = None;
    pages
        .retry(|space, done| {
            #[allow(clippy::cast_possible_truncation, reason = "below 64")]
            let rotated = pattern.rotate_right(8 * (done % 8) as u32);
            let found = space.compare_pattern(src.wrapping_add(done), rotated, len - done)?;
            difference = found.map(|offset| done + offset);
            Ok(())
        })
        .map_err(|(done, stop)| stop.after(done, OperandId::Source1))?;
    Ok(compared(difference, expected))
}

/// Both destinations must hold the same bytes at every stop. So it goes page by page of the destinations, whose page
/// offsets are equal, and checks that the second is writable before it writes the first.
pub(super) fn dualcast(
    pages: &mut Pages<'_>,
    scratch: &mut Scratch,
    src: u64,
    [dst1, dst2]: [u64; 2],
    len: u64,
    hint: WriteHint,
) -> Ended {
    let mut done = 0;
    while done < len {
        let rest_of_page = PAGE_BYTES - dst1.wrapping_add(done) % PAGE_BYTES;
        let piece = &mut scratch.a[..index(rest_of_page.min(len - done))];
        let (valid, source) = match pages.read(src.wrapping_add(done), piece) {
            Ok(()) => (piece.len(), None),
            Err((valid, stop)) => (valid, Some(stop)),
        };
        let piece = &piece[..valid];
        if !piece.is_empty() {
            let second = dst2.wrapping_add(done);
            probe_write(pages, second).map_err(|stop| stop.after(done, OperandId::Destination2))?;
            pages
                .write(dst1.wrapping_add(done), piece, hint)
                .map_err(|(_, stop)| stop.after(done, OperandId::Destination1))?;
            pages.write(second, piece, hint).map_err(|(_, stop)| stop.after(done, OperandId::Destination2))?;
        }
        done += valid as u64;
        if let Some(stop) = source {
            return Err(stop.after(done, OperandId::Source1));
        }
    }
    Ok(End::success())
}

/// Waits until a byte of a destination can be written. Writing back the byte just read is harmless: until the
/// descriptor completes, no other code may access its destinations.
pub(super) fn probe_write(pages: &mut Pages<'_>, address: u64) -> Result<(), Stop> {
    pages
        .retry(|space, _| {
            let mut byte = [0];
            let as_write = |fault: telpher_mem::Fault| telpher_mem::Fault { write: true, ..fault };
            space.read(address, &mut byte).map_err(as_write)?;
            space.write(address, &byte, WriteHint::Cache)
        })
        .map_err(|(_, stop)| stop)
}

pub(super) fn flush(pages: &mut Pages<'_>, address: u64, len: u64) -> Ended {
    pages
        .retry(|space, done| space.flush(address.wrapping_add(done), len - done))
        .map_err(|(done, stop)| stop.after(done, OperandId::Destination1))?;
    Ok(End::success())
}
