//! The inter-domain operations and their table: which process may access whose memory, and what each refusal reports.

use super::{List, liberal, perfmon};
use crate::arena::{Access, PAGE, place};
use crate::bring_up::{Map, command, request_window, write_window};
use crate::case::{Verdict, holds, same, same_bytes, section};
use crate::expected::{Expect, ExpectedRecord, Information};
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, HERE, Pci, PortalSpec, QueueSpec, STRANGER, WINDOW};
use crate::table::row;
use telpher_abi::registers::{CommandCode, IdBr, IdptEntry, IdptType, offset};
use telpher_abi::{Descriptor, Flags, OpFlags, Opcode, WindowFlags};

/// The entry that the cases change.
const OTHER: u16 = 5;
/// An entry whose handle is never requested.
const UNISSUED: u16 = 6;
const SIZE: u32 = sample::SIZE;
/// The bitmap of submitters: whole pages that no other case uses.
const BITMAP: u64 = place::AREAS + 3 * place::AREA;
/// Bytes of the windows.
const WINDOW_BYTES: u64 = 0x2000;

/// An entry that gives [`HERE`] its own memory as a whole.
fn whole() -> IdptEntry {
    IdptEntry::default()
        .with_usable(true)
        .with_allow_update(true)
        .with_submitter_pasid(HERE)
        .with_access_pasid(HERE)
        .with_read(true)
        .with_write(true)
}

/// The same with a window.
fn window(base: u64, size: u64, offset_mode: bool) -> IdptEntry {
    whole().with_window_enable(true).with_offset_mode(offset_mode).with_window_base(base).with_window_size(size)
}

fn open(fixture: &Fixture, index: u16, entry: &IdptEntry) -> Verdict {
    let registers = fixture.registers()?;
    write_window(registers, &Map::of(registers), index, entry);
    request_window(registers, index).or_else(|error| crate::case::fail("the handle is issued", error))
}

/// The four operations with one operand at `at` in the window of a handle: opcode, and whether the operand is written.
fn through(list: &List, handle: u16, at: u64) -> [(bool, Descriptor); 6] {
    let arena = list.arena;
    let (record, near) = (arena.at(sample::RECORD), arena.at(sample::COUNT));
    let here = Some(handle);
    [
        (true, Descriptor::inter_domain_copy(near, None, at, here, SIZE)),
        (false, Descriptor::inter_domain_copy(at, here, arena.at(place::OUT2), None, SIZE)),
        (true, Descriptor::inter_domain_fill(0x55, at, handle, SIZE)),
        (false, Descriptor::inter_domain_compare(at, here, near, None, SIZE)),
        (false, Descriptor::inter_domain_compare(near, None, at, here, SIZE)),
        (false, Descriptor::inter_domain_compare_pattern(at, handle, 0x55, SIZE)),
    ]
    .map(|(write, d)| (write, d.with_record(record)))
}

/// A refusal names the handle.
fn refusal(code: u8, handle: u16) -> ExpectedRecord {
    ExpectedRecord::status(code).specific(handle.into(), 0)
}

fn success() -> ExpectedRecord {
    ExpectedRecord::success().any_result().any_bytes_completed()
}

/// One descriptor on a device whose entry [`OTHER`] is `entry`.
fn with_entry(list: &mut List, name: String, entry: IdptEntry, d: Descriptor, expected: ExpectedRecord) {
    let spec = liberal(&list.capabilities);
    list.script(section::DOMAINS, name, &spec, move |fixture| {
        open(fixture, OTHER, &entry)?;
        fixture.expect(&d, &expected)
    });
}

