//! The operations: one list for every interface (job, batch, scope, channel), and the request that each makes.

use crate::api::error::JobError;
use crate::plan::request::Request;
use std::ops::Range;
use telpher_abi::{
    ComputeType, DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, DataType, Descriptor, Flags, MAX_DELTA_TRANSFER, OpFlags, Opcode,
    Rounding, SglFormat,
};
use telpher_mem::{StableBuf, StableBufMut, contents};
use telpher_ops::crc::CrcMode;
use telpher_ops::dif::{DifConfig, Tags};
use telpher_ops::{Arithmetic, E4m3Overflow};

/// Calls a macro with the list: `name(buffer: Type [Bound], …)(argument: Type, …);` with its documentation. Every
/// interface makes a method of that name from each line, so that the interfaces cannot differ.
macro_rules! operations {
    ($with:ident) => {
        $with! {
            /// Copies `src` to `dst`, which must be equally long. The outcome is [`Done`](crate::Outcome::Done).
            copy(src: R [StableBuf], dst: W [StableBufMut])();
            /// Copies the bytes of `from` to the bytes from `to` on in the same buffer; the ranges may overlap. The
            /// outcome is [`Done`](crate::Outcome::Done).
            copy_within(dst: W [StableBufMut])(from: std::ops::Range<usize>, to: usize);
            /// Copies `src` to `dst`, which must be equally long, and ends when the bytes are in memory and not only in
            /// a cache. Bytes of persistent memory are durable then; for files there is
            /// [`Mover::store`](crate::Mover::store). A device reads the destination back; the CPU writes its cache
            /// lines back. The outcome is [`Done`](crate::Outcome::Done).
            copy_durable(src: R [StableBuf], dst: W [StableBufMut])();
            /// Repeats the 8 bytes of `pattern`, lowest first, over `dst`, whose length need not be a multiple. The
            /// outcome is [`Done`](crate::Outcome::Done).
            fill(dst: W [StableBufMut])(pattern: u64);
            /// Repeats 16 bytes, `pattern[0]` first, over `dst`. The outcome is [`Done`](crate::Outcome::Done).
            fill16(dst: W [StableBufMut])(pattern: [u64; 2]);
            /// Compares two equally long buffers. The outcome is [`Equal`](crate::Outcome::Equal) or
            /// [`Different`](crate::Outcome::Different).
            compare(src: R [StableBuf], src2: R2 [StableBuf])();
            /// Compares a buffer with the repeated 8 bytes of `pattern`. The outcome is
            /// [`Equal`](crate::Outcome::Equal) or [`Different`](crate::Outcome::Different).
            compare_pattern(src: R [StableBuf])(pattern: u64);
            /// Writes a delta record to `dst`: how to change `src` to get `src2`, as 10-byte entries, as many as fit.
            /// The sources must be equally long, a multiple of 8 bytes, at most 512 KiB. The outcome is a
            /// [`Delta`](crate::Outcome::Delta).
            create_delta(src: R [StableBuf], src2: R2 [StableBuf], dst: W [StableBufMut])();
            /// Applies the first `bytes` of the delta record `src`, a multiple of 10, to `dst`, a multiple of 8 bytes.
            /// The outcome is [`Done`](crate::Outcome::Done).
            apply_delta(src: R [StableBuf], dst: W [StableBufMut])(bytes: u32);
            /// Copies `src` to two equally long destinations. Devices take only destinations whose addresses agree in
            /// their low 12 bits; the CPU does others. The outcome is [`Done`](crate::Outcome::Done).
            dualcast(src: R [StableBuf], dst: W [StableBufMut], dst2: W2 [StableBufMut])();
            /// Computes the CRC32C of `src`, continued from `seed`, 0 for a new one. The outcome is a
            /// [`Crc`](crate::Outcome::Crc).
            crc(src: R [StableBuf])(seed: u32, mode: crate::CrcMode);
            /// Copies `src` to `dst` and computes the CRC32C in the same pass. The outcome is a
            /// [`Crc`](crate::Outcome::Crc).
            copy_crc(src: R [StableBuf], dst: W [StableBufMut])(seed: u32, mode: crate::CrcMode);
            /// Computes the CRC of 64 bits that NVMe uses of `src`, continued from `seed`, 0 for a new one. Devices
            /// have it from 2.x on; the CPU does it for others. The outcome is a [`Crc64`](crate::Outcome::Crc64).
            crc64(src: R [StableBuf])(seed: u64, mode: crate::CrcMode);
            /// Copies `src` to `dst` and computes that CRC in the same pass. The outcome is a
            /// [`Crc64`](crate::Outcome::Crc64).
            copy_crc64(src: R [StableBuf], dst: W [StableBufMut])(seed: u64, mode: crate::CrcMode);
            /// Checks blocks, each followed by its integrity tuple. The outcome is [`Dif`](crate::Outcome::Dif) or
            /// [`DifMismatch`](crate::Outcome::DifMismatch).
            dif_check(src: R [StableBuf])(config: crate::DifConfig, tags: crate::Tags);
            /// Copies blocks and appends an integrity tuple to each; `dst` is longer by 8 bytes for each block. The
            /// outcome is a [`Dif`](crate::Outcome::Dif).
            dif_insert(src: R [StableBuf], dst: W [StableBufMut])(config: crate::DifConfig, tags: crate::Tags);
            /// Checks blocks and copies them without their integrity tuples; `dst` is shorter by 8 bytes for each
            /// block. The outcome is [`Dif`](crate::Outcome::Dif) or [`DifMismatch`](crate::Outcome::DifMismatch).
            dif_strip(src: R [StableBuf], dst: W [StableBufMut])(config: crate::DifConfig, tags: crate::Tags);
            /// Checks blocks and copies them with new integrity tuples; `source` are the expected tags, `dest` the new
            /// ones. The outcome is [`Dif`](crate::Outcome::Dif) or [`DifMismatch`](crate::Outcome::DifMismatch).
            dif_update(src: R [StableBuf], dst: W [StableBufMut])
                (config: crate::DifConfig, source: crate::Tags, dest: crate::Tags);
            /// Writes the integrity tuples of the blocks of `src` to `dst`, which has 8 bytes for each block. Devices
            /// have it from 2.x on and require `dst` to be aligned to 8 bytes; the CPU does the others. The outcome is
            /// a [`Dif`](crate::Outcome::Dif).
            dix_generate(src: R [StableBuf], dst: W [StableBufMut])(config: crate::DifConfig, tags: crate::Tags);
            /// Converts the little-endian numbers of `src` to those of `dst`, which has as many. Devices have it from
            /// 3.0 on and require numbers to be aligned; the CPU does the others, and types that a device does not
            /// have. The outcome is [`Computed`](crate::Outcome::Computed).
            convert(src: R [StableBuf], dst: W [StableBufMut])(arithmetic: crate::Arithmetic);
            /// Computes each number of `dst` from those of two equally long sources. Devices and the CPU share the work
            /// as for `convert`. The outcome is [`Computed`](crate::Outcome::Computed).
            reduce(src: R [StableBuf], src2: R2 [StableBuf], dst: W [StableBufMut])
                (compute: crate::ComputeType, arithmetic: crate::Arithmetic);
            /// Like `reduce`, with the same numbers in two destinations. Devices take only destinations whose addresses
            /// agree in their low 12 bits; the CPU does others. The outcome is [`Computed`](crate::Outcome::Computed).
            reduce_dualcast(src: R [StableBuf], src2: R2 [StableBuf], dst: W [StableBufMut], dst2: W2 [StableBufMut])
                (compute: crate::ComputeType, arithmetic: crate::Arithmetic);
            /// Computes the numbers of `dst` from those of all blocks of `src` that the list `src2` names, in its
            /// order; each block has as many numbers as `dst`. The CPU does a list that is too long for the device. The
            /// outcome is [`Computed`](crate::Outcome::Computed).
            gather_reduce(src: R [StableBuf], src2: R2 [StableBuf], dst: W [StableBufMut])
                (blocks: crate::Blocks, compute: crate::ComputeType, arithmetic: crate::Arithmetic);
            /// Copies the blocks of `src` that the list `src2` names to `dst`, one after the other; `dst` has the
            /// length of all of them. Devices have it from 3.0 on; the CPU does it for others. The outcome is
            /// [`Done`](crate::Outcome::Done).
            gather(src: R [StableBuf], src2: R2 [StableBuf], dst: W [StableBufMut])(blocks: crate::Blocks);
            /// Copies `src` to the blocks of `dst` that the list `src2` names, one after the other; `src` has the
            /// length of all of them. If blocks overlap, it is undefined which piece of `src` a shared byte has in the
            /// end. The outcome is [`Done`](crate::Outcome::Done).
            scatter(src: R [StableBuf], src2: R2 [StableBuf], dst: W [StableBufMut])(blocks: crate::Blocks);
            /// Repeats the 8 bytes of `pattern`, lowest first, over each block of `dst` that the list `src` names. The
            /// outcome is [`Done`](crate::Outcome::Done).
            scatter_fill(src: R [StableBuf], dst: W [StableBufMut])(blocks: crate::Blocks, pattern: u64);
            /// Brings the pages of the buffer in, and asks a device for their translations, so that its next operations
            /// do not wait for them. Devices have Translation Fetch from 2.x on; the CPU touches the pages for others.
            /// The outcome is [`Done`](crate::Outcome::Done).
            prefetch_pages(src: R [StableBuf])();
            /// Flushes every cache line of the buffer. The outcome is [`Done`](crate::Outcome::Done).
            flush(src: R [StableBuf])();
        }
    };
}
pub(crate) use operations;

