//! Tests of DIF Check, Insert, Strip, Update and DIX Generate, at every level this CPU has.
#![forbid(unsafe_code)]

use crate::oracle;
use proptest::prelude::*;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, DifStatus, SourceDifFlags};
use telpher_ops::Kernels;
use telpher_ops::dif::{Checked, DifConfig, Tags};

const GUARD_FLAGS: [DifFlags; 4] = [
    DifFlags::empty(),
    DifFlags::INVERT_CRC_SEED,
    DifFlags::INVERT_CRC_RESULT,
    DifFlags::INVERT_CRC_SEED.union(DifFlags::INVERT_CRC_RESULT),
];

fn config(block: DifBlock) -> DifConfig {
    DifConfig { block, flags: DifFlags::empty(), source: SourceDifFlags::empty(), dest: DestDifFlags::empty() }
}

/// Returns `blocks` blocks with tuples that a check with `config` and `tags` accepts.
fn protected(config: &DifConfig, tags: Tags, blocks: usize) -> Vec<u8> {
    let data = oracle::noise(11, config.block.bytes() as usize * blocks);
    let mut dest = DestDifFlags::empty();
    dest.set(DestDifFlags::APP_TAG_INCREMENTS, config.source.contains(SourceDifFlags::APP_TAG_INCREMENTS));
    dest.set(DestDifFlags::REF_TAG_FIXED, config.source.contains(SourceDifFlags::REF_TAG_FIXED));
    oracle::dif_insert(&DifConfig { dest, ..*config }, &data, tags)
}

#[test]
fn guards_equal_the_published_values() {
    let ascending: Vec<u8> = (0..=255).cycle().take(4104).collect();
    let zeros = [0; 512];
    let vectors: [(&[u8], DifFlags, u16); 12] = [
        (b"123456789", GUARD_FLAGS[0], 0xD0DB),
        (b"123456789", GUARD_FLAGS[1], 0x8E3C),
        (b"123456789", GUARD_FLAGS[2], 0x2F24),
        (&zeros, GUARD_FLAGS[0], 0x0000),
        (&zeros, GUARD_FLAGS[1], 0x72BB),
        (&zeros, GUARD_FLAGS[2], 0xFFFF),
        (&ascending[..512], GUARD_FLAGS[0], 0x4F10),
        (&ascending[..512], GUARD_FLAGS[1], 0x3DAB),
        (&ascending[..512], GUARD_FLAGS[2], 0xB0EF),
        (&ascending[..520], GUARD_FLAGS[0], 0x297A),
        (&ascending[..4096], GUARD_FLAGS[0], 0x8F6D),
        (&ascending[..4104], GUARD_FLAGS[0], 0x6A1A),
    ];
    for kernels in Kernels::available() {
        for (data, flags, expected) in vectors {
            assert_eq!(kernels.dif_guard(data, flags), expected, "{kernels:?} {} bytes {flags:?}", data.len());
        }
    }
}

#[test]
fn guards_of_all_sizes_equal_the_bit_at_a_time_crc_and_crc_fast() {
    let data = oracle::noise(12, 4200);
    for size in (0..100).chain([511, 512, 513, 519, 520, 521, 4095, 4096, 4097, 4103, 4104, 4105]) {
        for flags in GUARD_FLAGS {
            let expected = oracle::guard(&data[..size], flags);
            for kernels in Kernels::available() {
                assert_eq!(kernels.dif_guard(&data[..size], flags), expected, "{kernels:?} {size} {flags:?}");
            }
        }
        let second = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc16T10Dif, &data[..size]);
        assert_eq!(u64::from(oracle::guard(&data[..size], DifFlags::empty())), second);
    }
}

