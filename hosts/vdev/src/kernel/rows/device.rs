//! Attributes of `dsaM`. Source: K612 `sysfs.c`.

use super::super::attribute::{Attribute, Store, ValueFormat, bitmap, check, line, read_only, read_write};
use super::super::device::State;
use super::super::event_log;
use super::super::{Abi, MAJOR};
use super::{CONFIGURABLE, DEVICE_NOT_ENABLED};
use crate::tree::Errno;
use telpher_abi::Opcode;
use telpher_abi::registers::VERSION_3;

/// The attribute table.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("version", |k, id| line(format_args!("{:#x}", k.dsa(id).capabilities().version))),
    read_only("max_groups", |k, id| line(k.dsa(id).capabilities().grp_cap.groups())),
    read_only("max_work_queues", |k, id| line(k.dsa(id).capabilities().wq_cap.queues())),
    read_only("max_work_queues_size", |k, id| line(k.dsa(id).capabilities().wq_cap.total_entries())),
    read_only("max_engines", |k, id| line(k.dsa(id).capabilities().eng_cap.engines())),
    read_only("numa_node", |_, _| line(super::pci::NUMA_NODE)),
    read_only("max_batch_size", |k, id| line(k.dsa(id).capabilities().max_batch())),
    read_only("max_transfer_size", |k, id| line(k.dsa(id).capabilities().max_transfer())),
    read_only("op_cap", |k, id| {
        let operations = k.shown_operations(k.dsa(id).capabilities().op_cap);
        if k.abi() >= Abi::V6_1 {
            return line(bitmap(&operations.0));
        }
        let words: Vec<String> = operations.0.iter().map(|word| alternate_hex(*word)).collect();
        line(words.join(" "))
    }),
    read_only("gen_cap", |k, id| line(alternate_hex(k.dsa(id).capabilities().gen_cap.0[0]))),
    read_only("configurable", |k, id| line(u8::from(k.dsa(id).capabilities().gen_cap.configurable()))),
    read_only("clients", |k, id| line(k.dsa(id).wqs.iter().map(|wq| wq.clients).sum::<u32>())),
    read_only("pasid_enabled", |k, id| line(u8::from(k.dsa(id).user_pasid()))),
    read_only("state", |k, id| {
        line(match k.dsa(id).state {
            State::Disabled => "disabled",
            State::Enabled => "enabled",
            State::Halted => "halted",
        })
    }),
    read_only("errors", |k, id| {
        let errors = &k.dsa(id).errors;
        if k.abi() >= Abi::V6_6 {
            return line(bitmap(errors));
        }
        line(errors.map(|word| format!("{word:#018x}")).join(" "))
    }),
    read_write("read_buffer_limit", |k, id| line(k.dsa(id).read_buffer_limit), READ_BUFFER_LIMIT).since(Abi::V6_1),
    read_write("token_limit", |k, id| line(k.dsa(id).read_buffer_limit), READ_BUFFER_LIMIT),
    read_only("max_read_buffers", |k, id| line(k.dsa(id).capabilities().grp_cap.read_buffers())).since(Abi::V6_1),
    read_only("max_tokens", |k, id| line(k.dsa(id).capabilities().grp_cap.read_buffers())),
    read_only("cdev_major", |_, _| line(MAJOR)),
    read_write(
        "cmd_status",
        |k, id| line(alternate_hex(k.dsa(id).cmd_status.into())),
        // Any write clears it; the written text is ignored.
        Store::value(ValueFormat::Text, &[], |k, id, _| k.dsa_mut(id).cmd_status = 0),
    ),
    read_write(
        "event_log_size",
        |k, id| line(k.dsa(id).event_log.as_ref().ok_or(Errno::OPNOTSUPP)?.size),
        Store::guarded(
            ValueFormat::Decimal,
            &[check(Errno::OPNOTSUPP, |k, id, _| k.dsa(id).event_log.is_some())],
            &[
                DEVICE_NOT_ENABLED,
                CONFIGURABLE,
                check(Errno::INVAL, |_, _, input| {
                    (i128::from(event_log::MIN_ENTRIES)..=i128::from(event_log::MAX_ENTRIES)).contains(&input.number)
                }),
            ],
            |k, id, input| {
                if let (Some(log), Ok(size)) = (&mut k.dsa_mut(id).event_log, u32::try_from(input.number)) {
                    log.size = size;
                }
            },
        ),
    )
    .since(Abi::V6_6)
    .visible(|caps| caps.event_log_entry_bytes() > 0),
    // In the order of the driver's code. The example in the kernel's documentation has another order.
    // Source: Linux 7.0 `sysfs.c`, dsacaps_show.
    read_only("dsacaps", |k, id| {
        let caps = k.dsa(id).capabilities();
        let [two, one, zero] = [caps.dsa_cap_2.0[0], caps.dsa_cap_1.0[0], caps.dsa_cap_0.0[0]];
        line(format_args!("{two:016x},{one:016x},{zero:016x}"))
    })
    .since(Abi::V7_0)
    .visible(|caps| caps.version >= VERSION_3),
];

const READ_BUFFER_LIMIT: Store = Store::value(
    ValueFormat::Decimal,
    &[
        DEVICE_NOT_ENABLED,
        CONFIGURABLE,
        check(Errno::PERM, |k, id, _| k.dsa(id).capabilities().grp_cap.global_read_buffer_limit()),
        check(Errno::INVAL, |k, id, input| input.number <= k.dsa(id).capabilities().grp_cap.read_buffers().into()),
    ],
    |k, id, input| k.dsa_mut(id).read_buffer_limit = u32::try_from(input.number).unwrap_or_default(),
);

/// Formats like C's `%#llx`: zero has no prefix.
pub(super) fn alternate_hex(value: u64) -> String {
    if value == 0 { "0".into() } else { format!("{value:#x}") }
}

impl super::super::Kernel {
    /// A set of operations as attributes show it: without Batch if users may not submit one (INTEL-SA-01084).
    pub(super) fn shown_operations(&self, operations: telpher_abi::registers::OpCap) -> telpher_abi::registers::OpCap {
        if self.user_submission_safe() { operations } else { operations.with(Opcode::Batch, false) }
    }
}
