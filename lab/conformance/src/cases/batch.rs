//! Batches, fences and drains.

use super::{List, liberal};
use crate::arena::{Access, PAGE, place};
use crate::case::{holds, same, same_bytes, section};
use crate::expected::ExpectedRecord;
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, PortalSpec, QueueSpec, STRANGER};
use telpher_abi::{Descriptor, Flags, OpFlags, Opcode};

/// The list of these cases, and the records of its members.
const LIST: u64 = place::LISTS + 0x4000;
const MEMBERS: u64 = place::RECORDS + 0x1000;

fn member_record(fixture: &Fixture, i: usize) -> u64 {
    fixture.at(MEMBERS + 32 * i as u64)
}

/// A member by a letter, so that a string describes a batch: `n` no-operation, `f` fenced no-operation, `c` a compare
/// that holds, `x` a compare whose checked result is not the expected one, `b` an unknown opcode, `z` a move of 0
/// bytes, `p` a page fault, `B` a batch, `D` a drain, `m` a move, `M` a fenced move.
fn member(letter: char, arena: &crate::arena::Arena) -> Descriptor {
    let at = |offset| arena.at(offset);
    let (a, b, out) = (at(sample::COUNT), at(sample::COUNT2), at(place::OUT1));
    match letter {
        'n' => Descriptor::nop(),
        'f' => Descriptor::nop().and_flags(Flags::FENCE),
        'c' => Descriptor::compare(a, b, 64).and_flags(Flags::CHECK_RESULT),
        'x' => Descriptor::compare(a, b + 1, 64).and_flags(Flags::CHECK_RESULT),
        'b' => Descriptor::new(Opcode::from_code(0x0b)),
        'z' => Descriptor::memory_move(a, out, 0),
        'p' => Descriptor::memory_move(a, arena.unmapped(), 64),
        'B' => Descriptor::batch(at(sample::NOPS), 2),
        'D' => Descriptor::drain(),
        'm' => Descriptor::memory_move(a, out, 64),
        'M' => Descriptor::memory_move(a, out, 64).and_flags(Flags::FENCE),
        other => unreachable!("no member {other}"),
    }
}

/// The status of each letter's member if it runs.
fn status(letter: char) -> u8 {
    match letter {
        'n' | 'f' | 'c' | 'm' | 'M' => 0x01,
        'x' => 0x02,
        'b' | 'B' | 'D' => 0x10,
        'z' => 0x13,
        'p' => 0x83,
        other => unreachable!("no member {other}"),
    }
}

/// Members, descriptors completed, batch status.
const WORDS: [(&str, u32, u8); 30] = [
    ("nn", 2, 0x01),
    ("nnnnnnnn", 8, 0x01),
    ("nf", 2, 0x01),
    ("cM", 2, 0x01),
    ("mfmfm", 5, 0x01),
    ("xn", 2, 0x05),
    ("nx", 2, 0x05),
    ("bn", 2, 0x05),
    ("nb", 2, 0x05),
    ("nbn", 3, 0x05),
    ("bbbb", 4, 0x05),
    ("zn", 2, 0x05),
    ("pn", 2, 0x05),
    ("Bn", 2, 0x05),
    ("nD", 2, 0x05),
    ("nBDn", 4, 0x05),
    // A fence after a failure abandons the rest.
    ("xf", 1, 0x05),
    ("xM", 1, 0x05),
    ("bf", 1, 0x05),
    ("zf", 1, 0x05),
    ("pf", 1, 0x05),
    ("Bf", 1, 0x05),
    ("nnbnfnn", 4, 0x05),
    ("xfnnn", 1, 0x05),
    ("nfxfn", 3, 0x05),
    ("fb", 2, 0x05),
    ("fbf", 2, 0x05),
    ("ffff", 4, 0x01),
    // A failure behind the fence does not affect it.
    ("nfb", 3, 0x05),
    ("mMx", 3, 0x05),
];

