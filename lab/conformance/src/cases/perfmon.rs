//! Performance counters: counts of submitted, executed and completed descriptors.

use super::{List, liberal};
use crate::arena::place;
use crate::bring_up::Map;
use crate::case::{NotPassed, Verdict, holds, same, section, skip};
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, Interrupt, PortalSpec, QueueSpec, Registers};
use crate::table::row;
use telpher_abi::perfmon::{CntrCfg, PerfCap, offset};
use telpher_abi::registers::{self, IntCause, VERSION_2};
use telpher_abi::{Descriptor, Flags, Opcode};

/// Category, event bit, its meaning, and the smallest and largest count in the program below.
const EVENTS: [(u8, u32, &str, u64, u64); 14] = [
    (0, 0x10, "dedicated submissions", 13, 13),
    // The list of a batch may count as input: four units.
    (1, 0x01, "units of 32 bytes read", 8, 12),
    (1, 0x02, "units of 32 bytes written", 24, 24),
    (1, 0x10, "descriptors from batches", 2, 2),
    (1, 0x20, "descriptors from queues", 13, 13),
    (3, 0x01, "no-operations", 5, 5),
    (3, 0x02, "batches", 1, 1),
    (3, 0x04, "drains", 1, 1),
    (3, 0x08, "moves", 3, 3),
    (3, 0x10, "fills", 2, 2),
    (4, 0x04, "partial completions", 1, 1),
    (4, 0x08, "errors", 1, 1),
    (4, 0x10, "successes", 13, 13),
    (4, 0x20, "records written", 11, 11),
];

/// The operations of 2.x and 3.0: opcode, category and event bit. Source: SPEC App. D.
const OPERATIONS: [(u8, u8, u32); 14] = [
    (0x0a, 3, 0x2_0000),
    (0x17, 3, 0x4_0000),
    (0x23, 5, 0x01),
    (0x24, 5, 0x02),
    (0x25, 5, 0x04),
    (0x26, 5, 0x08),
    (0x21, 5, 0x400),
    (0x18, 5, 0x800),
    (0x19, 5, 0x1000),
    (0x1a, 5, 0x2000),
    (0x1b, 5, 0x4000),
    (0x1c, 5, 0x8000),
    (0x1d, 5, 0x1_0000),
    (0x1e, 5, 0x2_0000),
];

/// Category 1, v2: bits of submitters that were read in a bitmap, and were set, or not.
pub(super) const BITMAP_GRANTED: u32 = 0x40;
pub(super) const BITMAP_DENIED: u32 = 0x80;

/// 13 submissions: 3 no-operations, 2 moves of 128 bytes and one that faults at once, an unknown opcode, 2 fills of 256
/// bytes, a batch of two no-operations without records, a drain, and 2 flushes without records.
fn programme(fixture: &Fixture) -> Verdict {
    let at = |offset| fixture.at(offset);
    let (src, out) = (at(sample::COUNT), at(crate::arena::place::OUT1));
    let portal = fixture.portal(PortalSpec::of(0))?;
    let list = [
        Descriptor::nop(),
        Descriptor::nop(),
        Descriptor::nop(),
        Descriptor::memory_move(src, out, 128),
        Descriptor::memory_move(src, out, 128),
        Descriptor::new(Opcode::from_code(0x0b)),
        Descriptor::memory_move(fixture.arena.unmapped(), out, 64),
        Descriptor::fill(0, out, 256),
        Descriptor::fill(0, out, 256),
        Descriptor::batch(at(sample::NOPS), 2),
        Descriptor::drain(),
    ];
    for d in list {
        let _ = fixture.run(&*portal, &d.with_record(at(sample::RECORD)))?;
    }
    // Two without a record.
    for _ in 0..2 {
        fixture.submit(&*portal, &Descriptor::cache_flush(out, 64))?;
    }
    fixture.device.settle();
    Ok(())
}