/// Every reason for which an entry cannot be used, for every operation.
fn entries(list: &mut List) {
    let id_cap = list.capabilities.id_cap;
    let out = list.arena.at(place::OUT1);
    let mut wrong = vec![
        ("not usable", whole().with_usable(false)),
        ("another submitter", whole().with_submitter_pasid(STRANGER)),
        ("a reserved type", whole().with_type_code(2)),
        ("the other reserved type", whole().with_type_code(3)),
        ("an empty window", window(out, 0, false)),
        ("a window that wraps", window(out, u64::MAX - 0x1000, false)),
    ];
    if !id_cap.offset_mode() {
        wrong.push(("offset mode that the device lacks", whole().with_offset_mode(true)));
    }
    if !id_cap.submitter_bitmap() {
        wrong.push(("a bitmap that the device lacks", whole().with_type_code(1)));
    }
    for (word, bits) in [(0, 4..12), (0, 37..44), (3, 0..12)] {
        for bit in bits {
            let mut entry = whole();
            entry.0[word] |= 1 << bit;
            wrong.push(("a reserved bit", entry));
        }
    }
    for (index, (what, entry)) in wrong.into_iter().enumerate() {
        for (write, d) in through(list, OTHER, out) {
            let name = format!("{} through an entry with {what} ({index}, write: {write}) gives 0x29", d.opcode());
            with_entry(list, name, entry, d, refusal(0x29, OTHER));
        }
    }
    for (write, d) in through(list, OTHER, out) {
        let op = d.opcode();
        with_entry(list, format!("{op} through an open entry, write: {write}"), whole(), d, success());
        for (what, entry) in [("read", whole().with_write(false)), ("write", whole().with_read(false))] {
            let good = write == (what == "write");
            let expected = if good { success() } else { refusal(0x2a, OTHER) };
            let name = format!("{op} with permission to {what} only, write: {write}");
            with_entry(list, name, entry, d, expected);
        }
        // The last byte of the address space belongs to this window: it does not wrap.
        let entry = window(out, 0_u64.wrapping_sub(out), false);
        with_entry(list, format!("{op} in a window to the end of memory, write: {write}"), entry, d, success());
    }
    let entries = id_cap.entries();
    for handle in [entries, entries | 0x100, u16::MAX] {
        for (write, d) in through(list, handle, out) {
            let name = format!("{} with handle {handle:#x} of {entries:#x} gives 0x29, write: {write}", d.opcode());
            let spec = liberal(&list.capabilities);
            list.one(section::DOMAINS, name, &spec, d, false, refusal(0x29, handle));
        }
    }
}

/// Windows: the last legal range and the first illegal one, on both ends.
fn ranges(list: &mut List) {
    let base = list.arena.at(place::OUT1 + 0x1000);
    let size = u64::from(SIZE);
    let mut places = vec![
        (false, "at its begin", base, true),
        (false, "a byte before", base - 1, false),
        (false, "at its end", base + WINDOW_BYTES - size, true),
        (false, "a byte too far", base + WINDOW_BYTES - size + 1, false),
        (false, "behind it", base + WINDOW_BYTES, false),
        (false, "far before", 0, false),
        (false, "across the end of memory", u64::MAX - 3, false),
    ];
    if list.capabilities.id_cap.offset_mode() {
        places.extend([
            (true, "at offset 0", 0, true),
            (true, "at its last offset", WINDOW_BYTES - size, true),
            (true, "an offset too far", WINDOW_BYTES - size + 1, false),
            (true, "at the offset of its end", WINDOW_BYTES, false),
            (true, "at its address", base, false),
            (true, "at an offset that wraps", u64::MAX - 31, false),
        ]);
    }
    for (offset_mode, what, at, good) in places {
        for (write, d) in through(list, OTHER, at) {
            let spec = liberal(&list.capabilities);
            let name = format!("{} {what} of a window, write: {write}", d.opcode());
            list.script(section::DOMAINS, name, &spec, move |fixture| {
                open(fixture, OTHER, &window(base, WINDOW_BYTES, offset_mode))?;
                fixture.arena.set(base - PAGE, WINDOW_BYTES + 2 * PAGE, 0xee);
                let expected = if good { success() } else { refusal(0x2b, OTHER) };
                fixture.expect(&d, &expected)?;
                // Nothing is written outside, and the written bytes are where they belong.
                let memory = fixture.arena.read(base - PAGE, WINDOW_BYTES + 2 * PAGE);
                let first = if offset_mode { at.wrapping_add(base) } else { at }.wrapping_sub(base - PAGE);
                let written = if good && write { first..first + size } else { 0..0 };
                let outside = (0..).zip(&memory).filter(|(i, _)| !written.contains(i)).all(|(_, byte)| *byte == 0xee);
                holds("no byte outside the range is written", outside, || format!("{d:?}"))?;
                let changed = (0..).zip(&memory).any(|(i, byte)| written.contains(&i) && *byte != 0xee);
                holds("bytes of the range are written", changed || written.is_empty(), || format!("{d:?}"))
            });
        }
    }
}

