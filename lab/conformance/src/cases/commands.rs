//! Commands: the effect of each, with and without work in progress, and the errors that need no configuration.

use super::List;
use crate::arena::place;
use crate::bring_up::{Map, command, issue};
use crate::case::{Verdict, fail, holds, same, section};
use crate::fixture::Fixture;
use crate::subject::{DeviceSpec, HANDLE, HERE, PortalSpec, QueueSpec, Registers, STRANGER};
use telpher_abi::Descriptor;
use telpher_abi::registers::{CmdStatus, Command, CommandCode, GenSts, IntCause, WqState, offset};
use telpher_portal::{Offer, QueueMode};

/// Issues a command and compares its error code.
fn gives(registers: &dyn Registers, raw: Command, error: u8) -> Verdict {
    match issue(registers, raw) {
        Some(status) => same(&format!("error of command {:#010x}", raw.0[0]), error, status.error_code()),
        None => fail(format!("command {:#010x} ends", raw.0[0]), "it stays active"),
    }
}

pub(super) fn put(registers: &dyn Registers, code: CommandCode, operand: u32, error: u8) -> Verdict {
    gives(registers, Command::new(code, operand), error)
}

pub(super) fn state(registers: &dyn Registers) -> u8 {
    GenSts([registers.read(offset::GENSTS, 4)]).state_code()
}

pub(super) fn wq_state(registers: &dyn Registers, index: u64) -> WqState {
    WqState::from_code(Map::of(registers).read_wqcfg(registers, index).state_code())
}

/// Errors that do not depend on a configuration: command, operand, error.
fn plain_errors(list: &mut List) {
    let up = DeviceSpec::default();
    let queues = u32::from(list.capabilities.wq_cap.queues());
    for index in [queues, 0xff] {
        list.fresh(section::COMMANDS, format!("Enable WQ {index} gives 0x02"), &up, move |fixture| {
            put(fixture.registers()?, CommandCode::EnableWq, index, 0x02)
        });
    }
    for code in [CommandCode::DisableWq, CommandCode::DrainWq, CommandCode::AbortWq, CommandCode::ResetWq] {
        for operand in [1 << queues, 0x1_0001, 0xf_0001] {
            list.fresh(section::COMMANDS, format!("{code} of {operand:#x} gives 0x02"), &up, move |fixture| {
                put(fixture.registers()?, code, operand, 0x02)?;
                same("state of queue 0", WqState::Enabled, wq_state(fixture.registers()?, 0))
            });
        }
        if code != CommandCode::ResetWq {
            for operand in [2, 3] {
                list.fresh(
                    section::COMMANDS,
                    format!("{code} of {operand:#x} gives 0x32, queue 1 is not enabled"),
                    &up,
                    move |fixture| {
                        put(fixture.registers()?, code, operand, 0x32)?;
                        same("state of queue 0", WqState::Enabled, wq_state(fixture.registers()?, 0))
                    },
                );
            }
        }
    }
    let bare = DeviceSpec { bare: true, ..DeviceSpec::default() };
    list.fresh(section::COMMANDS, "Disable Device on a disabled device gives 0x31", &bare, |fixture| {
        put(fixture.registers()?, CommandCode::DisableDevice, 0, 0x31)
    });
    let with_cap = list.capabilities.gen_cap.command_capability();
    for code in (0..32u8).filter(|code| *code == 0 || *code > 17 || *code > 12 && !with_cap) {
        list.fresh(section::COMMANDS, format!("command {code} is unknown"), &up, move |fixture| {
            gives(fixture.registers()?, Command::default().with_code(code), 0x01)
        });
    }
    for bit in 0..6u8 {
        list.fresh(
            section::COMMANDS,
            format!("reserved bit {} of a command gives 0x04", 25 + bit),
            &up,
            move |fixture| {
                gives(fixture.registers()?, Command::new(CommandCode::DrainAll, 0).with_reserved(1 << bit), 0x04)
            },
        );
    }
    if with_cap {
        for (code, operand, error) in [
            (CommandCode::RequestInterruptHandle, u32::from(HANDLE), 0x00),
            (CommandCode::RequestInterruptHandle, 0xffff, 0x41),
            (CommandCode::ReleaseInterruptHandle, 0xffff, 0x41),
        ] {
            list.fresh(
                section::COMMANDS,
                format!("{code} of {operand:#x} gives {error:#04x} where it exists"),
                &up,
                move |fixture| {
                    let registers = fixture.registers()?;
                    let exists = registers.read(offset::CMDCAP, 8) >> code.code() & 1 == 1;
                    put(registers, code, operand, if exists { error } else { 0x01 })
                },
            );
        }
    }
}