fn words(list: &mut List, spec: &DeviceSpec) {
    let result = list.capabilities.gen_cap.batch_continuation();
    for (word, completed, code) in WORDS {
        for rcr in [true, false] {
            let members: Vec<Descriptor> = word.chars().map(|letter| member(letter, list.arena)).collect();
            let name = format!("the batch \"{word}\" ends with {code:#04x} after {completed} members, RCR: {rcr}");
            list.script(section::BATCH, name, spec, move |fixture| {
                let records: Vec<u64> = (0..members.len()).map(|i| member_record(fixture, i)).collect();
                let members: Vec<Descriptor> =
                    members.iter().zip(&records).map(|(d, record)| d.with_record(*record)).collect();
                for record in &records {
                    fixture.arena.clear_record(*record);
                }
                fixture.arena.set(fixture.at(place::OUT1), 64, 0);
                fixture.arena.write_list(fixture.at(LIST), &members);
                let count = u32::try_from(members.len()).expect("short");
                let batch = Descriptor::batch(fixture.at(LIST), count).with_record(fixture.at(sample::RECORD));
                if rcr {
                    let failed = u8::from(result && code != 0x01);
                    fixture.expect(&batch, &ExpectedRecord::status(code).bytes_completed(completed).result(failed))?;
                } else {
                    let silent = batch.with_flags(Flags::COMPLETION_RECORD_ADDRESS_VALID);
                    fixture.arena.clear_record(batch.completion_address());
                    fixture.submit(&*fixture.portal(PortalSpec::of(0))?, &silent)?;
                    fixture.device.settle();
                    same("the batch's record", 0, fixture.arena.status_word(batch.completion_address()))?;
                }
                for ((i, letter), record) in word.chars().enumerate().zip(&records) {
                    let expected = if i < completed as usize { status(letter) } else { 0 };
                    same(&format!("status of member {i}"), expected, fixture.arena.record(*record).status_code())?;
                }
                // Data moves exactly if a move runs.
                let moved = word.chars().take(completed as usize).any(|letter| letter.eq_ignore_ascii_case(&'m'));
                let out = fixture.arena.read(fixture.at(place::OUT1), 64);
                let expected: Vec<u8> = if moved { (0..64).collect() } else { vec![0; 64] };
                same_bytes("destination of the moves", &expected, &out)
            });
        }
    }
}

/// Later members see the data written by fenced earlier ones.
fn pipeline(list: &mut List, spec: &DeviceSpec) {
    let at = |offset| list.arena.at(offset);
    let steps = [
        Descriptor::fill(0x0101_0101_0101_0101, at(place::OUT1), 256),
        Descriptor::memory_move(at(place::OUT1), at(place::OUT1 + 0x1000), 256).and_flags(Flags::FENCE),
        Descriptor::memory_move(at(place::OUT1 + 0x1000), at(place::OUT1 + 0x2000), 256).and_flags(Flags::FENCE),
        Descriptor::compare(at(place::OUT1), at(place::OUT1 + 0x2000), 256)
            .and_flags(Flags::FENCE | Flags::CHECK_RESULT)
            .with_record(at(MEMBERS)),
        Descriptor::fill(0x0202_0202_0202_0202, at(place::OUT1 + 0x3000), 256).and_flags(Flags::FENCE),
    ];
    list.script(section::FENCE, "fenced members see what earlier ones wrote", spec, move |fixture| {
        fixture.arena.set(fixture.at(place::OUT1), 0x4000, 0);
        fixture.arena.write_list(fixture.at(LIST), &steps);
        let batch = Descriptor::batch(fixture.at(LIST), 5).with_record(fixture.at(sample::RECORD));
        fixture.expect(&batch, &ExpectedRecord::success().bytes_completed(5))?;
        same_bytes("the last step", &[2; 256], &fixture.arena.read(fixture.at(place::OUT1 + 0x3000), 256))
    });
    let fenced = Descriptor::nop().and_flags(Flags::FENCE).with_record(at(sample::RECORD));
    let expected_record = ExpectedRecord::invalid_flags(1, 0);
    list.one(section::FENCE, "a fence outside a batch is an invalid flag", spec, fenced, false, expected_record);
}