/// Equally long blocks of one memory, named by a list of little-endian entries.
///
/// ```
/// use telpher_mover::{Blocks, Mover, SglFormat};
///
/// let mover = Mover::cpu();
/// let list = [2_u32, 0].map(u32::to_le_bytes).as_flattened().to_vec();
/// let blocks = Blocks { format: SglFormat::Index32, bytes: 3 };
/// let (result, _, _, dst) = mover.gather(b"abcdefghi".to_vec(), list, vec![0; 6], blocks).wait().into_parts();
/// assert_eq!((result, &*dst), (Ok(telpher_mover::Outcome::Done), &b"ghiabc"[..]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// What an entry is: an offset in bytes, or the index of a block.
    pub format: SglFormat,
    /// Bytes of each block.
    pub bytes: u32,
}

type RequestResult = Result<Request, JobError>;

#[inline]
fn len(buf: &impl StableBuf) -> u64 {
    buf.len() as u64
}

/// Returns the common length of buffers that must be equally long.
#[inline]
fn common(first: u64, others: &[u64]) -> Result<u64, JobError> {
    match others.iter().find(|&&other| other != first) {
        Some(&second) => Err(JobError::Lengths { first, second }),
        None => Ok(first),
    }
}

fn multiple(op: Opcode, len: u64, unit: u64) -> Result<u64, JobError> {
    if len.is_multiple_of(unit) { Ok(len) } else { Err(JobError::Unit { op, len, unit }) }
}

