//! When a completion record is written, the destination of an error without a record, and the effect of a bad record
//! address.

use super::{List, liberal};
use crate::arena::{Access, place};
use crate::case::{holds, same, same_bytes, section, skip};
use crate::expected::{Expect, ExpectedRecord, Information};
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, HERE, PortalSpec};
use crate::table::flag::{CRAV, RCR};
use telpher_abi::{Descriptor, Flags, Opcode, SwError};

/// The table of SPEC §5.8.1 for every operation that needs no record.
fn table(list: &mut List, spec: &DeviceSpec) {
    for row in list.operations().filter(|row| !row.record_required && row.code != 0x02) {
        let good = sample::of(row, list.arena);
        let bad = sample::with_byte(&good, 38, 1);
        let count = if row.code == 0x01 { 2 } else { 0 };
        let done = ExpectedRecord::success().bytes_completed(count).any_specific();
        let refused = ExpectedRecord::status(0x12);
        for (flags, on_success, on_error) in [
            (CRAV | RCR, done.into(), refused.into()),
            (CRAV, Expect::Silence, refused.into()),
            (0, Expect::Silence, Expect::Logged(0x12, None)),
        ] {
            for member in [false, true] {
                if member && matches!(row.code, 0x01 | 0x21) {
                    continue;
                }
                for (what, d, expect) in [("succeeds", &good, &on_success), ("is refused", &bad, &on_error)] {
                    let flags = flags | row.own_flags();
                    let d = sample::with_flags(row, d, flags, list.arena);
                    let name = format!("{} with record flags {flags:#x} that {what}, member: {member}", row.name);
                    list.one(section::RECORDS, name, spec, d, member, expect.clone());
                }
            }
        }
    }
}

/// A Batch whose member fails: 0x05 is written only if a record is requested.
fn batch_failures(list: &mut List, spec: &DeviceSpec) {
    let at = list.arena.at(place::LISTS + 0x3000);
    list.arena.write_list(at, &[Descriptor::nop(), Descriptor::new(Opcode::from_code(0x0b))]);
    let batch = Descriptor::batch(at, 2).with_record(list.arena.at(sample::RECORD));
    let result = list.capabilities.gen_cap.batch_continuation().into();
    list.script(section::RECORDS, "a failed batch with RCR writes its record", spec, move |fixture| {
        fixture.clear_sw_error();
        fixture.expect(&batch, &ExpectedRecord::status(0x05).bytes_completed(2).result(result))?;
        // The member had no record: its error is in SWERROR.
        let Some(error) = fixture.sw_error() else { return Ok(()) };
        same("SWERROR's code", 0x10, error.error_code())
    });
    let silent = batch.with_flags(Flags::COMPLETION_RECORD_ADDRESS_VALID);
    list.script(section::RECORDS, "a failed batch without RCR is silent", spec, move |fixture| {
        fixture.arena.clear_record(silent.completion_address());
        let portal = fixture.portal(PortalSpec::of(0))?;
        fixture.submit(&*portal, &silent)?;
        fixture.device.settle();
        same("the record", 0, fixture.arena.status_word(silent.completion_address()))
    });
}

/// The record has exactly 32 bytes.
fn neighbours(list: &mut List, spec: &DeviceSpec) {
    let d = Descriptor::nop().with_record(list.arena.at(place::RECORDS + 64));
    list.script(section::RECORDS, "a record leaves its neighbours alone", spec, move |fixture| {
        let at = fixture.at(place::RECORDS);
        fixture.arena.set(at, 256, 0xcc);
        fixture.expect(&d, &ExpectedRecord::success())?;
        same_bytes("bytes before the record", &[0xcc; 64], &fixture.arena.read(at, 64))?;
        same_bytes("bytes behind the record", &[0xcc; 160], &fixture.arena.read(at + 96, 160))
    });
    let d = Descriptor::nop().with_record(list.arena.at(sample::RECORD));
    list.script(section::RECORDS, "unused bytes of a record are zero", spec, move |fixture| {
        if !fixture.promises.zero_unused {
            return skip("unused bytes are not promised to be zero");
        }
        fixture.arena.set(d.completion_address(), 32, 0xff);
        // Only the status word is cleared before waiting.
        fixture.arena.write(d.completion_address(), &[0]);
        let portal = fixture.portal(PortalSpec::of(0))?;
        fixture.submit(&*portal, &d)?;
        let record = fixture.wait(&*portal, d.completion_address()).map(|r| r.0);
        same("the record", Some([1, 0, 0, 0]), record)
    });
}

/// Submits `d`, alone or as second of a batch, and returns SWERROR. `counts` is true if its error must fail the batch.
/// batch.
fn cleared(fixture: &Fixture, d: &Descriptor, member: bool, counts: bool) -> Result<SwError, crate::case::NotPassed> {
    fixture.registers()?;
    fixture.clear_sw_error();
    let portal = fixture.portal(PortalSpec::of(0))?;
    if member {
        let list = fixture.at(sample::SURROUND);
        fixture.arena.write_list(list, &[Descriptor::nop(), *d]);
        let batch = Descriptor::batch(list, 2).with_record(fixture.at(sample::BATCH_RECORD));
        let got = fixture.run(&*portal, &batch)?;
        let failed = ExpectedRecord::status(0x05).bytes_completed(2).any_result();
        // A member that succeeded and could not report it may count as either.
        let fine = !counts
            && ExpectedRecord::success().bytes_completed(2).any_result().matches(&got, fixture.promises.zero_unused);
        if !fine {
            fixture.compare(&failed, &got)?;
        }
    } else {
        fixture.submit(&*portal, d)?;
        fixture.device.settle();
    }
    let error = fixture.sw_error().expect("registers are there");
    holds("SWERROR is valid", error.valid(), || "it is not".into())?;
    Ok(error)
}

