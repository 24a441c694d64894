//! The effect of the operations on present memory, compared with one-liners.
#![allow(clippy::cast_possible_truncation, reason = "offsets within a few pages")]

mod common;

use common::{Fixture, HINTS, PAGE, fixtures, locals, noise};
use proptest::prelude::*;
use std::sync::{Mutex, OnceLock};
use telpher_mem::{FOLDED_BYTES, Isa, Pages, STREAM_FILL_BYTES, STREAM_MOVE_BYTES, Space, WriteHint};

const FIXTURE_BYTES: usize = 8 * PAGE as usize;

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
    for fixture in fixtures() {
        let before = noise(FIXTURE_BYTES, 1);
        for len in sizes() {
            for distance in [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 255, 257, 600, 6000] {
                // One alignment per case keeps the test short; the property test draws the others.
                let low = 512 + len % 67;
                let high = low + distance;
                fixture.poke(0, &before);
                fixture
                    .space()
                    .move_forward(fixture.base() + low as u64, fixture.base() + high as u64, len as u64, HINTS[len % 2])
                    .unwrap();
                let mut expected = before.clone();
                expected.copy_within(high..high + len, low);
                assert!(
                    fixture.peek(0, FIXTURE_BYTES) == expected,
                    "forward {len} by {distance} on {}",
                    fixture.name()
                );

                fixture.poke(0, &before);
                fixture
                    .space()
                    .move_backward(
                        fixture.base() + high as u64,
                        fixture.base() + low as u64,
                        len as u64,
                        HINTS[len % 2],
                    )
                    .unwrap();
                let mut expected = before.clone();
                expected.copy_within(low..low + len, high);
                assert!(
                    fixture.peek(0, FIXTURE_BYTES) == expected,
                    "backward {len} by {distance} on {}",
                    fixture.name()
                );
            }
        }
    }
}

#[test]
fn fills_repeat_the_pattern_from_its_first_byte() {
    let mixed = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    for fixture in fixtures() {
        let before = noise(FIXTURE_BYTES, 2);
        for pattern in [mixed, [0; 2], [0x1122_3344_5566_7788; 2], [0x3333_3333_3333_3333; 2], [0, u64::MAX]] {
            for len in sizes() {
                for at in [0, 1, 15, 16, 33, 63] {
                    fixture.poke(0, &before);
                    fixture.space().fill(fixture.base() + at as u64, pattern, len as u64, WriteHint::Cache).unwrap();
                    let mut expected = before.clone();
                    (0..len).for_each(|i| expected[at + i] = pattern_byte(pattern, i));
                    assert!(
                        fixture.peek(0, FIXTURE_BYTES) == expected,
                        "{pattern:x?} {len} at {at} on {}",
                        fixture.name()
                    );
                }
            }
        }
    }
}

#[test]
fn comparisons_find_the_first_difference_wherever_it_is() {
    for fixture in fixtures() {
        let bytes = noise(FIXTURE_BYTES / 2, 3);
        let pattern = 0x8877_6655_4433_2211;
        for len in sizes().filter(|len| *len < 1100) {
            let (a, b, c) = (33, 7000, 12_001);
            fixture.poke(a, &bytes[..len]);
            fixture.poke(b, &bytes[..len]);
            let filled: Vec<u8> = (0..len).map(|i| pattern_byte([pattern; 2], i)).collect();
            fixture.poke(c, &filled);
            let (base, space, n) = (fixture.base(), fixture.space(), len as u64);
            assert_eq!(space.compare(base + a, base + b, n), Ok(None), "{len} on {}", fixture.name());
            assert_eq!(space.compare_pattern(base + c, pattern, n), Ok(None), "{len} on {}", fixture.name());
            let step = if len > 300 { 13 } else { 1 };
            for at in (0..len).rev().step_by(step) {
                // From the end to the start; the later differences stay in place, and the first one counts.
                fixture.poke(b + at as u64, &[bytes[at] ^ 0x10]);
                fixture.poke(c + at as u64, &[filled[at] ^ 0x80]);
                assert_eq!(space.compare(base + a, base + b, n), Ok(Some(at as u64)), "{len} on {}", fixture.name());
                assert_eq!(
                    space.compare_pattern(base + c, pattern, n),
                    Ok(Some(at as u64)),
                    "{len} on {}",
                    fixture.name()
                );
            }
        }
    }
}

#[test]
fn reads_and_writes_use_the_callers_buffers() {
    for fixture in fixtures() {
        for len in sizes() {
            let bytes = noise(len, 4);
            fixture.space().write(fixture.base() + 77, &bytes, WriteHint::Memory).unwrap();
            let mut back = vec![0; len];
            fixture.space().read(fixture.base() + 77, &mut back).unwrap();
            assert!(back == bytes, "{len} on {}", fixture.name());
        }
    }
}

#[test]
fn records_are_written_whole_and_flushes_change_nothing() {
    for fixture in fixtures() {
        let record = [0x0102_0304_0506_0708, 2, u64::MAX, 4];
        fixture.space().write_record(fixture.base() + 64, &record).unwrap();
        fixture.space().flush(fixture.base() + 65, 10_000).unwrap();
        fixture.space().flush(fixture.base() + 65, 0).unwrap();
        let expected: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(fixture.peek(64, 32), expected, "{}", fixture.name());
        assert_eq!(fixture.peek(96, 8), [0; 8]);
    }
}

/// Multiplies without carries.
fn carry_less(a: u64, b: u64) -> u128 {
    (0..64).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ u128::from(a) << bit)
}