#[inline]
pub(crate) fn copy(src: &mut impl StableBuf, dst: &mut impl StableBufMut) -> RequestResult {
    let n = common(len(src), &[len(dst)])?;
    Ok(Request::new(Descriptor::memory_move(src.address(), dst.address_mut(), 0), n))
}

pub(crate) fn copy_durable(src: &mut impl StableBuf, dst: &mut impl StableBufMut) -> RequestResult {
    let n = common(len(src), &[len(dst)])?;
    let d = Descriptor::memory_move(src.address(), dst.address_mut(), 0).and_flags(Flags::DESTINATION_READBACK);
    Ok(Request::new(d, n))
}

pub(crate) fn copy_within(buf: &mut impl StableBufMut, from: Range<usize>, to: usize) -> RequestResult {
    let n = from.end.saturating_sub(from.start);
    let end = from.end.max(to.saturating_add(n));
    if from.start > from.end || end > buf.len() {
        return Err(JobError::Lengths { first: len(buf), second: end as u64 });
    }
    let base = buf.address_mut();
    Ok(Request::new(Descriptor::memory_move(base + from.start as u64, base + to as u64, 0), n as u64))
}

#[inline]
pub(crate) fn fill(dst: &mut impl StableBufMut, pattern: u64) -> RequestResult {
    Ok(Request::new(Descriptor::fill(pattern, dst.address_mut(), 0), len(dst)))
}

