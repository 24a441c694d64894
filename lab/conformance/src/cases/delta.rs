//! Delta records: the output of Create, the records that Apply accepts, and that Apply undoes Create.

use super::List;
use crate::arena::place;
use crate::case::{same_bytes, section, skip};
use crate::expected::ExpectedRecord;
use crate::oracle;
use crate::sample;
use crate::subject::DeviceSpec;
use telpher_abi::{Descriptor, Flags, Opcode};

/// One entry: offset in units of eight bytes, and the byte that its data repeats.
fn entry(offset: u16, byte: u8) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend([byte; 8]);
    bytes
}

fn record_of(entries: &[(u16, u8)]) -> Vec<u8> {
    entries.iter().flat_map(|(offset, byte)| entry(*offset, *byte)).collect()
}

/// The expected result of Create Delta: differing words, room, then status-independent result, record size, bytes
/// compared.
struct Create {
    name: &'static str,
    size: u32,
    /// Indices of eight-byte words that differ.
    differ: &'static [u16],
    room: u32,
    result: u8,
    record: u32,
    completed: u32,
}

const CREATES: [Create; 9] = [
    Create { name: "equal sources", size: 256, differ: &[], room: 80, result: 0, record: 0, completed: 0 },
    Create { name: "the first word", size: 256, differ: &[0], room: 80, result: 1, record: 10, completed: 0 },
    Create { name: "the last word", size: 256, differ: &[31], room: 80, result: 1, record: 10, completed: 0 },
    Create {
        name: "eight words, just fitting",
        size: 256,
        differ: &[1, 2, 3, 5, 8, 13, 21, 31],
        room: 80,
        result: 1,
        record: 80,
        completed: 0,
    },
    Create {
        name: "nine words, one too many",
        size: 256,
        differ: &[1, 2, 3, 5, 8, 13, 21, 30, 31],
        room: 80,
        result: 2,
        record: 80,
        completed: 248,
    },
    Create {
        name: "room that is no multiple of ten",
        size: 256,
        differ: &[0, 1, 2, 3, 4, 5, 6, 7, 9],
        room: 89,
        result: 2,
        record: 80,
        completed: 72,
    },
    Create {
        name: "nine words in ninety bytes",
        size: 256,
        differ: &[0, 1, 2, 3, 4, 5, 6, 7, 9],
        room: 90,
        result: 1,
        record: 90,
        completed: 0,
    },
    Create { name: "one word of eight bytes", size: 8, differ: &[0], room: 80, result: 1, record: 10, completed: 0 },
    Create {
        name: "the largest offset",
        size: 0x8_0000,
        differ: &[0xffff],
        room: 80,
        result: 1,
        record: 10,
        completed: 0,
    },
];