/// Every field of SWERROR for a descriptor without a record.
fn software_error(list: &mut List, spec: &DeviceSpec) {
    for member in [false, true] {
        let place = if member { "member" } else { "descriptor" };
        let d = Descriptor::memory_move(0, 0, 0);
        list.script(section::SWERROR, format!("SWERROR tells all about a {place} of size 0"), spec, move |fixture| {
            let error = cleared(fixture, &d, member, true)?;
            same("code", 0x13, error.error_code())?;
            same("overflow", false, error.overflow())?;
            same("descriptor valid", true, error.descriptor_valid())?;
            same("WQ index valid", true, error.wq_index_valid())?;
            same("WQ index", 0, error.wq_index())?;
            same("operation", 0x03, error.operation())?;
            same("PASID", HERE, error.pasid())?;
            same("privilege", false, error.privileged())?;
            same("batch member", member, error.batch_member())?;
            same("batch index", member.into(), error.batch_index())
        });
        let d = Descriptor::nop().and_flags(Flags::from_bits_retain(0x60_8000));
        list.script(section::SWERROR, format!("SWERROR tells the invalid flags of a {place}"), spec, move |fixture| {
            let error = cleared(fixture, &d, member, true)?;
            same("code", 0x11, error.error_code())?;
            same("error information valid", true, error.error_information_valid())?;
            same("error information", 0x60_8000, error.error_information())
        });
        // A page fault without a record: direction, address, operand.
        let hole = list.arena.at(place::AREAS + 0x1000);
        let output = list.arena.at(place::OUT1);
        for (write, d) in
            [(false, Descriptor::memory_move(hole, output, 64)), (true, Descriptor::memory_move(output, hole, 64))]
        {
            let name = format!("SWERROR tells the page fault of a {place}, write: {write}");
            list.script(section::SWERROR, name, spec, move |fixture| {
                fixture.arena.protect(place::AREAS, 0x4000, Access::None);
                let error = cleared(fixture, &d, member, true)?;
                same("code", 0x03, error.error_code())?;
                same("R/W", write, error.write())?;
                same("page", hole >> 12, error.address() >> 12)
            });
        }
    }
}

/// A record that cannot be written ends in SWERROR.
fn bad_addresses(list: &mut List, spec: &DeviceSpec) {
    let arena = list.arena;
    let hole = arena.at(place::AREAS);
    for (what, address, access) in [
        ("in a hole", hole + 64, Access::None),
        ("on a read-only page", hole + 64, Access::Read),
        ("behind mapped memory", arena.unmapped(), Access::All),
        ("at 0", 0, Access::All),
        ("outside user space", 0x8000_0000_0000, Access::All),
        ("at the end of the address space", u64::MAX - 31, Access::All),
    ] {
        for member in [false, true] {
            let d = Descriptor::nop().with_record(address);
            let name = format!("a record address {what} goes to SWERROR, member: {member}");
            list.script(section::RECORDS, name, spec, move |fixture| {
                fixture.arena.protect(place::AREAS, 0x1000, access);
                let error = cleared(fixture, &d, member, false)?;
                same("code", 0x1a, error.error_code())?;
                same("R/W", true, error.write())?;
                same("page", address >> 12, error.address() >> 12)?;
                if fixture.capabilities.gen_cap.fault_info() && error.error_information_valid() {
                    same("operand", 5, error.error_information() >> 29)?;
                }
                Ok(())
            });
        }
    }
    let last = arena.end() - 32;
    let d = Descriptor::nop().with_record(last);
    list.script(section::RECORDS, "a record may end where mapped memory ends", spec, move |fixture| {
        fixture.expect(&d, &ExpectedRecord::success())
    });
}

/// The record address must be zero if it is not valid.
fn stray_address(list: &mut List, spec: &DeviceSpec) {
    let d = Descriptor::nop().with_completion_address(list.arena.at(sample::RECORD));
    list.one(
        section::RECORDS,
        "an address without CRAV is logged as reserved",
        spec,
        d,
        false,
        Expect::Logged(0x12, None),
    );
    let d = Descriptor::nop().and_flags(Flags::REQUEST_COMPLETION_RECORD);
    let expect = Expect::Logged(0x11, Some(Information { value: RCR, open: 0 }));
    list.one(section::RECORDS, "RCR without CRAV is logged", spec, d, false, expect);
}

pub(super) fn add(list: &mut List) {
    let spec = liberal(&list.capabilities);
    table(list, &spec);
    batch_failures(list, &spec);
    neighbours(list, &spec);
    software_error(list, &spec);
    bad_addresses(list, &spec);
    stray_address(list, &spec);
}
