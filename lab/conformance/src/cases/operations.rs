//! The effects of operations on bytes: move, fill, compare, dualcast, CRC, cache flush.

use super::List;
use crate::arena::place;
use crate::case::{Verdict, same_bytes, section};
use crate::expected::ExpectedRecord;
use crate::fixture::Fixture;
use crate::oracle;
use crate::sample::{self, NOISE};
use crate::subject::DeviceSpec;
use std::collections::BTreeSet;
use telpher_abi::{Descriptor, Flags, OpFlags, Opcode};

/// Sizes around every vector width that an implementation may use.
pub(super) const SIZES: [u32; 22] =
    [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 255, 257, 1000, 4095, 4097, 65_537, 300_001];
/// Bytes around a destination that must not change.
const MARGIN: u64 = 64;

/// Runs `d` and checks that exactly `expected` appears at `dst`, with the margins unchanged.
pub(super) fn writes(
    fixture: &Fixture,
    d: &Descriptor,
    expected_record: &ExpectedRecord,
    dst: u64,
    expected: &[u8],
) -> Verdict {
    fixture.arena.set(dst - MARGIN, expected.len() as u64 + 2 * MARGIN, 0xee);
    fixture.expect(d, expected_record)?;
    written(fixture, dst, expected)
}

/// Checks `expected` at `dst`, with the margins unchanged.
pub(super) fn written(fixture: &Fixture, dst: u64, expected: &[u8]) -> Verdict {
    let margin = [0xee; 64];
    same_bytes("destination", expected, &fixture.arena.read(dst, expected.len() as u64))?;
    same_bytes("bytes before the destination", &margin, &fixture.arena.read(dst - MARGIN, MARGIN))?;
    same_bytes("bytes behind the destination", &margin, &fixture.arena.read(dst + expected.len() as u64, MARGIN))
}

fn moves(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    for size in SIZES {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (5, 3), (63, 64)] {
            let (src, dst) = (list.arena.at(NOISE) + from, list.arena.at(place::OUT1) + 4096 + to);
            let d = Descriptor::memory_move(src, dst, size).with_record(record);
            list.script(section::MOVE, format!("a move of {size} bytes from +{from} to +{to}"), spec, move |fixture| {
                let expected = fixture.arena.read(src, size.into());
                writes(fixture, &d, &ExpectedRecord::success(), dst, &expected)
            });
            let d = d.and_flags(Flags::CACHE_CONTROL_1);
            if size > 4096 && list.capabilities.gen_cap.cache_control() {
                list.script(
                    section::MOVE,
                    format!("a move of {size} bytes from +{from} to +{to}, to cache"),
                    spec,
                    move |fixture| {
                        let expected = fixture.arena.read(src, size.into());
                        writes(fixture, &d, &ExpectedRecord::success(), dst, &expected)
                    },
                );
            }
        }
    }
    // As if through a temporary buffer, at every distance near a vector width and at large ones.
    for size in [1u32, 16, 63, 64, 200, 4096, 10_000, 70_000] {
        for distance in [-9_999i64, -4096, -65, -64, -63, -8, -1, 0, 1, 7, 8, 31, 64, 65, 100, 4096, 9_999] {
            if distance.unsigned_abs() > size.into() || !list.capabilities.gen_cap.overlapping_copy() {
                continue;
            }
            let base = list.arena.at(place::OUT1) + 0x1_0000;
            let dst = base.checked_add_signed(distance).expect("in the arena");
            let d = Descriptor::memory_move(base, dst, size).with_record(record);
            list.script(
                section::MOVE,
                format!("an overlapping move of {size} bytes by {distance}"),
                spec,
                move |fixture| {
                    let data = oracle::noise(size.into(), size as usize);
                    fixture.arena.write(base, &data);
                    fixture.expect(&d, &ExpectedRecord::success())?;
                    same_bytes("destination", &data, &fixture.arena.read(dst, size.into()))
                },
            );
        }
    }
}