/// Every source flag byte, with a good block, a wrong guard, wrong tags, and the all-ones marks, each as the second
/// block.
#[test]
fn all_source_flags_treat_all_kinds_of_tuples_as_specified() {
    let tuples: [(&str, &[(usize, u8)]); 9] = [
        ("good", &[]),
        ("guard", &[(0, 0x12)]),
        ("app", &[(3, 0x12)]),
        ("ref", &[(7, 0x12)]),
        ("guard, app and ref", &[(1, 0x99), (2, 0x99), (4, 0x99)]),
        ("app all ones", &[(2, 0xff), (3, 0xff)]),
        ("ref all ones", &[(4, 0xff), (5, 0xff), (6, 0xff), (7, 0xff)]),
        ("app and ref all ones", &[(2, 0xff), (3, 0xff), (4, 0xff), (5, 0xff), (6, 0xff), (7, 0xff)]),
        ("all ones", &[(0, 0xff), (1, 0xff), (2, 0xff), (3, 0xff), (4, 0xff), (5, 0xff), (6, 0xff), (7, 0xff)]),
    ];
    for bits in 0..=255 {
        let config = DifConfig { source: SourceDifFlags::from_bits_retain(bits), ..config(DifBlock::B512) };
        for app_mask in [0, 0x00f0, 0xffff] {
            let seeds = Tags { ref_tag: 0xffff_fffe, app_mask, app_tag: 0xfffd };
            for (name, changes) in tuples {
                let mut src = protected(&config, seeds, 3);
                for (at, value) in changes {
                    src[520 + 512 + at] = *value;
                }
                let (blocks, error) = oracle::dif_check(&config, &src, seeds);
                let app = config.source.contains(SourceDifFlags::APP_TAG_INCREMENTS);
                let fixed = config.source.contains(SourceDifFlags::REF_TAG_FIXED);
                for kernels in Kernels::available() {
                    let mut tags = seeds;
                    let checked = kernels.dif_check(&config, &src, &mut tags);
                    assert_eq!(checked, Checked { blocks, error }, "{kernels:?} {name} {config:?} {seeds:?}");
                    assert_eq!(tags, oracle::seeds_after(seeds, blocks as u64, app, fixed), "{kernels:?} {name}");
                }
            }
        }
    }
}

#[test]
fn all_destination_flags_make_the_specified_tuples() {
    let source = Tags { ref_tag: 5, app_mask: 0, app_tag: 6 };
    let seeds = Tags { ref_tag: 0xffff_fffe, app_mask: 0x0c03, app_tag: 0xffff };
    for (bits, flags) in (0..=255).flat_map(|bits| GUARD_FLAGS.map(|flags| (bits, flags))) {
        let config = DifConfig { dest: DestDifFlags::from_bits_retain(bits), flags, ..config(DifBlock::B520) };
        let app = config.dest.contains(DestDifFlags::APP_TAG_INCREMENTS);
        let after = oracle::seeds_after(seeds, 5, app, config.dest.contains(DestDifFlags::REF_TAG_FIXED));
        let plain = oracle::noise(13, 5 * 520);
        let src = protected(&config, source, 5);
        for kernels in Kernels::available() {
            let (mut dst, mut tags) = (vec![0; 5 * 528], seeds);
            assert_eq!(kernels.dif_insert(&config, &plain, &mut dst, &mut tags), 5);
            assert!(dst == oracle::dif_insert(&config, &plain, seeds), "insert {kernels:?} {config:?}");
            assert_eq!(tags, after);
            let (mut tuples, mut tags) = (vec![0; 5 * 8], seeds);
            assert_eq!(kernels.dix_generate(&config, &plain, &mut tuples, &mut tags), 5);
            let expected: Vec<u8> = dst.chunks(528).flat_map(|block| block[520..].to_vec()).collect();
            assert!(tuples == expected, "generate {kernels:?} {config:?}");
            assert_eq!(tags, after);
            let (mut old, mut new) = (source, seeds);
            let checked = kernels.dif_update(&config, &src, &mut dst, &mut old, &mut new);
            assert_eq!(checked, Checked { blocks: 5, error: None });
            assert!(dst == oracle::dif_update(&config, &src, 5, seeds), "update {kernels:?} {config:?}");
            assert_eq!((old, new), (Tags { ref_tag: 10, ..source }, after));
        }
    }
}

