//! The checks of a descriptor before it goes anywhere, in the original's order: the same on every path.

use crate::job::MIN_BATCH;
use crate::status::DmlStatus;
use crate::strict::strict;
use telpher_abi::{DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, Descriptor, DifBlock, MAX_DELTA_TRANSFER, Opcode};
use telpher_model::overlaps;

/// The smallest record that Create Delta may write to. Source: D111; SPEC §8.3.8.
const MIN_DELTA_RECORD: u32 = 80;

/// Checks a descriptor.
///
/// # Errors
/// The first rule that it breaks.
#[inline]
pub(crate) fn validate(d: &Descriptor) -> Result<(), DmlStatus> {
    let (src, dst, size) = (d.src(), d.dst(), d.size());
    match d.opcode() {
        Opcode::Nop | Opcode::Drain => Ok(()),
        Opcode::Batch => {
            not_null(&[src])?;
            refuse(size < MIN_BATCH, DmlStatus::BATCH_SIZE_ERROR)
        }
        Opcode::MemoryMove | Opcode::Compare => {
            not_null(&[src, dst])?;
            not_empty(&[size])
        }
        Opcode::Fill | Opcode::CacheFlush => {
            not_null(&[dst])?;
            not_empty(&[size])
        }
        Opcode::ComparePattern | Opcode::CrcGeneration => {
            not_null(&[src])?;
            not_empty(&[size])
        }
        Opcode::CopyCrc => {
            not_null(&[src, dst])?;
            not_empty(&[size])?;
            apart((src, size), (dst, size))
        }
        Opcode::Dualcast => dualcast(d),
        Opcode::CreateDelta => create_delta(d),
        Opcode::ApplyDelta => apply_delta(d),
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => dif(d),
        _ => Err(DmlStatus::JOB_OPERATION_ERROR),
    }
}

#[inline]
fn refuse(wrong: bool, status: DmlStatus) -> Result<(), DmlStatus> {
    if wrong { Err(status) } else { Ok(()) }
}

#[inline]
fn not_null(addresses: &[u64]) -> Result<(), DmlStatus> {
    refuse(addresses.contains(&0), DmlStatus::NULL_POINTER_ERROR)
}

#[inline]
fn not_empty(sizes: &[u32]) -> Result<(), DmlStatus> {
    refuse(sizes.contains(&0), DmlStatus::JOB_LENGTH_ERROR)
}

fn apart((a, a_len): (u64, u32), (b, b_len): (u64, u32)) -> Result<(), DmlStatus> {
    refuse(overlaps(a, a_len.into(), b, b_len.into()), DmlStatus::OVERLAPPING_BUFFER_ERROR)
}

fn delta_addresses(addresses: &[u64]) -> Result<(), DmlStatus> {
    refuse(!addresses.iter().all(|address| address.is_multiple_of(8)), DmlStatus::DELTA_ALIGN_ERROR)
}

fn delta_size(size: u32) -> Result<(), DmlStatus> {
    refuse(!size.is_multiple_of(8) || size > MAX_DELTA_TRANSFER, DmlStatus::DELTA_INPUT_SIZE_ERROR)
}

fn dualcast(d: &Descriptor) -> Result<(), DmlStatus> {
    let (src, dst1, dst2, size) = (d.src(), d.dst(), d.dst2(), d.size());
    not_null(&[src, dst1, dst2])?;
    not_empty(&[size])?;
    refuse((dst1 ^ dst2) & 0xfff != 0, DmlStatus::DUALCAST_ALIGN_ERROR)?;
    apart((src, size), (dst1, size))?;
    apart((src, size), (dst2, size))?;
    apart((dst1, size), (dst2, size))
}

fn create_delta(d: &Descriptor) -> Result<(), DmlStatus> {
    let (src1, src2, record) = (d.src(), d.dst(), d.delta_address());
    let (size, room) = (d.size(), d.max_delta_size());
    not_null(&[src1, src2, record])?;
    not_empty(&[size, room])?;
    delta_addresses(&[src1, src2, record])?;
    delta_size(size)?;
    let wrong = !room.is_multiple_of(DELTA_ENTRY_BYTES) || room < MIN_DELTA_RECORD;
    refuse(wrong, DmlStatus::DELTA_RECORD_SIZE_ERROR)
}

fn apply_delta(d: &Descriptor) -> Result<(), DmlStatus> {
    let (record, record_len, dst, size) = (d.src(), d.delta_record_size(), d.dst(), d.size());
    not_null(&[dst, record])?;
    not_empty(&[size, record_len])?;
    apart((record, record_len), (dst, size))?;
    delta_addresses(&[dst, record])?;
    delta_size(size)?;
    refuse(!record_len.is_multiple_of(DELTA_ENTRY_BYTES), DmlStatus::DELTA_RECORD_SIZE_ERROR)
}

fn dif(d: &Descriptor) -> Result<(), DmlStatus> {
    let (src, dst, size, opcode) = (d.src(), d.dst(), d.size(), d.opcode());
    let block = DifBlock::from_code(d.dif_flags()).bytes();
    let source_block = if opcode == Opcode::DifInsert { block } else { block + DIF_TUPLE_BYTES };
    // A check has no destination.
    not_null(&[src, if opcode == Opcode::DifCheck { src } else { dst }])?;
    not_empty(&[size])?;
    refuse(!size.is_multiple_of(source_block), DmlStatus::JOB_LENGTH_ERROR)?;
    let tuples = u64::from(size / source_block * DIF_TUPLE_BYTES);
    let written = match opcode {
        Opcode::DifCheck => return Ok(()),
        // The original divides the source's size by the block size without the tuple.
        Opcode::DifStrip if strict() => u64::from(size - size / block * DIF_TUPLE_BYTES),
        Opcode::DifStrip => u64::from(size) - tuples,
        Opcode::DifInsert => u64::from(size) + tuples,
        _ => size.into(),
    };
    refuse(overlaps(src, size.into(), dst, written), DmlStatus::OVERLAPPING_BUFFER_ERROR)?;
    // Early devices read too far where the destination ends just below the source.
    let (end, far) = (dst.saturating_add(written), dst.saturating_add(size.into()));
    let adjacent = opcode == Opcode::DifStrip && dst < src && end <= src && src <= far;
    refuse(adjacent, DmlStatus::DIF_STRIP_ADJACENT_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIP: Opcode = Opcode::DifStrip;

    #[test]
    fn a_strip_whose_destination_ends_just_below_the_source_is_refused() {
        let strip = |dst, blocks: u32| validate(&Descriptor::dif(STRIP, 0x10_0000, dst, blocks * 520));
        for (dst, expected) in [
            (0x10_0000 - 1024, Err(DmlStatus::DIF_STRIP_ADJACENT_ERROR)),
            (0x10_0000 - 1040, Err(DmlStatus::DIF_STRIP_ADJACENT_ERROR)),
            (0x10_0000 - 1041, Ok(())),
            (0x10_0000 - 1023, Err(DmlStatus::OVERLAPPING_BUFFER_ERROR)),
            (0x10_0000 + 1040, Ok(())),
        ] {
            assert_eq!(strip(dst, 2), expected, "{dst:#x}");
        }
    }

    #[test]
    fn every_operation_that_is_not_offered_is_refused() {
        for code in 0..=u8::MAX {
            let offered = matches!(code, 0..=9 | 0x10..=0x15 | 0x20);
            let refused = validate(&Descriptor::new(Opcode::from_code(code))) == Err(DmlStatus::JOB_OPERATION_ERROR);
            assert_eq!(refused, !offered, "{code:#x}");
        }
    }
}