pub(crate) fn fill16(dst: &mut impl StableBufMut, pattern: [u64; 2]) -> RequestResult {
    if pattern[0] == pattern[1] {
        // The same bytes, and every device supports this fill.
        return fill(dst, pattern[0]);
    }
    Ok(Request::new(Descriptor::fill16(pattern, dst.address_mut(), 0), len(dst)))
}

pub(crate) fn compare(a: &mut impl StableBuf, b: &mut impl StableBuf) -> RequestResult {
    let n = common(len(a), &[len(b)])?;
    Ok(Request::new(Descriptor::compare(a.address(), b.address(), 0), n))
}

pub(crate) fn compare_pattern(src: &mut impl StableBuf, pattern: u64) -> RequestResult {
    Ok(Request::new(Descriptor::compare_pattern(src.address(), pattern, 0), len(src)))
}

fn delta_transfer(op: Opcode, len: u64) -> Result<u64, JobError> {
    let max = u64::from(MAX_DELTA_TRANSFER);
    if len > max { Err(JobError::TooLong { op, len, max }) } else { multiple(op, len, 8) }
}

pub(crate) fn create_delta(
    a: &mut impl StableBuf,
    b: &mut impl StableBuf,
    delta: &mut impl StableBufMut,
) -> RequestResult {
    let n = delta_transfer(Opcode::CreateDelta, common(len(a), &[len(b)])?)?;
    // Whole entries only; no record has more than one entry for each 8 bytes of the longest transfer.
    let most = MAX_DELTA_TRANSFER / 8 * DELTA_ENTRY_BYTES;
    let max = u32::try_from(delta.len()).unwrap_or(most).min(most) / DELTA_ENTRY_BYTES * DELTA_ENTRY_BYTES;
    Ok(Request::new(Descriptor::create_delta(a.address(), b.address(), 0, delta.address_mut(), max), n))
}

pub(crate) fn apply_delta(delta: &mut impl StableBuf, dst: &mut impl StableBufMut, bytes: u32) -> RequestResult {
    let transfer = delta_transfer(Opcode::ApplyDelta, len(dst))?;
    if u64::from(bytes) > len(delta) {
        return Err(JobError::Lengths { first: len(delta), second: bytes.into() });
    }
    let n = multiple(Opcode::ApplyDelta, bytes.into(), DELTA_ENTRY_BYTES.into())?;
    // At most MAX_DELTA_TRANSFER, so it fits.
    let size = u32::try_from(transfer).unwrap_or(u32::MAX);
    Ok(Request::new(Descriptor::apply_delta(delta.address(), bytes, dst.address_mut(), size), n))
}

pub(crate) fn dualcast(
    src: &mut impl StableBuf,
    first: &mut impl StableBufMut,
    second: &mut impl StableBufMut,
) -> RequestResult {
    let n = common(len(src), &[len(first), len(second)])?;
    Ok(Request::new(Descriptor::dualcast(src.address(), first.address_mut(), second.address_mut(), 0), n))
}

#[inline]
fn crc_flags(mode: CrcMode) -> Flags {
    let mut flags = Flags::empty();
    flags.set(OpFlags::BYPASS_INVERT_REFLECT, mode.bypass_invert_reflect);
    flags.set(OpFlags::BYPASS_DATA_REFLECT, mode.bypass_data_reflect);
    flags
}

#[inline]
pub(crate) fn crc(src: &mut impl StableBuf, seed: u32, mode: CrcMode) -> RequestResult {
    Ok(Request::new(Descriptor::crc_generation(src.address(), 0, seed).and_flags(crc_flags(mode)), len(src)))
}

