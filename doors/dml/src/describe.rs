//! A job or a batch member as a descriptor. Fields that the operation does not use are ignored, as D111 does.

use crate::job::{DifConfig, DmlJob, MEMBER_BYTES, aligned, flags};
use crate::status::DmlStatus;
use crate::strict::strict;
use crate::task::DescriptorCell;
use telpher_abi::{Descriptor, Flags, OpFlags, Opcode};
use telpher_model::overlaps;

/// The flags of a job as those of a descriptor: the common ones, and those of the operation.
#[derive(Clone, Copy, Debug)]
struct JobFlags(u64);

impl JobFlags {
    /// Bits 15:0 pass as they are.
    #[allow(clippy::cast_possible_truncation, reason = "masked")]
    fn common(self) -> Flags {
        Flags::from_bits_retain((self.0 & 0xffff) as u32)
    }

    /// Bits 23:16 too, for operations that have flags of their own.
    #[allow(clippy::cast_possible_truncation, reason = "masked")]
    fn with_specific(self) -> Flags {
        Flags::from_bits_retain((self.0 & 0x00ff_ffff) as u32)
    }
}

/// Writes the descriptor of a job, without a record's address, after the checks that come before all others, and
/// returns its operation. `seed` reads the job's CRC.
///
/// # Errors
/// An unknown operation; a CRC without a place for it; a copy whose ranges overlap. Then nothing is written.
#[inline]
pub(crate) fn of_job(job: &DmlJob, made: &DescriptorCell, seed: impl FnOnce() -> u32) -> Result<Opcode, DmlStatus> {
    // Nothing else of the job is read for it.
    if job.operation == u32::from(Opcode::Nop.code()) {
        made.set(Descriptor::new(Opcode::Nop).with_flags(JobFlags(job.flags).common()));
        return Ok(Opcode::Nop);
    }
    of_other(job, made, seed)
}

/// As [`of_job`], for every operation but a no-op. Those that users repeat often have functions of their own, which
/// need less of the stack.
#[inline(never)]
fn of_other(job: &DmlJob, made: &DescriptorCell, seed: impl FnOnce() -> u32) -> Result<Opcode, DmlStatus> {
    let opcode = u8::try_from(job.operation).map_or(Opcode::Unknown(u8::MAX), Opcode::from_code);
    match opcode {
        Opcode::CrcGeneration | Opcode::CopyCrc => of_crc(job, opcode, made, seed)?,
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
            let dst = if opcode == Opcode::DifCheck { 0 } else { job.destination_first_ptr };
            made.set(dif(opcode, job.source_first_ptr, dst, job.source_length, &job.dif_config, job.flags));
        }
        _ => with_operands(job, opcode, made)?,
    }
    Ok(opcode)
}

fn of_crc(job: &DmlJob, opcode: Opcode, made: &DescriptorCell, seed: impl FnOnce() -> u32) -> Result<(), DmlStatus> {
    if job.crc_checksum_ptr == 0 {
        return Err(DmlStatus::NULL_POINTER_ERROR);
    }
    let seed = if job.flags & flags::CRC_READ_SEED == 0 { 0 } else { seed() };
    let copied = (opcode == Opcode::CopyCrc).then_some(job.destination_first_ptr);
    let given = job.flags & !flags::CRC_READ_SEED;
    made.set(crc(job.source_first_ptr, copied, job.source_length, seed, given));
    Ok(())
}

#[inline(never)]
fn with_operands(job: &DmlJob, opcode: Opcode, made: &DescriptorCell) -> Result<(), DmlStatus> {
    let given = JobFlags(job.flags);
    let (src, dst, len) = (job.source_first_ptr, job.destination_first_ptr, job.source_length);
    let pattern = u64::from_le_bytes(job.pattern);
    // Each arm writes by itself: a descriptor that is returned would be copied.
    match opcode {
        Opcode::Batch => {
            let count = job.destination_length / MEMBER_BYTES;
            made.set(Descriptor::batch(batch_list(dst), count).with_flags(given.common()));
        }
        Opcode::Drain => {
            let drain = Descriptor::drain().with_src(dst).with_dst(job.destination_second_ptr);
            made.set(drain.with_flags(given.with_specific()));
        }
        Opcode::MemoryMove => made.set(memory_move(src, dst, len, job.flags)?),
        Opcode::Fill => made.set(fill(pattern, dst, job.destination_length, job.flags)),
        Opcode::Compare => made.set(compare(src, job.source_second_ptr, len, job.expected_result, job.flags)),
        Opcode::ComparePattern => made.set(compare_pattern(src, pattern, len, job.expected_result, job.flags)),
        Opcode::CreateDelta => {
            let record = (dst, job.destination_length);
            made.set(create_delta([src, job.source_second_ptr], len, record, job.expected_result, job.flags));
        }
        Opcode::ApplyDelta => made.set(apply_delta((src, len), (dst, job.destination_length), job.flags)),
        Opcode::Dualcast => made.set(dualcast(src, [dst, job.destination_second_ptr], len, job.flags)),
        Opcode::CacheFlush => made.set(cache_flush(dst, job.destination_length, job.flags)),
        _ => return Err(DmlStatus::JOB_OPERATION_ERROR),
    }
    Ok(())
}