fn fills(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let low = 0x0807_0605_0403_0201u64;
    let high = 0x100f_0e0d_0c0b_0a09u64;
    for size in SIZES {
        for to in [0, 1, 7, 13] {
            let dst = list.arena.at(place::OUT1) + 4096 + to;
            let d = Descriptor::fill(low, dst, size).with_record(record);
            list.script(
                section::MOVE,
                format!("a fill of {size} bytes at +{to} begins with the pattern's byte 0"),
                spec,
                move |fixture| {
                    let expected: Vec<u8> = (1..=8).cycle().take(size as usize).collect();
                    writes(fixture, &d, &ExpectedRecord::success(), dst, &expected)
                },
            );
            if !list.capabilities.gen_cap.fill_16() {
                continue;
            }
            let d = Descriptor::fill16([low, high], dst, size).with_record(record);
            list.script(
                section::MOVE,
                format!("a fill of {size} bytes at +{to} with 16 bytes"),
                spec,
                move |fixture| {
                    let expected: Vec<u8> = (1..=16).cycle().take(size as usize).collect();
                    writes(fixture, &d, &ExpectedRecord::success(), dst, &expected)
                },
            );
        }
    }
}

/// Compare: a difference at `at` (if any) out of `size`, against every expected result.
fn compares(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let (a, b) = (list.arena.at(NOISE) + 3, list.arena.at(place::OUT1) + 4096 + 1);
    for size in [1u32, 8, 63, 64, 65, 1000, 4097, 70_000] {
        let places = [None, Some(0), Some(size / 2), Some(size - 1)];
        for at in BTreeSet::from(places) {
            for (check, expected) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
                let result = u8::from(at.is_some());
                let status = if check && result != expected { 0x02 } else { 0x01 };
                let flags = if check { Flags::CHECK_RESULT } else { Flags::empty() };
                let offset = at.unwrap_or(0);
                let d =
                    Descriptor::compare(a, b, size).with_expected_result(expected).and_flags(flags).with_record(record);
                let expected_record = ExpectedRecord::status(status).result(result).bytes_completed(offset);
                let name =
                    format!("compare of {size} bytes that differ at {at:?}, check: {check}, expected {expected}");
                list.script(section::COMPARE, name, spec, move |fixture| {
                    let mut data = fixture.arena.read(a, size.into());
                    if let Some(at) = at {
                        // Several differences: the first one counts.
                        for i in [at, size - 1] {
                            data[i as usize] = !fixture.arena.read(a + u64::from(i), 1)[0];
                        }
                    }
                    fixture.arena.write(b, &data);
                    fixture.expect(&d, &expected_record)
                });
                let d = Descriptor::compare_pattern(b, 0x0807_0605_0403_0201, size)
                    .with_expected_result(expected)
                    .and_flags(flags)
                    .with_record(record);
                let expected_record = ExpectedRecord::status(status).result(result);
                // With a difference the offset may be rounded down.
                let expected_record = if at.is_some() {
                    expected_record.any_bytes_completed()
                } else {
                    expected_record.bytes_completed(0)
                };
                let name = format!(
                    "compare pattern of {size} bytes that differ at {at:?}, check: {check}, expected {expected}"
                );
                list.script(section::COMPARE, name, spec, move |fixture| {
                    let mut data: Vec<u8> = (1..=8).cycle().take(size as usize).collect();
                    if let Some(at) = at {
                        data[at as usize] ^= 0x80;
                    }
                    fixture.arena.write(b, &data);
                    fixture.expect(&d, &expected_record)?;
                    let done = fixture.arena.record(record).bytes_completed();
                    crate::case::holds(format!("an offset of at most {offset}"), done <= offset, || format!("{done}"))
                });
            }
        }
    }
}

fn dualcasts(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    for size in SIZES {
        for off in [0, 1, 100] {
            let src = list.arena.at(NOISE) + 2;
            let (dst1, dst2) = (list.arena.at(place::OUT1) + 4096 + off, list.arena.at(place::OUT2) + 4096 + off);
            let d = Descriptor::dualcast(src, dst1, dst2, size).with_record(record);
            list.script(section::DUALCAST, format!("a dualcast of {size} bytes to +{off}"), spec, move |fixture| {
                let expected = fixture.arena.read(src, size.into());
                fixture.arena.set(dst2 - MARGIN, u64::from(size) + 2 * MARGIN, 0xee);
                writes(fixture, &d, &ExpectedRecord::success(), dst1, &expected)?;
                written(fixture, dst2, &expected)
            });
        }
    }
}

