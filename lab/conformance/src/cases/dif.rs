//! The four DIF operations: every block size, every flag, every kind of error.

use super::List;
use super::operations::{writes, written};
use crate::arena::place;
use crate::case::section;
use crate::expected::ExpectedRecord;
use crate::oracle::{self, Tags};
use crate::sample;
use crate::subject::DeviceSpec;
use telpher_abi::{Descriptor, Opcode};

/// Data bytes of a block, by code.
const BLOCKS: [usize; 4] = [512, 520, 4096, 4104];
/// Guard of a block of counting bytes, seed 0, by code. Source: SPEC App. B, worked out by hand.
const COUNTING_GUARDS: [u16; 4] = [0x4f10, 0x297a, 0x8f6d, 0x6a1a];

/// The fields of one side of a descriptor.
fn with_source(d: Descriptor, flags: u8, tags: Tags) -> Descriptor {
    d.with_source_dif_flags(flags)
        .with_source_ref_tag(tags.reference)
        .with_source_app_tag_mask(tags.mask)
        .with_source_app_tag(tags.app)
}

fn with_dest(d: Descriptor, flags: u8, tags: Tags) -> Descriptor {
    d.with_dest_dif_flags(flags)
        .with_dest_ref_tag(tags.reference)
        .with_dest_app_tag_mask(tags.mask)
        .with_dest_app_tag(tags.app)
}

/// Flag bits of the tags: 4 and 7, on both sides.
fn tag_flags(tags: Tags) -> u8 {
    u8::from(tags.app_counts) << 4 | u8::from(tags.reference_fixed) << 7
}

/// The record's word for tags after `blocks` blocks: the seeds of the next block.
fn next(tags: Tags, blocks: u32) -> u64 {
    let (app, reference) = tags.raw(blocks);
    u64::from(reference) | u64::from(tags.mask) << 32 | u64::from(app) << 48
}

/// Tags that exercise every kind of counting, wrapping and masking.
const TAGS: [Tags; 8] = [
    Tags { reference: 0, mask: 0, app: 0, reference_fixed: false, app_counts: false },
    Tags { reference: 7, mask: 0, app: 0x1234, reference_fixed: false, app_counts: false },
    Tags { reference: 7, mask: 0, app: 0x1234, reference_fixed: true, app_counts: false },
    Tags { reference: 7, mask: 0, app: 0x1234, reference_fixed: false, app_counts: true },
    Tags { reference: 0xffff_fffe, mask: 0, app: 0xfffe, reference_fixed: false, app_counts: true },
    Tags { reference: 0x89ab_cdef, mask: 0x00f0, app: 0x1204, reference_fixed: true, app_counts: false },
    Tags { reference: 1, mask: 0xff00, app: 0x00fe, reference_fixed: false, app_counts: true },
    Tags { reference: 1, mask: 0xffff, app: 0, reference_fixed: false, app_counts: false },
];

/// Four blocks: long enough for tags to wrap, and never all-F by accident.
const COUNT: u32 = 4;

