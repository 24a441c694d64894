//! A naive implementation of each operation, a few lines each, written from the specification and not from the kernels,
//! and the inputs that all tests share.
#![allow(unreachable_pub, reason = "a module of each test file")]
#![allow(dead_code, reason = "each test file uses its own part")]

use telpher_abi::{DestDifFlags, DifFlags, DifStatus, SourceDifFlags};
use telpher_ops::dif::{DifConfig, Tags};

/// Returns `len` bytes that look random, the same for the same `seed`.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    telpher_os::Random::new(seed).fill(&mut bytes);
    bytes
}

/// Returns sizes around every kernel step: all up to 600, then the neighbours of powers of two and of pages.
pub fn sizes() -> impl Iterator<Item = usize> {
    let around = [768, 1024, 2048, 3640, 3896, 4096, 8192, 12_288, 16_384, 65_536].into_iter();
    (0..600).chain(around.flat_map(|size| [size - 65, size - 1, size, size + 1, size + 63, size + 200]))
}

/// The algorithm of SPEC App. A for 32 bits, one bit at a time: `bypass_invert` is flag 17, `bypass_data` flag 18.
pub fn crc32c(seed: u32, data: &[u8], bypass_invert: bool, bypass_data: bool) -> u32 {
    let mut r = if bypass_invert { seed } else { (!seed).reverse_bits() };
    for &byte in data {
        let byte = if bypass_data { byte } else { byte.reverse_bits() };
        r ^= u32::from(byte) << 24;
        for _ in 0..8 {
            r = if r >> 31 == 1 { r << 1 ^ 0x1EDC_6F41 } else { r << 1 };
        }
    }
    if bypass_invert { r } else { !r.reverse_bits() }
}

/// The same for 64 bits.
pub fn crc64(seed: u64, data: &[u8], bypass_invert: bool, bypass_data: bool) -> u64 {
    let mut r = if bypass_invert { seed } else { (!seed).reverse_bits() };
    for &byte in data {
        let byte = if bypass_data { byte } else { byte.reverse_bits() };
        r ^= u64::from(byte) << 56;
        for _ in 0..8 {
            r = if r >> 63 == 1 { r << 1 ^ 0xAD93_D235_94C9_3659 } else { r << 1 };
        }
    }
    if bypass_invert { r } else { !r.reverse_bits() }
}

/// CRC-16/T10-DIF one bit at a time.
pub fn guard(data: &[u8], flags: DifFlags) -> u16 {
    let mut r = if flags.contains(DifFlags::INVERT_CRC_SEED) { 0xffff } else { 0 };
    for &byte in data {
        r ^= u16::from(byte) << 8;
        for _ in 0..8 {
            r = if r >> 15 == 1 { r << 1 ^ 0x8BB7 } else { r << 1 };
        }
    }
    if flags.contains(DifFlags::INVERT_CRC_RESULT) { !r } else { r }
}

/// Returns the application and reference tag of block `k`, by the formulas of SPEC App. B.
fn tags_of_block(seeds: Tags, k: u64, app_increments: bool, ref_fixed: bool) -> (u16, u32) {
    let app = if app_increments { (u64::from(seeds.app_tag) + k) % (1 << 16) } else { u64::from(seeds.app_tag) };
    let reference = if ref_fixed { u64::from(seeds.ref_tag) } else { (u64::from(seeds.ref_tag) + k) % (1 << 32) };
    (u16::try_from(app).unwrap() & !seeds.app_mask, u32::try_from(reference).unwrap())
}

/// Returns the seeds for which block `k` is next.
pub fn seeds_after(seeds: Tags, k: u64, app_increments: bool, ref_fixed: bool) -> Tags {
    let (app_tag, ref_tag) = tags_of_block(Tags { app_mask: 0, ..seeds }, k, app_increments, ref_fixed);
    Tags { ref_tag, app_mask: seeds.app_mask, app_tag }
}

fn source_tags(config: &DifConfig, seeds: Tags, k: u64) -> (u16, u32) {
    let flags = config.source;
    let app_increments = flags.contains(SourceDifFlags::APP_TAG_INCREMENTS);
    tags_of_block(seeds, k, app_increments, flags.contains(SourceDifFlags::REF_TAG_FIXED))
}

