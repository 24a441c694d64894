//! Opcodes, flags and reserved fields: every operation against every bit.

use super::{List, liberal};
use crate::case::section;
use crate::expected::{Expect, ExpectedRecord, Information};
use crate::fixture::context;
use crate::sample;
use crate::subject::{DeviceSpec, QueueSpec};
use crate::table::{OPERATIONS, OpRow, flag};
use std::collections::BTreeSet;
use telpher_abi::registers::OpCap;
use telpher_abi::{Descriptor, Flags, Opcode};

/// The expected result of a legal sample with these flags.
fn success(row: &OpRow, flags: u32) -> Expect {
    if flags & flag::RCR == 0 {
        return Expect::Silence;
    }
    // Batch Error reports an earlier failure: the Batch ends as failed, with Result 1.
    let expected_record = if row.code == 0x01 && flags & flag::OP0 != 0 {
        ExpectedRecord::status(0x05)
    } else {
        ExpectedRecord::success()
    };
    // Values are checked elsewhere; these cases check that the operation ran.
    let expected_record = if row.code == 0x01 { expected_record.bytes_completed(2) } else { expected_record };
    expected_record.any_result().any_specific().into()
}

/// The expected result of a descriptor that fails a check: its record, or SWERROR if it has none.
pub(super) fn refused(flags: u32, expected_record: ExpectedRecord) -> Expect {
    if flags & flag::CRAV == 0 { Expect::Logged(expected_record.code(), None) } else { expected_record.into() }
}

/// The expected result of a sample with these flags on queue 0 of `spec`.
fn verdict(list: &List, spec: &DeviceSpec, row: &OpRow, flags: u32, member: bool) -> Expect {
    if member && matches!(row.code, 0x01 | 0x02 | 0x21) {
        return refused(flags, ExpectedRecord::status(0x10));
    }
    let capabilities = spec.capabilities.as_ref().unwrap_or(&list.capabilities);
    match row.judge(&context(spec, capabilities, member), flags) {
        None => success(row, flags),
        Some(fault) if flags & flag::CRAV == 0 => {
            let open = fault.unsettled;
            Expect::Logged(0x11, Some(Information { value: fault.offending, open }))
        }
        Some(fault) => ExpectedRecord::invalid_flags(fault.offending, fault.unsettled).into(),
    }
}

fn place_name(member: bool) -> &'static str {
    if member { " in a batch" } else { "" }
}

fn sweep(list: &mut List, label: &str, spec: &DeviceSpec, pairs: bool) {
    for row in list.operations() {
        let base = sample::of(row, list.arena);
        let base_flags = base.flags().bits();
        for member in [false, true] {
            let mut sets = vec![base_flags, base_flags & !(flag::CRAV | flag::RCR), 0x00ff_ffff];
            for a in 0..24 {
                sets.push(base_flags ^ 1 << a);
                if pairs {
                    sets.extend((a + 1..24).map(|b| base_flags ^ 1 << a ^ 1 << b));
                }
            }
            for flags in BTreeSet::from_iter(sets) {
                let d = sample::with_flags(row, &base, flags, list.arena);
                let expect = verdict(list, spec, row, flags, member);
                let name = format!("{} with flags {flags:#08x}{}, {label}", row.name, place_name(member));
                list.one(section::FLAGS, name, spec, d, member, expect);
            }
        }
    }
}

