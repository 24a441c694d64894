//! What the operations do on memory that is there, against one-liners.
#![allow(clippy::cast_possible_truncation, reason = "offsets within a few pages")]

mod common;

use common::{Ground, HINTS, PAGE, grounds, noise};
use proptest::prelude::*;
use std::sync::{Mutex, OnceLock};
use telpher_mem::{Pages, STREAM_FILL_BYTES, STREAM_MOVE_BYTES, Space, WriteHint};

const ROOM: usize = 8 * PAGE as usize;

/// Sizes around every branch of the kernels, and all small ones.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=140).chain([
        191, 192, 193, 255, 256, 257, 300, 511, 512, 513, 575, 576, 577, 640, 767, 769, 1023, 1025, 2111, 4096, 5000,
    ])
}

fn pattern_byte(pattern: [u64; 2], at: usize) -> u8 {
    pattern[at / 8 % 2].to_le_bytes()[at % 8]
}

#[test]
fn moves_equal_copy_within_for_every_size_and_distance() {
    for ground in grounds() {
        let before = noise(ROOM, 1);
        for len in sizes() {
            for distance in [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 255, 257, 600, 6000] {
                // One alignment per case keeps it short; the property test draws the others.
                let low = 512 + len % 67;
                let high = low + distance;
                ground.poke(0, &before);
                ground
                    .space()
                    .move_forward(ground.base() + low as u64, ground.base() + high as u64, len as u64, HINTS[len % 2])
                    .unwrap();
                let mut expected = before.clone();
                expected.copy_within(high..high + len, low);
                assert!(ground.peek(0, ROOM) == expected, "forward {len} by {distance} on {}", ground.name());

                ground.poke(0, &before);
                ground
                    .space()
                    .move_backward(ground.base() + high as u64, ground.base() + low as u64, len as u64, HINTS[len % 2])
                    .unwrap();
                let mut expected = before.clone();
                expected.copy_within(low..low + len, high);
                assert!(ground.peek(0, ROOM) == expected, "backward {len} by {distance} on {}", ground.name());
            }
        }
    }
}

#[test]
fn fills_repeat_the_pattern_from_its_first_byte() {
    let mixed = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    for ground in grounds() {
        let before = noise(ROOM, 2);
        for pattern in [mixed, [0; 2], [0x1122_3344_5566_7788; 2], [0x3333_3333_3333_3333; 2], [0, u64::MAX]] {
            for len in sizes() {
                for at in [0, 1, 15, 16, 33, 63] {
                    ground.poke(0, &before);
                    ground.space().fill(ground.base() + at as u64, pattern, len as u64, WriteHint::Cache).unwrap();
                    let mut expected = before.clone();
                    (0..len).for_each(|i| expected[at + i] = pattern_byte(pattern, i));
                    assert!(ground.peek(0, ROOM) == expected, "{pattern:x?} {len} at {at} on {}", ground.name());
                }
            }
        }
    }
}

#[test]
fn comparisons_find_the_first_difference_wherever_it_is() {
    for ground in grounds() {
        let bytes = noise(ROOM / 2, 3);
        let pattern = 0x8877_6655_4433_2211;
        for len in sizes().filter(|len| *len < 1100) {
            let (a, b, c) = (33, 7000, 12_001);
            ground.poke(a, &bytes[..len]);
            ground.poke(b, &bytes[..len]);
            let filled: Vec<u8> = (0..len).map(|i| pattern_byte([pattern; 2], i)).collect();
            ground.poke(c, &filled);
            let (base, space, n) = (ground.base(), ground.space(), len as u64);
            assert_eq!(space.compare(base + a, base + b, n), Ok(None), "{len} on {}", ground.name());
            assert_eq!(space.compare_pattern(base + c, pattern, n), Ok(None), "{len} on {}", ground.name());
            let step = if len > 300 { 13 } else { 1 };
            for at in (0..len).rev().step_by(step) {
                // From the end to the start, leaving the later differences in place: the first one counts.
                ground.poke(b + at as u64, &[bytes[at] ^ 0x10]);
                ground.poke(c + at as u64, &[filled[at] ^ 0x80]);
                assert_eq!(space.compare(base + a, base + b, n), Ok(Some(at as u64)), "{len} on {}", ground.name());
                assert_eq!(
                    space.compare_pattern(base + c, pattern, n),
                    Ok(Some(at as u64)),
                    "{len} on {}",
                    ground.name()
                );
            }
        }
    }
}

#[test]
fn reads_and_writes_carry_own_buffers() {
    for ground in grounds() {
        for len in sizes() {
            let bytes = noise(len, 4);
            ground.space().write(ground.base() + 77, &bytes, WriteHint::Memory).unwrap();
            let mut back = vec![0; len];
            ground.space().read(ground.base() + 77, &mut back).unwrap();
            assert!(back == bytes, "{len} on {}", ground.name());
        }
    }
}