/// Published values: input, then CRC32 without bypass. Source: RFC 3720 B.4.
const VECTORS: [(&str, u32); 5] = [
    ("123456789", 0xe306_9283),
    ("32 zeros", 0x8a91_36aa),
    ("32 ones", 0x62a8_ab43),
    ("0 to 31", 0x46dd_794e),
    ("4096 zeros", 0x98f9_4189),
];
/// "123456789" in the four modes: flags, CRC32, CRC64. Source: SPEC App. A, worked out by hand.
const MODES: [(u32, u32, u64); 4] = [
    (0, 0xe306_9283, 0xae8b_1486_0a79_9888),
    (1 << 18, 0xa8f0_22a0, 0xa9af_4cb7_cb02_c703),
    (1 << 17, 0x045f_c71a, 0x21ec_152b_2603_001e),
    (1 << 17 | 1 << 18, 0xc052_a8c8, 0xf016_cba8_aa19_24fe),
];

fn vector(name: &str) -> Vec<u8> {
    match name {
        "123456789" => name.into(),
        "32 zeros" => vec![0; 32],
        "32 ones" => vec![0xff; 32],
        "0 to 31" => (0..32).collect(),
        _ => vec![0; 4096],
    }
}

fn crc_descriptor(opcode: Opcode, src: u64, dst: u64, size: u32, flags: u32) -> Descriptor {
    let d = Descriptor::dif(opcode, src, if opcode == Opcode::CopyCrc { dst } else { 0 }, size);
    d.and_flags(Flags::from_bits_retain(flags))
}

/// Runs a CRC over `data` at +1, and checks value and copy.
fn crc_case(fixture: &Fixture, opcode: Opcode, d: &Descriptor, data: &[u8], value: u64) -> Verdict {
    fixture.arena.write(d.src(), data);
    let expected_record = ExpectedRecord::success().specific(value, 0);
    if opcode == Opcode::CopyCrc {
        writes(fixture, d, &expected_record, d.dst(), data)
    } else {
        fixture.expect(d, &expected_record)
    }
}

/// The 64-bit CRC, on a device that supports it (usually 2.x).
fn long_crcs(list: &mut List, spec: &DeviceSpec, opcode: Opcode) {
    if !list.capabilities.gen_cap.crc64() {
        return;
    }
    let (src, dst) = (list.arena.at(place::OUT2) + 1, list.arena.at(place::OUT1) + 4096 + 3);
    let (record, seed_at) = (list.arena.at(sample::RECORD), list.arena.at(place::AUX + 0x3000));
    for (flags, _, value) in MODES {
        let flags = flags | 1 << 19;
        let d = crc_descriptor(opcode, src, dst, 9, flags).with_record(record);
        list.script(section::CRC, format!("{opcode} of 64 bits, 123456789, flags {flags:#x}"), spec, move |fixture| {
            crc_case(fixture, opcode, &d, b"123456789", value)
        });
        let (plain_value, plain_data) = (flags & 1 << 17 != 0, flags & 1 << 18 != 0);
        for size in SIZES.into_iter().filter(|size| *size < 5000) {
            let seed = 0x0123_4567_89ab_cdef;
            let value = move |data: &[u8]| oracle::crc64(seed, plain_value, plain_data, data);
            let d = crc_descriptor(opcode, src, dst, size, flags).with_record(record);
            let given = d.with_crc64_seed(seed);
            let read = d.and_flags(OpFlags::READ_SEED).with_crc_seed_address(seed_at);
            for (how, d) in [("given", given), ("from memory", read)] {
                let name = format!("{opcode} of 64 bits, {size} bytes, flags {flags:#x}, seed {how}");
                list.script(section::CRC, name, spec, move |fixture| {
                    let data = oracle::noise(size.into(), size as usize);
                    fixture.arena.write(seed_at, &seed.to_le_bytes());
                    crc_case(fixture, opcode, &d, &data, value(&data))
                });
            }
        }
    }
}

