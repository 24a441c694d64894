//! Completion interrupts: handles, tables, permission, and interrupts after errors.

use super::{List, liberal};
use crate::bring_up::{Map, command, open_interrupt};
use crate::case::{Verdict, same, section, skip};
use crate::expected::{Expect, ExpectedRecord, Information};
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, HANDLE, HERE, Interrupt, PortalSpec, QueueSpec, STRANGER};
use telpher_abi::registers::{CommandCode, MsixPerm, PortalKind, offset};
use telpher_abi::{Descriptor, Flags};

fn nop(list: &List, handle: u16) -> Descriptor {
    let d = Descriptor::nop().with_record(list.arena.at(sample::RECORD));
    d.and_flags(Flags::REQUEST_COMPLETION_INTERRUPT).with_interrupt_handle(handle)
}

/// Runs `d` and compares the resulting interrupts.
fn sends(
    fixture: &Fixture,
    portal: PortalSpec,
    d: &Descriptor,
    expected_record: &ExpectedRecord,
    interrupts: &[Interrupt],
) -> Verdict {
    fixture.interrupts()?;
    let portal = fixture.portal(portal)?;
    let record = fixture.run(&*portal, d)?;
    fixture.compare(expected_record, &record)?;
    fixture.device.settle();
    same("interrupts", interrupts, &fixture.interrupts()?[..])
}

fn delivery(list: &mut List, spec: &DeviceSpec) {
    let (d, ims) = (nop(list, HANDLE), list.capabilities.gen_cap.ims_size() > 0);
    for (kind, interrupt) in [
        (PortalKind::UnlimitedMsix, Interrupt::Msix(HANDLE)),
        (PortalKind::LimitedMsix, Interrupt::Msix(HANDLE)),
        (PortalKind::UnlimitedIms, Interrupt::Ims(HANDLE)),
        (PortalKind::LimitedIms, Interrupt::Ims(HANDLE)),
    ] {
        if kind.is_ims() && !ims {
            continue;
        }
        list.script(
            section::HANDLES,
            format!("a completion through {kind:?} sends {interrupt:?}"),
            spec,
            move |fixture| sends(fixture, PortalSpec::of(0).kind(kind), &d, &ExpectedRecord::success(), &[interrupt]),
        );
        list.script(section::HANDLES, format!("a member through {kind:?} sends {interrupt:?}"), spec, move |fixture| {
            let at = fixture.at(sample::SURROUND);
            fixture.arena.write_list(at, &[d, Descriptor::nop()]);
            let batch = Descriptor::batch(at, 2).with_record(fixture.at(sample::BATCH_RECORD));
            let expected_record = ExpectedRecord::success().bytes_completed(2);
            sends(fixture, PortalSpec::of(0).kind(kind), &batch, &expected_record, &[interrupt])
        });
    }
    let plain = Descriptor::nop().with_record(list.arena.at(sample::RECORD));
    list.script(section::HANDLES, "no request, no interrupt", spec, move |fixture| {
        sends(fixture, PortalSpec::of(0), &plain, &ExpectedRecord::success(), &[])
    });
    let refused = sample::with_byte(&d, 40, 1);
    list.script(section::HANDLES, "a refused descriptor sends its interrupt", spec, move |fixture| {
        sends(fixture, PortalSpec::of(0), &refused, &ExpectedRecord::status(0x12), &[Interrupt::Msix(HANDLE)])
    });
    list.script(section::HANDLES, "an interrupt needs no record", spec, move |fixture| {
        fixture.interrupts()?;
        let bare = Descriptor::nop().with_flags(Flags::REQUEST_COMPLETION_INTERRUPT).with_interrupt_handle(HANDLE);
        let portal = fixture.portal(PortalSpec::of(0))?;
        fixture.submit(&*portal, &bare)?;
        fixture.device.settle();
        same("interrupts", vec![Interrupt::Msix(HANDLE)], fixture.interrupts()?)
    });
    list.script(section::HANDLES, "a drain may be heard of by its interrupt alone", spec, move |fixture| {
        fixture.interrupts()?;
        let drain = Descriptor::drain().with_flags(Flags::REQUEST_COMPLETION_INTERRUPT).with_interrupt_handle(HANDLE);
        let portal = fixture.portal(PortalSpec::of(0))?;
        fixture.submit(&*portal, &drain)?;
        fixture.device.settle();
        fixture.no_sw_error()?;
        same("interrupts", vec![Interrupt::Msix(HANDLE)], fixture.interrupts()?)
    });
}