/// Handles that must be requested.
fn handles(list: &mut List) {
    let spec = liberal(&list.capabilities);
    let out = list.arena.at(place::OUT1);
    let entries = list.capabilities.id_cap.entries();
    let (_, copy) = through(list, UNISSUED, out)[0];
    let update = Descriptor::update_window(UNISSUED, 0, 0, WindowFlags::READ | WindowFlags::WRITE)
        .with_record(list.arena.at(sample::RECORD));
    list.fresh(section::DOMAINS, "a handle can be used between its request and its release", &spec, move |fixture| {
        let registers = fixture.registers()?;
        if registers.read(offset::CMDCAP, 8) >> 15 & 1 == 0 {
            return super::commands::put(registers, CommandCode::RequestIdptHandle, 0, 0x01);
        }
        write_window(registers, &Map::of(registers), UNISSUED, &whole());
        fixture.expect(&copy, &refusal(0x29, UNISSUED))?;
        fixture.expect(&update, &refusal(0x2c, UNISSUED))?;
        let issue = |code| command(registers, code, UNISSUED.into());
        let status = issue(CommandCode::RequestIdptHandle).or_else(|e| crate::case::fail("a handle", e))?;
        same("handle", UNISSUED, status.result())?;
        fixture.expect(&copy, &success())?;
        fixture.expect(&update, &success())?;
        issue(CommandCode::ReleaseIdptHandle).or_else(|e| crate::case::fail("the handle's release", e))?;
        fixture.expect(&copy, &refusal(0x29, UNISSUED))?;
        for code in [CommandCode::RequestIdptHandle, CommandCode::ReleaseIdptHandle] {
            super::commands::put(registers, code, entries.into(), 0x51)?;
            super::commands::put(registers, code, 1 << 16, 0x04)?;
        }
        super::commands::put(registers, CommandCode::InvalidateBitmapCache, 1 << 17, 0x04)
    });
}

/// Submitters by bitmap.
fn bitmaps(list: &mut List) {
    if !list.capabilities.id_cap.submitter_bitmap() {
        return;
    }
    let spec = DeviceSpec { submitter_bitmaps: true, ..liberal(&list.capabilities) };
    let bitmap = list.arena.at(BITMAP);
    let byte = bitmap + u64::from(HERE >> 3);
    let entry = whole().with_submitter_pasid(0).with_type_code(IdptType::SubmitterBitmap as u8);
    let entry = entry.with_bitmap_page(bitmap >> 12);
    let invalidate = move |fixture: &Fixture| -> Verdict {
        let registers = fixture.registers()?;
        if registers.read(offset::CMDCAP, 8) >> 17 & 1 == 0 {
            return Ok(());
        }
        registers.write(offset::CMDPARAM, 8, bitmap);
        super::commands::put(registers, CommandCode::InvalidateBitmapCache, 0, 0x00)
    };
    for (write, d) in through(list, OTHER, list.arena.at(place::OUT1)) {
        let name = format!("{} by a bitmap, write: {write}", d.opcode());
        list.script(section::DOMAINS, name, &spec, move |fixture| {
            open(fixture, OTHER, &entry)?;
            fixture.arena.set(bitmap, 0x2_0000, 0);
            invalidate(fixture)?;
            fixture.expect(&d, &refusal(0x29, OTHER))?;
            // Every other submitter may.
            fixture.arena.set(bitmap, 0x2_0000, 0xff);
            fixture.arena.write(byte, &[!(1 << (HERE & 7))]);
            invalidate(fixture)?;
            fixture.expect(&d, &refusal(0x29, OTHER))?;
            // Only this one may.
            fixture.arena.set(bitmap, 0x2_0000, 0);
            fixture.arena.write(byte, &[1 << (HERE & 7)]);
            invalidate(fixture)?;
            fixture.expect(&d, &success())?;
            fixture.expect(&d, &success())?;
            // A page that cannot be read has no submitter, and is no fault.
            fixture.arena.protect(BITMAP + (u64::from(HERE >> 3) & !(PAGE - 1)), PAGE, Access::None);
            invalidate(fixture)?;
            fixture.expect(&d, &refusal(0x29, OTHER))?;
            fixture.arena.restore();
            fixture.no_sw_error()
        });
    }
}