fn insert_strip_check(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let (src, dst) = (list.arena.at(place::OUT2) + 1, list.arena.at(place::OUT1) + 4096 + 5);
    for (code, block) in (0u8..).zip(BLOCKS) {
        for crc_flags in 0..4u8 {
            let (invert_seed, invert_result) = (crc_flags & 1 == 1, crc_flags & 2 == 2);
            let dif_flags = code | crc_flags << 2;
            let what = format!("blocks of {block}, dif flags {dif_flags:#x}");
            for (i, tags) in TAGS.into_iter().enumerate() {
                let plain_size = u32::try_from(block).expect("short") * COUNT;
                let long_size = plain_size + 8 * COUNT;
                let plain = move || oracle::noise(block as u64, block * COUNT as usize);
                let long = move || oracle::protect(block, invert_seed, invert_result, tags, &plain());
                let base = |opcode, size| {
                    Descriptor::dif(opcode, src, if opcode == Opcode::DifCheck { 0 } else { dst }, size)
                        .with_dif_flags(dif_flags)
                        .with_record(record)
                };
                let word = next(tags, COUNT);
                let flags = tag_flags(tags);
                let d = with_dest(base(Opcode::DifInsert, plain_size), flags, tags);
                list.script(section::DIF, format!("insert, {what}, tags {i}"), spec, move |fixture| {
                    fixture.arena.write(src, &plain());
                    writes(fixture, &d, &ExpectedRecord::success().specific(0, word), dst, &long())
                });
                // Insert ignores the pass-through bits.
                let d = with_dest(base(Opcode::DifInsert, plain_size), flags | 0x68, tags);
                list.script(
                    section::DIF,
                    format!("insert ignores pass-through, {what}, tags {i}"),
                    spec,
                    move |fixture| {
                        fixture.arena.write(src, &plain());
                        writes(fixture, &d, &ExpectedRecord::success().specific(0, word), dst, &long())
                    },
                );
                let d = with_source(base(Opcode::DifCheck, long_size), flags, tags);
                list.script(section::DIF, format!("check, {what}, tags {i}"), spec, move |fixture| {
                    fixture.arena.write(src, &long());
                    fixture.expect(&d, &ExpectedRecord::success().specific(word, 0))
                });
                let d = with_source(base(Opcode::DifStrip, long_size), flags, tags);
                list.script(section::DIF, format!("strip, {what}, tags {i}"), spec, move |fixture| {
                    fixture.arena.write(src, &long());
                    writes(fixture, &d, &ExpectedRecord::success().specific(word, 0), dst, &plain())
                });
            }
        }
        // Against a literal: one block of counting bytes.
        let size = u32::try_from(block).expect("short");
        let d = Descriptor::dif(Opcode::DifInsert, list.arena.at(sample::COUNT), dst, size)
            .with_dif_flags(code)
            .with_dest_ref_tag(0x0102_0304)
            .with_dest_app_tag(0x0506)
            .with_record(record);
        list.script(section::DIF, format!("insert behind {block} counting bytes"), spec, move |fixture| {
            let mut expected = fixture.arena.read(d.src(), size.into());
            expected.extend(COUNTING_GUARDS[usize::from(code)].to_be_bytes());
            expected.extend([5, 6, 1, 2, 3, 4]);
            writes(fixture, &d, &ExpectedRecord::success().specific(0, 0x0506_0000_0102_0305), dst, &expected)
        });
    }
}

/// The result of a check of one block: `None` for good, otherwise the DIF Status. From SPEC §8.3.17.
fn verdict(flags: u8, mask: u16, good_guard: bool, guard: u16, got: (u16, u32), expected: (u16, u32)) -> Option<u8> {
    let (app_f, ref_f, guard_f) = (got.0 == 0xffff, got.1 == 0xffff_ffff, guard == 0xffff);
    let all_f = flags & 2 != 0 && app_f && ref_f && guard_f;
    if all_f && flags & 1 != 0 {
        return Some(0x08);
    }
    if all_f || flags & 4 != 0 && app_f || flags & 8 != 0 && app_f && ref_f {
        return None;
    }
    let mut status = 0;
    if flags & 0x20 == 0 && !good_guard {
        status |= 1;
    }
    if mask != 0xffff && got.0 != expected.0 & !mask {
        status |= 2;
    }
    if flags & 0x40 == 0 && got.1 != expected.1 {
        status |= 4;
    }
    (status != 0).then_some(status)
}