#[inline]
pub(crate) fn copy_crc(
    src: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    seed: u32,
    mode: CrcMode,
) -> RequestResult {
    let n = common(len(src), &[len(dst)])?;
    let d = Descriptor::copy_crc(src.address(), dst.address_mut(), 0, seed).and_flags(crc_flags(mode));
    Ok(Request::new(d, n))
}

pub(crate) fn crc64(src: &mut impl StableBuf, seed: u64, mode: CrcMode) -> RequestResult {
    Ok(Request::new(Descriptor::crc64_generation(src.address(), 0, seed).and_flags(crc_flags(mode)), len(src)))
}

pub(crate) fn copy_crc64(
    src: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    seed: u64,
    mode: CrcMode,
) -> RequestResult {
    let n = common(len(src), &[len(dst)])?;
    let d = Descriptor::copy_crc64(src.address(), dst.address_mut(), 0, seed).and_flags(crc_flags(mode));
    Ok(Request::new(d, n))
}

fn dif(op: Opcode, src: u64, dst: u64, config: DifConfig) -> Descriptor {
    let d = Descriptor::dif(op, src, dst, 0).with_dif_flags(config.flags.bits() & !3 | config.block.code());
    // Reserved for operations without such a side (SPEC Table 5-3).
    let is_plain = matches!(op, Opcode::DifInsert | Opcode::DixGenerate);
    let d = if is_plain { d } else { d.with_source_dif_flags(config.source.bits()) };
    match op {
        Opcode::DifInsert | Opcode::DixGenerate | Opcode::DifUpdate => d.with_dest_dif_flags(config.dest.bits()),
        _ => d,
    }
}

fn source_tags(d: Descriptor, tags: Tags) -> Descriptor {
    d.with_source_ref_tag(tags.ref_tag).with_source_app_tag_mask(tags.app_mask).with_source_app_tag(tags.app_tag)
}

fn dest_tags(d: Descriptor, tags: Tags) -> Descriptor {
    d.with_dest_ref_tag(tags.ref_tag).with_dest_app_tag_mask(tags.app_mask).with_dest_app_tag(tags.app_tag)
}

/// Returns the source bytes; the source has blocks of `from` bytes and the destination blocks of `to` bytes.
fn blocks(op: Opcode, src: u64, dst: u64, from: u64, to: u64) -> Result<u64, JobError> {
    let n = multiple(op, src, from)?;
    common(n / from * to, &[dst])?;
    Ok(n)
}

fn block(config: &DifConfig) -> (u64, u64) {
    (config.block.bytes().into(), (config.block.bytes() + DIF_TUPLE_BYTES).into())
}

pub(crate) fn dif_check(src: &mut impl StableBuf, config: DifConfig, tags: Tags) -> RequestResult {
    let n = multiple(Opcode::DifCheck, len(src), block(&config).1)?;
    Ok(Request::new(source_tags(dif(Opcode::DifCheck, src.address(), 0, config), tags), n))
}

pub(crate) fn dif_insert(
    src: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    config: DifConfig,
    tags: Tags,
) -> RequestResult {
    let (data, protected) = block(&config);
    let n = blocks(Opcode::DifInsert, len(src), len(dst), data, protected)?;
    Ok(Request::new(dest_tags(dif(Opcode::DifInsert, src.address(), dst.address_mut(), config), tags), n))
}

pub(crate) fn dif_strip(
    src: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    config: DifConfig,
    tags: Tags,
) -> RequestResult {
    let (data, protected) = block(&config);
    let n = blocks(Opcode::DifStrip, len(src), len(dst), protected, data)?;
    Ok(Request::new(source_tags(dif(Opcode::DifStrip, src.address(), dst.address_mut(), config), tags), n))
}

pub(crate) fn dif_update(
    src: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    config: DifConfig,
    source: Tags,
    dest: Tags,
) -> RequestResult {
    let (_, protected) = block(&config);
    let n = blocks(Opcode::DifUpdate, len(src), len(dst), protected, protected)?;
    let d = dif(Opcode::DifUpdate, src.address(), dst.address_mut(), config);
    Ok(Request::new(dest_tags(source_tags(d, source), dest), n))
}