fn permission(list: &mut List, spec: &DeviceSpec) {
    for handle in [HANDLE + 1, 0x7fff, 0xffff] {
        let d = nop(list, handle);
        for member in [false, true] {
            let name = format!("handle {handle:#x}, which is not open, gives 0x19, member: {member}");
            list.one(section::HANDLES, name, spec, d, member, Expect::RecordAndLog(ExpectedRecord::status(0x19)));
        }
        list.script(section::HANDLES, format!("handle {handle:#x} sends nothing"), spec, move |fixture| {
            sends(fixture, PortalSpec::of(0), &d, &ExpectedRecord::status(0x19), &[])
        });
        list.script(section::SWERROR, format!("SWERROR names handle {handle:#x}"), spec, move |fixture| {
            if !fixture.promises.handle_logged {
                return skip("invalid handles are not promised to be logged");
            }
            fixture.registers()?;
            fixture.clear_sw_error();
            fixture.expect(&d, &ExpectedRecord::status(0x19))?;
            let error = fixture.sw_error().expect("registers are there");
            same("code", 0x19, error.error_code())?;
            same("handle", u32::from(handle), error.error_information() & 0xffff)
        });
    }
    // The table entry's PASID must equal the descriptor's, in both directions.
    let entries = [
        ("another PASID", true, STRANGER, 0x19),
        ("no PASID", false, 0, 0x19),
        ("the descriptor's PASID", true, HERE, 0x01),
    ];
    for (what, enable, pasid, status) in entries {
        let d = nop(list, HANDLE);
        let name = format!("an entry with {what} gives {status:#04x}");
        list.fresh(section::HANDLES, name, spec, move |fixture| {
            open_interrupt(fixture.registers()?, HANDLE, enable, pasid);
            fixture.expect(&d, &ExpectedRecord::status(status))
        });
    }
    let d = nop(list, HANDLE);
    list.fresh(section::HANDLES, "an entry that ignores drops the interrupt", spec, move |fixture| {
        let registers = fixture.registers()?;
        let entry = MsixPerm::default().with_pasid_enable(true).with_pasid(HERE).with_ignore(true);
        registers.write(Map::of(registers).msix_perm + 8 * u64::from(HANDLE), 4, entry.0[0]);
        sends(fixture, PortalSpec::of(0), &d, &ExpectedRecord::success(), &[])
    });
    // Without a PASID the entry must have none either.
    let plain = DeviceSpec { user_interrupts: true, ..DeviceSpec::default() }
        .queue(QueueSpec { pasid_enable: false, ..QueueSpec::default() });
    list.one(
        section::HANDLES,
        "a queue without PASID uses an entry without one",
        &plain,
        d,
        false,
        ExpectedRecord::success(),
    );
    list.fresh(section::HANDLES, "a queue without PASID is refused an entry with one", &plain, move |fixture| {
        open_interrupt(fixture.registers()?, HANDLE, true, HERE);
        fixture.expect(&d, &ExpectedRecord::status(0x19))
    });
}