fn creates(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let (a, b) = (list.arena.at(place::INPUT) + 0x8_0000, list.arena.at(place::OUT1));
    let out = list.arena.at(sample::DELTA_OUT) + 1;
    for case in CREATES {
        for check in [None, Some(0), Some(1), Some(2), Some(4), Some(3), Some(5), Some(6), Some(7u8)] {
            let status = if check.is_some_and(|mask| mask >> case.result & 1 == 0) { 0x02 } else { 0x01 };
            let flags = if check.is_some() { Flags::CHECK_RESULT } else { Flags::empty() };
            let d = Descriptor::create_delta(a, b, case.size, out, case.room)
                .with_expected_result_mask(check.unwrap_or(0))
                .and_flags(flags)
                .with_record(record);
            let expected_record = ExpectedRecord::status(status).result(case.result).specific(case.record.into(), 0);
            let expected_record = expected_record.bytes_completed(case.completed);
            let (size, differ, written) = (case.size, case.differ, case.record);
            list.script(
                section::DELTA,
                format!("create delta, {}, expected mask {check:?}", case.name),
                spec,
                move |fixture| {
                    let mut data = fixture.arena.read(a, size.into());
                    for word in differ {
                        // A difference of one byte is enough, anywhere in the word.
                        data[usize::from(*word) * 8 + usize::from(word % 8)] ^= 0x10;
                    }
                    fixture.arena.write(b, &data);
                    fixture.arena.set(out, 256, 0xee);
                    fixture.expect(&d, &expected_record)?;
                    let expected: Vec<u8> = differ
                        .iter()
                        .take(written as usize / 10)
                        .flat_map(|word| {
                            let mut bytes = word.to_le_bytes().to_vec();
                            let at = usize::from(*word) * 8;
                            bytes.extend_from_slice(&data[at..at + 8]);
                            bytes
                        })
                        .collect();
                    same_bytes("delta record", &expected, &fixture.arena.read(out, written.into()))?;
                    // A device may have written between the end of the record and the end of the room, but never behind
                    // it.
                    let behind = fixture.arena.read(out + u64::from(d.max_delta_size()), 64);
                    same_bytes("bytes behind the room", &[0xee; 64], &behind)
                },
            );
        }
    }
    for (i, (size, room)) in
        [(4096u32, 5120u32), (65_536, 1000), (65_536, 81_920), (0x8_0000, 0x4_0000)].into_iter().enumerate()
    {
        let d = Descriptor::create_delta(a, b, size, out, room).with_record(record);
        list.script(
            section::DELTA,
            format!("create delta of {size} bytes with scattered changes and room for {room}"),
            spec,
            move |fixture| {
                let old = fixture.arena.read(a, size.into());
                let mut new = old.clone();
                for at in oracle::noise(i as u64 + 3, 3000).chunks_exact(3) {
                    let at = (usize::from(at[0]) << 16 | usize::from(at[1]) << 8 | usize::from(at[2])) % new.len();
                    new[at] ^= 1;
                }
                fixture.arena.write(b, &new);
                let (expected, complete, compared) = oracle::delta(&old, &new, room as usize);
                let length = u32::try_from(expected.len()).expect("short");
                let expected_record =
                    ExpectedRecord::success().result(if complete { 1 } else { 2 }).specific(length.into(), 0);
                let compared = if complete { 0 } else { u32::try_from(compared).expect("short") };
                fixture.expect(&d, &expected_record.bytes_completed(compared))?;
                same_bytes("delta record", &expected, &fixture.arena.read(out, length.into()))?;
                if !complete {
                    return Ok(());
                }
                let copy = fixture.at(place::OUT2);
                fixture.arena.write(copy, &old);
                fixture.expect(
                    &Descriptor::apply_delta(out, length, copy, size).with_record(record),
                    &ExpectedRecord::success(),
                )?;
                same_bytes("the old data with the delta applied", &new, &fixture.arena.read(copy, size.into()))
            },
        );
    }
}

/// The expected result of Apply Delta: entries, transfer size, status, delta bytes applied.
type Apply = (&'static str, &'static [(u16, u8)], u32, u8, u32);

const APPLIES: [Apply; 10] = [
    ("one entry", &[(0, 0x11)], 64, 0x01, 0),
    ("the last word", &[(7, 0x11)], 64, 0x01, 0),
    ("three entries", &[(0, 0x11), (3, 0x22), (7, 0x33)], 64, 0x01, 0),
    ("a falling offset", &[(2, 0x11), (1, 0x22), (3, 0x33)], 64, 0x07, 10),
    ("a first offset of zero after one", &[(1, 0x11), (0, 0x22)], 64, 0x07, 10),
    ("an offset at the transfer size", &[(8, 0x11)], 64, 0x08, 0),
    ("an offset at the transfer size after two good ones", &[(1, 0x11), (2, 0x22), (8, 0x33)], 64, 0x08, 20),
    ("the largest offset of all", &[(1, 0x11), (0xffff, 0x22)], 64, 0x08, 10),
    ("the largest offset in the largest transfer", &[(0xffff, 0x44)], 0x8_0000, 0x01, 0),
    ("a transfer of one word", &[(0, 0x11)], 8, 0x01, 0),
];

