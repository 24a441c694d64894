//! Tests of Move, Fill, Compare, Compare Pattern, Dualcast and Cache Flush, at every level this CPU has.
#![forbid(unsafe_code)]

use crate::oracle;
use proptest::prelude::*;
use telpher_ops::{Hint, Kernels, STREAM_BYTES, copy_within};

const HINTS: [Hint; 2] = [Hint::Cache, Hint::Memory];

/// Streaming sizes with odd ends, besides the shared ones.
fn sizes() -> impl Iterator<Item = usize> {
    oracle::sizes().chain([
        STREAM_BYTES - 1,
        STREAM_BYTES,
        STREAM_BYTES + 1,
        STREAM_BYTES + 1000,
        3 * STREAM_BYTES + 77,
    ])
}

/// A buffer of 0xEE with space on both sides of the part that a test writes to.
fn buffer(start: usize, size: usize) -> Vec<u8> {
    vec![0xEE; start + size + 64]
}

/// Returns true if the bytes around the part are unchanged.
fn margins_untouched(buffer: &[u8], start: usize, size: usize) -> bool {
    buffer[..start].iter().chain(&buffer[start + size..]).all(|byte| *byte == 0xEE)
}

#[test]
fn copy_moves_every_byte_and_changes_no_other() {
    for (size, hint) in sizes().flat_map(|size| HINTS.map(|hint| (size, hint))) {
        let (from, to) = (size % 61, size % 67);
        let src = oracle::noise(3, from + size);
        for kernels in Kernels::available() {
            let mut dst = buffer(to, size);
            kernels.copy(&src[from..], &mut dst[to..to + size], hint);
            assert!(dst[to..to + size] == src[from..], "{kernels:?} {size} {hint:?}");
            assert!(margins_untouched(&dst, to, size), "{kernels:?} {size} {hint:?}");
        }
    }
}

#[test]
fn dualcast_fills_both_destinations_and_changes_no_other_byte() {
    for (size, hint) in sizes().flat_map(|size| HINTS.map(|hint| (size, hint))) {
        let (to1, to2) = (size % 67, size % 7);
        let src = oracle::noise(4, size);
        for kernels in Kernels::available() {
            let (mut dst1, mut dst2) = (buffer(to1, size), buffer(to2, size));
            kernels.dualcast(&src, &mut dst1[to1..to1 + size], &mut dst2[to2..to2 + size], hint);
            assert!(dst1[to1..to1 + size] == src && dst2[to2..to2 + size] == src, "{kernels:?} {size} {hint:?}");
            assert!(margins_untouched(&dst1, to1, size) && margins_untouched(&dst2, to2, size));
        }
    }
}

#[test]
fn fill_repeats_the_pattern_from_its_lowest_byte() {
    let low = 0x0807_0605_0403_0201;
    let high = 0x100f_0e0d_0c0b_0a09;
    for (size, hint) in sizes().flat_map(|size| HINTS.map(|hint| (size, hint))) {
        let to = size % 67;
        let of8: Vec<u8> = (1..=8).cycle().take(size).collect();
        let of16: Vec<u8> = (1..=16).cycle().take(size).collect();
        for kernels in Kernels::available() {
            let mut dst = buffer(to, size);
            kernels.fill(&mut dst[to..to + size], low, hint);
            assert!(dst[to..to + size] == of8 && margins_untouched(&dst, to, size), "{kernels:?} {size} {hint:?}");
            kernels.fill16(&mut dst[to..to + size], [low, high], hint);
            assert!(dst[to..to + size] == of16 && margins_untouched(&dst, to, size), "{kernels:?} {size} {hint:?}");
        }
    }
}

#[test]
fn compare_finds_the_first_difference_at_any_position() {
    for size in oracle::sizes() {
        let a = oracle::noise(5, size + 3);
        let mut b = buffer(0, size);
        b[1..=size].copy_from_slice(&a[3..]);
        // Each position of small buffers, some of large ones; a second difference after it must not matter.
        for at in (0..size).step_by(1 + size / 150).chain(size.checked_sub(1)) {
            b[1 + at] ^= 0x40;
            b[size] ^= 0x01;
            for kernels in Kernels::available() {
                assert_eq!(kernels.compare(&a[3..], &b[1..=size]), Some(at), "{kernels:?} {size}");
            }
            b[size] ^= 0x01;
            b[1 + at] ^= 0x40;
        }
        for kernels in Kernels::available() {
            assert_eq!(kernels.compare(&a[3..], &b[1..=size]), None, "{kernels:?} {size}");
        }
    }
}

#[test]
fn compare_pattern_finds_the_exact_byte() {
    for size in oracle::sizes() {
        let mut a: Vec<u8> = (0..3).chain((1..=8).cycle().take(size)).collect();
        for at in (0..size).step_by(1 + size / 150).chain(size.checked_sub(1)) {
            a[3 + at] ^= 0x80;
            for kernels in Kernels::available() {
                assert_eq!(kernels.compare_pattern(&a[3..], 0x0807_0605_0403_0201), Some(at), "{kernels:?} {size}");
            }
            a[3 + at] ^= 0x80;
        }
        for kernels in Kernels::available() {
            assert_eq!(kernels.compare_pattern(&a[3..], 0x0807_0605_0403_0201), None, "{kernels:?} {size}");
        }
    }
}

#[test]
fn flushing_changes_no_byte() {
    let data = oracle::noise(6, 10_000);
    let copy = data.clone();
    for kernels in Kernels::available() {
        kernels.flush(&data[13..9000]);
        kernels.write_back(&data[13..9000]);
        kernels.flush(&[]);
        assert!(data == copy, "{kernels:?}");
    }
}

#[test]
#[should_panic(expected = "same length")]
fn comparing_slices_of_different_lengths_panics() {
    let _ = telpher_ops::compare(&[0; 8], &[0; 9]);
}

proptest! {
    #[test]
    fn copy_within_behaves_as_through_a_temporary(
        len in 0usize..5000, from: prop::sample::Index, to: prop::sample::Index,
    ) {
        let (from, to) = (from.index(len + 1), to.index(len + 1));
        let size = len - from.max(to);
        let mut buf = oracle::noise(7, len);
        let mut expected = buf.clone();
        let temporary = buf[from..from + size].to_vec();
        expected[to..to + size].copy_from_slice(&temporary);
        copy_within(&mut buf, from..from + size, to);
        prop_assert_eq!(buf, expected);
    }

    #[test]
    fn fill_equals_indexing_the_pattern(pattern: [u64; 2], start in 0usize..64, size in 0usize..3000, memory: bool) {
        let bytes: Vec<u8> = pattern.iter().flat_map(|word| word.to_le_bytes()).collect();
        let hint = if memory { Hint::Memory } else { Hint::Cache };
        for kernels in Kernels::available() {
            let mut dst = buffer(start, size);
            kernels.fill16(&mut dst[start..start + size], pattern, hint);
            prop_assert!((0..size).all(|at| dst[start + at] == bytes[at % 16]));
            prop_assert!(margins_untouched(&dst, start, size));
        }
    }

    #[test]
    fn compare_equals_a_search_byte_by_byte(
        start in 0usize..64, size in 0usize..3000, changes in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let a = oracle::noise(8, size);
        let mut b = vec![0; start + size];
        b[start..].copy_from_slice(&a);
        if size > 0 {
            changes.iter().for_each(|at| b[start + at.index(size)] ^= 1);
        }
        let expected = (0..size).find(|at| a[*at] != b[start + *at]);
        for kernels in Kernels::available() {
            prop_assert_eq!(kernels.compare(&a, &b[start..]), expected);
        }
    }
}
