//! Registers: reset values, writability by state, and sticky fields.

use super::List;
use crate::arena::place;
use crate::bring_up::{Map, command, configure};
use crate::case::{fail, same, section};
use crate::subject::{Capabilities, DeviceSpec, Interrupt, PortalSpec, QueueSpec, Registers};
use telpher_abi::Descriptor;
use telpher_abi::registers::{CommandCode, EvlCfg, IntCause, OpCap, WqCfg, offset};

/// A field: name, offset from a table or the register file, bytes, mask.
type Field = (&'static str, fn(&Map) -> u64, u32, u64);

/// RW only while the device is disabled.
const DEVICE_LOCKED: [Field; 6] = [
    ("GENCFG user interrupts", |_| offset::GENCFG, 4, 1 << 12),
    ("GRPCFG queues", |map| map.grpcfg, 8, 3),
    ("GRPCFG engines", |map| map.grpcfg + 32, 8, 3),
    ("GRPCFG read buffers allowed", |map| map.grpcfg + 40, 8, 0x10 << 20),
    ("WQCFG size of an enabled queue", |map| map.wqcfg(0), 4, 0x3f),
    ("WQCFG size of a disabled queue", |map| map.wqcfg(1), 4, 0x3f),
];

/// RW only while the queue is disabled: byte offset in WQCFG, bytes, mask.
const QUEUE_LOCKED: [(&str, u64, u32, u64); 8] = [
    ("mode", 8, 4, 1),
    ("block on fault", 8, 4, 2),
    ("priority", 8, 4, 0xf0),
    ("PASID", 8, 4, 0xf_ffff << 8),
    ("PASID enable", 8, 4, 1 << 28),
    ("privilege", 8, 4, 1 << 29),
    ("maximum transfer", 12, 4, 0x1f),
    ("maximum batch", 12, 4, 0xf << 5),
];

/// Never writable.
const READ_ONLY: [(&str, u64, u32); 11] = [
    ("VERSION", offset::VERSION, 4),
    ("GENCAP", offset::GENCAP, 8),
    ("WQCAP", offset::WQCAP, 8),
    ("GRPCAP", offset::GRPCAP, 8),
    ("ENGCAP", offset::ENGCAP, 8),
    ("OPCAP", offset::OPCAP, 8),
    ("OFFSETS", offset::OFFSETS, 8),
    ("GENSTS", offset::GENSTS, 4),
    ("CMDSTATUS", offset::CMDSTATUS, 4),
    ("SWERROR's address", offset::SWERROR + 16, 8),
    ("CMDCAP", offset::CMDCAP, 8),
];

/// Inverts the masked bits and reads back whether they changed; then restores them.
fn changes(registers: &dyn Registers, at: u64, bytes: u32, mask: u64) -> bool {
    let old = registers.read(at, bytes);
    registers.write(at, bytes, old ^ mask);
    let new = registers.read(at, bytes);
    registers.write(at, bytes, old);
    (old ^ new) & mask != 0
}

fn capability_registers(list: &mut List) {
    let bare = DeviceSpec { bare: true, ..DeviceSpec::default() };
    list.script(section::REGISTERS, "the capability registers say what the subject says", &bare, |fixture| {
        same::<Capabilities>("capabilities", fixture.capabilities, crate::bring_up::capabilities(fixture.registers()?))
    });
    for (name, at, bytes) in READ_ONLY {
        list.fresh(section::REGISTERS, format!("{name} cannot be written"), &bare, move |fixture| {
            let registers = fixture.registers()?;
            same("a change", false, changes(registers, at, bytes, if bytes == 4 { 0xffff_ffff } else { u64::MAX }))
        });
    }
    list.script(section::REGISTERS, "a 64-bit register can be read by halves", &bare, |fixture| {
        let registers = fixture.registers()?;
        for at in [offset::GENCAP, offset::WQCAP, offset::OPCAP, offset::OFFSETS] {
            let halves = registers.read(at, 4) | registers.read(at + 4, 4) << 32;
            same(&format!("register {at:#x}"), registers.read(at, 8), halves)?;
        }
        Ok(())
    });
}

fn reset_values(list: &mut List) {
    let bare = DeviceSpec { bare: true, ..DeviceSpec::default() };
    let check = |fixture: &crate::fixture::Fixture| {
        let registers = fixture.registers()?;
        let map = Map::of(registers);
        let capabilities = &fixture.capabilities;
        let total = u64::from(capabilities.grp_cap.read_buffers());
        let limit = if capabilities.grp_cap.global_read_buffer_limit() {
            total
        } else {
            registers.read(offset::GENCFG, 4) & 0xff
        };
        same("GENCFG", limit, registers.read(offset::GENCFG, 4))?;
        same("GENCTRL", 0, registers.read(offset::GENCTRL, 4))?;
        same("GENSTS", 0, registers.read(offset::GENSTS, 4))?;
        for group in 0..u64::from(capabilities.grp_cap.groups()) {
            let config = map.read_grpcfg(registers, group);
            same("queues and engines", [0; 5], [0, 1, 2, 3, 4].map(|i: usize| config.0[i]))?;
            if capabilities.grp_cap.read_buffer_controls() {
                same("GRPFLAGS", total << 20, config.0[5])?;
            }
        }
        for queue in 0..u64::from(capabilities.wq_cap.queues()) {
            let config = map.read_wqcfg(registers, queue);
            let rest = WqCfg([config.0[0], config.0[1], config.0[2], config.0[3] & !(1 << 29), 0, 0, 0, 0]);
            same("WQCFG", WqCfg::default(), rest)?;
            if capabilities.wq_cap.op_config() {
                same::<OpCap>("OPCFG", capabilities.op_cap, config.op_config())?;
            }
        }
        same("MSIXPERM 1", 0, registers.read(map.msix_perm + 8, 4))?;
        if capabilities.gen_cap.ims_size() > 0 {
            same("IMS entry 0's address", 0xfee0_0000, registers.read(map.ims, 8))?;
            same("IMS entry 0's control", 1, registers.read(map.ims + 12, 4))?;
        }
        Ok(())
    };
    list.fresh(section::REGISTERS, "the values after power-on", &bare, move |fixture| {
        let registers = fixture.registers()?;
        for (name, at, bytes) in
            [("SWERROR", offset::SWERROR, 8), ("INTCAUSE", offset::INTCAUSE, 4), ("CMDSTATUS", offset::CMDSTATUS, 4)]
        {
            same(name, 0, registers.read(at, bytes))?;
        }
        check(fixture)
    });
    list.fresh(section::REGISTERS, "Reset Device brings back the values", &DeviceSpec::default(), move |fixture| {
        let registers = fixture.registers()?;
        if let Err(error) = command(registers, CommandCode::ResetDevice, 0) {
            return fail("the command succeeds", error);
        }
        check(fixture)
    });
    list.fresh(section::REGISTERS, "Reset Device keeps SWERROR", &DeviceSpec::default(), |fixture| {
        let registers = fixture.registers()?;
        fixture.submit(&*fixture.portal(PortalSpec::of(0))?, &Descriptor::memory_move(0, 0, 0))?;
        fixture.device.settle();
        if let Err(error) = command(registers, CommandCode::ResetDevice, 0) {
            return fail("the command succeeds", error);
        }
        let error = fixture.sw_error().expect("registers are there");
        same("SWERROR", (true, 0x13), (error.valid(), error.error_code()))
    });
}

fn locks(list: &mut List) {
    let bare = DeviceSpec { bare: true, ..DeviceSpec::default() };
    let one = DeviceSpec::default();
    for (name, at, bytes, mask) in DEVICE_LOCKED {
        list.fresh(
            section::REGISTERS,
            format!("{name} can be written while the device is disabled"),
            &bare,
            move |fixture| {
                let registers = fixture.registers()?;
                configure(registers, &DeviceSpec::default());
                same("a change", true, changes(registers, at(&Map::of(registers)), bytes, mask))
            },
        );
        list.fresh(section::REGISTERS, format!("{name} is locked while the device is enabled"), &one, move |fixture| {
            let registers = fixture.registers()?;
            same("a change", false, changes(registers, at(&Map::of(registers)), bytes, mask))
        });
    }
    for (name, at, bytes, mask) in QUEUE_LOCKED {
        for disable in [false, true] {
            let when = if disable {
                "can be written while its queue is disabled"
            } else {
                "is locked while its queue is enabled"
            };
            list.fresh(section::REGISTERS, format!("WQCFG {name} {when}"), &one, move |fixture| {
                let registers = fixture.registers()?;
                if disable && let Err(error) = command(registers, CommandCode::DisableWq, 1) {
                    return fail("the command succeeds", error);
                }
                same("a change", disable, changes(registers, Map::of(registers).wqcfg(0) + at, bytes, mask))
            });
        }
    }
    let shared = one.clone().queue(QueueSpec::shared());
    list.fresh(section::REGISTERS, "WQCFG threshold can always be written", &shared, |fixture| {
        let registers = fixture.registers()?;
        same("a change", true, changes(registers, Map::of(registers).wqcfg(0) + 4, 4, 0x5))
    });
    if list.capabilities.wq_cap.op_config() {
        list.fresh(section::REGISTERS, "OPCFG is locked while its queue is enabled", &one, |fixture| {
            let registers = fixture.registers()?;
            same("a change", false, changes(registers, Map::of(registers).wqcfg(0) + 32, 8, 1 << 3))
        });
    }
    for (name, mask) in [("occupancy", 0xffff), ("state", 3 << 30)] {
        list.fresh(section::REGISTERS, format!("WQCFG {name} cannot be written"), &one, move |fixture| {
            let registers = fixture.registers()?;
            same("a change", false, changes(registers, Map::of(registers).wqcfg(0) + 24, 4, mask))
        });
    }
    let fixed = list.with_capability(&bare, 31, false);
    list.fresh(
        section::REGISTERS,
        "a device without configuration support locks its groups and sizes",
        &fixed,
        |fixture| {
            let registers = fixture.registers()?;
            let map = Map::of(registers);
            same("a change of GRPCFG", false, changes(registers, map.grpcfg, 8, 3))?;
            same("a change of WQ size", false, changes(registers, map.wqcfg(0), 4, 0xf))
        },
    );
    if list.capabilities.gen_cap.event_log_size_code() != 0 {
        let base = list.arena.at(place::EVENT_LOG);
        let logged = DeviceSpec { event_log: Some((base, 64)), ..DeviceSpec::default() };
        list.fresh(section::REGISTERS, "EVLCFG is locked while the device is enabled", &logged, move |fixture| {
            let registers = fixture.registers()?;
            same("a change", false, changes(registers, offset::EVLCFG, 8, 0x1000))?;
            let config = EvlCfg([registers.read(offset::EVLCFG, 8), registers.read(offset::EVLCFG + 8, 8)]);
            same("base and entries", (base >> 12, 64), (config.base_page(), config.entries()))
        });
    }
}

fn sticky(list: &mut List) {
    let spec = DeviceSpec::default();
    let bad_size = Descriptor::memory_move(0, 0, 0);
    let bad_opcode = Descriptor::new(telpher_abi::Opcode::from_code(0x0b));
    list.fresh(section::SWERROR, "the first error sticks and the second sets overflow", &spec, move |fixture| {
        let registers = fixture.registers()?;
        let portal = fixture.portal(PortalSpec::of(0))?;
        let error = || fixture.sw_error().expect("registers are there");
        fixture.submit(&*portal, &bad_size)?;
        fixture.device.settle();
        same(
            "valid, overflow, code",
            (true, false, 0x13),
            (error().valid(), error().overflow(), error().error_code()),
        )?;
        fixture.submit(&*portal, &bad_opcode)?;
        fixture.device.settle();
        same("valid, overflow, code", (true, true, 0x13), (error().valid(), error().overflow(), error().error_code()))?;
        // Writing zeros clears nothing; writing 1 to the valid bit clears only that.
        registers.write(offset::SWERROR, 8, 0);
        same("valid, overflow", (true, true), (error().valid(), error().overflow()))?;
        registers.write(offset::SWERROR, 8, 1);
        same("valid, overflow", (false, true), (error().valid(), error().overflow()))?;
        registers.write(offset::SWERROR, 8, 2);
        same("valid, overflow", (false, false), (error().valid(), error().overflow()))?;
        fixture.submit(&*portal, &bad_opcode)?;
        fixture.device.settle();
        same("valid, code", (true, 0x10), (error().valid(), error().error_code()))
    });
    for enabled in [true, false] {
        let name = format!("an error in SWERROR interrupts while GENCTRL[0] = {}", u8::from(enabled));
        list.fresh(section::SWERROR, name, &spec, move |fixture| {
            let registers = fixture.registers()?;
            fixture.interrupts()?;
            registers.write(offset::GENCTRL, 4, enabled.into());
            let portal = fixture.portal(PortalSpec::of(0))?;
            for _ in 0..2 {
                fixture.submit(&*portal, &bad_size)?;
                fixture.device.settle();
            }
            let expected = if enabled { vec![Interrupt::Msix(0)] } else { Vec::new() };
            same("interrupts", expected, fixture.interrupts()?)?;
            if !enabled {
                return Ok(());
            }
            let bit = u64::from(IntCause::SW_ERROR.bits());
            same("INTCAUSE", bit, registers.read(offset::INTCAUSE, 4))?;
            registers.write(offset::INTCAUSE, 4, bit);
            same("INTCAUSE after writing 1", 0, registers.read(offset::INTCAUSE, 4))
        });
    }
}

/// "Locked while enabled" may refer to the queue or the interrupt: test both enabled, and neither.
fn occupancy_limit(list: &mut List) {
    if !list.capabilities.wq_cap.occupancy_interrupt() {
        return;
    }
    for enabled in [false, true] {
        let when = if enabled {
            "is locked while queue and interrupt are enabled"
        } else {
            "can be written while both are disabled"
        };
        list.fresh(
            section::REGISTERS,
            format!("WQCFG occupancy limit {when}"),
            &DeviceSpec::default(),
            move |fixture| {
                let registers = fixture.registers()?;
                let at = Map::of(registers).wqcfg(0) + 20;
                if enabled {
                    registers.write(at, 4, 1 << 16 | 3);
                } else if let Err(error) = command(registers, CommandCode::DisableWq, 1) {
                    return fail("the command succeeds", error);
                }
                same("a change", !enabled, changes(registers, at, 4, 0xf))
            },
        );
    }
}

/// The occupancy interrupt: not above the limit, once at or below it.
fn occupancy_interrupt(list: &mut List) {
    if !list.capabilities.wq_cap.occupancy_interrupt() {
        return;
    }
    list.fresh(
        section::REGISTERS,
        "the occupancy interrupt comes when the queue has emptied to its limit",
        &DeviceSpec::default(),
        |fixture| {
            let registers = fixture.registers()?;
            let map = Map::of(registers);
            if let Err(error) = command(registers, CommandCode::DisableWq, 1) {
                return fail("the command succeeds", error);
            }
            // Entry 1 of the MSI-X table, limit 2.
            registers.write(map.wqcfg(0) + 16, 4, 1);
            registers.write(map.wqcfg(0) + 20, 4, 2);
            if let Err(error) = command(registers, CommandCode::EnableWq, 0) {
                return fail("the command succeeds", error);
            }
            fixture.interrupts()?;
            let portal = fixture.portal(PortalSpec::of(0))?;
            fixture.hold()?;
            for _ in 0..6 {
                let _ = fixture.arena.offer(&*portal, &Descriptor::nop());
            }
            registers.write(map.wqcfg(0) + 20, 4, 2 | 1 << 16);
            same("interrupts while six wait", Vec::new(), fixture.interrupts()?)?;
            fixture.release();
            fixture.device.settle();
            same("interrupts", vec![Interrupt::Msix(1)], fixture.interrupts()?)?;
            same("generated", true, map.read_wqcfg(registers, 0).occupancy_interrupt_done())
        },
    );
}

pub(super) fn add(list: &mut List) {
    capability_registers(list);
    reset_values(list);
    locks(list);
    sticky(list);
    occupancy_limit(list);
    occupancy_interrupt(list);
}