#[test]
fn a_bad_block_stops_strip_and_update_and_nothing_past_it_is_written() {
    let tags = Tags { ref_tag: 1, app_mask: 0, app_tag: 2 };
    for block in DifBlock::ALL {
        let config = config(block);
        let size = block.bytes() as usize;
        for bad in [0, 1, 16, 20] {
            let mut src = protected(&config, tags, 21);
            src[bad * (size + 8) + 100] ^= 1;
            let expected = Checked { blocks: bad, error: Some(DifStatus::GUARD) };
            for kernels in Kernels::available() {
                let (mut dst, mut seeds) = (vec![0xEE; 21 * size], tags);
                assert_eq!(kernels.dif_strip(&config, &src, &mut dst, &mut seeds), expected, "{kernels:?}");
                assert!(dst[..bad * size] == oracle::dif_strip(&config, &src, bad));
                assert!(dst[bad * size..].iter().all(|byte| *byte == 0xEE));
                assert_eq!(seeds.ref_tag, 1 + u32::try_from(bad).unwrap());

                let (mut dst, mut old, mut new) = (vec![0xEE; src.len()], tags, tags);
                assert_eq!(kernels.dif_update(&config, &src, &mut dst, &mut old, &mut new), expected, "{kernels:?}");
                assert!(dst[..bad * (size + 8)] == oracle::dif_update(&config, &src, bad, tags));
                assert!(dst[bad * (size + 8)..].iter().all(|byte| *byte == 0xEE));
                assert_eq!((old, new), (seeds, seeds));
            }
        }
    }
}

#[test]
#[should_panic(expected = "whole number of blocks")]
fn an_incomplete_block_panics() {
    let _ = telpher_ops::dif::check(&config(DifBlock::B512), &[0; 521], &mut Tags::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn processing_in_chunks_gives_the_same_blocks_and_tags(
        code in 0u8..4, guard_flags in 0usize..4, source: u8, dest: u8, seeds: (u32, u16, u16), blocks in 1usize..40,
        cut: prop::sample::Index, start in 0usize..64,
    ) {
        let config = DifConfig {
            block: DifBlock::from_code(code),
            flags: GUARD_FLAGS[guard_flags],
            source: SourceDifFlags::from_bits_retain(source),
            dest: DestDifFlags::from_bits_retain(dest),
        };
        let size = config.block.bytes() as usize;
        let seeds = Tags { ref_tag: seeds.0, app_mask: seeds.1, app_tag: seeds.2 };
        let cut = cut.index(blocks + 1);
        let src = protected(&config, seeds, blocks);
        let unaligned = [&vec![0; start], &src[..]].concat();
        let src = &unaligned[start..];
        let plain = oracle::dif_strip(&config, src, blocks);
        // The all-ones marks may be errors with some flags and tags; the oracle decides.
        let (good, error) = oracle::dif_check(&config, src, seeds);
        for kernels in Kernels::available() {
            let mut tags = seeds;
            let mut dst = vec![0; start + blocks * (size + 8)];
            let (first, second) = dst[start..].split_at_mut(cut * (size + 8));
            kernels.dif_insert(&config, &plain[..cut * size], first, &mut tags);
            kernels.dif_insert(&config, &plain[cut * size..], second, &mut tags);
            prop_assert!(dst[start..] == oracle::dif_insert(&config, &plain, seeds));
            if error.is_none() {
                let (mut old, mut new) = (seeds, seeds);
                let (first, second) = dst[start..].split_at_mut(cut * (size + 8));
                let (src1, src2) = src.split_at(cut * (size + 8));
                let done = kernels.dif_update(&config, src1, first, &mut old, &mut new).blocks
                    + kernels.dif_update(&config, src2, second, &mut old, &mut new).blocks;
                prop_assert_eq!(done, good);
                prop_assert!(dst[start..] == oracle::dif_update(&config, src, blocks, seeds));
            }
        }
    }
}