/// Reads of bitmaps in memory: those that a device answers from its cache do not count.
fn bitmap_reads(list: &mut List) {
    if !list.capabilities.id_cap.submitter_bitmap() {
        return;
    }
    let spec = DeviceSpec { submitter_bitmaps: true, ..liberal(&list.capabilities) };
    let bitmap = list.arena.at(BITMAP);
    let entry = whole().with_submitter_pasid(0).with_type_code(IdptType::SubmitterBitmap as u8);
    let entry = entry.with_bitmap_page(bitmap >> 12);
    let [(_, copy), ..] = through(list, OTHER, list.arena.at(place::OUT1));
    let by_single = sample::of(row(0x24), list.arena);
    for (what, event, bits, other) in [
        ("granted", perfmon::BITMAP_GRANTED, 0xff, perfmon::BITMAP_DENIED),
        ("denied", perfmon::BITMAP_DENIED, 0x00, perfmon::BITMAP_GRANTED),
    ] {
        list.fresh(section::PERFMON, format!("a counter counts {what} reads of bitmaps"), &spec, move |fixture| {
            open(fixture, OTHER, &entry)?;
            let registers = fixture.registers()?;
            let caches = registers.read(offset::CMDCAP, 8) >> 17 & 1 == 1;
            let portal = fixture.portal(PortalSpec::of(0))?;
            for (counted, times) in [(event, 1), (other, 0)] {
                perfmon::count_event(fixture, 1, counted)?;
                for round in 1..=3 {
                    fixture.arena.set(bitmap, 0x2_0000, bits);
                    if caches {
                        registers.write(offset::CMDPARAM, 8, bitmap);
                        super::commands::put(registers, CommandCode::InvalidateBitmapCache, 0, 0x00)?;
                    }
                    // A window for a single submitter has no bitmap.
                    for d in [copy, copy, by_single] {
                        let _ = fixture.run(&*portal, &d)?;
                    }
                    let reads = if caches { 1 } else { 2 };
                    perfmon::has_counted(fixture, "reads of bitmaps", times * reads * round)?;
                }
            }
            Ok(())
        });
    }
}

