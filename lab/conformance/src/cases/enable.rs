//! Enable Device and Enable WQ: every error of a configuration, and the configurations that are just valid.

use super::List;
use super::commands::{put, state, wq_state};
use crate::arena::place;
use crate::bring_up::{Map, configure, wqcfg, write_wqcfg};
use crate::case::{Verdict, same, section};
use crate::fixture::Fixture;
use crate::subject::{Capabilities, DeviceSpec, Pci, QueueSpec, Registers};
use telpher_abi::registers::{CommandCode, EvlCfg, GrpCfg, OpCap, WqCfg, WqState, offset};
use telpher_portal::QueueMode;

fn set_group(registers: &dyn Registers, index: u64, config: &GrpCfg) {
    let at = Map::of(registers).grpcfg + 64 * index;
    for (word, value) in (0u64..).zip(&config.0[..6]) {
        registers.write(at + 8 * word, 8, *value);
    }
}

/// A configuration with one error, and the expected answer of Enable Device.
type InvalidDevice = (&'static str, u8, fn(&dyn Registers, &Capabilities));

/// Changes that make a valid configuration of one group invalid.
const INVALID_DEVICES: [InvalidDevice; 16] = [
    ("nothing", 0x00, |_, _| {}),
    ("more entries than there are", 0x14, |r, c| {
        let map = Map::of(r);
        r.write(map.wqcfg(0), 4, u64::from(c.wq_cap.total_entries()));
        r.write(map.wqcfg(1), 4, 1);
        r.write(map.grpcfg, 8, 3);
    }),
    ("queues without an engine", 0x15, |r, _| set_group(r, 0, &group(r, 0).with_engines(0))),
    ("an engine without queues", 0x15, |r, _| set_group(r, 1, &group(r, 1).with_engines(2))),
    ("a queue in two groups", 0x16, |r, _| set_group(r, 1, &group(r, 1).with_engines(2).with_wqs(1))),
    ("a sized queue in no group", 0x16, |r, _| r.write(Map::of(r).wqcfg(1), 4, 4)),
    ("a queue without size in a group", 0x16, |r, _| set_group(r, 0, &group(r, 0).with_wqs(3))),
    ("a queue that does not exist", 0x16, |r, c| {
        set_group(r, 0, &group(r, 0).with_wqs(1 | 1 << c.wq_cap.queues()));
    }),
    ("an engine in two groups", 0x17, |r, _| {
        r.write(Map::of(r).wqcfg(1), 4, 4);
        set_group(r, 1, &group(r, 1).with_engines(1).with_wqs(2));
    }),
    ("an engine that does not exist", 0x17, |r, c| {
        set_group(r, 0, &group(r, 0).with_engines(1 | 1 << c.eng_cap.engines()));
    }),
    ("fewer than four read buffers for an engine", 0x18, |r, _| {
        set_group(r, 0, &group(r, 0).with_read_buffers_allowed(3));
    }),
    ("more read buffers reserved than allowed", 0x18, |r, _| {
        set_group(r, 0, &group(r, 0).with_read_buffers_allowed(8).with_read_buffers_reserved(9));
    }),
    ("more read buffers reserved than there are", 0x18, |r, c| {
        let most = c.grp_cap.read_buffers();
        set_group(r, 0, &group(r, 0).with_read_buffers_allowed(most).with_read_buffers_reserved(most));
        set_group(
            r,
            1,
            &group(r, 1).with_engines(2).with_wqs(2).with_read_buffers_allowed(4).with_read_buffers_reserved(4),
        );
        r.write(Map::of(r).wqcfg(1), 4, 4);
    }),
    ("more read buffers allowed than can be had", 0x18, |r, c| {
        // Group 1 reserves 8, so group 0 may use all others.
        let most = c.grp_cap.read_buffers();
        set_group(r, 0, &group(r, 0).with_read_buffers_allowed(most));
        set_group(
            r,
            1,
            &group(r, 1).with_engines(2).with_wqs(2).with_read_buffers_allowed(8).with_read_buffers_reserved(8),
        );
        r.write(Map::of(r).wqcfg(1), 4, 4);
    }),
    ("a global read buffer limit too small for its groups", 0x18, |r, _| {
        r.write(offset::GENCFG, 4, 3);
        set_group(r, 0, &group(r, 0).with_use_global_limit(true));
    }),
    ("a global read buffer limit of more than there are", 0x18, |r, c| {
        r.write(offset::GENCFG, 4, u64::from(c.grp_cap.read_buffers()) + 1);
        set_group(r, 0, &group(r, 0).with_use_global_limit(true));
    }),
];

fn group(registers: &dyn Registers, index: u64) -> GrpCfg {
    Map::of(registers).read_grpcfg(registers, index)
}

fn enable_device(list: &mut List) {
    let bare = DeviceSpec { bare: true, ..DeviceSpec::default() };
    for (what, error, invalidate) in INVALID_DEVICES {
        if what.contains("global") && !list.capabilities.grp_cap.global_read_buffer_limit()
            || what.contains("read buffer") && !list.capabilities.grp_cap.read_buffer_controls()
        {
            continue;
        }
        list.fresh(section::COMMANDS, format!("Enable Device with {what} gives {error:#04x}"), &bare, move |fixture| {
            let registers = fixture.registers()?;
            configure(registers, &DeviceSpec::default());
            invalidate(registers, &fixture.capabilities);
            put(registers, CommandCode::EnableDevice, 0, error)?;
            same("device state", u8::from(error == 0), state(registers))
        });
    }
    let pcis = [
        ("bus mastering off", 0x12, Pci { bus_master: false, ..Pci::default() }),
        ("no page requests allocated", 0x13, Pci { page_requests: 0, ..Pci::default() }),
        ("too many page requests allocated", 0x13, Pci { page_requests: 0xffff_ffff, ..Pci::default() }),
    ];
    for (what, error, pci) in pcis {
        let spec = DeviceSpec { pci, ..bare.clone() };
        list.fresh(section::COMMANDS, format!("Enable Device with {what} gives {error:#04x}"), &spec, move |fixture| {
            let registers = fixture.registers()?;
            configure(registers, &DeviceSpec::default());
            put(registers, CommandCode::EnableDevice, 0, error)?;
            same("device state", 0, state(registers))
        });
    }
    list.fresh(section::COMMANDS, "Enable Device twice gives 0x10", &bare, |fixture| {
        let registers = fixture.registers()?;
        configure(registers, &DeviceSpec::default());
        put(registers, CommandCode::EnableDevice, 0, 0)?;
        put(registers, CommandCode::EnableDevice, 0, 0x10)
    });
    if list.capabilities.gen_cap.event_log_size_code() != 0 {
        let base = list.arena.at(place::EVENT_LOG);
        type Log = (&'static str, u8, fn(EvlCfg) -> EvlCfg, fn(Pci) -> Pci);
        let logs: [Log; 5] = [
            ("of 64 entries", 0x00, |e| e, |p| p),
            ("of 63 entries", 0x19, |e| e.with_entries(63), |p| p),
            ("of no entries", 0x19, |e| e.with_entries(0), |p| p),
            ("with PASID while PCI has none", 0x1b, |e| e, |p| Pci { pasid: false, prs: false, ..p }),
            ("privileged without Privileged Mode", 0x1b, |e| e.with_privileged(true), |p| p),
        ];
        for (what, error, invalidate, pci) in logs {
            let spec = DeviceSpec { pci: pci(Pci::default()), ..bare.clone() };
            list.fresh(
                section::COMMANDS,
                format!("Enable Device with an event log {what} gives {error:#04x}"),
                &spec,
                move |fixture| {
                    let registers = fixture.registers()?;
                    let spec = DeviceSpec { event_log: Some((base, 64)), ..DeviceSpec::default() };
                    configure(registers, &spec);
                    let config =
                        invalidate(EvlCfg([registers.read(offset::EVLCFG, 8), registers.read(offset::EVLCFG + 8, 8)]));
                    registers.write(offset::EVLCFG, 8, config.0[0]);
                    registers.write(offset::EVLCFG + 8, 8, config.0[1]);
                    put(registers, CommandCode::EnableDevice, 0, error)
                },
            );
        }
    }
}

/// A queue's configuration with one error, and the expected answer of Enable WQ.
type InvalidWq = (&'static str, u8, fn(WqCfg, &Capabilities) -> WqCfg);

const INVALID_QUEUES: [InvalidWq; 12] = [
    ("nothing wrong", 0x00, |q, _| q),
    ("priority 0", 0x23, |q, _| q.with_priority(0)),
    ("no PASID though shared", 0x26, |q, _| q.with_dedicated(false).with_threshold(4).with_pasid_enable(false)),
    ("a maximum batch of more than the device's", 0x27, |q, c| q.with_max_batch_shift(c.gen_cap.max_batch_shift() + 1)),
    ("privilege without Privileged Mode", 0x2a, |q, _| q.with_privileged(true)),
    ("address translation off though that is fixed", 0x2c, |q, _| q.with_ats_disable(true)),
    ("page requests off though that is fixed", 0x2e, |q, _| q.with_prs_disable(true)),
    ("the highest priority", 0x00, |q, _| q.with_priority(15)),
    ("a threshold above its size", 0x00, |q, _| q.with_threshold(100)),
    ("a maximum batch of the device's", 0x00, |q, c| q.with_max_batch_shift(c.gen_cap.max_batch_shift())),
    ("a maximum transfer of the device's", 0x00, |q, c| q.with_max_transfer_shift(c.gen_cap.max_transfer_shift())),
    ("an occupancy interrupt to an entry beyond the table", 0x2b, |q, _| {
        q.with_occupancy_handle(0xffff).with_occupancy_limit(2).with_occupancy_interrupt(true)
    }),
];

/// Configures, enables the device, and compares the answer of Enable WQ 0.
fn enable_invalid(fixture: &Fixture, spec: &DeviceSpec, config: &WqCfg, error: u8) -> Verdict {
    let registers = fixture.registers()?;
    configure(registers, spec);
    write_wqcfg(registers, &Map::of(registers), 0, config);
    put(registers, CommandCode::EnableDevice, 0, 0)?;
    put(registers, CommandCode::EnableWq, 0, error)?;
    let expected = if error == 0 { WqState::Enabled } else { WqState::Disabled };
    same("queue state", expected, wq_state(registers, 0))
}

fn enable_wq(list: &mut List) {
    let bare = DeviceSpec { bare: true, ..DeviceSpec::default() };
    let cap = list.capabilities.wq_cap;
    for (what, error, invalidate) in INVALID_QUEUES {
        let fits = match error {
            0x2c => !cap.ats_disable(),
            0x2e => !cap.prs_disable(),
            0x2b => cap.occupancy_interrupt(),
            _ => true,
        };
        if !fits {
            continue;
        }
        list.fresh(section::COMMANDS, format!("Enable WQ with {what} gives {error:#04x}"), &bare, move |fixture| {
            let config = invalidate(wqcfg(&QueueSpec::default()), &fixture.capabilities);
            enable_invalid(fixture, &DeviceSpec::default(), &config, error)
        });
    }
    // A maximum batch of 1 needs GENCAP[52].
    for set in [false, true] {
        let spec = list.with_capability(&bare, 52, set);
        let error = if set { 0x00 } else { 0x27 };
        list.fresh(
            section::COMMANDS,
            format!("Enable WQ with a maximum batch of 1 gives {error:#04x}, GENCAP[52] = {}", u8::from(set)),
            &spec,
            move |fixture| {
                enable_invalid(
                    fixture,
                    &DeviceSpec::default(),
                    &wqcfg(&QueueSpec { max_batch_shift: 0, ..QueueSpec::default() }),
                    error,
                )
            },
        );
    }
    // The field has five bits: a device with 2^20 shows the limit.
    let mut small = list.capabilities;
    small.gen_cap = small.gen_cap.with_max_transfer_shift(20);
    for (shift, error) in [(20, 0x00), (21, 0x28), (31, 0x28)] {
        let spec = DeviceSpec { capabilities: Some(small), ..bare.clone() };
        list.fresh(
            section::COMMANDS,
            format!("Enable WQ with transfers of 2^{shift} where 2^20 is the limit gives {error:#04x}"),
            &spec,
            move |fixture| {
                let queue = QueueSpec { max_transfer_shift: shift, ..QueueSpec::default() };
                enable_invalid(fixture, &DeviceSpec::default(), &wqcfg(&queue), error)
            },
        );
    }
    for (mode, shared, dedicated) in [(QueueMode::Shared, false, true), (QueueMode::Dedicated, true, false)] {
        let mut one = list.capabilities;
        one.wq_cap = one.wq_cap.with_shared_mode(shared).with_dedicated_mode(dedicated);
        let spec = DeviceSpec { capabilities: Some(one), ..bare.clone() };
        list.fresh(
            section::COMMANDS,
            format!("Enable WQ gives 0x24 where {mode:?} is not supported"),
            &spec,
            move |fixture| {
                let queue = if mode == QueueMode::Shared { QueueSpec::shared() } else { QueueSpec::default() };
                enable_invalid(fixture, &DeviceSpec::default(), &wqcfg(&queue), 0x24)
            },
        );
    }
    let blocking = QueueSpec { block_on_fault: true, ..QueueSpec::default() };
    for (what, spec, error) in [
        ("GENCAP[0] = 0", list.with_capability(&bare, 0, false), 0x25),
        (
            "page requests off",
            DeviceSpec { pci: Pci { prs: false, page_requests: 0, ..Pci::default() }, ..bare.clone() },
            0x25,
        ),
        ("both there", list.with_capability(&bare, 0, true), 0x00),
    ] {
        let queue = blocking.clone();
        list.fresh(
            section::COMMANDS,
            format!("Enable WQ with block on fault gives {error:#04x}: {what}"),
            &spec,
            move |fixture| enable_invalid(fixture, &DeviceSpec::default(), &wqcfg(&queue), error),
        );
    }
    let no_pasid = DeviceSpec { pci: Pci { pasid: false, ..Pci::default() }, ..bare.clone() };
    for (what, queue, error) in [
        ("a dedicated queue with PASID", QueueSpec::default(), 0x26),
        ("a shared queue", QueueSpec::shared(), 0x26),
        ("a dedicated queue without PASID", QueueSpec { pasid_enable: false, ..QueueSpec::default() }, 0x00),
    ] {
        list.fresh(
            section::COMMANDS,
            format!("Enable WQ of {what} while PCI has no PASID gives {error:#04x}"),
            &no_pasid,
            move |fixture| enable_invalid(fixture, &DeviceSpec::default(), &wqcfg(&queue), error),
        );
    }
    if cap.op_config() {
        let more = OpCap(list.capabilities.op_cap.0.map(|w| w | 1 << 0x0b));
        let less = list.capabilities.op_cap.with(telpher_abi::Opcode::Fill, false);
        for (what, operations, error) in
            [("more than the device has", more, 0x2d), ("less than the device has", less, 0x00)]
        {
            list.fresh(
                section::COMMANDS,
                format!("Enable WQ with operations {what} gives {error:#04x}"),
                &bare,
                move |fixture| {
                    let queue = QueueSpec { operations: Some(operations), ..QueueSpec::default() };
                    enable_invalid(fixture, &DeviceSpec::default(), &wqcfg(&queue), error)
                },
            );
        }
    }
    if cap.prs_disable() {
        let base = list.arena.at(place::EVENT_LOG);
        let log = (list.capabilities.gen_cap.event_log_size_code() != 0).then_some((base, 64));
        let off = QueueSpec { prs_disable: true, ..QueueSpec::default() };
        for (what, event_log, queue, error) in [
            ("without an event log", None, off.clone(), 0x2e),
            ("with block on fault", log, QueueSpec { block_on_fault: true, ..off.clone() }, 0x2e),
            ("with an event log", log, off.clone(), if log.is_some() { 0x00 } else { 0x2e }),
        ] {
            list.fresh(
                section::COMMANDS,
                format!("Enable WQ with page requests off, {what}, gives {error:#04x}"),
                &bare,
                move |fixture| {
                    let spec = DeviceSpec { event_log, ..DeviceSpec::default() };
                    enable_invalid(fixture, &spec, &wqcfg(&queue), error)
                },
            );
        }
    }
    list.fresh(section::COMMANDS, "Enable WQ on a disabled device gives 0x20", &bare, |fixture| {
        configure(fixture.registers()?, &DeviceSpec::default());
        put(fixture.registers()?, CommandCode::EnableWq, 0, 0x20)
    });
    let up = DeviceSpec::default();
    list.fresh(section::COMMANDS, "Enable WQ twice gives 0x21", &up, |fixture| {
        put(fixture.registers()?, CommandCode::EnableWq, 0, 0x21)
    });
    list.fresh(section::COMMANDS, "Enable WQ of a queue without size gives 0x22", &up, |fixture| {
        put(fixture.registers()?, CommandCode::EnableWq, 1, 0x22)
    });
}

pub(super) fn add(list: &mut List) {
    enable_device(list);
    enable_wq(list);
}