pub(crate) fn dix_generate(
    src: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    config: DifConfig,
    tags: Tags,
) -> RequestResult {
    let (data, _) = block(&config);
    let n = blocks(Opcode::DixGenerate, len(src), len(dst), data, DIF_TUPLE_BYTES.into())?;
    Ok(Request::new(dest_tags(dif(Opcode::DixGenerate, src.address(), dst.address_mut(), config), tags), n))
}

/// Checks types and options, and returns them without those that have no effect, which devices refuse.
fn arithmetic(op: Opcode, compute: Option<ComputeType>, given: Arithmetic) -> Result<Arithmetic, JobError> {
    let is_float = given.input.is_float();
    let has_second_source = matches!(op, Opcode::Reduce | Opcode::ReduceDualcast);
    let why = match given {
        _ if !given.has_one_class() => "has integers on both sides or floating-point numbers on both sides",
        _ if is_float && compute.is_some_and(|compute| !compute.is_arithmetic()) => {
            "has and, or and xor for integers only"
        }
        Arithmetic { output: DataType::Fp8E4M3, e4m3_overflow: E4m3Overflow::Largest, .. } => {
            "makes numbers that are too large for E4M3 NaN, not the largest number"
        }
        _ if is_float => {
            return Ok(Arithmetic {
                signed: false,
                saturate: false,
                negate2: given.negate2 && has_second_source,
                ..given
            });
        }
        _ => {
            return Ok(Arithmetic {
                flush_to_zero: false,
                denormals_are_zero: false,
                rounding: Rounding::NearestEven,
                negate2: given.negate2 && has_second_source,
                ..given
            });
        }
    };
    Err(JobError::Options { op, why })
}

/// Returns the source bytes, if source and destination have the same number of whole elements.
fn numbers(op: Opcode, src: u64, dst: u64, arithmetic: &Arithmetic) -> Result<u64, JobError> {
    let (input, output) = (u64::from(arithmetic.input.bytes()), u64::from(arithmetic.output.bytes()));
    let n = multiple(op, src, input)?;
    common(n / input * output, &[dst])?;
    Ok(n)
}

pub(crate) fn convert(src: &mut impl StableBuf, dst: &mut impl StableBufMut, given: Arithmetic) -> RequestResult {
    let op = Opcode::TypeConversion;
    let arithmetic = arithmetic(op, None, given)?;
    let n = numbers(op, len(src), len(dst), &arithmetic)?;
    Ok(Request::new(arithmetic.write_to(Descriptor::type_conversion(src.address(), dst.address_mut(), 0)), n))
}

pub(crate) fn reduce(
    a: &mut impl StableBuf,
    b: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    compute: ComputeType,
    given: Arithmetic,
) -> RequestResult {
    let op = Opcode::Reduce;
    let arithmetic = arithmetic(op, Some(compute), given)?;
    let n = numbers(op, common(len(a), &[len(b)])?, len(dst), &arithmetic)?;
    let d = Descriptor::reduce(compute, a.address(), b.address(), dst.address_mut(), 0);
    Ok(Request::new(arithmetic.write_to(d), n))
}

pub(crate) fn reduce_dualcast(
    a: &mut impl StableBuf,
    b: &mut impl StableBuf,
    first: &mut impl StableBufMut,
    second: &mut impl StableBufMut,
    compute: ComputeType,
    given: Arithmetic,
) -> RequestResult {
    let op = Opcode::ReduceDualcast;
    let arithmetic = arithmetic(op, Some(compute), given)?;
    let results = common(len(first), &[len(second)])?;
    let n = numbers(op, common(len(a), &[len(b)])?, results, &arithmetic)?;
    let dst = [first.address_mut(), second.address_mut()];
    Ok(Request::new(arithmetic.write_to(Descriptor::reduce_dualcast(compute, a.address(), b.address(), dst, 0)), n))
}

