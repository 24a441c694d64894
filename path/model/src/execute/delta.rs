//! Create and Apply Delta Record. Source: SPEC §8.3.8, §8.3.9.

use super::{End, Ended, Pages, Scratch, index};
use telpher_abi::{DELTA_ENTRY_BYTES, OperandId, Status};
use telpher_mem::WriteHint;
use telpher_ops::delta::{ApplyErrorKind, OffsetOrder, checked_entries};

const ENTRY: u64 = DELTA_ENTRY_BYTES as u64;
/// Bytes of each source compared at a time. Their differences, 10 bytes for 8, fit the second buffer beside them.
const CHUNK_BYTES: u64 = 4096;

/// Result byte of Create Delta Record.
const EQUAL: u8 = 0;
const COMPLETE: u8 = 1;
const OVERFLOW: u8 = 2;

pub(super) fn create(
    pages: &mut Pages<'_>,
    scratch: &mut Scratch,
    [src1, src2]: [u64; 2],
    len: u64,
    (record, room): (u64, u64),
    expected_mask: Option<u8>,
) -> Ended {
    let (mut done, mut written) = (0, 0);
    let (left, right) = scratch.a.split_at_mut(index(CHUNK_BYTES));
    let entries = &mut scratch.b;
    while done < len {
        let piece = index((len - done).min(CHUNK_BYTES));
        let (first, second) = (&mut left[..piece], &mut right[..piece]);
        let (mut valid, mut stopped) = (piece, None);
        for (at, buffer, operand) in [(src1, &mut *first, OperandId::Source1), (src2, &mut *second, OperandId::Source2)]
        {
            if let Err((read, stop)) = pages.read(at.wrapping_add(done), &mut buffer[..valid]) {
                // Only whole units of 8 bytes count; the source that stops earlier decides.
                valid = read / 8 * 8;
                stopped = Some((stop, operand));
            }
        }
        let space = index((room - written).min(entries.len() as u64) / ENTRY * ENTRY);
        // Cannot lose bits: a delta transfer has at most 0x80000 bytes.
        let base = u32::try_from(done).unwrap_or(u32::MAX);
        let made = telpher_ops::delta::create(&first[..valid], &second[..valid], base, &mut entries[..space]);
        let produced = &entries[..made.record_bytes];
        if let Err((stored, stop)) = pages.write(record.wrapping_add(written), produced, WriteHint::Cache) {
            // The first entry that was not stored completely shows how far the comparison counts.
            let whole = stored as u64 / ENTRY * ENTRY;
            let lost = &produced[index(whole)..];
            let compared = u64::from(u16::from_le_bytes([lost[0], lost[1]])) * 8;
            return Err(partial(stop.after(compared, OperandId::Destination1), written + whole));
        }
        written += made.record_bytes as u64;
        done += made.bytes_compared as u64;
        if made.overflow {
            return Ok(finished(OVERFLOW, expected_mask, written).with_bytes_completed(done));
        }
        if let Some((stop, operand)) = stopped {
            return Err(partial(stop.after(done, operand), written));
        }
    }
    Ok(finished(if written == 0 { EQUAL } else { COMPLETE }, expected_mask, written))
}

fn finished(result: u8, expected_mask: Option<u8>, written: u64) -> End {
    End::checked(result, expected_mask.is_none_or(|mask| mask >> result & 1 == 1))
        .map_record(|record| record.with_delta_record_size(super::count(written)))
}

fn partial(end: End, written: u64) -> End {
    let result = if written == 0 { EQUAL } else { COMPLETE };
    end.map_record(|record| record.with_result(result).with_delta_record_size(super::count(written)))
}

pub(super) fn apply(
    pages: &mut Pages<'_>,
    scratch: &mut Scratch,
    (record, record_len): (u64, u64),
    (dst, len): (u64, u64),
    order: OffsetOrder,
) -> Ended {
    let whole = record_len / ENTRY * ENTRY;
    let (mut done, mut previous) = (0, None);
    while done < whole {
        let piece = (whole - done).min(CHUNK_BYTES / ENTRY * ENTRY);
        let buffer = &mut scratch.a[..index(piece)];
        let (valid, stopped) = match pages.read(record.wrapping_add(done), buffer) {
            Ok(()) => (buffer.len(), None),
            Err((read, stop)) => (read, Some(stop)),
        };
        for entry in checked_entries(&buffer[..valid], index(len), previous, order) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let status = match error.kind {
                        ApplyErrorKind::Order => Status::DeltaOffsetOrder,
                        ApplyErrorKind::Range => Status::DeltaOffsetRange,
                    };
                    return Ok(End::of(status).with_bytes_completed(done));
                }
            };
            let at = dst.wrapping_add(entry.offset_bytes.into());
            pages
                .write(at, &entry.data, WriteHint::Cache)
                .map_err(|(_, stop)| stop.after(done, OperandId::Destination1))?;
            previous = Some(entry.offset_bytes);
            done += ENTRY;
        }
        if let Some(stop) = stopped {
            return Err(stop.after(done, OperandId::Source1));
        }
    }
    Ok(End::success())
}