/// Folds a message lane by lane.
fn folded(message: &[u8], register: u32, by: [u64; 2]) -> [u8; FOLDED_BYTES] {
    let mut message = message.to_vec();
    message.iter_mut().zip(register.to_le_bytes()).for_each(|(byte, added)| *byte ^= added);
    let mut sum = [0; FOLDED_BYTES];
    for block in message.chunks(FOLDED_BYTES) {
        for (lane, added) in sum.chunks_mut(16).zip(block.chunks(16)) {
            let [low, high] = [0, 8].map(|at| u64::from_le_bytes(lane[at..at + 8].try_into().unwrap()));
            let moved = carry_less(low, by[0]) ^ carry_less(high, by[1]);
            let next = moved ^ u128::from_le_bytes(added.try_into().unwrap());
            lane.copy_from_slice(&next.to_le_bytes());
        }
    }
    sum
}

#[test]
fn a_folded_message_is_the_sum_of_its_blocks_moved_to_the_end() {
    let has_multiplier = is_x86_feature_detected!("vpclmulqdq") && Isa::Avx512.is_available();
    if !has_multiplier {
        eprintln!("SKIPPED: no carry-less multiplies of 64 bytes");
    }
    let (register, by) = (0x8765_4321, [0xdead_beef_0000_0000, 0x1234_5678_9abc_def0]);
    let data = noise(FIXTURE_BYTES, 3);
    let folds = |space: &dyn Space, name: &str, base: u64| {
        for blocks in [1, 2, 3, 4, 7, 16, 100] {
            for at in [0, 1, 31, 64, 4095] {
                let len = blocks * FOLDED_BYTES;
                let mut sum = [0; FOLDED_BYTES];
                if !space.fold(base + at as u64, len as u64, register, &by, &mut sum) {
                    return false;
                }
                assert_eq!(sum, folded(&data[at..at + len], register, by), "{blocks} blocks at {at} on {name}");
            }
        }
        true
    };
    for fixture in fixtures() {
        fixture.poke(0, &data);
        folds(fixture.space(), &fixture.name(), fixture.base());
    }
    let pages = Pages::new(FIXTURE_BYTES / PAGE as usize).unwrap();
    pages.poke(0, &data);
    for local in locals() {
        let folds = folds(&local, &format!("{local:?}"), pages.address());
        assert_eq!(folds, local.isa() == Isa::Avx512 && has_multiplier, "{local:?}");
        // Lengths that the kernels cannot handle.
        for len in [0, 1, 255, 257] {
            assert!(!local.fold(pages.address(), len, register, &by, &mut [0; FOLDED_BYTES]), "{len} on {local:?}");
        }
    }
}

#[test]
fn long_operations_agree_on_every_path() {
    // Beyond the thresholds for streaming and string instructions, with unaligned ends and overlap.
    let size = (STREAM_FILL_BYTES + 3 * PAGE) as usize;
    let pages = Pages::new(size / PAGE as usize).unwrap();
    let before = noise(size, 5);
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

fn shared() -> &'static Mutex<Vec<Box<dyn Fixture + Send>>> {
    static SHARED: OnceLock<Mutex<Vec<Box<dyn Fixture + Send>>>> = OnceLock::new();
    SHARED.get_or_init(|| {
        Mutex::new(
            common::locals()
                .into_iter()
                .map(|space| -> Box<dyn Fixture + Send> {
                    Box::new(common::LocalFixture { pages: Pages::new(common::COUNT).unwrap(), space })
                })
                .collect(),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_move_equals_copy_within(a in 0..9000_usize, b in 0..9000_usize, len in 0..9000_usize, seed: u64) {
        for fixture in shared().lock().unwrap().iter() {
            let before = noise(FIXTURE_BYTES, seed);
            fixture.poke(0, &before);
            let (base, n) = (fixture.base(), len as u64);
            let (dst, src) = (base + a as u64, base + b as u64);
            if a <= b { fixture.space().move_forward(dst, src, n, WriteHint::Memory) } else { fixture.space().move_backward(dst, src, n, WriteHint::Memory) }.unwrap();
            let mut expected = before;
            expected.copy_within(b..b + len, a);
            prop_assert!(fixture.peek(0, FIXTURE_BYTES) == expected, "{}", fixture.name());
        }
    }

    #[test]
    fn any_fill_equals_a_cycle(at in 0..9000_usize, len in 0..9000_usize, pattern: [u64; 2]) {
        for fixture in shared().lock().unwrap().iter() {
            fixture.poke(0, &[0xa5; FIXTURE_BYTES]);
            fixture.space().fill(fixture.base() + at as u64, pattern, len as u64, WriteHint::Memory).unwrap();
            let mut expected = vec![0xa5; FIXTURE_BYTES];
            (0..len).for_each(|i| expected[at + i] = pattern_byte(pattern, i));
            prop_assert!(fixture.peek(0, FIXTURE_BYTES) == expected, "{}", fixture.name());
        }
    }

    #[test]
    fn any_difference_is_found(a in 0..9000_usize, b in 10_000..19_000_usize, len in 1..9000_usize, at: prop::sample::Index, seed: u64) {
        let at = at.index(len);
        for fixture in shared().lock().unwrap().iter() {
            let bytes = noise(len, seed);
            fixture.poke(a as u64, &bytes);
            fixture.poke(b as u64, &bytes);
            let compare = || fixture.space().compare(fixture.base() + a as u64, fixture.base() + b as u64, len as u64);
            prop_assert_eq!(compare(), if a + len <= b { Ok(None) } else { compare() });
            fixture.poke((b + at) as u64, &[!bytes[at]]);
            let (left, right) = (fixture.peek(a as u64, len), fixture.peek(b as u64, len));
            let expected = left.iter().zip(&right).position(|(l, r)| l != r).map(|at| at as u64);
            prop_assert_eq!(compare(), Ok(expected));
        }
    }
}