fn applies(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let (delta, dst) = (list.arena.at(sample::DELTA_OUT) + 3, list.arena.at(place::OUT1) + 4096);
    for (name, entries, size, status, completed) in APPLIES {
        let bytes = record_of(entries);
        let length = u32::try_from(bytes.len()).expect("short");
        let d = Descriptor::apply_delta(delta, length, dst, size).with_record(record);
        let expected_record = ExpectedRecord::status(status).bytes_completed(completed);
        let applied = if status == 0x01 { entries.len() } else { completed as usize / 10 };
        list.script(section::DELTA, format!("apply delta, {name}, gives {status:#04x}"), spec, move |fixture| {
            fixture.arena.write(delta, &bytes);
            fixture.arena.set(dst, u64::from(size) + 64, 0xee);
            fixture.expect(&d, &expected_record)?;
            let mut expected = vec![0xee; size as usize + 64];
            for (offset, byte) in &entries[..applied] {
                let at = usize::from(*offset) * 8;
                expected[at..at + 8].fill(*byte);
            }
            same_bytes("destination", &expected, &fixture.arena.read(dst, u64::from(size) + 64))
        });
    }
}

/// An entry with the offset of the previous entry: refused, or the later one takes effect.
fn equal_offsets(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let (delta, dst) = (list.arena.at(sample::DELTA_OUT) + 3, list.arena.at(place::OUT1) + 4096);
    let d = Descriptor::apply_delta(delta, 40, dst, 64).with_record(record);
    list.script(section::DELTA, "apply delta, equal offsets", spec, move |fixture| {
        let Some(accepted) = fixture.promises.equal_delta_offsets else { return skip(EITHER) };
        fixture.arena.write(delta, &record_of(&[(0, 0x11), (3, 0x22), (3, 0x33), (7, 0x44)]));
        fixture.arena.set(dst, 64, 0xee);
        let expected_record =
            if accepted { ExpectedRecord::success() } else { ExpectedRecord::status(0x07).bytes_completed(20) };
        fixture.expect(&d, &expected_record)?;
        let applied: &[(usize, u8)] =
            if accepted { &[(0, 0x11), (3, 0x33), (7, 0x44)] } else { &[(0, 0x11), (3, 0x22)] };
        let mut expected = vec![0xee; 64];
        for (offset, byte) in applied {
            expected[offset * 8..offset * 8 + 8].fill(*byte);
        }
        same_bytes("destination", &expected, &fixture.arena.read(dst, 64))
    });
}

/// The reason for a skip where the specification and Intel's tests of hardware differ.
const EITHER: &str = "the text and silicon differ, and the device does not say which of the two it follows";

/// Bits 7:3 of the expected-result mask: refused, or without effect.
fn result_mask(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let same_data = list.arena.at(place::INPUT) + 0x8_0000;
    let out = list.arena.at(sample::DELTA_OUT) + 1;
    for bit in 3..8 {
        // Both sources are equal, so bit 0 is the relevant one.
        for expected in [0x00, 0x01] {
            let mask = expected | 1 << bit;
            let d = Descriptor::create_delta(same_data, same_data, 256, out, 80)
                .with_expected_result_mask(mask)
                .and_flags(Flags::CHECK_RESULT)
                .with_record(record);
            let name = format!("create delta, reserved bits of the expected mask {mask:#04x}");
            list.script(section::DELTA, name, spec, move |fixture| {
                let Some(accepted) = fixture.promises.result_mask_bits else { return skip(EITHER) };
                let status = match (accepted, expected) {
                    (false, _) => 0x12,
                    (true, 0) => 0x02,
                    (true, _) => 0x01,
                };
                fixture.expect(&d, &ExpectedRecord::status(status))
            });
        }
    }
}

pub(super) fn add(list: &mut List) {
    let spec = DeviceSpec::default();
    if list.has(Opcode::CreateDelta) {
        creates(list, &spec);
        result_mask(list, &spec);
    }
    if list.has(Opcode::ApplyDelta) {
        applies(list, &spec);
        equal_offsets(list, &spec);
    }
}