fn dest_tags(config: &DifConfig, seeds: Tags, k: u64) -> (u16, u32) {
    let flags = config.dest;
    let app_increments = flags.contains(DestDifFlags::APP_TAG_INCREMENTS);
    tags_of_block(seeds, k, app_increments, flags.contains(DestDifFlags::REF_TAG_FIXED))
}

fn block_size(config: &DifConfig) -> usize {
    config.block.bytes() as usize
}

fn fields(tuple: &[u8]) -> (u16, u16, u32) {
    (
        u16::from_be_bytes(tuple[0..2].try_into().unwrap()),
        u16::from_be_bytes(tuple[2..4].try_into().unwrap()),
        u32::from_be_bytes(tuple[4..8].try_into().unwrap()),
    )
}

fn tuple(guard: u16, app: u16, reference: u32) -> Vec<u8> {
    [&guard.to_be_bytes()[..], &app.to_be_bytes(), &reference.to_be_bytes()].concat()
}

/// The check phase of SPEC App. B: returns the good blocks and the mismatch that stopped it.
pub fn dif_check(config: &DifConfig, src: &[u8], seeds: Tags) -> (usize, Option<DifStatus>) {
    let size = block_size(config);
    let on = |flag| config.source.contains(flag);
    for (k, block) in src.chunks(size + 8).enumerate() {
        let (g, a, r) = fields(&block[size..]);
        let (app, reference) = source_tags(config, seeds, k as u64);
        let all_f = on(SourceDifFlags::ALL_F_DETECT) && (g, a, r) == (0xffff, 0xffff, 0xffff_ffff);
        let app_f = on(SourceDifFlags::APP_F_DETECT) && a == 0xffff;
        let app_ref_f = on(SourceDifFlags::APP_REF_F_DETECT) && (a, r) == (0xffff, 0xffff_ffff);
        if all_f && on(SourceDifFlags::ALL_F_ERROR) {
            return (k, Some(DifStatus::ALL_F));
        }
        if all_f || app_f || app_ref_f {
            continue;
        }
        let mut status = DifStatus::empty();
        if !on(SourceDifFlags::NO_GUARD_CHECK) && g != guard(&block[..size], config.flags) {
            status |= DifStatus::GUARD;
        }
        if seeds.app_mask != 0xffff && a != app {
            status |= DifStatus::APP_TAG;
        }
        if !on(SourceDifFlags::NO_REF_TAG_CHECK) && r != reference {
            status |= DifStatus::REF_TAG;
        }
        if !status.is_empty() {
            return (k, Some(status));
        }
    }
    (src.len() / (size + 8), None)
}

/// Returns the blocks with tuples.
pub fn dif_insert(config: &DifConfig, src: &[u8], seeds: Tags) -> Vec<u8> {
    let blocks = src.chunks(block_size(config)).enumerate();
    blocks
        .flat_map(|(k, block)| {
            let (app, reference) = dest_tags(config, seeds, k as u64);
            [block, &tuple(guard(block, config.flags), app, reference)].concat()
        })
        .collect()
}

/// Returns the first `blocks` blocks without their tuples.
pub fn dif_strip(config: &DifConfig, src: &[u8], blocks: usize) -> Vec<u8> {
    let size = block_size(config);
    src.chunks(size + 8).take(blocks).flat_map(|block| block[..size].to_vec()).collect()
}

/// Returns the first `blocks` blocks with new tuples.
pub fn dif_update(config: &DifConfig, src: &[u8], blocks: usize, seeds: Tags) -> Vec<u8> {
    let size = block_size(config);
    let pass = |flag| config.dest.contains(flag);
    let blocks = src.chunks(size + 8).take(blocks).enumerate();
    blocks
        .flat_map(|(k, block)| {
            let (g, a, r) = fields(&block[size..]);
            let (app, reference) = dest_tags(config, seeds, k as u64);
            let g = if pass(DestDifFlags::GUARD_PASS) { g } else { guard(&block[..size], config.flags) };
            let a = if pass(DestDifFlags::APP_TAG_PASS) { a } else { app };
            let r = if pass(DestDifFlags::REF_TAG_PASS) { r } else { reference };
            [&block[..size], &tuple(g, a, r)].concat()
        })
        .collect()
}