/// Offset of the block, if the device has counters.
fn block<'s>(fixture: &'s Fixture<'_>) -> Result<(&'s dyn Registers, u64, PerfCap), NotPassed> {
    let registers = fixture.registers()?;
    let block = Map::of(registers).perfmon;
    let capability =
        if block == 0 { PerfCap::default() } else { PerfCap([registers.read(block + offset::PERFCAP, 8)]) };
    if capability.counters() == 0 {
        return skip("there are no counters");
    }
    Ok((registers, block, capability))
}

/// Has counter 0 count an event from 0 on; skips the case if the device does not have it.
pub(super) fn count_event(fixture: &Fixture, category: u8, bit: u32) -> Verdict {
    let (registers, block, _) = block(fixture)?;
    if registers.read(block + offset::EVNTCAP + 8 * u64::from(category), 8) & u64::from(bit) == 0 {
        return skip(format!("event {category}/{bit:#x} is not counted"));
    }
    registers.write(block + offset::PERFRST, 4, 2);
    let config = CntrCfg::default().with_enable(true).with_category(category).with_events(bit);
    registers.write(block + offset::CNTRCFG, 8, config.0[0]);
    Ok(())
}

/// Compares counter 0.
pub(super) fn has_counted(fixture: &Fixture, what: &str, count: u64) -> Verdict {
    fixture.device.settle();
    let (registers, block, _) = block(fixture)?;
    same(what, count, registers.read(block + offset::CNTRDATA, 8))
}

/// Each operation of 2.x and 3.0 counts for its event, and no other operation does.
fn newer_operations(list: &mut List) {
    let spec = liberal(&list.capabilities);
    let has = |code: u8| list.capabilities.op_cap.contains(Opcode::from_code(code));
    let present: Vec<_> = OPERATIONS.into_iter().filter(|(code, ..)| has(*code)).collect();
    let samples: Vec<Descriptor> = present.iter().map(|(code, ..)| sample::of(row(*code), list.arena)).collect();
    let nop = sample::of(row(0x00), list.arena);
    for ((code, category, bit), counted) in present.into_iter().zip(samples.clone()) {
        let samples = samples.clone();
        list.fresh(section::PERFMON, format!("a counter counts {}", row(code).name), &spec, move |fixture| {
            count_event(fixture, category, bit)?;
            let portal = fixture.portal(PortalSpec::of(0))?;
            for d in samples.iter().chain([&nop, &counted]) {
                let _ = fixture.run(&*portal, d)?;
            }
            has_counted(fixture, row(code).name, 2)
        });
    }
}

/// Second operands, fences and overlapping moves.
fn newer_events(list: &mut List) {
    if list.capabilities.version < VERSION_2 {
        return;
    }
    let spec = liberal(&list.capabilities);
    let at = |offset| list.arena.at(offset);
    let (record, out, second) = (at(sample::RECORD), at(place::OUT1), at(place::OUT2));
    let compare = Descriptor::compare(at(sample::COUNT), at(sample::COUNT2), 64).with_record(record);
    let pattern = sample::of(row(0x06), list.arena);
    let dualcast = Descriptor::dualcast(at(sample::COUNT), out, second, 64).with_record(record);
    let fill = Descriptor::fill(0, out, 64).with_record(record);
    let copy = |from: u64, to: u64| Descriptor::memory_move(from, to, 64).with_record(record);
    let overlapping = [copy(out, out + 63), copy(out + 1, out), copy(out, out + 64), copy(out + 64, out)];
    let programmes = [
        (1, 0x200, "descriptors that read source 2", vec![compare, compare, pattern, dualcast, fill], 2),
        (1, 0x400, "descriptors that write destination 2", vec![dualcast, compare, dualcast, fill, dualcast], 3),
        (3, 0x200_0000, "overlapping moves", overlapping.to_vec(), 2),
    ];
    for (category, bit, what, programme, count) in programmes {
        if bit == 0x200_0000 && !list.capabilities.gen_cap.overlapping_copy() {
            continue;
        }
        list.fresh(section::PERFMON, format!("a counter counts {what}"), &spec, move |fixture| {
            count_event(fixture, category, bit)?;
            let portal = fixture.portal(PortalSpec::of(0))?;
            for d in &programme {
                let _ = fixture.run(&*portal, d)?;
            }
            has_counted(fixture, what, count)
        });
    }
    let (nop, fenced) = (Descriptor::nop(), Descriptor::nop().and_flags(Flags::FENCE));
    let unknown = Descriptor::new(Opcode::from_code(0x0b));
    let members = at(place::LISTS + 0x2000);
    for (bit, what, counts) in [(0x800_0000, "passed fences", [2, 0]), (0x400_0000, "abandoned fences", [0, 1])] {
        list.fresh(section::PERFMON, format!("a counter counts {what}"), &spec, move |fixture| {
            let portal = fixture.portal(PortalSpec::of(0))?;
            for (batch, count) in [[nop, fenced, nop, fenced], [nop, unknown, nop, fenced]].iter().zip(counts) {
                count_event(fixture, 3, bit)?;
                fixture.arena.write_list(members, batch);
                let _ = fixture.run(&*portal, &Descriptor::batch(members, 4).with_record(record))?;
                has_counted(fixture, what, count)?;
            }
            Ok(())
        });
    }
}

