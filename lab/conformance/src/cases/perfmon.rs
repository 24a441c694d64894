//! Performance counters: counts of submitted, executed and completed descriptors.

use super::List;
use crate::bring_up::Map;
use crate::case::{NotPassed, Verdict, holds, same, section, skip};
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, Interrupt, PortalSpec, QueueSpec, Registers};
use telpher_abi::perfmon::{CntrCfg, PerfCap, offset};
use telpher_abi::registers::{self, IntCause};
use telpher_abi::{Descriptor, Opcode};

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