/// Update Window: which process may update, with which values, and what changes.
fn updates(list: &mut List) {
    let record = list.arena.at(sample::RECORD);
    let base = list.arena.at(place::OUT1);
    let id_cap = list.capabilities.id_cap;
    let all = WindowFlags::READ | WindowFlags::WRITE;
    let enabled = all | WindowFlags::ENABLE;
    let offset_mode = enabled | WindowFlags::OFFSET_MODE;
    let update = move |base, size, flags| Descriptor::update_window(OTHER, base, size, flags).with_record(record);
    let by_cap = if id_cap.offset_mode() { 0x01 } else { 0x2d };
    for (what, d, code) in [
        ("to a window", update(base, 64, enabled), 0x01),
        ("to a window to the end of memory", update(u64::MAX - 63, 64, enabled), 0x01),
        ("to the whole space", update(0, 0, all), 0x01),
        ("to nothing", update(0, 0, WindowFlags::empty()), 0x01),
        ("to offset mode", update(base, 64, offset_mode), by_cap),
        ("to an empty window", update(base, 0, enabled), 0x2d),
        ("to a window that wraps", update(u64::MAX - 63, 65, enabled), 0x2d),
        ("to offset mode without a window", update(0, 0, all | WindowFlags::OFFSET_MODE), 0x2d),
        ("to a base without a window", update(base, 0, all), 0x12),
        ("to a size without a window", update(0, 64, all), 0x12),
    ] {
        let expected = ExpectedRecord::status(code).any_bytes_completed();
        with_entry(list, format!("an update {what} gives {code:#04x}"), whole(), d, expected);
    }
    let plain = update(base, 64, enabled);
    for (what, entry) in [
        ("that does not allow it", whole().with_allow_update(false)),
        ("of another process", whole().with_access_pasid(STRANGER)),
    ] {
        with_entry(list, format!("an update of an entry {what} gives 0x2c"), entry, plain, refusal(0x2c, OTHER));
    }
    let entries = id_cap.entries();
    let d = Descriptor::update_window(entries, base, 64, enabled).with_record(record);
    with_entry(list, "an update of no entry gives 0x2c".into(), whole(), d, refusal(0x2c, entries));
    let spec = liberal(&list.capabilities);
    for usable in [false, true] {
        let name = format!("an update replaces the window and nothing else, usable: {usable}");
        list.script(section::DOMAINS, name, &spec, move |fixture| {
            let before = whole().with_usable(usable).with_submitter_pasid(STRANGER).with_access_privilege(true);
            open(fixture, OTHER, &before)?;
            fixture.expect(&update(base, 64, WindowFlags::READ | WindowFlags::ENABLE), &success())?;
            let expected = before.with_write(false).with_window_enable(true);
            let expected = expected.with_window_base(base).with_window_size(64);
            let registers = fixture.registers()?;
            let at = Map::of(registers).window(OTHER);
            same("entry", expected.0, [0, 8, 16, 24].map(|word| registers.read(at + word, 8)))
        });
    }
    let copy = Descriptor::inter_domain_copy(list.arena.at(sample::COUNT), None, base, Some(OTHER), 64);
    let copy = copy.with_record(record);
    list.script(section::DOMAINS, "descriptors after an update use the new window", &spec, move |fixture| {
        open(fixture, OTHER, &whole())?;
        for (d, code) in [
            (update(base, 64, enabled), 0x01),
            (update(base, 63, enabled), 0x2b),
            (update(base + 1, 64, enabled), 0x2b),
            (update(base, 64, WindowFlags::READ | WindowFlags::ENABLE), 0x2a),
            (update(0, 0, all), 0x01),
        ] {
            fixture.expect(&d, &success())?;
            let expected = if code == 0x01 { success() } else { refusal(code, OTHER) };
            fixture.expect(&copy, &expected)?;
        }
        Ok(())
    });
    if id_cap.suppress_drain() {
        let d = plain.and_flags(OpFlags::SUPPRESS_WINDOW_DRAIN);
        with_entry(list, "an update without a drain".into(), whole(), d, success());
    }
}

/// Queues without PASIDs have no inter-domain operations.
fn without_pasid(list: &mut List) {
    let spec = DeviceSpec::default().queue(QueueSpec { pasid_enable: false, ..QueueSpec::default() });
    let out = list.arena.at(place::OUT1);
    let update = Descriptor::update_window(WINDOW, 0, 0, WindowFlags::READ).with_record(list.arena.at(sample::RECORD));
    for (write, d) in through(list, WINDOW, out).into_iter().chain([(false, update)]) {
        let name = format!("{} on a queue without PASID gives 0x28, write: {write}", d.opcode());
        list.one(section::DOMAINS, name, &spec, d, false, ExpectedRecord::status(0x28).specific(0, 0));
    }
}

