//! The event log: entries, records that could not be written, and a full log.

use super::List;
use crate::arena::{Access, PAGE, place};
use crate::case::{Verdict, holds, same, section};
use crate::expected::ExpectedRecord;
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, HERE, Interrupt, PortalSpec, QueueSpec};
use telpher_abi::registers::{EvlStatus, IntCause, offset};
use telpher_abi::{CompletionRecord, Descriptor, EventLogEntry, Flags, Opcode};
use telpher_portal::Offer;

const ENTRIES: u16 = 64;

fn status(fixture: &Fixture) -> Result<EvlStatus, crate::case::NotPassed> {
    Ok(EvlStatus([fixture.registers()?.read(offset::EVLSTATUS, 8)]))
}

fn entry(fixture: &Fixture, index: u64) -> EventLogEntry {
    let bytes = 32u64 << fixture.capabilities.gen_cap.event_log_size_code();
    let raw = fixture.arena.read(fixture.at(place::EVENT_LOG) + bytes * index, 64);
    let mut image = [0; 64];
    image.copy_from_slice(&raw);
    EventLogEntry(Descriptor::from_bytes(&image).0)
}

fn send(fixture: &Fixture, d: &Descriptor) -> Verdict {
    fixture.submit(&*fixture.portal(PortalSpec::of(0))?, d)?;
    fixture.device.settle();
    Ok(())
}

/// An entry's identity: code, queue, operation, PASID, member, index.
fn identity(e: &EventLogEntry) -> (u8, bool, u8, bool, u8, u32, bool, u16) {
    (
        e.error_code(),
        e.wq_index_valid(),
        e.wq_index(),
        e.descriptor_valid(),
        e.operation(),
        e.pasid(),
        e.batch_member(),
        e.batch_index(),
    )
}