fn opcodes(list: &mut List) {
    let spec = liberal(&list.capabilities);
    for code in 0..=255u8 {
        let opcode = Opcode::from_code(code);
        let known = OPERATIONS.iter().any(|row| row.code == code);
        if list.has(opcode) && known {
            continue;
        }
        for member in [false, true] {
            let record = list.arena.at(sample::RECORD);
            let bare = Descriptor::new(opcode).with_record(record);
            let name = format!("opcode {code:#04x} is refused{}", place_name(member));
            list.one(section::OPCODES, name, &spec, bare, member, ExpectedRecord::status(0x10));
            for bit in (0..24).filter(|bit| 1 << bit & (flag::CRAV | flag::RCR | flag::RCI) == 0) {
                let d = bare.and_flags(Flags::from_bits_retain(1 << bit));
                let name = format!("opcode {code:#04x} is refused before flag {bit}{}", place_name(member));
                list.one(
                    section::OPCODES,
                    name,
                    &spec,
                    d,
                    member,
                    Expect::Record(ExpectedRecord::status(0x10), vec![0x11]),
                );
            }
        }
        let name = format!("opcode {code:#04x} without a record is logged");
        list.one(section::OPCODES, name, &spec, Descriptor::new(opcode), false, Expect::Logged(0x10, None));
    }
    // OPCFG disables one operation at a time, and leaves the others.
    if list.capabilities.wq_cap.op_config() {
        for row in list.operations() {
            let opcode = Opcode::from_code(row.code);
            let d = sample::of(row, list.arena);
            let without = list.capabilities.op_cap.with(opcode, false);
            let spec = DeviceSpec::default().queue(QueueSpec { operations: Some(without), ..QueueSpec::default() });
            let name = format!("{} is refused where OPCFG leaves it out", row.name);
            list.one(section::OPCODES, name, &spec, d, false, ExpectedRecord::status(0x10));
            // A no-operation is also the other member of a surrounding batch here.
            if !matches!(row.code, 0x00..=0x02 | 0x21) && list.has(Opcode::Batch) {
                let name = format!("{} in a batch is refused where OPCFG leaves it out", row.name);
                list.one(section::OPCODES, name, &spec, d, true, ExpectedRecord::status(0x10));
            }
            let only = OpCap::default().with(opcode, true);
            let spec = DeviceSpec::default().queue(QueueSpec { operations: Some(only), ..QueueSpec::default() });
            let name = format!("{} is taken where OPCFG has nothing else", row.name);
            if row.code != 0x01 {
                list.one(section::OPCODES, name, &spec, d, false, success(row, d.flags().bits()));
            }
        }
    }
}

fn reserved(list: &mut List, spec: &DeviceSpec) {
    for row in list.operations() {
        let base = sample::of(row, list.arena);
        let base_flags = base.flags().bits();
        let context = context(spec, &list.capabilities, false);
        // The plain sample, and one with each flag that makes a field valid or reserved.
        let mut sets = vec![base_flags, base_flags | flag::RCI];
        if !row.record_required && row.code != 0x02 {
            sets.push(0);
        }
        sets.extend(row.reserved_if.iter().map(|(bit, ..)| base_flags | bit));
        sets.retain(|flags| row.judge(&context, *flags).is_none());
        sets.dedup();
        for flags in sets {
            let d = sample::with_flags(row, &base, flags, list.arena);
            let whole = row.reserved_bytes(flags).flat_map(|byte| (0..8).map(move |bit| (byte, 1u8 << bit)));
            let parts = row.reserved_bits.iter().flat_map(|(byte, mask)| {
                (0..8).map(|bit| 1u8 << bit).filter(move |bit| mask & bit != 0).map(move |bit| (*byte, bit))
            });
            for (byte, bit) in whole.chain(parts) {
                let bad = sample::with_byte(&d, byte, d.to_bytes()[usize::from(byte)] | bit);
                for member in [false, true] {
                    if member && matches!(row.code, 0x01 | 0x02 | 0x21) {
                        continue;
                    }
                    let place = place_name(member);
                    let name = format!("{} with flags {flags:#x} refuses byte {byte} = {bit:#04x}{place}", row.name);
                    let expect = refused(flags, ExpectedRecord::status(0x12));
                    list.script(section::RESERVED, name, spec, move |fixture| {
                        if !fixture.promises.reserved_checked {
                            return crate::case::skip("reserved fields are not all checked");
                        }
                        fixture.one(crate::subject::PortalSpec::of(0), &bad, member, &expect)
                    });
                }
            }
        }
    }
}

