//! Tests of CRC Generation and Copy with CRC, at every level this CPU has.
#![forbid(unsafe_code)]

use crate::oracle;
use proptest::prelude::*;
use telpher_ops::crc::CrcMode;
use telpher_ops::{Hint, Kernels};

/// Input, seed 0: no bypass, flag 18 only, flag 17 only, both. Source: SPEC App. A; the first equals the CRC catalogue.
const CHECK: [(CrcMode, u32); 4] = [
    (CrcMode { bypass_invert_reflect: false, bypass_data_reflect: false }, 0xE306_9283),
    (CrcMode { bypass_invert_reflect: false, bypass_data_reflect: true }, 0xA8F0_22A0),
    (CrcMode { bypass_invert_reflect: true, bypass_data_reflect: false }, 0x045F_C71A),
    (CrcMode { bypass_invert_reflect: true, bypass_data_reflect: true }, 0xC052_A8C8),
];

#[test]
fn the_digits_1_to_9_give_the_published_values_in_all_modes() {
    for kernels in Kernels::available() {
        for (mode, expected) in CHECK {
            assert_eq!(kernels.crc32c(0, b"123456789", mode), expected, "{kernels:?} {mode:?}");
        }
    }
}

#[test]
fn the_vectors_of_rfc_3720_hold() {
    let ascending: Vec<u8> = (0..32).collect();
    let vectors: [(&[u8], u32); 4] =
        [(&[0; 32], 0x8A91_36AA), (&[0xff; 32], 0x62A8_AB43), (&ascending, 0x46DD_794E), (&[0; 4096], 0x98F9_4189)];
    for kernels in Kernels::available() {
        for (data, expected) in vectors {
            assert_eq!(kernels.crc32c(0, data, CrcMode::default()), expected, "{kernels:?}, {} bytes", data.len());
        }
    }
}

#[test]
fn every_size_equals_the_bit_at_a_time_crc_in_all_modes() {
    let data = oracle::noise(1, 70_000);
    for mode in CrcMode::ALL {
        for size in oracle::sizes() {
            // The unaligned start changes with the size.
            let part = &data[size % 67..][..size];
            let expected = oracle::crc32c(0x1234_5678, part, mode.bypass_invert_reflect, mode.bypass_data_reflect);
            for kernels in Kernels::available() {
                assert_eq!(kernels.crc32c(0x1234_5678, part, mode), expected, "{kernels:?} {mode:?} {size}");
                for hint in [Hint::Cache, Hint::Memory] {
                    let mut copy = vec![0; size + 2];
                    let crc = kernels.copy_crc32c(part, &mut copy[1..=size], 0x1234_5678, mode, hint);
                    assert_eq!(crc, expected, "{kernels:?} {mode:?} {size} {hint:?}");
                    assert!(copy[1..=size] == *part && (copy[0], copy[size + 1]) == (0, 0));
                }
            }
        }
    }
}

#[test]
fn long_data_equals_crc_fast() {
    let data = oracle::noise(2, 1 << 20);
    for size in [100_000, 300_001, 524_288, 1 << 20] {
        let expected = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &data[..size]);
        for kernels in Kernels::available() {
            assert_eq!(u64::from(kernels.crc32c(0, &data[..size], CrcMode::default())), expected, "{kernels:?} {size}");
            let mut copy = vec![0; size];
            let crc = kernels.copy_crc32c(&data[..size], &mut copy, 0, CrcMode::default(), Hint::Memory);
            assert_eq!(u64::from(crc), expected, "{kernels:?} {size}");
            assert!(copy == data[..size]);
        }
    }
}

proptest! {
    #[test]
    fn continuing_from_any_cut_equals_a_single_run(
        seed: u32, start in 0usize..64, size in 0usize..9000, cut: prop::sample::Index, mode in 0usize..4,
    ) {
        let data = &oracle::noise(u64::from(seed), start + size)[start..];
        let (first, second) = data.split_at(cut.index(size + 1));
        let mode = CrcMode::ALL[mode];
        let expected = oracle::crc32c(seed, data, mode.bypass_invert_reflect, mode.bypass_data_reflect);
        for kernels in Kernels::available() {
            prop_assert_eq!(kernels.crc32c(seed, data, mode), expected);
            prop_assert_eq!(kernels.crc32c(kernels.crc32c(seed, first, mode), second, mode), expected);
        }
    }
}