/// A masked entry keeps the interrupt until it is unmasked.
fn masked(list: &mut List, spec: &DeviceSpec) {
    if list.capabilities.gen_cap.ims_size() == 0 {
        return;
    }
    let d = nop(list, HANDLE);
    list.fresh(
        section::HANDLES,
        "a masked entry of the message storage delivers when it is unmasked",
        spec,
        move |fixture| {
            let registers = fixture.registers()?;
            let control = Map::of(registers).ims + 16 * u64::from(HANDLE) + 12;
            let open = registers.read(control, 4);
            registers.write(control, 4, open | 1);
            sends(fixture, PortalSpec::of(0).kind(PortalKind::UnlimitedIms), &d, &ExpectedRecord::success(), &[])?;
            same("mask and pending", 3, registers.read(control, 4) & 3)?;
            registers.write(control, 4, open);
            same("interrupts", vec![Interrupt::Ims(HANDLE)], fixture.interrupts()?)?;
            same("mask and pending", 0, registers.read(control, 4) & 3)
        },
    );
    list.fresh(section::HANDLES, "a message address outside 0xFEE is ignored", spec, |fixture| {
        let registers = fixture.registers()?;
        let at = Map::of(registers).ims + 16 * u64::from(HANDLE);
        for bad in [0xfed0_0000, 0x1_fee0_0000, 0] {
            registers.write(at, 8, bad);
            same("the address", 0xfee0_0000, registers.read(at, 8))?;
        }
        Ok(())
    });
}

/// If handles are requested, they can be released.
fn handles(list: &mut List, spec: &DeviceSpec) {
    if !list.capabilities.gen_cap.command_capability() {
        return;
    }
    let d = nop(list, HANDLE);
    list.fresh(
        section::HANDLES,
        "a released handle is invalid, and valid again when requested",
        spec,
        move |fixture| {
            let registers = fixture.registers()?;
            if registers.read(offset::CMDCAP, 8) >> 13 & 3 != 3 {
                return skip("handles are not requested here");
            }
            for (code, status) in
                [(CommandCode::ReleaseInterruptHandle, 0x19), (CommandCode::RequestInterruptHandle, 0x01)]
            {
                if let Err(error) = command(registers, code, HANDLE.into()) {
                    return crate::case::fail("the command succeeds", error);
                }
                fixture.clear_sw_error();
                fixture.expect(&d, &ExpectedRecord::status(status))?;
            }
            Ok(())
        },
    );
}

/// GENCFG User-mode Interrupts Enable.
fn user_mode(list: &mut List) {
    let d = nop(list, HANDLE);
    let off = DeviceSpec::default();
    let flag = ExpectedRecord::invalid_flags(1 << 4, 0);
    list.one(section::HANDLES, "users get no interrupts while GENCFG[12] = 0", &off, d, false, flag);
    list.one(section::HANDLES, "members get no interrupts while GENCFG[12] = 0", &off, d, true, flag);
    let bare = Descriptor::nop().with_flags(Flags::REQUEST_COMPLETION_INTERRUPT).with_interrupt_handle(HANDLE);
    let logged = Expect::Logged(0x11, Some(Information { value: 1 << 4, open: 0 }));
    list.one(section::HANDLES, "a refused interrupt flag is logged", &off, bare, false, logged);
    let mut privileged = off.clone().queue(QueueSpec { privileged: true, ..QueueSpec::default() });
    privileged.pci.privileged_mode = true;
    list.one(
        section::HANDLES,
        "a privileged queue needs no GENCFG[12]",
        &privileged,
        d,
        false,
        ExpectedRecord::success(),
    );
    let plain = off.queue(QueueSpec { pasid_enable: false, ..QueueSpec::default() });
    list.one(
        section::HANDLES,
        "a queue without PASID needs no GENCFG[12]",
        &plain,
        d,
        false,
        ExpectedRecord::success(),
    );
}

pub(super) fn add(list: &mut List) {
    let spec = liberal(&list.capabilities);
    delivery(list, &spec);
    permission(list, &spec);
    user_mode(list);
    masked(list, &spec);
    handles(list, &spec);
}