/// What a fault in another address space reports.
fn faults(list: &mut List) {
    let spec = liberal(&list.capabilities);
    let area = place::AREAS;
    let base = list.arena.at(area);
    let near = list.arena.at(sample::COUNT);
    let record = list.arena.at(sample::RECORD);
    let hole = base + 0x2000;
    for offset_mode in [false, true] {
        if offset_mode && !list.capabilities.id_cap.offset_mode() {
            continue;
        }
        let start = if offset_mode { 0x1000 } else { base + 0x1000 };
        let plain = Descriptor::inter_domain_copy(near, None, start, Some(OTHER), 0x2000);
        for block in [false, true] {
            let d = plain.and_flags(if block { Flags::BLOCK_ON_FAULT } else { Flags::empty() });
            if block && !list.capabilities.gen_cap.block_on_fault() {
                continue;
            }
            let code = if block { 0x04 } else { 0x03 };
            let name = format!("a fault in a window, offset mode: {offset_mode}, block on fault: {block}");
            list.script(section::DOMAINS, name, &spec, move |fixture| {
                open(fixture, OTHER, &window(base, 0x4000, offset_mode))?;
                fixture.arena.protect(area + 0x2000, PAGE, Access::None);
                let expected = ExpectedRecord::fault(code, true, hole).operand(fixture.operand(3));
                let expected = expected.bytes_completed(0x1000).specific(OTHER.into(), 0);
                let expected = if offset_mode { expected.masked(fixture.operand(3)) } else { expected };
                fixture.expect(&d.with_record(record), &expected)?;
                fixture.arena.restore();
                let written = fixture.arena.read(base + 0x1000, 0x1000);
                same_bytes("what is completed", &fixture.arena.read(near, 0x1000), &written)
            });
        }
        // Without a record, SWERROR has the operand and the handle, and no address that the window hides.
        let name = format!("a fault in a window without a record, offset mode: {offset_mode}");
        list.script(section::DOMAINS, name, &spec, move |fixture| {
            open(fixture, OTHER, &window(base, 0x4000, offset_mode))?;
            fixture.arena.protect(area + 0x2000, PAGE, Access::None);
            // A device without fault information does not report the operand either.
            let operand = fixture.operand(3).unwrap_or(0);
            let value = u32::from(operand) << 29 | u32::from(OTHER);
            let expect = Expect::Logged(0x03, Some(Information { value, open: 0 }));
            fixture.one(PortalSpec::of(0), &plain, false, &expect)?;
            let error = fixture.sw_error().expect("seen above");
            fixture.arena.restore();
            same("address", if offset_mode { 0 } else { hole }, error.address())
        });
    }
    // The memory of a process that has none: nothing is there, and the submitter's own is not used instead.
    for (write, d) in through(list, OTHER, list.arena.at(place::OUT1)) {
        let operand = if write {
            3
        } else if d.opcode() == Opcode::InterDomainCompare && d.flags().contains(OpFlags::ALTERNATE_DESTINATION) {
            2
        } else {
            1
        };
        let name = format!("{} in the memory of a process without any, write: {write}", d.opcode());
        let at = list.arena.at(place::OUT1);
        list.script(section::DOMAINS, name, &spec, move |fixture| {
            open(fixture, OTHER, &whole().with_access_pasid(STRANGER))?;
            let expected = ExpectedRecord::fault(0x03, write, at).operand(fixture.operand(operand));
            fixture.expect(&d, &expected.bytes_completed(0).specific(OTHER.into(), 0))
        });
    }
    let bad = Descriptor::inter_domain_copy(near, None, base, Some(OTHER), 64);
    let update = Descriptor::update_window(OTHER, 0, 0, WindowFlags::READ);
    let shut = whole().with_usable(false).with_allow_update(false);
    for (d, entry, code) in [(bad, shut, 0x29), (bad, whole().with_write(false), 0x2a), (update, shut, 0x2c)] {
        let name = format!("{} without a record logs {code:#04x} and the handle", d.opcode());
        list.script(section::DOMAINS, name, &spec, move |fixture| {
            open(fixture, OTHER, &entry)?;
            let expect = Expect::Logged(code, Some(Information { value: OTHER.into(), open: 0 }));
            fixture.one(PortalSpec::of(0), &d, false, &expect)
        });
    }
}

