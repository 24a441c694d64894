//! The operations: one list for every interface (job, batch, scope, channel), and the request that each makes.

use crate::api::error::JobError;
use crate::plan::request::Request;
use std::ops::Range;
use telpher_abi::{DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, Descriptor, Flags, MAX_DELTA_TRANSFER, OpFlags, Opcode};
use telpher_mem::{StableBuf, StableBufMut};
use telpher_ops::crc::CrcMode;
use telpher_ops::dif::{DifConfig, Tags};

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
            /// Flushes every cache line of the buffer. The outcome is [`Done`](crate::Outcome::Done).
            flush(src: R [StableBuf])();
        }
    };
}
pub(crate) use operations;

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
    let d = if op == Opcode::DifInsert { d } else { d.with_source_dif_flags(config.source.bits()) };
    match op {
        Opcode::DifInsert | Opcode::DifUpdate => d.with_dest_dif_flags(config.dest.bits()),
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

pub(crate) fn flush(buf: &mut impl StableBuf) -> RequestResult {
    Ok(Request::new(Descriptor::cache_flush(buf.address(), 0), len(buf)))
}