/// The effects of the commands.
fn effects(list: &mut List) {
    let two = DeviceSpec::default().queues(vec![QueueSpec::default(), QueueSpec::shared()]);
    list.fresh(section::COMMANDS, "enabling shows in GENSTS and WQCFG", &two, |fixture| {
        let registers = fixture.registers()?;
        same("device state", 1, state(registers))?;
        same("queue states", [WqState::Enabled; 2], [wq_state(registers, 0), wq_state(registers, 1)])?;
        same("the third queue", WqState::Disabled, wq_state(registers, 2))
    });
    for (code, operand, device, queues) in [
        (CommandCode::DisableDevice, 0, 0, [WqState::Disabled; 2]),
        (CommandCode::ResetDevice, 0, 0, [WqState::Disabled; 2]),
        (CommandCode::DisableWq, 1, 1, [WqState::Disabled, WqState::Enabled]),
        (CommandCode::DisableWq, 3, 1, [WqState::Disabled; 2]),
        (CommandCode::ResetWq, 2, 1, [WqState::Enabled, WqState::Disabled]),
        (CommandCode::DrainAll, 0, 1, [WqState::Enabled; 2]),
        (CommandCode::AbortAll, 0, 1, [WqState::Enabled; 2]),
        (CommandCode::DrainWq, 3, 1, [WqState::Enabled; 2]),
        (CommandCode::AbortWq, 3, 1, [WqState::Enabled; 2]),
        (CommandCode::DrainPasid, HERE, 1, [WqState::Enabled; 2]),
        (CommandCode::AbortPasid, HERE, 1, [WqState::Enabled; 2]),
    ] {
        list.fresh(
            section::COMMANDS,
            format!("{code} of {operand:#x} leaves device {device}, queues {queues:?}"),
            &two,
            move |fixture| {
                let registers = fixture.registers()?;
                put(registers, code, operand, 0)?;
                same("device state", device, state(registers))?;
                same("queue states", queues, [wq_state(registers, 0), wq_state(registers, 1)])?;
                if device == 1 && queues == [WqState::Enabled; 2] {
                    // The device still works.
                    let d = Descriptor::nop().with_record(fixture.at(place::RECORDS));
                    fixture.expect(&d, &crate::expected::ExpectedRecord::success())?;
                }
                Ok(())
            },
        );
    }
    list.fresh(section::COMMANDS, "Reset WQ resets the queue's configuration but its size", &two, |fixture| {
        let registers = fixture.registers()?;
        put(registers, CommandCode::ResetWq, 1, 0)?;
        let config = Map::of(registers).read_wqcfg(registers, 0);
        same("words 0 to 2", [16, 0, 0], [config.0[0], config.0[1], config.0[2]])
    });
    list.fresh(section::COMMANDS, "a queue can be enabled again after Disable WQ", &two, |fixture| {
        let registers = fixture.registers()?;
        put(registers, CommandCode::DisableWq, 1, 0)?;
        put(registers, CommandCode::EnableWq, 0, 0)?;
        let d = Descriptor::nop().with_record(fixture.at(place::RECORDS));
        fixture.expect(&d, &crate::expected::ExpectedRecord::success())
    });
    list.fresh(section::COMMANDS, "a command tells of its end only if asked", &two, |fixture| {
        let registers = fixture.registers()?;
        let _ = fixture.device.interrupts();
        put(registers, CommandCode::DrainAll, 0, 0)?;
        let cause =
            |registers: &dyn Registers| registers.read(offset::INTCAUSE, 4) & u64::from(IntCause::COMMAND.bits());
        same("INTCAUSE", 0, cause(registers))?;
        gives(registers, Command::new(CommandCode::DrainAll, 0).with_interrupt(true), 0)?;
        same("INTCAUSE", u64::from(IntCause::COMMAND.bits()), cause(registers))?;
        if let Some(interrupts) = fixture.device.interrupts() {
            same("interrupts", vec![crate::subject::Interrupt::Msix(0)], interrupts)?;
        }
        registers.write(offset::INTCAUSE, 4, IntCause::COMMAND.bits().into());
        same("INTCAUSE after writing 1", 0, cause(registers))
    });
}

const RECORDS: u64 = place::RECORDS + 0x4000;

fn offer_nops(fixture: &Fixture, portal: PortalSpec, from: u64, count: u64) -> Verdict {
    let portal = fixture.portal(portal)?;
    for i in from..from + count {
        let record = fixture.at(RECORDS + 32 * i);
        fixture.arena.clear_record(record);
        same("the offer", Offer::Taken, fixture.arena.offer(&*portal, &Descriptor::nop().with_record(record)))?;
    }
    Ok(())
}

fn statuses(fixture: &Fixture, from: u64, count: u64) -> Vec<u8> {
    (from..from + count).map(|i| fixture.arena.record(fixture.at(RECORDS + 32 * i)).status_code()).collect()
}