/// A list with a missing page: 0x06 after the members before it; the continuation does the rest.
fn list_faults(list: &mut List, spec: &DeviceSpec) {
    let continuation = list.capabilities.gen_cap.batch_continuation();
    for before in [0u32, 1, 2, 5] {
        for bad in [false, true] {
            if bad && before == 0 {
                continue;
            }
            for rcr in [true, false] {
                let boundary = list.arena.at(place::AREAS + 0x1_0000);
                let at = boundary - 64 * u64::from(before);
                let mut batch = Descriptor::batch(at, before + 4).with_record(list.arena.at(sample::RECORD));
                if !rcr {
                    batch = batch.with_flags(Flags::COMPLETION_RECORD_ADDRESS_VALID);
                }
                let arena = list.arena;
                let (nop, unknown) = (member('n', arena), member('b', arena));
                let name = format!("a list fault after {before} members gives 0x06, one failed: {bad}, RCR: {rcr}");
                list.script(section::BATCH, name, spec, move |fixture| {
                    let count = before as usize + 4;
                    let members: Vec<Descriptor> = (0..count)
                        .map(|i| if bad && i == 0 { unknown } else { nop }.with_record(member_record(fixture, i)))
                        .collect();
                    for i in 0..count {
                        fixture.arena.clear_record(member_record(fixture, i));
                    }
                    fixture.arena.write_list(at, &members);
                    fixture.arena.protect(place::AREAS + 0x1_0000, PAGE, Access::None);
                    let expected_record = ExpectedRecord::fault(0x06, false, boundary).operand(fixture.operand(1));
                    let expected_record = expected_record.bytes_completed(before).result(u8::from(bad && continuation));
                    fixture.expect(&batch, &expected_record)?;
                    fixture.arena.restore();
                    let got = fixture.arena.record(batch.completion_address());
                    // The rest: 64 bytes further for each completed member; Batch Error carries the failure over.
                    let mut rest = batch.with_flags(Flags::RECORD).with_src(at + 64 * u64::from(before)).with_size(4);
                    if continuation && got.result() == 1 {
                        rest = rest.and_flags(OpFlags::BATCH_ERROR);
                    }
                    let failed = bad && continuation;
                    let expected_record = ExpectedRecord::status(if failed { 0x05 } else { 0x01 })
                        .bytes_completed(4)
                        .result(failed.into());
                    fixture.expect(&rest, &expected_record)?;
                    for i in 0..count {
                        let expected = if bad && i == 0 { 0x10 } else { 0x01 };
                        let status = fixture.arena.record(member_record(fixture, i)).status_code();
                        same(&format!("status of member {i}"), expected, status)?;
                    }
                    Ok(())
                });
            }
        }
    }
    for (what, at) in
        [("at 0", 0u64), ("behind mapped memory", list.arena.unmapped() & !63), ("outside user space", 1 << 63)]
    {
        let batch = Descriptor::batch(at, 2).with_record(list.arena.at(sample::RECORD));
        list.script(section::BATCH, format!("a list {what} gives 0x06"), spec, move |fixture| {
            fixture.expect(&batch, &ExpectedRecord::fault(0x06, false, at).bytes_completed(0).any_result().open_info())
        });
    }
}

/// Batch Error, if the device supports it.
fn batch_error(list: &mut List, spec: &DeviceSpec) {
    if !list.capabilities.gen_cap.batch_continuation() {
        return;
    }
    let arena = list.arena;
    for (word, completed) in [("nn", 2u32), ("nf", 1), ("fn", 0)] {
        let members: Vec<Descriptor> = word.chars().map(|letter| member(letter, arena)).collect();
        list.script(
            section::BATCH,
            format!("\"{word}\" with Batch Error fails after {completed}"),
            spec,
            move |fixture| {
                fixture.arena.write_list(fixture.at(LIST), &members);
                let batch = Descriptor::batch(fixture.at(LIST), 2).with_record(fixture.at(sample::RECORD));
                let expected_record = ExpectedRecord::status(0x05).bytes_completed(completed).result(1);
                fixture.expect(&batch.and_flags(OpFlags::BATCH_ERROR), &expected_record)
            },
        );
    }
}

/// The queue's limits apply to members, and members without records leave none.
fn limits(list: &mut List) {
    let spec = DeviceSpec::default().queue(QueueSpec { max_transfer_shift: 12, ..QueueSpec::default() });
    let arena = list.arena;
    let (a, out) = (arena.at(sample::COUNT), arena.at(place::OUT1));
    for (size, code) in [(4096u32, 0x01u8), (4097, 0x13)] {
        let d = Descriptor::memory_move(a, out, size).with_record(arena.at(sample::RECORD));
        list.one(
            section::BATCH,
            format!("a member of {size} bytes where 4096 is the limit"),
            &spec,
            d,
            true,
            ExpectedRecord::status(code),
        );
    }
    for shift in [1u8, 3, 5] {
        let spec = DeviceSpec::default().queue(QueueSpec { max_batch_shift: shift, ..QueueSpec::default() });
        for (count, code) in [(1u32 << shift, 0x01u8), ((1 << shift) + 1, 0x14)] {
            let name = format!("a batch of {count} where {} is the limit", 1 << shift);
            list.script(section::BATCH, name, &spec, move |fixture| {
                fixture.arena.write_list(fixture.at(LIST), &vec![Descriptor::nop(); count as usize]);
                let batch = Descriptor::batch(fixture.at(LIST), count).with_record(fixture.at(sample::RECORD));
                let expected_record = ExpectedRecord::status(code);
                fixture.expect(
                    &batch,
                    &if code == 0x01 {
                        expected_record.bytes_completed(count)
                    } else {
                        expected_record.any_bytes_completed()
                    },
                )
            });
        }
    }
}