/// The submitter may not set the trusted double word.
fn trusted_dword(list: &mut List) {
    let d = Descriptor::nop().with_record(list.arena.at(sample::RECORD));
    let garbage = Descriptor([d.0[0] | 0xffff_ffff, d.0[1], 0, 0, 0, 0, 0, 0]);
    let spec = DeviceSpec::default();
    let name = "a dedicated queue ignores the descriptor's PASID and privilege";
    list.one(section::RESERVED, name, &spec, garbage, false, ExpectedRecord::success());
    let name = "a member's PASID and privilege are ignored";
    list.one(section::RESERVED, name, &spec, garbage, true, ExpectedRecord::success());
    let shared = DeviceSpec::default().queue(QueueSpec::shared());
    let name = "the CPU replaces the PASID and privilege of a shared submission";
    list.one(section::RESERVED, name, &shared, garbage, false, ExpectedRecord::success());
}

/// Every selector of every operation, while TC-B is not mapped to a virtual channel.
fn traffic_classes(list: &mut List) {
    let mut spec = liberal(&list.capabilities);
    spec.groups[0].tc_b = 7;
    for row in list.operations() {
        let base = sample::of(row, list.arena);
        for member in [false, true] {
            if member && matches!(row.code, 0x01 | 0x02 | 0x21) {
                continue;
            }
            let context = context(&spec, &list.capabilities, member);
            for extra in [0, flag::OP0, flag::OP1] {
                for bit in [flag::TC1, flag::TC2, flag::TC3, flag::CR_TC] {
                    let flags = base.flags().bits() | bit | extra;
                    if row.judge(&context, flags).is_some() || row.code == 0x01 && extra != 0 {
                        continue;
                    }
                    let d = sample::with_flags(row, &base, flags, list.arena);
                    let expect = if bit == flag::CR_TC {
                        Expect::Logged(0x1e, None)
                    } else {
                        ExpectedRecord::status(0x1e).into()
                    };
                    let name =
                        format!("{} with flags {flags:#x} on a dead traffic class{}", row.name, place_name(member));
                    list.one(section::TRAFFIC, name, &spec, d, member, expect);
                }
            }
            if row.code == 0x1a {
                let d = base.and_flags(telpher_abi::OpFlags::DESTINATION_2_TC);
                let name = format!("{} with destination 2 on a dead traffic class{}", row.name, place_name(member));
                list.one(section::TRAFFIC, name, &spec, d, member, ExpectedRecord::status(0x1e));
            }
            let name = format!("{} without selectors beside a dead traffic class{}", row.name, place_name(member));
            list.one(section::TRAFFIC, name, &spec, base, member, success(row, base.flags().bits()));
        }
    }
}

pub(super) fn add(list: &mut List) {
    let dedicated = liberal(&list.capabilities);
    sweep(list, "dedicated queue", &dedicated, true);
    let shared = DeviceSpec::default().queue(QueueSpec::shared());
    sweep(list, "shared queue without block on fault and interrupts", &shared, false);
    for bit in [2, 3, 5, 7, 8, 9, 10, 11, 15] {
        let set = list.capabilities.gen_cap.0[0] >> bit & 1 == 0;
        let spec = list.with_capability(&dedicated, bit, set);
        sweep(list, &format!("GENCAP[{bit}] = {}", u8::from(set)), &spec, false);
    }
    if list.has(Opcode::UpdateWindow) {
        let mut capabilities = list.capabilities;
        let can = capabilities.id_cap.suppress_drain();
        capabilities.id_cap = capabilities.id_cap.with_suppress_drain(!can);
        let spec = DeviceSpec { capabilities: Some(capabilities), ..dedicated.clone() };
        sweep(list, &format!("IDCAP[25] = {}", u8::from(!can)), &spec, false);
    }
    for bit in
        list.capabilities.op_cap.contains(Opcode::GatherCopy).then_some([8, 9, 10, 12, 13, 14]).into_iter().flatten()
    {
        let mut capabilities = list.capabilities;
        let cap = &mut capabilities.dsa_cap_0.0[0];
        *cap ^= 1 << bit;
        let set = *cap >> bit & 1;
        let spec = DeviceSpec { capabilities: Some(capabilities), ..dedicated.clone() };
        sweep(list, &format!("DSACAP0[{bit}] = {set}"), &spec, false);
    }
    opcodes(list);
    reserved(list, &dedicated);
    trusted_dword(list);
    traffic_classes(list);
}