/// Returns the bytes of all blocks that a list names, if each of them lies in the memory of `memory` bytes. The list
/// does not change while the operation has it ([`StableBuf`]), so this holds for the device's reads, too.
fn listed(op: Opcode, list: &impl StableBuf, memory: u64, blocks: Blocks) -> Result<u64, JobError> {
    let (entry_bytes, block) = (blocks.format.entry_bytes(), u64::from(blocks.bytes));
    if block == 0 {
        return Err(JobError::Options { op, why: "has blocks of at least one byte" });
    }
    multiple(op, len(list), entry_bytes.into())?;
    let mut entries = 0;
    for entry in contents(list).chunks_exact(entry_bytes as usize) {
        let value = entry.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let offset = match blocks.format {
            SglFormat::Offset64 => Some(value),
            SglFormat::Index32 | SglFormat::Index64 => value.checked_mul(block),
        };
        let offset = offset.unwrap_or(u64::MAX);
        if offset.checked_add(block).is_none_or(|end| end > memory) {
            return Err(JobError::Outside { entry: entries, offset, len: memory });
        }
        entries += 1;
    }
    entries.checked_mul(block).ok_or(JobError::TooLong { op, len: entries, max: u64::MAX / block })
}

pub(crate) fn gather(
    memory: &mut impl StableBuf,
    list: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    blocks: Blocks,
) -> RequestResult {
    let n = common(listed(Opcode::GatherCopy, list, len(memory), blocks)?, &[len(dst)])?;
    let Blocks { format, bytes } = blocks;
    let d = Descriptor::gather_copy(list.address(), format, memory.address(), bytes, dst.address_mut(), 0);
    Ok(Request::new(d, n).with_memory(len(memory)))
}

pub(crate) fn scatter(
    src: &mut impl StableBuf,
    list: &mut impl StableBuf,
    memory: &mut impl StableBufMut,
    blocks: Blocks,
) -> RequestResult {
    let n = common(listed(Opcode::ScatterCopy, list, len(memory), blocks)?, &[len(src)])?;
    let Blocks { format, bytes } = blocks;
    let d = Descriptor::scatter_copy(src.address(), list.address(), format, memory.address_mut(), bytes, 0);
    Ok(Request::new(d, n).with_memory(len(memory)))
}

pub(crate) fn scatter_fill(
    list: &mut impl StableBuf,
    memory: &mut impl StableBufMut,
    blocks: Blocks,
    pattern: u64,
) -> RequestResult {
    let n = listed(Opcode::ScatterFill, list, len(memory), blocks)?;
    let Blocks { format, bytes } = blocks;
    let d = Descriptor::scatter_fill(pattern, list.address(), format, memory.address_mut(), bytes, 0);
    Ok(Request::new(d, n).with_memory(len(memory)))
}

pub(crate) fn gather_reduce(
    memory: &mut impl StableBuf,
    list: &mut impl StableBuf,
    dst: &mut impl StableBufMut,
    blocks: Blocks,
    compute: ComputeType,
    given: Arithmetic,
) -> RequestResult {
    let op = Opcode::GatherReduce;
    let arithmetic = arithmetic(op, Some(compute), given)?;
    let n = listed(op, list, len(memory), blocks)?;
    let block = numbers(op, blocks.bytes.into(), len(dst), &arithmetic)?;
    if n == 0 && block > 0 {
        // Without a block there is no result.
        return Err(JobError::Options { op, why: "has a list of at least one entry" });
    }
    // No more than the bytes of a block.
    let elements = blocks.bytes / arithmetic.input.bytes();
    // A longer list is too long for every device, so the CPU reads it, by its length.
    let entries = u16::try_from(n / block).unwrap_or(u16::MAX);
    let (list, dst) = ((list.address(), entries), dst.address_mut());
    let d = Descriptor::gather_reduce(compute, list, blocks.format, memory.address(), dst, elements);
    Ok(Request::new(arithmetic.write_to(d), n).with_memory(len(memory)))
}

pub(crate) fn prefetch_pages(buf: &mut impl StableBuf) -> RequestResult {
    Ok(Request::new(Descriptor::translation_fetch(buf.address(), 0), len(buf)))
}

pub(crate) fn flush(buf: &mut impl StableBuf) -> RequestResult {
    Ok(Request::new(Descriptor::cache_flush(buf.address(), 0), len(buf)))
}