fn crcs(list: &mut List, spec: &DeviceSpec, opcode: Opcode) {
    let what = if opcode == Opcode::CopyCrc { "copy with crc" } else { "crc" };
    let (record, seed_at) = (list.arena.at(sample::RECORD), list.arena.at(place::AUX + 0x3000));
    let (src, dst) = (list.arena.at(place::OUT2) + 1, list.arena.at(place::OUT1) + 4096 + 3);
    for (name, value) in VECTORS {
        let data = vector(name);
        let size = u32::try_from(data.len()).expect("short");
        let d = crc_descriptor(opcode, src, dst, size, 0).with_record(record);
        list.script(section::CRC, format!("{what} of {name}"), spec, move |fixture| {
            crc_case(fixture, opcode, &d, &data, value.into())
        });
    }
    for (flags, value, _) in MODES {
        let d = crc_descriptor(opcode, src, dst, 9, flags).with_record(record);
        list.script(section::CRC, format!("{what} of 123456789 with flags {flags:#x}"), spec, move |fixture| {
            crc_case(fixture, opcode, &d, b"123456789", value.into())
        });
    }
    for size in SIZES {
        for (flags, ..) in MODES {
            let (plain_value, plain_data) = (flags & 1 << 17 != 0, flags & 1 << 18 != 0);
            let seed = 0x89ab_cdef;
            let value = move |data: &[u8]| u64::from(oracle::crc32(seed, plain_value, plain_data, data));
            let d = crc_descriptor(opcode, src, dst, size, flags).with_crc_seed(seed).with_record(record);
            let name = format!("{what} of {size} bytes, flags {flags:#x}, with a seed");
            list.script(section::CRC, name, spec, move |fixture| {
                let data = oracle::noise(size.into(), size as usize);
                crc_case(fixture, opcode, &d, &data, value(&data))
            });
            if size > 300 {
                continue;
            }
            let d = crc_descriptor(opcode, src, dst, size, flags).and_flags(OpFlags::READ_SEED);
            let d = d.with_crc_seed_address(seed_at).with_record(record);
            let name = format!("{what} of {size} bytes, flags {flags:#x}, seed from memory");
            list.script(section::CRC, name, spec, move |fixture| {
                let data = oracle::noise(size.into(), size as usize);
                // The bytes behind a 32-bit seed must not matter.
                fixture.arena.write(seed_at, &(u64::from(seed) | 0x5555_5555 << 32).to_le_bytes());
                crc_case(fixture, opcode, &d, &data, value(&data))
            });
        }
    }
    for cut in [1u32, 7, 64, 999] {
        let first = crc_descriptor(opcode, src, dst, cut, 0).with_record(record);
        let rest = crc_descriptor(opcode, src + u64::from(cut), dst, 1000 - cut, 0).with_record(record);
        list.script(
            section::CRC,
            format!("{what} goes on after {cut} bytes from its own value"),
            spec,
            move |fixture| {
                let data = oracle::noise(1000, 1000);
                fixture.arena.write(src, &data);
                fixture.expect(
                    &first,
                    &ExpectedRecord::success()
                        .specific(oracle::crc32(0, false, false, &data[..cut as usize]).into(), 0),
                )?;
                let value = fixture.arena.record(record).crc();
                let expected_record =
                    ExpectedRecord::success().specific(oracle::crc32(0, false, false, &data).into(), 0);
                fixture.expect(&rest.with_crc_seed(value), &expected_record)
            },
        );
    }
}

fn flushes(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    for size in [1u32, 63, 64, 65, 4096, 100_000] {
        for off in [0, 1, 63] {
            let at = list.arena.at(place::OUT1) + off;
            let d = Descriptor::cache_flush(at, size).with_record(record);
            list.script(
                section::FLUSH,
                format!("a flush of {size} bytes at +{off} changes nothing"),
                spec,
                move |fixture| {
                    let data = oracle::noise(9, size as usize);
                    fixture.arena.write(at, &data);
                    fixture.expect(&d, &ExpectedRecord::success())?;
                    same_bytes("contents", &data, &fixture.arena.read(at, size.into()))
                },
            );
        }
    }
}

pub(super) fn add(list: &mut List) {
    let spec = DeviceSpec::default();
    type Adder = fn(&mut List, &DeviceSpec);
    let adders: [(Opcode, Adder); 9] = [
        (Opcode::MemoryMove, moves),
        (Opcode::Fill, fills),
        (Opcode::Compare, compares),
        (Opcode::Dualcast, dualcasts),
        (Opcode::CrcGeneration, |list, spec| crcs(list, spec, Opcode::CrcGeneration)),
        (Opcode::CrcGeneration, |list, spec| long_crcs(list, spec, Opcode::CrcGeneration)),
        (Opcode::CopyCrc, |list, spec| crcs(list, spec, Opcode::CopyCrc)),
        (Opcode::CopyCrc, |list, spec| long_crcs(list, spec, Opcode::CopyCrc)),
        (Opcode::CacheFlush, flushes),
    ];
    for (opcode, adder) in adders {
        if list.has(opcode) {
            adder(list, &spec);
        }
    }
}
