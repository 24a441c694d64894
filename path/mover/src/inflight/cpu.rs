//! The CPU path: executes a request on plain slices with `ops`.

use crate::api::error::JobError;
use crate::api::outcome::{Delta, Outcome};
use crate::api::policy::Hint;
use crate::inflight::recover::{dest_tags, source_tags};
use telpher_abi::{
    ComputeResult, ComputeType, DELTA_ENTRY_BYTES, Descriptor, DestDifFlags, DifBlock, DifFlags, OpFlags,
    SourceDifFlags, Status,
};
use telpher_ops::Arithmetic;
use telpher_ops::crc::{self, CrcMode};
use telpher_ops::crc64;
use telpher_ops::delta::{self, ApplyErrorKind};
use telpher_ops::dif::{self, Checked, DifConfig};

pub(crate) fn fill(d: &Descriptor, dst: &mut [u8], hint: Hint) -> Outcome {
    if d.flags().contains(OpFlags::FILL_16) {
        telpher_ops::fill16(dst, [d.src(), d.pattern_upper()], hint);
    } else {
        telpher_ops::fill(dst, d.src(), hint);
    }
    Outcome::Done
}

pub(crate) fn compared(difference: Option<usize>) -> Outcome {
    difference.map_or(Outcome::Equal, |at| Outcome::Different { at: at as u64 })
}

fn crc_mode(d: &Descriptor) -> CrcMode {
    CrcMode {
        bypass_invert_reflect: d.flags().contains(OpFlags::BYPASS_INVERT_REFLECT),
        bypass_data_reflect: d.flags().contains(OpFlags::BYPASS_DATA_REFLECT),
    }
}

pub(crate) fn crc(d: &Descriptor, src: &[u8]) -> Outcome {
    if d.flags().contains(OpFlags::CRC64) {
        return Outcome::Crc64(crc64::crc64(d.crc64_seed(), src, crc_mode(d)));
    }
    Outcome::Crc(crc::crc32c(d.crc_seed(), src, crc_mode(d)))
}

pub(crate) fn copy_crc(d: &Descriptor, src: &[u8], dst: &mut [u8], hint: Hint) -> Outcome {
    if d.flags().contains(OpFlags::CRC64) {
        return Outcome::Crc64(crc64::copy_crc64(src, dst, d.crc64_seed(), crc_mode(d), hint));
    }
    Outcome::Crc(crc::copy_crc32c(src, dst, d.crc_seed(), crc_mode(d), hint))
}

pub(crate) fn create_delta(a: &[u8], b: &[u8], record: &mut [u8]) -> Outcome {
    let created = delta::create(a, b, 0, record);
    // A delta record of 0x80000 / 8 entries of 10 bytes fits 32 bits.
    let bytes = u32::try_from(created.record_bytes).unwrap_or(u32::MAX);
    Outcome::Delta(match (created.overflow, bytes) {
        (true, _) => Delta::Overflow { bytes, compared: created.bytes_compared as u64 },
        (false, 0) => Delta::Identical,
        (false, _) => Delta::Complete { bytes },
    })
}

/// `before` is the entry in front of `record`, if a device has applied some.
pub(crate) fn apply_delta(
    record: &[u8],
    dst: &mut [u8],
    base: u64,
    before: Option<&[u8]>,
) -> Result<Outcome, JobError> {
    let previous = before.and_then(|entry| delta::entries(entry).next()).map(|entry| entry.offset_bytes);
    delta::apply(record, dst, previous).map_err(|error| JobError::BadDelta {
        at: base + error.applied as u64,
        status: match error.kind {
            ApplyErrorKind::Order => Status::DeltaOffsetOrder,
            ApplyErrorKind::Range => Status::DeltaOffsetRange,
        },
    })?;
    Ok(Outcome::Done)
}

/// Bytes of the entry in front of a continued delta record.
pub(crate) const ENTRY: u64 = DELTA_ENTRY_BYTES as u64;