/// Returns the address of a batch buffer's descriptors; 0 for none.
pub(crate) const fn batch_list(buffer: u64) -> u64 {
    if buffer == 0 { 0 } else { aligned(buffer) }
}

/// # Errors
/// With [`flags::COPY_ONLY`], if the ranges overlap.
#[inline]
pub(crate) fn memory_move(src: u64, dst: u64, len: u32, given: u64) -> Result<Descriptor, DmlStatus> {
    if given & flags::COPY_ONLY != 0 {
        let bytes = u64::from(len);
        // The original looks at one side only.
        let refused = overlaps(src, bytes, dst, bytes) && (src <= dst || !strict());
        if refused {
            return Err(DmlStatus::OVERLAPPING_BUFFER_ERROR);
        }
    }
    let flags = JobFlags(given & !flags::COPY_ONLY).common();
    Ok(Descriptor::memory_move(src, dst, len).with_flags(flags))
}

pub(crate) fn fill(pattern: u64, dst: u64, len: u32, given: u64) -> Descriptor {
    Descriptor::fill(pattern, dst, len).with_flags(JobFlags(given).common())
}

pub(crate) fn cache_flush(dst: u64, len: u32, given: u64) -> Descriptor {
    Descriptor::cache_flush(dst, len).with_flags(JobFlags(given).common())
}

pub(crate) fn compare(src1: u64, src2: u64, len: u32, expected: u32, given: u64) -> Descriptor {
    let [expected, ..] = expected.to_le_bytes();
    Descriptor::compare(src1, src2, len).with_expected_result(expected).with_flags(JobFlags(given).common())
}

pub(crate) fn compare_pattern(src: u64, pattern: u64, len: u32, expected: u32, given: u64) -> Descriptor {
    let [expected, ..] = expected.to_le_bytes();
    let d = Descriptor::compare_pattern(src, pattern, len);
    d.with_expected_result(expected).with_flags(JobFlags(given).common())
}

pub(crate) fn create_delta(
    [src1, src2]: [u64; 2],
    len: u32,
    (record, room): (u64, u32),
    expected: u32,
    given: u64,
) -> Descriptor {
    let [mask, ..] = expected.to_le_bytes();
    let d = Descriptor::create_delta(src1, src2, len, record, room);
    d.with_expected_result_mask(mask).with_flags(JobFlags(given).common())
}

pub(crate) fn apply_delta((record, record_len): (u64, u32), (dst, len): (u64, u32), given: u64) -> Descriptor {
    Descriptor::apply_delta(record, record_len, dst, len).with_flags(JobFlags(given).common())
}

pub(crate) fn dualcast(src: u64, [dst1, dst2]: [u64; 2], len: u32, given: u64) -> Descriptor {
    Descriptor::dualcast(src, dst1, dst2, len).with_flags(JobFlags(given).with_specific())
}

pub(crate) fn crc(src: u64, copied: Option<u64>, len: u32, seed: u32, given: u64) -> Descriptor {
    let d = match copied {
        Some(dst) => Descriptor::copy_crc(src, dst, len, seed),
        None => Descriptor::crc_generation(src, len, seed),
    };
    d.with_flags(JobFlags(given).with_specific())
}

#[inline]
pub(crate) fn dif(opcode: Opcode, src: u64, dst: u64, len: u32, config: &DifConfig, given: u64) -> Descriptor {
    let [source, dest, common, _] = config.flags.to_le_bytes();
    let [block, ..] = config.block_size.to_le_bytes();
    let reads_source = opcode != Opcode::DifInsert;
    let writes_dest = matches!(opcode, Opcode::DifInsert | Opcode::DifUpdate);
    let mut d = Descriptor::dif(opcode, src, dst, len).with_flags(JobFlags(given).common());
    d = d.with_dif_flags(common & !3 | block & 3);
    if reads_source {
        d = d
            .with_source_dif_flags(source)
            .with_source_ref_tag(config.source_reference_tag_seed)
            .with_source_app_tag_mask(config.source_application_tag_mask)
            .with_source_app_tag(config.source_application_tag_seed);
    }
    if writes_dest {
        d = d
            .with_dest_dif_flags(dest)
            .with_dest_ref_tag(config.destination_reference_tag_seed)
            .with_dest_app_tag_mask(config.destination_application_tag_mask)
            .with_dest_app_tag(config.destination_application_tag_seed);
    }
    d
}

/// Returns a batch member with the flags that a member has: `DML_FLAG_FENCE` is the fence that its documentation
/// promises, where the original sets a bit without effect; a CRC's seed is in the descriptor, so no address of it is
/// read.
pub(crate) fn as_member(d: Descriptor, given: u64) -> Descriptor {
    if strict() {
        return d;
    }
    let mut flags = d.flags();
    if given & flags::FENCE != 0 {
        flags |= Flags::FENCE;
    }
    if matches!(d.opcode(), Opcode::CrcGeneration | Opcode::CopyCrc) {
        flags -= OpFlags::READ_SEED;
    }
    d.with_flags(flags)
}