pub(super) fn add(list: &mut List) {
    if list.capabilities.gen_cap.event_log_size_code() == 0 {
        return;
    }
    let base = list.arena.at(place::EVENT_LOG);
    let spec = DeviceSpec { event_log: Some((base, ENTRIES)), user_interrupts: true, ..DeviceSpec::default() };
    let bad_size = Descriptor::memory_move(0, 0, 0);
    list.fresh(section::EVENT_LOG, "an error without a record is logged, not put to SWERROR", &spec, move |fixture| {
        same("head and tail", (0, 0), (status(fixture)?.head(), status(fixture)?.tail()))?;
        send(fixture, &bad_size)?;
        same("tail", 1, status(fixture)?.tail())?;
        same("the entry", (0x13, true, 0, true, 0x03, HERE, false, 0), identity(&entry(fixture, 0)))?;
        fixture.no_sw_error()
    });
    let flags = Descriptor::nop().and_flags(Flags::from_bits_retain(0x60_8000));
    list.fresh(section::EVENT_LOG, "an entry tells the invalid flags", &spec, move |fixture| {
        send(fixture, &flags)?;
        let e = entry(fixture, 0);
        same("the entry", (0x11, true, 0x60_8000), (e.error_code(), e.error_information_valid(), e.error_information()))
    });
    let hole = list.arena.at(place::AREAS);
    let fault = Descriptor::memory_move(hole + 8, list.arena.at(place::OUT1), 64);
    list.fresh(section::EVENT_LOG, "an entry tells a page fault", &spec, move |fixture| {
        fixture.arena.protect(place::AREAS, PAGE, Access::None);
        send(fixture, &fault)?;
        let e = entry(fixture, 0);
        same("code, write, page", (0x03, false, hole >> 12), (e.error_code(), e.write(), e.address() >> 12))
    });
    let record = hole + 64;
    let nop = Descriptor::nop().with_record(record);
    list.fresh(section::EVENT_LOG, "a record that cannot be written is kept in the log", &spec, move |fixture| {
        fixture.arena.protect(place::AREAS, PAGE, Access::Read);
        send(fixture, &nop)?;
        let e = entry(fixture, 0);
        same("the entry", (0x1a, true, 0, true, 0x00, HERE, false, 0), identity(&e))?;
        same("address", record, e.address())?;
        same("record required, operand", (true, 5), (e.record_required(), e.operand()))?;
        same::<CompletionRecord>("the record's image", CompletionRecord([1, 0, 0, 0]), e.record())?;
        fixture.no_sw_error()
    });
    let list_at = list.arena.at(place::LISTS + 0x8000);
    let batch_record = list.arena.at(sample::RECORD);
    list.fresh(section::EVENT_LOG, "a batch follows its member into the log", &spec, move |fixture| {
        fixture.arena.protect(place::AREAS, PAGE, Access::Read);
        fixture.arena.write_list(list_at, &[Descriptor::nop(), nop, Descriptor::nop()]);
        fixture.arena.clear_record(batch_record);
        send(fixture, &Descriptor::batch(list_at, 3).with_record(batch_record))?;
        same("tail", 2, status(fixture)?.tail())?;
        let (member, batch) = (entry(fixture, 0), entry(fixture, 1));
        same("the member", (0x1a, true, 0, true, 0x00, HERE, true, 1), identity(&member))?;
        same("first error in batch", true, member.first_error_in_batch())?;
        same("the batch", (0x27, 0x01, batch_record), (batch.error_code(), batch.operation(), batch.address()))?;
        same("identifiers", member.batch_identifier(), batch.batch_identifier())?;
        holds("an image of the batch's record", batch.record_required(), || format!("{batch:x?}"))?;
        // The log has the member's record, and software can still write it: the member did not fail.
        let image = batch.record();
        same(
            "the batch's status, members, result",
            (0x01, 3, 0),
            (image.status_code(), image.bytes_completed(), image.result()),
        )
    });
    let continues = list.capabilities.gen_cap.batch_continuation();
    let name = "a fence abandons the rest after a member whose record the log has";
    list.fresh(section::EVENT_LOG, name, &spec, move |fixture| {
        let [fenced, last] = [0, 32].map(|offset| batch_record + 64 + offset);
        fixture.arena.protect(place::AREAS, PAGE, Access::Read);
        let fence = Descriptor::nop().and_flags(Flags::FENCE).with_record(fenced);
        fixture.arena.write_list(list_at, &[Descriptor::nop(), nop, fence, Descriptor::nop().with_record(last)]);
        for record in [batch_record, fenced, last] {
            fixture.arena.clear_record(record);
        }
        send(fixture, &Descriptor::batch(list_at, 4).with_record(batch_record))?;
        same("tail", 2, status(fixture)?.tail())?;
        same("the member", (0x1a, true, 0, true, 0x00, HERE, true, 1), identity(&entry(fixture, 0)))?;
        let batch = entry(fixture, 1);
        same("the batch", (0x27, 0x01, batch_record), (batch.error_code(), batch.operation(), batch.address()))?;
        let image = batch.record();
        let result = u8::from(continues);
        same(
            "the batch's status, members, result",
            (0x05, 2, result),
            (image.status_code(), image.bytes_completed(), image.result()),
        )?;
        for record in [fenced, last] {
            same("the record of an abandoned member", 0, fixture.arena.status_word(record))?;
        }
        Ok(())
    });
    list.fresh(section::EVENT_LOG, "an overrun goes to SWERROR even so", &spec, |fixture| {
        let portal = fixture.portal(PortalSpec::of(0))?;
        fixture.hold()?;
        for _ in 0..17 {
            same("the offer", Offer::Taken, fixture.arena.offer(&*portal, &Descriptor::nop()))?;
        }
        let error = fixture.sw_error();
        fixture.release();
        fixture.device.settle();
        same("SWERROR", Some((true, 0x53)), error.map(|e| (e.valid(), e.error_code())))?;
        same("tail", 0, status(fixture)?.tail())
    });
    list.fresh(section::EVENT_LOG, "the log interrupts once until it is acknowledged", &spec, move |fixture| {
        let registers = fixture.registers()?;
        fixture.interrupts()?;
        registers.write(offset::GENCTRL, 4, 1 << 2);
        send(fixture, &bad_size)?;
        send(fixture, &bad_size)?;
        same("interrupts", vec![Interrupt::Msix(0)], fixture.interrupts()?)?;
        same("pending", true, status(fixture)?.interrupt_pending())?;
        let bit = u64::from(IntCause::EVENT_LOG.bits());
        same("INTCAUSE", bit, registers.read(offset::INTCAUSE, 4) & bit)?;
        registers.write(offset::INTCAUSE, 4, bit);
        registers.write(offset::EVLSTATUS, 8, 1 << 62 | 2);
        same("pending", false, status(fixture)?.interrupt_pending())?;
        send(fixture, &bad_size)?;
        same("interrupts", vec![Interrupt::Msix(0)], fixture.interrupts()?)
    });
    list.fresh(section::EVENT_LOG, "the log wraps", &spec, move |fixture| {
        let registers = fixture.registers()?;
        for i in 0..100u64 {
            send(fixture, &bad_size)?;
            same("tail", (i + 1) % u64::from(ENTRIES), status(fixture)?.tail().into())?;
            registers.write(offset::EVLSTATUS, 4, (i + 1) % u64::from(ENTRIES));
            same("head", (i + 1) % u64::from(ENTRIES), status(fixture)?.head().into())?;
        }
        fixture.no_sw_error()
    });
    list.fresh(section::EVENT_LOG, "Enable Device empties the log", &spec, move |fixture| {
        let registers = fixture.registers()?;
        send(fixture, &bad_size)?;
        for code in
            [telpher_abi::registers::CommandCode::DisableDevice, telpher_abi::registers::CommandCode::EnableDevice]
        {
            if let Err(error) = crate::bring_up::command(registers, code, 0) {
                return crate::case::fail("the command succeeds", error);
            }
        }
        same("head and tail", (0, 0), (status(fixture)?.head(), status(fixture)?.tail()))
    });
    let overflow = list.with_capability(&spec, 32, true);
    list.fresh(section::EVENT_LOG, "a full log drops and says 0x54, GENCAP[32] = 1", &overflow, move |fixture| {
        for i in 1..ENTRIES {
            send(fixture, &bad_size)?;
            same("tail", i, status(fixture)?.tail())?;
        }
        fixture.no_sw_error()?;
        send(fixture, &bad_size)?;
        same("tail", ENTRIES - 1, status(fixture)?.tail())?;
        let error = fixture.sw_error().expect("registers are there");
        same("SWERROR", (true, 0x54), (error.valid(), error.error_code()))?;
        fixture.registers()?.write(offset::EVLSTATUS, 4, 10);
        send(fixture, &bad_size)?;
        same("tail", 0, status(fixture)?.tail())
    });
    let blocking = list.with_capability(&spec, 32, false);
    let behind = list.arena.at(sample::RECORD);
    list.fresh(
        section::EVENT_LOG,
        "a full log blocks until there is room, GENCAP[32] = 0",
        &blocking,
        move |fixture| {
            for _ in 1..ENTRIES {
                send(fixture, &bad_size)?;
            }
            let portal = fixture.portal(PortalSpec::of(0))?;
            let nop = Descriptor::nop().with_record(behind);
            fixture.arena.clear_record(behind);
            fixture.submit(&*portal, &bad_size)?;
            fixture.submit(&*portal, &nop)?;
            for _ in 0..10_000 {
                portal.drive();
            }
            same("tail", ENTRIES - 1, status(fixture)?.tail())?;
            fixture.registers()?.write(offset::EVLSTATUS, 4, 5);
            let got = fixture.wait(&*portal, behind).map(|r| r.status_code());
            same("status of what came behind", Some(1), got)?;
            fixture.device.settle();
            same("tail", 0, status(fixture)?.tail())?;
            fixture.no_sw_error()
        },
    );
    if list.capabilities.wq_cap.prs_disable() {
        let queue = QueueSpec { prs_disable: true, ..QueueSpec::default() };
        let quiet = spec.clone().queue(queue);
        list.fresh(
            section::EVENT_LOG,
            "with page requests off a faulting record is logged with its image",
            &quiet,
            move |fixture| {
                fixture.arena.protect(place::AREAS, PAGE, Access::Read);
                send(fixture, &nop)?;
                let e = entry(fixture, 0);
                same("code, address, image", (0x1a, record, 1), (e.error_code(), e.address(), e.record().status_code()))
            },
        );
        let drain = Descriptor::drain().with_record(list.arena.at(sample::RECORD));
        list.fresh(
            section::EVENT_LOG,
            "with page requests off a drain reports through the log",
            &quiet,
            move |fixture| {
                fixture.arena.clear_record(drain.completion_address());
                send(fixture, &drain)?;
                same("the record", 0, fixture.arena.status_word(drain.completion_address()))?;
                let e = entry(fixture, 0);
                same("code, operation", (0x26, 0x02), (e.error_code(), e.operation()))?;
                same("address, image", (drain.completion_address(), 1), (e.address(), e.record().status_code()))
            },
        );
    }
    let unknown = Descriptor::new(Opcode::from_code(0x0b)).with_record(list.arena.at(sample::RECORD));
    list.fresh(section::EVENT_LOG, "an error with a record is not logged", &spec, move |fixture| {
        fixture.expect(&unknown, &ExpectedRecord::status(0x10))?;
        same("tail", 0, status(fixture)?.tail())
    });
}
