//! Operations on the memory of a descriptor without the steps of a modelled device: what a short operation costs is
//! mostly these. CRC, DIF and copies to two destinations are those of `telpher-ops`.
//!
//! A descriptor that cannot be executed so far as its end is left to the steps, which begin again and find the byte
//! that is not mapped. So an operation is direct only if its sources are not among the bytes that it writes.

use crate::memory::{own_memory, with_ranges};
use telpher_abi::{CompletionRecord, Descriptor, Flags, OpFlags, Status, StatusByte};
use telpher_mem::{STREAM_MOVE_BYTES, Space, WriteHint};
use telpher_model::{Action, Dif, compared_record, overlaps};
use telpher_ops::crc::{CrcMode, copy_crc32c, crc32c};
use telpher_ops::dif::Checked;
use telpher_ops::{Hint, dualcast};

/// Bytes of a source that are reached before they are used. Source: chosen; what is touched of a part stays in the
/// second-level cache until the operation comes there.
pub(super) const PART: u64 = 1 << 20;
/// Integrity blocks that are reached before they are used. Source: chosen; 256 KiB of the largest blocks.
const PART_BLOCKS: u64 = 64;

/// Returns the record of an operation that has nothing to report.
#[inline]
pub(super) fn success() -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success))
}

/// Executes a fill, a comparison, a copy to two destinations, or a flush. Returns `None` if the steps of a device must
/// do that, from its beginning.
pub(super) fn run(d: &Descriptor) -> Option<CompletionRecord> {
    match Action::of(d) {
        Action::Fill { dst, pattern, len, hint } => {
            own_memory().fill(dst, pattern, len, hint).ok()?;
            Some(success())
        }
        Action::Compare { src1, src2, len, expected } => {
            Some(compared_record(own_memory().compare(src1, src2, len).ok()?, expected))
        }
        Action::ComparePattern { src, pattern, len, expected } => {
            Some(compared_record(own_memory().compare_pattern(src, pattern, len).ok()?, expected))
        }
        Action::Dualcast { src, dst1, dst2, len, hint } => copy_twice(src, [dst1, dst2], len, hint),
        Action::Flush { address, len } => {
            own_memory().flush(address, len).ok()?;
            Some(success())
        }
        _ => None,
    }
}

/// Copies between ranges that do not overlap. Returns false if it did not.
#[inline]
pub(super) fn copied(d: &Descriptor) -> bool {
    let (src, dst, len) = (d.src(), d.dst(), u64::from(d.size()));
    !overlaps(src, len, dst, len) && own_memory().move_forward(dst, src, len, write_hint(d)).is_ok()
}

fn write_hint(d: &Descriptor) -> WriteHint {
    if d.flags().contains(Flags::CACHE_CONTROL_1) { WriteHint::Cache } else { WriteHint::Memory }
}

/// Where a copy stores its bytes: past the caches from the length on where a plain copy does so.
fn hint(into: WriteHint, len: u64) -> Hint {
    if into == WriteHint::Memory && len >= STREAM_MOVE_BYTES { Hint::Memory } else { Hint::Cache }
}

fn mode(d: &Descriptor) -> CrcMode {
    let flags = d.flags();
    CrcMode {
        bypass_invert_reflect: flags.contains(OpFlags::BYPASS_INVERT_REFLECT),
        bypass_data_reflect: flags.contains(OpFlags::BYPASS_DATA_REFLECT),
    }
}

/// Returns the CRC of a source.
#[inline]
pub(super) fn crc(d: &Descriptor) -> Option<u32> {
    let (mut value, mode) = (d.crc_seed(), mode(d));
    for (at, len) in parts(d.size().into()) {
        value = with_ranges((d.src().wrapping_add(at), len), [], |src, []| crc32c(value, src, mode))?;
    }
    Some(value)
}

/// Copies a source, and returns its CRC.
#[inline]
pub(super) fn copy_crc(d: &Descriptor) -> Option<u32> {
    let (src, dst, len) = (d.src(), d.dst(), u64::from(d.size()));
    if len > PART && overlaps(src, len, dst, len) {
        return None;
    }
    let (mut value, mode, hint) = (d.crc_seed(), mode(d), hint(write_hint(d), len));
    for (at, len) in parts(len) {
        let ranges = ((src.wrapping_add(at), len), [(dst.wrapping_add(at), len)]);
        value = with_ranges(ranges.0, ranges.1, |src, [dst]| copy_crc32c(src, dst, value, mode, hint))?;
    }
    Some(value)
}

/// Returns where each part of a length begins, and its bytes.
#[inline]
fn parts(len: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let part = (at < len).then(|| (at, PART.min(len - at)));
        at += PART;
        part
    })
}

fn copy_twice(src: u64, dst: [u64; 2], len: u64, into: WriteHint) -> Option<CompletionRecord> {
    let overlap = |a, b| overlaps(a, len, b, len);
    if len > PART && (overlap(src, dst[0]) || overlap(src, dst[1]) || overlap(dst[0], dst[1])) {
        return None;
    }
    let hint = hint(into, len);
    for (at, len) in parts(len) {
        let range = |address: u64| (address.wrapping_add(at), len);
        with_ranges(range(src), dst.map(range), |src, [dst1, dst2]| dualcast(src, dst1, dst2, hint))?;
    }
    Some(success())
}

/// Executes an operation on integrity fields. Returns how many blocks were good, and the error of the next, or `None`
/// as [`run`].
pub(super) fn dif(dif: &Dif) -> Option<Checked> {
    let (from_block, to_block) = (dif.source_block(), dif.dest_block());
    let total = dif.len / from_block;
    if total > PART_BLOCKS && overlaps(dif.src, dif.len, dif.dst, total * to_block) {
        return None;
    }
    let mut tags = dif.first_tags();
    let mut done = Checked { blocks: 0, error: None };
    while (done.blocks as u64) < total && done.error.is_none() {
        let at = done.blocks as u64;
        let blocks = PART_BLOCKS.min(total - at);
        let src = (dif.src.wrapping_add(at * from_block), blocks * from_block);
        let dst = (dif.dst.wrapping_add(at * to_block), blocks * to_block);
        let part = with_ranges(src, [dst], |src, [dst]| dif.blocks(&mut tags, src, dst))?;
        done = Checked { blocks: done.blocks + part.blocks, error: part.error };
    }
    Some(done)
}