#[test]
fn records_are_written_whole_and_flushes_change_nothing() {
    for ground in grounds() {
        let record = [0x0102_0304_0506_0708, 2, u64::MAX, 4];
        ground.space().write_record(ground.base() + 64, &record).unwrap();
        ground.space().flush(ground.base() + 65, 10_000).unwrap();
        ground.space().flush(ground.base() + 65, 0).unwrap();
        let expected: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(ground.peek(64, 32), expected, "{}", ground.name());
        assert_eq!(ground.peek(96, 8), [0; 8]);
    }
}

#[test]
fn long_operations_agree_on_every_path() {
    // Past the thresholds of streaming and of the string instructions, with unaligned ends and overlap.
    let room = (STREAM_FILL_BYTES + 3 * PAGE) as usize;
    let pages = Pages::new(room / PAGE as usize).unwrap();
    let before = noise(room, 5);
    let mixed = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    for local in common::locals() {
        for hint in HINTS {
            for (len, distance) in [(30_000, 5), (100_001, 4096), (STREAM_MOVE_BYTES as usize + 77, 100)] {
                let (low, high) = (13, 13 + distance);
                let base = pages.address();
                pages.poke(0, &before);
                local.move_forward(base + low as u64, base + high as u64, len as u64, hint).unwrap();
                assert!(pages.peek(low as u64, len) == before[high..high + len], "forward {len} {hint:?} {local:?}");
                assert_eq!(pages.peek(low as u64 + len as u64, 64), before[low + len..low + len + 64]);
                pages.poke(0, &before);
                local.move_backward(base + high as u64, base + low as u64, len as u64, hint).unwrap();
                assert!(pages.peek(high as u64, len) == before[low..low + len], "backward {len} {hint:?} {local:?}");
                assert_eq!(pages.peek(0, high), before[..high]);
            }
            for pattern in [mixed, [0x7777_7777_7777_7777; 2]] {
                for len in [1_000_003, STREAM_FILL_BYTES as usize + 5] {
                    pages.poke(0, &before[..len + 100]);
                    local.fill(pages.address() + 3, pattern, len as u64, hint).unwrap();
                    let filled = pages.peek(3, len);
                    let unit: Vec<u8> = (0..16).map(|i| pattern_byte(pattern, i)).collect();
                    assert!(filled.chunks(16).all(|chunk| chunk == &unit[..chunk.len()]), "{len} {hint:?} {local:?}");
                    assert_eq!(pages.peek(len as u64 + 3, 64), before[len + 3..len + 67]);
                }
            }
        }
    }
}

fn shared() -> &'static Mutex<Vec<Box<dyn Ground + Send>>> {
    static SHARED: OnceLock<Mutex<Vec<Box<dyn Ground + Send>>>> = OnceLock::new();
    SHARED.get_or_init(|| {
        Mutex::new(
            common::locals()
                .into_iter()
                .map(|space| -> Box<dyn Ground + Send> {
                    Box::new(common::Real { pages: Pages::new(common::COUNT).unwrap(), space })
                })
                .collect(),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_move_equals_copy_within(a in 0..9000_usize, b in 0..9000_usize, len in 0..9000_usize, seed: u64) {
        for ground in shared().lock().unwrap().iter() {
            let before = noise(ROOM, seed);
            ground.poke(0, &before);
            let (base, n) = (ground.base(), len as u64);
            let (dst, src) = (base + a as u64, base + b as u64);
            if a <= b { ground.space().move_forward(dst, src, n, WriteHint::Memory) } else { ground.space().move_backward(dst, src, n, WriteHint::Memory) }.unwrap();
            let mut expected = before;
            expected.copy_within(b..b + len, a);
            prop_assert!(ground.peek(0, ROOM) == expected, "{}", ground.name());
        }
    }

    #[test]
    fn any_fill_equals_a_cycle(at in 0..9000_usize, len in 0..9000_usize, pattern: [u64; 2]) {
        for ground in shared().lock().unwrap().iter() {
            ground.poke(0, &[0xa5; ROOM]);
            ground.space().fill(ground.base() + at as u64, pattern, len as u64, WriteHint::Memory).unwrap();
            let mut expected = vec![0xa5; ROOM];
            (0..len).for_each(|i| expected[at + i] = pattern_byte(pattern, i));
            prop_assert!(ground.peek(0, ROOM) == expected, "{}", ground.name());
        }
    }

    #[test]
    fn any_difference_is_found(a in 0..9000_usize, b in 10_000..19_000_usize, len in 1..9000_usize, at: prop::sample::Index, seed: u64) {
        let at = at.index(len);
        for ground in shared().lock().unwrap().iter() {
            let bytes = noise(len, seed);
            ground.poke(a as u64, &bytes);
            ground.poke(b as u64, &bytes);
            let compare = || ground.space().compare(ground.base() + a as u64, ground.base() + b as u64, len as u64);
            prop_assert_eq!(compare(), if a + len <= b { Ok(None) } else { compare() });
            ground.poke((b + at) as u64, &[!bytes[at]]);
            let (left, right) = (ground.peek(a as u64, len), ground.peek(b as u64, len));
            let expected = left.iter().zip(&right).position(|(l, r)| l != r).map(|at| at as u64);
            prop_assert_eq!(compare(), Ok(expected));
        }
    }
}
