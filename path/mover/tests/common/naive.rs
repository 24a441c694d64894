//! The meaning of each operation, byte by byte.

use telpher_abi::{DestDifFlags, DifFlags, DifStatus, SourceDifFlags};
use telpher_mover::{CrcMode, DifConfig, Tags};

pub(crate) fn crc32c(seed: u32, data: &[u8], mode: CrcMode) -> u32 {
    let turn = |r: u32| if mode.bypass_invert_reflect { r } else { (!r).reverse_bits() };
    let mut r = turn(seed);
    for &byte in data {
        let byte = if mode.bypass_data_reflect { byte } else { byte.reverse_bits() };
        r ^= u32::from(byte) << 24;
        for _ in 0..8 {
            r = if r >> 31 == 1 { r << 1 ^ 0x1edc_6f41 } else { r << 1 };
        }
    }
    if mode.bypass_invert_reflect { r } else { !r.reverse_bits() }
}

pub(crate) fn crc64(seed: u64, data: &[u8], mode: CrcMode) -> u64 {
    let turn = |r: u64| if mode.bypass_invert_reflect { r } else { (!r).reverse_bits() };
    let mut r = turn(seed);
    for &byte in data {
        let byte = if mode.bypass_data_reflect { byte } else { byte.reverse_bits() };
        r ^= u64::from(byte) << 56;
        for _ in 0..8 {
            r = if r >> 63 == 1 { r << 1 ^ 0xad93_d235_94c9_3659 } else { r << 1 };
        }
    }
    if mode.bypass_invert_reflect { r } else { !r.reverse_bits() }
}

pub(crate) fn pattern(pattern: &[u8], n: usize) -> Vec<u8> {
    pattern.iter().copied().cycle().take(n).collect()
}

/// Returns a delta record: entries of 10 bytes, as many as fit.
pub(crate) fn delta(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, (x, y)) in a.chunks(8).zip(b.chunks(8)).enumerate() {
        if x != y {
            out.extend((i as u16).to_le_bytes());
            out.extend(y);
        }
    }
    out
}

pub(crate) fn guard(data: &[u8], flags: DifFlags) -> u16 {
    let mut r: u16 = if flags.contains(DifFlags::INVERT_CRC_SEED) { 0xffff } else { 0 };
    for &byte in data {
        r ^= u16::from(byte) << 8;
        for _ in 0..8 {
            r = if r >> 15 == 1 { r << 1 ^ 0x8bb7 } else { r << 1 };
        }
    }
    if flags.contains(DifFlags::INVERT_CRC_RESULT) { !r } else { r }
}

pub(crate) fn step(tags: &mut Tags, ref_fixed: bool, app_counts: bool) {
    tags.ref_tag = tags.ref_tag.wrapping_add(u32::from(!ref_fixed));
    tags.app_tag = tags.app_tag.wrapping_add(u16::from(app_counts));
}

pub(crate) fn step_dest(tags: &mut Tags, config: &DifConfig) {
    step(
        tags,
        config.dest.contains(DestDifFlags::REF_TAG_FIXED),
        config.dest.contains(DestDifFlags::APP_TAG_INCREMENTS),
    );
}

pub(crate) fn step_source(tags: &mut Tags, config: &DifConfig) {
    let fixed = config.source.contains(SourceDifFlags::REF_TAG_FIXED);
    step(tags, fixed, config.source.contains(SourceDifFlags::APP_TAG_INCREMENTS));
}

pub(crate) fn tuple(data: &[u8], tags: &Tags, config: &DifConfig) -> [u8; 8] {
    let mut out = [0; 8];
    out[..2].copy_from_slice(&guard(data, config.flags).to_be_bytes());
    out[2..4].copy_from_slice(&(tags.app_tag & !tags.app_mask).to_be_bytes());
    out[4..].copy_from_slice(&tags.ref_tag.to_be_bytes());
    out
}

/// Checks a block; without the F-detection flags, which these tests do not use.
pub(crate) fn check(block: &[u8], tags: &Tags, config: &DifConfig) -> DifStatus {
    let (data, got) = block.split_at(block.len() - 8);
    let want = tuple(data, tags, config);
    let mut status = DifStatus::empty();
    status.set(DifStatus::GUARD, got[..2] != want[..2] && !config.source.contains(SourceDifFlags::NO_GUARD_CHECK));
    status.set(DifStatus::APP_TAG, got[2..4] != want[2..4] && tags.app_mask != 0xffff);
    status.set(DifStatus::REF_TAG, got[4..] != want[4..] && !config.source.contains(SourceDifFlags::NO_REF_TAG_CHECK));
    status
}

/// Returns the blocks of `data` with their tuples.
pub(crate) fn insert(data: &[u8], config: &DifConfig, mut tags: Tags) -> Vec<u8> {
    let mut out = Vec::new();
    for block in data.chunks(config.block.bytes() as usize) {
        out.extend(block);
        out.extend(tuple(block, &tags, config));
        step_dest(&mut tags, config);
    }
    out
}