fn dif_config(d: &Descriptor) -> DifConfig {
    DifConfig {
        block: DifBlock::from_code(d.dif_flags()),
        // Bits 1:0 are the block's size.
        flags: DifFlags::from_bits_retain(d.dif_flags() & !3),
        source: SourceDifFlags::from_bits_retain(d.source_dif_flags()),
        dest: DestDifFlags::from_bits_retain(d.dest_dif_flags()),
    }
}

pub(crate) fn dif_check(d: &Descriptor, src: &[u8], unit: u64) -> Outcome {
    let mut source = source_tags(d);
    let checked = dif::check(&dif_config(d), src, &mut source);
    dif_outcome(checked, unit, source, dest_tags(d))
}

pub(crate) fn dif_insert(d: &Descriptor, src: &[u8], dst: &mut [u8]) -> Outcome {
    let mut dest = dest_tags(d);
    dif::insert(&dif_config(d), src, dst, &mut dest);
    Outcome::Dif { source: source_tags(d), dest }
}

pub(crate) fn dix_generate(d: &Descriptor, src: &[u8], dst: &mut [u8]) -> Outcome {
    let mut dest = dest_tags(d);
    dif::generate(&dif_config(d), src, dst, &mut dest);
    Outcome::Dif { source: source_tags(d), dest }
}

/// Returns the types, options and computation of a request. The request's maker has checked them.
fn arithmetic(d: &Descriptor) -> Result<(Arithmetic, ComputeType), JobError> {
    let compute = ComputeType::from_code(d.compute_type_code()).unwrap_or(ComputeType::Add);
    match Arithmetic::of(d).filter(|a| a.has_one_class() && (compute.is_arithmetic() || !a.input.is_float())) {
        Some(arithmetic) => Ok((arithmetic, compute)),
        None => Err(JobError::Options { op: d.opcode(), why: "does not have these types" }),
    }
}

pub(crate) fn convert(d: &Descriptor, src: &[u8], dst: &mut [u8]) -> Result<ComputeResult, JobError> {
    Ok(telpher_ops::convert(&arithmetic(d)?.0, src, dst))
}

/// `second` is the second destination of Reduce with Dualcast.
pub(crate) fn reduce(
    d: &Descriptor,
    [a, b]: [&[u8]; 2],
    dst: &mut [u8],
    second: Option<&mut [u8]>,
) -> Result<ComputeResult, JobError> {
    let (arithmetic, compute) = arithmetic(d)?;
    Ok(match second {
        None => telpher_ops::reduce(&arithmetic, compute, a, b, dst),
        Some(second) => telpher_ops::reduce_dualcast(&arithmetic, compute, [a, b], [dst, second]),
    })
}

/// Reduces the blocks of a list to one.
pub(crate) fn gather_reduce<'a>(
    d: &Descriptor,
    blocks: impl Iterator<Item = &'a [u8]> + Clone,
    dst: &mut [u8],
) -> Result<ComputeResult, JobError> {
    let (arithmetic, compute) = arithmetic(d)?;
    Ok(telpher_ops::reduce_blocks(&arithmetic, compute, blocks, dst))
}

pub(crate) fn dif_strip(d: &Descriptor, src: &[u8], dst: &mut [u8], unit: u64) -> Outcome {
    let mut source = source_tags(d);
    let checked = dif::strip(&dif_config(d), src, dst, &mut source);
    dif_outcome(checked, unit, source, dest_tags(d))
}

pub(crate) fn dif_update(d: &Descriptor, src: &[u8], dst: &mut [u8], unit: u64) -> Outcome {
    let (mut source, mut dest) = (source_tags(d), dest_tags(d));
    let checked = dif::update(&dif_config(d), src, dst, &mut source, &mut dest);
    dif_outcome(checked, unit, source, dest)
}

fn dif_outcome(checked: Checked, unit: u64, source: dif::Tags, dest: dif::Tags) -> Outcome {
    match checked.error {
        Some(what) => Outcome::DifMismatch { at: checked.blocks as u64 * unit, what },
        None => Outcome::Dif { source, dest },
    }
}
