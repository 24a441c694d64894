//! Attributes of `groupM.N`. Source: K612 `sysfs.c`.

use super::super::attribute::{Attribute, Check, Store, ValueFormat, check, line, read_only, read_write};
use super::super::{Abi, Kernel};
use super::{CONFIGURABLE, DEVICE_NOT_ENABLED};
use crate::tree::Errno;
use telpher_abi::registers::VERSION_2;

/// The attribute table; `token` in a name is the older word for read buffer.
pub(crate) static ROWS: &[Attribute] = &[
    // An empty group still prints a newline: clients treat an empty read as an error (observed clients).
    read_only("work_queues", |k, id| {
        let dsa = k.dsa(id);
        line(members("wq", dsa.number, dsa.wqs.iter().map(|wq| wq.group), id.index))
    }),
    read_only("engines", |k, id| {
        let dsa = k.dsa(id);
        line(members("engine", dsa.number, dsa.engines.iter().map(|engine| engine.group), id.index))
    }),
    read_write("use_read_buffer_limit", |k, id| line(u8::from(k.group(id).use_read_buffer_limit)), USE_LIMIT)
        .since(Abi::V6_1),
    read_write("use_token_limit", |k, id| line(u8::from(k.group(id).use_read_buffer_limit)), USE_LIMIT),
    read_write("read_buffers_reserved", |k, id| line(k.group(id).read_buffers_reserved), RESERVED).since(Abi::V6_1),
    read_write("tokens_reserved", |k, id| line(k.group(id).read_buffers_reserved), RESERVED),
    read_write("read_buffers_allowed", |k, id| line(k.group(id).read_buffers_allowed), ALLOWED).since(Abi::V6_1),
    read_write("tokens_allowed", |k, id| line(k.group(id).read_buffers_allowed), ALLOWED),
    read_write(
        "traffic_class_a",
        |k, id| line(k.group(id).traffic_class_a),
        Store::value(ValueFormat::Signed, TRAFFIC_CLASS, |k, id, input| {
            k.group_mut(id).traffic_class_a = small(input.number)
        }),
    ),
    read_write(
        "traffic_class_b",
        |k, id| line(k.group(id).traffic_class_b),
        Store::value(ValueFormat::Signed, TRAFFIC_CLASS, |k, id, input| {
            k.group_mut(id).traffic_class_b = small(input.number)
        }),
    ),
    read_write(
        "desc_progress_limit",
        |k, id| line(k.group(id).desc_progress_limit),
        Store::value(ValueFormat::Signed, PROGRESS, |k, id, input| {
            k.group_mut(id).desc_progress_limit = small(input.number)
        }),
    )
    .since(Abi::V6_1)
    .visible(|caps| caps.grp_cap.progress_limits()),
    read_write(
        "batch_progress_limit",
        |k, id| line(k.group(id).batch_progress_limit),
        Store::value(ValueFormat::Signed, PROGRESS, |k, id, input| {
            k.group_mut(id).batch_progress_limit = small(input.number)
        }),
    )
    .since(Abi::V6_1)
    .visible(|caps| caps.grp_cap.progress_limits()),
];

const USE_LIMIT: Store = Store::value(
    ValueFormat::Decimal,
    &[CONFIGURABLE, DEVICE_NOT_ENABLED, check(Errno::PERM, |k, id, _| k.dsa(id).read_buffer_limit != 0)],
    |k, id, input| k.group_mut(id).use_read_buffer_limit = input.number != 0,
);

const RESERVED: Store = Store::value(
    ValueFormat::Decimal,
    &[
        CONFIGURABLE,
        DEVICE_NOT_ENABLED,
        check(Errno::INVAL, |k, id, input| input.number <= k.dsa(id).capabilities().grp_cap.read_buffers().into()),
        check(Errno::INVAL, |k, id, input| input.number <= available(k, id).into()),
    ],
    |k, id, input| k.group_mut(id).read_buffers_reserved = u32::try_from(input.number).unwrap_or_default(),
);

const ALLOWED: Store = Store::value(
    ValueFormat::Decimal,
    &[
        CONFIGURABLE,
        DEVICE_NOT_ENABLED,
        check(Errno::INVAL, |k, id, input| {
            let least = 4 * k.dsa(id).engines_of(id.index);
            (i128::from(least)..=i128::from(available(k, id))).contains(&input.number)
        }),
    ],
    |k, id, input| k.group_mut(id).read_buffers_allowed = u32::try_from(input.number).unwrap_or_default(),
);

const TRAFFIC_CLASS: &[Check] = &[
    CONFIGURABLE,
    DEVICE_NOT_ENABLED,
    check(Errno::PERM, |k, id, _| k.dsa(id).capabilities().version > VERSION_2 || k.parameters().tc_override),
    check(Errno::INVAL, |_, _, input| (0..=7).contains(&input.number)),
];

const PROGRESS: &[Check] = &[check(Errno::INVAL, |_, _, input| (0..=3).contains(&input.number))];

/// Read buffers that a group may reserve: the free ones and its own.
fn available(kernel: &Kernel, id: super::super::attribute::Id) -> u32 {
    kernel.dsa(id).free_read_buffers() + kernel.group(id).read_buffers_reserved
}

/// Converts a number that the checks have limited.
fn small(number: i128) -> u8 {
    u8::try_from(number).unwrap_or_default()
}

fn members(kind: &str, device: u32, groups: impl Iterator<Item = Option<usize>>, group: usize) -> String {
    let names = groups.enumerate().filter(|(_, of)| *of == Some(group)).map(|(n, _)| format!("{kind}{device}.{n}"));
    names.collect::<Vec<_>>().join(" ")
}