/// Counts no-operations in counter 0.
fn count_nops(registers: &dyn Registers, block: u64, interrupt: bool) {
    let config = CntrCfg::default().with_enable(true).with_category(3).with_events(1).with_interrupt(interrupt);
    registers.write(block + offset::CNTRCFG, 8, config.0[0]);
}

fn run_nops(fixture: &Fixture, queue: usize, count: u32) -> Verdict {
    let portal = fixture.portal(PortalSpec::of(queue))?;
    for _ in 0..count {
        let _ = fixture.run(&*portal, &Descriptor::nop().with_record(fixture.at(sample::RECORD)))?;
    }
    fixture.device.settle();
    Ok(())
}

/// Freezing, resetting, filtering and overflowing.
fn controls(list: &mut List) {
    let two = DeviceSpec::default().queues(vec![QueueSpec::default(), QueueSpec::default()]);
    list.fresh(section::PERFMON, "a frozen counter stands still", &two, |fixture| {
        let (registers, block, capability) = block(fixture)?;
        if !capability.freeze() {
            return skip("counters cannot be frozen");
        }
        count_nops(registers, block, false);
        for (freeze, count) in [(0, 3), (1, 3), (0, 6)] {
            registers.write(block + offset::PERFFRZ, 4, freeze);
            run_nops(fixture, 0, 3)?;
            same("the count", count, registers.read(block + offset::CNTRDATA, 8))?;
        }
        Ok(())
    });
    list.fresh(section::PERFMON, "PERFRST clears counters and their configuration", &two, |fixture| {
        let (registers, block, _) = block(fixture)?;
        count_nops(registers, block, false);
        run_nops(fixture, 0, 3)?;
        registers.write(block + offset::PERFRST, 4, 2);
        same("the count", 0, registers.read(block + offset::CNTRDATA, 8))?;
        registers.write(block + offset::PERFRST, 4, 1);
        same("the configuration", 0, registers.read(block + offset::CNTRCFG, 8))?;
        run_nops(fixture, 0, 3)?;
        same("the count", 0, registers.read(block + offset::CNTRDATA, 8))
    });
    list.fresh(section::PERFMON, "a queue filter counts the queues it names", &two, |fixture| {
        let (registers, block, capability) = block(fixture)?;
        if capability.filters() & 1 == 0 {
            return skip("counters have no queue filter");
        }
        same("the filter after reset", 0xffff_ffff, registers.read(block + offset::FLTCFG, 4))?;
        registers.write(block + offset::FLTCFG, 4, 2);
        count_nops(registers, block, false);
        run_nops(fixture, 0, 3)?;
        run_nops(fixture, 1, 2)?;
        same("the count", 2, registers.read(block + offset::CNTRDATA, 8))
    });
    list.fresh(section::PERFMON, "a counter wraps, says so, and interrupts", &two, |fixture| {
        let (registers, block, capability) = block(fixture)?;
        let _ = fixture.device.interrupts();
        let width = capability.counter_width();
        let last = u64::MAX >> (64 - u32::from(width));
        registers.write(block + offset::CNTRDATA, 8, last - 1);
        count_nops(registers, block, capability.overflow_interrupt());
        run_nops(fixture, 0, 1)?;
        same(
            "count, overflow",
            (last, 0),
            (registers.read(block + offset::CNTRDATA, 8), registers.read(block + offset::OVFSTATUS, 4)),
        )?;
        run_nops(fixture, 0, 2)?;
        same(
            "count, overflow",
            (1, 1),
            (registers.read(block + offset::CNTRDATA, 8), registers.read(block + offset::OVFSTATUS, 4)),
        )?;
        if capability.overflow_interrupt() {
            let bit = u64::from(IntCause::PERFMON.bits());
            same("INTCAUSE", bit, registers.read(registers::offset::INTCAUSE, 4) & bit)?;
            if let Some(interrupts) = fixture.device.interrupts() {
                same("interrupts", vec![Interrupt::Msix(0)], interrupts)?;
            }
        }
        registers.write(block + offset::OVFSTATUS, 4, 1);
        same("overflow after writing 1", 0, registers.read(block + offset::OVFSTATUS, 4))
    });
}