/// Commands with waiting work.
fn with_work(list: &mut List) {
    for queue in [QueueSpec::default(), QueueSpec::shared()] {
        let spec = DeviceSpec::default().queue(queue.clone());
        let mode = queue.mode;
        for (code, operand) in [
            (CommandCode::DrainAll, 0),
            (CommandCode::DrainWq, 1),
            (CommandCode::DrainPasid, HERE),
            (CommandCode::DisableWq, 1),
            (CommandCode::DisableDevice, 0),
        ] {
            list.fresh(
                section::COMMANDS,
                format!("{code} ends after the work of a {mode:?} queue"),
                &spec,
                move |fixture| {
                    let registers = fixture.registers()?;
                    fixture.hold()?;
                    offer_nops(fixture, PortalSpec::of(0), 0, 6)?;
                    registers.write(offset::CMD, 4, Command::new(code, operand).0[0]);
                    let status = || CmdStatus([registers.read(offset::CMDSTATUS, 4)]);
                    registers.advance();
                    holds("the command is active while work waits", status().active(), || "it has ended".into())?;
                    if matches!(code, CommandCode::DisableWq | CommandCode::DisableDevice) {
                        let portal = fixture.portal(PortalSpec::of(0))?;
                        let record = fixture.at(RECORDS + 32 * 6);
                        fixture.arena.clear_record(record);
                        let answer = if mode == QueueMode::Shared { Offer::Retry } else { Offer::Taken };
                        let late = Descriptor::nop().with_record(record);
                        same("an offer meanwhile", answer, fixture.arena.offer(&*portal, &late))?;
                    }
                    // A second command is discarded and logged.
                    fixture.clear_sw_error();
                    registers.write(offset::CMD, 4, Command::new(CommandCode::ResetDevice, 0).0[0]);
                    let error = fixture.sw_error().expect("registers are there");
                    same("SWERROR", (true, 0x52), (error.valid(), error.error_code()))?;
                    fixture.release();
                    let portal = fixture.portal(PortalSpec::of(0))?;
                    for _ in 0..1_000_000 {
                        if !status().active() {
                            break;
                        }
                        portal.drive();
                        registers.advance();
                    }
                    same("the command's end", (false, 0), (status().active(), status().error_code()))?;
                    // All results are there as soon as the command has ended.
                    same("statuses", vec![1; 6], statuses(fixture, 0, 6))?;
                    fixture.device.settle();
                    same(
                        "the late one",
                        if matches!(code, CommandCode::DisableWq | CommandCode::DisableDevice) {
                            vec![0]
                        } else {
                            statuses(fixture, 6, 1)
                        },
                        statuses(fixture, 6, 1),
                    )
                },
            );
        }
        for (code, operand) in [
            (CommandCode::AbortAll, 0),
            (CommandCode::AbortWq, 1),
            (CommandCode::AbortPasid, HERE),
            (CommandCode::ResetWq, 1),
            (CommandCode::ResetDevice, 0),
        ] {
            list.fresh(
                section::COMMANDS,
                format!("after {code} of a {mode:?} queue nothing more is written"),
                &spec,
                move |fixture| {
                    let registers = fixture.registers()?;
                    fixture.hold()?;
                    offer_nops(fixture, PortalSpec::of(0), 0, 6)?;
                    put(registers, code, operand, 0)?;
                    let at_end = statuses(fixture, 0, 6);
                    fixture.release();
                    fixture.device.settle();
                    same("statuses", at_end, statuses(fixture, 0, 6))
                },
            );
        }
    }
    let spec = DeviceSpec::default().queue(QueueSpec::shared());
    list.fresh(section::PASID, "Abort PASID spares the other client", &spec, |fixture| {
        let registers = fixture.registers()?;
        let stranger = fixture.portal(PortalSpec::of(0).pasid(STRANGER))?;
        fixture.hold()?;
        same("the offer", Offer::Taken, fixture.arena.offer(&*stranger, &Descriptor::nop()))?;
        offer_nops(fixture, PortalSpec::of(0), 0, 4)?;
        same("the offer", Offer::Taken, fixture.arena.offer(&*stranger, &Descriptor::nop()))?;
        put(registers, CommandCode::AbortPasid, STRANGER, 0)?;
        fixture.release();
        fixture.device.settle();
        same("statuses", vec![1; 4], statuses(fixture, 0, 4))
    });
    let two = DeviceSpec::default().queues(vec![QueueSpec::default(), QueueSpec::default()]);
    list.fresh(section::COMMANDS, "Abort WQ spares the other queue", &two, |fixture| {
        let registers = fixture.registers()?;
        fixture.hold()?;
        offer_nops(fixture, PortalSpec::of(0), 0, 4)?;
        offer_nops(fixture, PortalSpec::of(1), 4, 4)?;
        put(registers, CommandCode::AbortWq, 1, 0)?;
        fixture.release();
        fixture.device.settle();
        same("statuses of queue 1", vec![1; 4], statuses(fixture, 4, 4))
    });
    list.fresh(section::COMMANDS, "a command leaves CMDSTATUS with its error until the next", &two, |fixture| {
        let registers = fixture.registers()?;
        put(registers, CommandCode::EnableWq, 0, 0x21)?;
        same("CMDSTATUS", 0x21, registers.read(offset::CMDSTATUS, 4) & 0xff)?;
        match command(registers, CommandCode::DrainAll, 0) {
            Ok(_) => same("CMDSTATUS", 0, registers.read(offset::CMDSTATUS, 4) & 0xff),
            Err(error) => fail("the command succeeds", error),
        }
    });
}

pub(super) fn add(list: &mut List) {
    plain_errors(list);
    effects(list);
    with_work(list);
}