/// The table in the registers: what is writable when. Source: SPEC Table 9-10.
fn locks(list: &mut List) {
    let spec = liberal(&list.capabilities);
    for (usable, allow) in [(false, false), (false, true), (true, false), (true, true)] {
        let name = format!("locks of an entry, usable: {usable}, updates allowed: {allow}");
        list.fresh(section::DOMAINS, name, &spec, move |fixture| {
            let registers = fixture.registers()?;
            let at = Map::of(registers).window(OTHER);
            same("a fresh entry", [0; 4], [0, 8, 16, 24].map(|word| registers.read(at + word, 8)))?;
            registers.write(at, 8, u64::from(usable) | u64::from(allow) << 1);
            for word in [0, 8, 16, 24] {
                let value = if word == 0 { !0b11 | registers.read(at, 8) } else { u64::MAX };
                registers.write(at + word, 8, value);
            }
            let closed = !usable && !allow;
            let when = |open: bool, bits: u64| if open { bits } else { 0 };
            let first = u64::from(usable) | u64::from(allow) << 1 | when(!usable, 0xffff_f000);
            let expected = [
                first | when(closed, 0xffff_ffff_0000_0ffc),
                when(closed, u64::MAX),
                when(closed, u64::MAX),
                when(!usable, u64::MAX),
            ];
            let got = [0, 8, 16, 24].map(|word| registers.read(at + word, 8));
            same("entry", expected, got)?;
            registers.write(at, 8, 0);
            same("usable and allow update", 0, registers.read(at, 8) & 0b11)
        });
    }
    list.fresh(section::DOMAINS, "IDBR is locked while the device is enabled", &spec, move |fixture| {
        let registers = fixture.registers()?;
        let before = registers.read(offset::IDBR, 4);
        registers.write(offset::IDBR, 4, !before & 0x0fff_ff1f);
        same("IDBR", before, registers.read(offset::IDBR, 4))
    });
    let bare = DeviceSpec { bare: true, ..spec.clone() };
    list.fresh(section::DOMAINS, "IDBR keeps its fields while the device is disabled", &bare, move |fixture| {
        let registers = fixture.registers()?;
        registers.write(offset::IDBR, 4, 0xffff_ffff);
        same("IDBR", 0x0fff_ff1f, registers.read(offset::IDBR, 4))?;
        super::commands::put(registers, CommandCode::ResetDevice, 0, 0)?;
        same("IDBR after a reset", 0, registers.read(offset::IDBR, 4))
    });
    let no_pasid = DeviceSpec { pci: Pci { pasid: false, ..Pci::default() }, ..bare };
    list.fresh(section::DOMAINS, "IDBR with a PASID that PCI does not enable gives 0x1b", &no_pasid, move |fixture| {
        let registers = fixture.registers()?;
        registers.write(offset::IDBR, 4, IdBr::default().with_pasid_enable(true).0[0]);
        super::commands::put(registers, CommandCode::EnableDevice, 0, 0x1b)
    });
}

/// Translation Fetch moves nothing and finds missing pages.
fn fetches(list: &mut List) {
    if !list.has(Opcode::TranslationFetch) {
        return;
    }
    let spec = liberal(&list.capabilities);
    let (area, record) = (place::AREAS, list.arena.at(sample::RECORD));
    let base = list.arena.at(area);
    let fetch = Descriptor::translation_fetch(base, 0x5000).with_record(record);
    list.script(section::FETCH, "translation fetch of present pages", &spec, move |fixture| {
        fixture.expect(&fetch, &ExpectedRecord::success())
    });
    for block in [false, true] {
        if block && !list.capabilities.gen_cap.block_on_fault() {
            continue;
        }
        let d = fetch.and_flags(if block { Flags::BLOCK_ON_FAULT } else { Flags::empty() });
        let code = if block { 0x04 } else { 0x03 };
        let name = format!("translation fetch of a hole gives {code:#04x}");
        list.script(section::FETCH, name, &spec, move |fixture| {
            fixture.arena.protect(area + 0x3000, PAGE, Access::None);
            let expected = ExpectedRecord::fault(code, false, base + 0x3000).operand(fixture.operand(1));
            fixture.expect(&d, &expected.any_bytes_completed())
        });
    }
    if list.capabilities.gen_cap.translation_fetch_stride() {
        let d = fetch.and_flags(OpFlags::FETCH_STRIDE).with_region_stride(0x2000);
        list.script(section::FETCH, "translation fetch strides over a hole", &spec, move |fixture| {
            fixture.arena.protect(area + 0x3000, PAGE, Access::None);
            fixture.expect(&d, &ExpectedRecord::success())
        });
    }
    let off = DeviceSpec { pci: Pci { ats: false, prs: false, ..Pci::default() }, ..DeviceSpec::default() };
    let name = "translation fetch without the translation service gives 0x10";
    list.one(section::FETCH, name, &off, fetch, false, ExpectedRecord::status(0x10));
}

pub(super) fn add(list: &mut List) {
    fetches(list);
    if !list.capabilities.gen_cap.inter_domain() {
        return;
    }
    entries(list);
    ranges(list);
    handles(list);
    bitmaps(list);
    bitmap_reads(list);
    updates(list);
    without_pasid(list);
    faults(list);
    locks(list);
}