/// Drain: it completes after all earlier descriptors of its queue and client, with and without readback.
fn drains(list: &mut List, spec: &DeviceSpec) {
    let arena = list.arena;
    let record = arena.at(sample::RECORD);
    let drain = Descriptor::drain().with_record(record);
    list.script(section::DRAIN, "a drain of an idle queue succeeds", spec, move |fixture| {
        fixture.expect(&drain, &ExpectedRecord::success())
    });
    for spec in [spec.clone(), DeviceSpec::default().queue(QueueSpec::shared())] {
        let mode = spec.groups[0].queues[0].mode;
        let src = arena.at(sample::NOISE);
        let out = arena.at(place::OUT1);
        list.script(
            section::DRAIN,
            format!("a drain ends after everything before it, {mode:?}"),
            &spec,
            move |fixture| {
                let portal = fixture.portal(PortalSpec::of(0))?;
                fixture.arena.clear_record(record);
                for i in 0..8 {
                    fixture.arena.clear_record(member_record(fixture, i));
                }
                fixture.hold()?;
                for i in 0..8usize {
                    let to = out + 0x2_0000 * i as u64;
                    let d = Descriptor::memory_move(src, to, 0x1_0000).with_record(member_record(fixture, i));
                    same("offer", telpher_portal::Offer::Taken, fixture.arena.offer(&*portal, &d))?;
                }
                same("offer", telpher_portal::Offer::Taken, fixture.arena.offer(&*portal, &drain))?;
                fixture.release();
                let got = fixture.wait(&*portal, record);
                same("the drain's status", Some(1), got.map(|r| r.status_code()))?;
                for i in 0..8 {
                    same(
                        "status of an earlier move",
                        1,
                        fixture.arena.record(member_record(fixture, i)).status_code(),
                    )?;
                }
                Ok(())
            },
        );
    }
    if list.capabilities.gen_cap.drain_readback() {
        let good = arena.at(sample::READBACK);
        let bad = arena.unmapped();
        for (what, d, expected_record) in [
            ("one address", drain.and_flags(OpFlags::READBACK_1).with_src(good), ExpectedRecord::success()),
            (
                "two addresses",
                drain.and_flags(OpFlags::READBACK_1 | OpFlags::READBACK_2).with_src(good).with_dst(good),
                ExpectedRecord::success(),
            ),
            (
                "a bad first address",
                drain.and_flags(OpFlags::READBACK_1).with_src(bad),
                ExpectedRecord::fault(0x1f, false, bad),
            ),
            (
                "a bad second address",
                drain.and_flags(OpFlags::READBACK_2).with_dst(bad),
                ExpectedRecord::fault(0x1f, false, bad),
            ),
        ] {
            list.script(section::DRAIN, format!("a drain with readback of {what}"), spec, move |fixture| {
                fixture.expect(&d, &expected_record.open_info())
            });
        }
    }
    for flags in [1 << 18, 1 << 19, 3 << 18] {
        let d = drain.and_flags(Flags::from_bits_retain(flags));
        list.script(
            section::DRAIN,
            format!("a drain may suppress implicit readback {flags:#x}"),
            spec,
            move |fixture| fixture.expect(&d, &ExpectedRecord::success()),
        );
    }
    let shared = DeviceSpec::default().queue(QueueSpec::shared());
    let out = arena.at(place::OUT1);
    let src = arena.at(sample::COUNT);
    list.script(
        section::DRAIN,
        "a drain through a shared queue counts its own client's work",
        &shared,
        move |fixture| {
            let (mine, other) =
                (fixture.portal(PortalSpec::of(0))?, fixture.portal(PortalSpec::of(0).pasid(STRANGER))?);
            fixture.arena.clear_record(record);
            fixture.arena.clear_record(member_record(fixture, 0));
            fixture.hold()?;
            let offers = [
                fixture.arena.offer(&*other, &Descriptor::nop()),
                fixture
                    .arena
                    .offer(&*mine, &Descriptor::memory_move(src, out, 4096).with_record(member_record(fixture, 0))),
                fixture.arena.offer(&*mine, &drain),
            ];
            fixture.release();
            same("offers", [telpher_portal::Offer::Taken; 3], offers)?;
            let got = fixture.wait(&*mine, record);
            same("the drain's status", Some(1), got.map(|r| r.status_code()))?;
            let status = fixture.arena.record(member_record(fixture, 0)).status_code();
            holds("the move before it is done", status == 1, || format!("status {status:#04x}"))
        },
    );
}

pub(super) fn add(list: &mut List) {
    let spec = liberal(&list.capabilities);
    words(list, &spec);
    pipeline(list, &spec);
    list_faults(list, &spec);
    batch_error(list, &spec);
    limits(list);
    drains(list, &spec);
}
