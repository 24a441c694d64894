//! Tests of the 64-bit CRC, at every level this CPU has.
#![forbid(unsafe_code)]

use crate::oracle;
use proptest::prelude::*;
use telpher_ops::crc::CrcMode;
use telpher_ops::{Hint, Kernels};

const fn mode(bypass_invert_reflect: bool, bypass_data_reflect: bool) -> CrcMode {
    CrcMode { bypass_invert_reflect, bypass_data_reflect }
}

/// The digits 1 to 9, seed 0. Source: SPEC App. A; the first equals the NVMe entry of the CRC catalogue.
const CHECK: [(CrcMode, u64); 4] = [
    (mode(false, false), 0xAE8B_1486_0A79_9888),
    (mode(false, true), 0xA9AF_4CB7_CB02_C703),
    (mode(true, false), 0x21EC_152B_2603_001E),
    (mode(true, true), 0xF016_CBA8_AA19_24FE),
];

#[test]
fn the_digits_1_to_9_give_the_published_values_in_all_modes() {
    for kernels in Kernels::available() {
        for (mode, expected) in CHECK {
            assert_eq!(kernels.crc64(0, b"123456789", mode), expected, "{kernels:?} {mode:?}");
            let first = kernels.crc64(0, b"1234", mode);
            assert_eq!(kernels.crc64(first, b"56789", mode), expected, "{kernels:?} {mode:?} in two parts");
        }
    }
}

#[test]
fn every_size_equals_the_bit_at_a_time_crc_in_all_modes() {
    let data = oracle::noise(31, 70_000);
    let seed = 0x1234_5678_9abc_def0;
    for mode in CrcMode::ALL {
        for size in oracle::sizes() {
            // The unaligned start changes with the size.
            let part = &data[size % 67..][..size];
            let expected = oracle::crc64(seed, part, mode.bypass_invert_reflect, mode.bypass_data_reflect);
            for kernels in Kernels::available() {
                assert_eq!(kernels.crc64(seed, part, mode), expected, "{kernels:?} {mode:?} {size}");
                for hint in [Hint::Cache, Hint::Memory] {
                    let mut copy = vec![0; size + 2];
                    let crc = kernels.copy_crc64(part, &mut copy[1..=size], seed, mode, hint);
                    assert_eq!(crc, expected, "{kernels:?} {mode:?} {size} {hint:?}");
                    assert!(copy[1..=size] == *part && (copy[0], copy[size + 1]) == (0, 0));
                }
            }
        }
    }
}

#[test]
fn long_data_equals_crc_fast() {
    let data = oracle::noise(32, 1 << 20);
    for size in [100_000, 300_001, 524_288, 1 << 20] {
        let expected = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &data[..size]);
        for kernels in Kernels::available() {
            assert_eq!(kernels.crc64(0, &data[..size], CrcMode::default()), expected, "{kernels:?} {size}");
            let mut copy = vec![0; size];
            let crc = kernels.copy_crc64(&data[..size], &mut copy, 0, CrcMode::default(), Hint::Memory);
            assert_eq!(crc, expected, "{kernels:?} {size}");
            assert!(copy == data[..size]);
        }
    }
}

proptest! {
    #[test]
    fn continuing_from_any_cut_equals_a_single_run(
        seed: u64, start in 0usize..64, size in 0usize..9000, cut: prop::sample::Index, mode in 0usize..4,
    ) {
        let data = &oracle::noise(seed, start + size)[start..];
        let (first, second) = data.split_at(cut.index(size + 1));
        let mode = CrcMode::ALL[mode];
        let expected = oracle::crc64(seed, data, mode.bypass_invert_reflect, mode.bypass_data_reflect);
        for kernels in Kernels::available() {
            prop_assert_eq!(kernels.crc64(seed, data, mode), expected);
            prop_assert_eq!(kernels.crc64(kernels.crc64(seed, first, mode), second, mode), expected);
        }
    }
}