/// A name, and the replacements of guard, application tag and reference tag.
type Tuple = (&'static str, Option<u16>, Option<u16>, Option<u32>);

/// The contents of the third block of four.
const TUPLES: [Tuple; 9] = [
    ("good", None, None, None),
    ("wrong guard", Some(0x1111), None, None),
    ("wrong application tag", None, Some(0x1111), None),
    ("wrong reference tag", None, None, Some(0x1111)),
    ("all wrong", Some(0x1111), Some(0x1111), Some(0x1111)),
    ("all F", Some(0xffff), Some(0xffff), Some(0xffff_ffff)),
    ("application and reference F", None, Some(0xffff), Some(0xffff_ffff)),
    ("application F", None, Some(0xffff), None),
    ("reference F", None, None, Some(0xffff_ffff)),
];

fn errors(list: &mut List, spec: &DeviceSpec) {
    const BLOCK: usize = 512;
    let record = list.arena.at(sample::RECORD);
    let (src, dst) = (list.arena.at(place::OUT2), list.arena.at(place::OUT1) + 4096);
    for opcode in [Opcode::DifCheck, Opcode::DifStrip, Opcode::DifUpdate] {
        for flags in 0..=255u8 {
            // Strip and Update check with the same rules; the bits that only count tags were swept above.
            if opcode != Opcode::DifCheck && flags & 0x90 != 0 {
                continue;
            }
            for (name, guard, app, reference) in TUPLES {
                for mask in [0, 0xffff] {
                    if mask != 0 && opcode != Opcode::DifCheck {
                        continue;
                    }
                    let tags = Tags {
                        reference: 0x20,
                        mask,
                        app: 0x40,
                        reference_fixed: flags & 0x80 != 0,
                        app_counts: flags & 0x10 != 0,
                    };
                    let plain = oracle::noise(3, BLOCK * COUNT as usize);
                    let mut long = oracle::protect(BLOCK, false, false, tags, &plain);
                    let tuple = 3 * (BLOCK + 8) - 8;
                    let true_guard = u16::from_be_bytes([long[tuple], long[tuple + 1]]);
                    let expected = tags.raw(2);
                    let guard = guard.unwrap_or(true_guard);
                    let got = (app.unwrap_or(expected.0 & !mask), reference.unwrap_or(expected.1));
                    long[tuple..tuple + 2].copy_from_slice(&guard.to_be_bytes());
                    long[tuple + 2..tuple + 4].copy_from_slice(&got.0.to_be_bytes());
                    long[tuple + 4..tuple + 8].copy_from_slice(&got.1.to_be_bytes());
                    let bad = verdict(flags, mask, guard == true_guard, guard, got, expected);
                    let expected_record = match bad {
                        None => ExpectedRecord::success().any_specific(),
                        Some(status) => {
                            ExpectedRecord::status(0x09).result(status).bytes_completed(2 * 520).any_specific()
                        }
                    };
                    let to = if opcode == Opcode::DifCheck { 0 } else { dst };
                    let d = Descriptor::dif(opcode, src, to, 520 * COUNT).with_record(record);
                    let d = with_source(d, flags, tags);
                    let case =
                        format!("{opcode} of a block with {name} tuple, source flags {flags:#04x}, mask {mask:#x}");
                    list.script(section::DIF, case, spec, move |fixture| {
                        fixture.arena.write(src, &long);
                        if opcode != Opcode::DifStrip {
                            return fixture.expect(&d, &expected_record);
                        }
                        let whole = if bad.is_some() { 2 } else { 4 };
                        fixture.arena.set(dst - 64, 5000, 0xee);
                        fixture.expect(&d, &expected_record)?;
                        let data = &plain[..whole * BLOCK];
                        crate::case::same_bytes("good blocks", data, &fixture.arena.read(dst, data.len() as u64))
                    });
                }
            }
        }
    }
    // The same for the first and the last block.
    for (bad, completed) in [(0usize, 0u32), (3, 3 * 520)] {
        let d = Descriptor::dif(Opcode::DifCheck, src, 0, 520 * COUNT).with_record(record);
        list.script(
            section::DIF,
            format!("a wrong guard in block {bad} is found after {completed} bytes"),
            spec,
            move |fixture| {
                let plain = oracle::noise(3, BLOCK * COUNT as usize);
                let mut long = oracle::protect(BLOCK, false, false, Tags::default(), &plain);
                long[bad * 520 + 512] ^= 1;
                fixture.arena.write(src, &long);
                fixture.expect(&d, &ExpectedRecord::status(0x09).result(1).bytes_completed(completed).any_specific())
            },
        );
    }
}

fn updates(list: &mut List, spec: &DeviceSpec) {
    let record = list.arena.at(sample::RECORD);
    let (src, dst) = (list.arena.at(place::OUT2) + 2, list.arena.at(place::OUT1) + 4096 + 9);
    for (code, block) in (0u8..).zip(BLOCKS) {
        for (i, to) in TAGS.into_iter().enumerate() {
            let from = TAGS[(i + 3) % TAGS.len()];
            // Application tag, guard and reference tag each computed or passed through.
            for pass in 0..8u8 {
                let (pass_app, pass_guard, pass_ref) = (pass & 1 == 1, pass & 2 == 2, pass & 4 == 4);
                let dest_flags =
                    tag_flags(to) | u8::from(pass_app) << 3 | u8::from(pass_guard) << 5 | u8::from(pass_ref) << 6;
                let size = u32::try_from(block + 8).expect("short") * COUNT;
                let d = Descriptor::dif(Opcode::DifUpdate, src, dst, size).with_dif_flags(code).with_record(record);
                let d = with_dest(with_source(d, tag_flags(from) | 0x20, from), dest_flags, to);
                let mut expected_record = ExpectedRecord::success().specific(next(from, COUNT), next(to, COUNT));
                if pass != 0 {
                    // Tags that are passed through are not generated, and the specification does not define the next
                    // one.
                    expected_record = expected_record.any_specific();
                }
                let name = format!("update of blocks of {block}, tags {i}, passing {pass:#05b}");
                list.script(section::DIF, name, spec, move |fixture| {
                    let plain = oracle::noise(block as u64, block * COUNT as usize);
                    let mut long = oracle::protect(block, false, false, from, &plain);
                    // A wrong guard, which is not checked here, shows whether it is passed through.
                    long[block] ^= 0x5a;
                    fixture.arena.write(src, &long);
                    let fresh = oracle::protect(block, false, false, to, &plain);
                    let mut expected = fresh.clone();
                    for k in 0..COUNT as usize {
                        let at = k * (block + 8) + block;
                        let mut pass = |on: bool, range: std::ops::Range<usize>| {
                            if on {
                                expected[range.clone()].copy_from_slice(&long[range]);
                            }
                        };
                        pass(pass_guard, at..at + 2);
                        pass(pass_app, at + 2..at + 4);
                        pass(pass_ref, at + 4..at + 8);
                    }
                    writes(fixture, &d, &expected_record, dst, &expected)
                });
            }
        }
    }
    // The final tags are the seeds of the next call.
    let tags = TAGS[4];
    let d = Descriptor::dif(Opcode::DifInsert, src, dst, 1024).with_record(record);
    let d = with_dest(d, tag_flags(tags), tags);
    list.script(section::DIF, "insert goes on with the tags of its record", spec, move |fixture| {
        let plain = oracle::noise(1, 2048);
        fixture.arena.write(src, &plain);
        fixture.arena.set(dst - 64, 4096, 0xee);
        fixture.expect(&d, &ExpectedRecord::success().specific(0, next(tags, 2)))?;
        let got = fixture.arena.record(record);
        let rest = d
            .with_src(src + 1024)
            .with_dst(dst + 1040)
            .with_dest_ref_tag(got.dest_ref_tag())
            .with_dest_app_tag(got.dest_app_tag());
        fixture.expect(&rest, &ExpectedRecord::success().specific(0, next(tags, 4)))?;
        written(fixture, dst, &oracle::protect(512, false, false, tags, &plain))
    });
}

pub(super) fn add(list: &mut List) {
    let spec = DeviceSpec::default();
    let all = [Opcode::DifCheck, Opcode::DifInsert, Opcode::DifStrip, Opcode::DifUpdate];
    if all.iter().all(|opcode| list.has(*opcode)) {
        insert_strip_check(list, &spec);
        errors(list, &spec);
        updates(list, &spec);
    }
}