pub(super) fn add(list: &mut List) {
    controls(list);
    newer_operations(list);
    newer_events(list);
    let spec = DeviceSpec::default();
    for (category, bit, what, least, most) in EVENTS {
        list.fresh(section::PERFMON, format!("a counter counts {what}: {least} to {most}"), &spec, move |fixture| {
            let (registers, block, _) = block(fixture)?;
            if registers.read(block + offset::EVNTCAP + 8 * u64::from(category), 8) & u64::from(bit) == 0 {
                return skip(format!("event {category}/{bit:#x} is not counted"));
            }
            let config = CntrCfg::default().with_enable(true).with_category(category).with_events(bit);
            registers.write(block + offset::CNTRCFG, 8, config.0[0]);
            programme(fixture)?;
            let count = registers.read(block + offset::CNTRDATA, 8);
            holds(format!("a count of {least} to {most}"), (least..=most).contains(&count), || format!("{count}"))
        });
    }
    list.fresh(section::PERFMON, "a counter that is off counts nothing", &spec, |fixture| {
        let (registers, block, _) = block(fixture)?;
        programme(fixture)?;
        same("the count", 0, registers.read(block + offset::CNTRDATA, 8))
    });
    let shared = DeviceSpec::default().queue(QueueSpec { size: 8, threshold: 4, ..QueueSpec::shared() });
    for (bit, what, times) in [
        (0x01u32, "accepted through the limited portal", 4),
        (0x02, "Retry through the limited portal", 2),
        (0x04, "accepted through the unlimited portal", 4),
        (0x08, "Retry through the unlimited portal", 3),
    ] {
        list.fresh(section::PERFMON, format!("a counter counts what a shared queue {what}"), &shared, move |fixture| {
            let (registers, block, _) = block(fixture)?;
            if registers.read(block + offset::EVNTCAP, 8) & u64::from(bit) == 0 {
                return skip(format!("event 0/{bit:#x} is not counted"));
            }
            let config = CntrCfg::default().with_enable(true).with_events(bit);
            registers.write(block + offset::CNTRCFG, 8, config.0[0]);
            let limited = fixture.portal(PortalSpec::of(0).kind(telpher_abi::registers::PortalKind::LimitedMsix))?;
            let unlimited = fixture.portal(PortalSpec::of(0))?;
            fixture.hold()?;
            for (portal, offers) in [(&limited, 6), (&unlimited, 7)] {
                for _ in 0..offers {
                    let _ = fixture.arena.offer(&**portal, &Descriptor::nop());
                }
            }
            fixture.release();
            fixture.device.settle();
            same("the count", times, registers.read(block + offset::CNTRDATA, 8))
        });
    }
}
