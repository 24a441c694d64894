//! Attributes of `wqM.N`. Source: K612 `sysfs.c`; the order of the checks is the driver's.

use super::super::Abi;
use super::super::attribute::{
    Attribute, Check, Store, ValueFormat, bitmap, check, line, parse_bitmap, read_only, read_write,
};
use super::super::device::QueueType;
use super::engine::{GROUP_EXISTS, group, shown};
use super::{CONFIGURABLE, DEVICE_NOT_ENABLED};
use crate::tree::Errno;
use telpher_abi::registers::OpCap;

/// Longest queue name in bytes. Source: K612 `idxd.h`, WQ_NAME_SIZE.
const NAME_BYTES: usize = 1024;
/// Longest driver name in bytes. Source: K612 `idxd.h`, DRIVER_NAME_SIZE.
const DRIVER_NAME_BYTES: usize = 128;
/// Most retries. Source: K612 `idxd.h`, IDXD_ENQCMDS_MAX_RETRIES.
const MAX_RETRIES: i128 = 64;
/// Highest priority. Source: SPEC register WQCFG.
const MAX_PRIORITY: i128 = 15;

const DISABLED: Check = check(Errno::PERM, |k, id, _| !k.wq(id).enabled);
/// The same check, where the driver returns another errno.
const DISABLED_NXIO: Check = check(Errno::NXIO, |k, id, _| !k.wq(id).enabled);

/// The attribute table.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("clients", |k, id| line(k.wq(id).clients)),
    read_only("state", |k, id| line(if k.wq(id).enabled { "enabled" } else { "disabled" })),
    read_write(
        "group_id",
        |k, id| line(shown(k.wq(id).group)),
        Store::value(ValueFormat::Signed, &[CONFIGURABLE, DISABLED, GROUP_EXISTS], |k, id, input| {
            k.wq_mut(id).group = group(input);
        }),
    ),
    read_write(
        "mode",
        |k, id| line(if k.wq(id).shared() { "shared" } else { "dedicated" }),
        Store::guarded(
            ValueFormat::Text,
            &[
                CONFIGURABLE,
                DISABLED,
                check(Errno::INVAL, |k, id, input| {
                    // 5.15 masks ENQCMD, so it refuses shared mode.
                    let shared = k.abi() >= Abi::V6_1 && k.dsa(id).capabilities().wq_cap.shared_mode();
                    is(input.text, "dedicated") || (shared && is(input.text, "shared"))
                }),
            ],
            &[],
            |k, id, input| {
                let settings = &mut k.wq_mut(id).settings;
                settings.dedicated = is(input.text, "dedicated");
                if settings.dedicated {
                    settings.threshold = 0;
                }
            },
        ),
    ),
    read_write(
        "size",
        |k, id| line(k.wq(id).size),
        Store::value(
            ValueFormat::Decimal,
            &[
                CONFIGURABLE,
                DEVICE_NOT_ENABLED,
                check(Errno::INVAL, |k, id, input| {
                    let dsa = k.dsa(id);
                    let others = dsa.claimed_entries() - k.wq(id).size;
                    input.number + i128::from(others) <= dsa.capabilities().wq_cap.total_entries().into()
                }),
            ],
            |k, id, input| k.wq_mut(id).size = u32::try_from(input.number).unwrap_or_default(),
        ),
    ),
    read_write(
        "priority",
        |k, id| line(k.wq(id).settings.priority),
        Store::value(
            ValueFormat::Decimal,
            &[CONFIGURABLE, DISABLED, check(Errno::INVAL, |_, _, input| input.number <= MAX_PRIORITY)],
            |k, id, input| k.wq_mut(id).settings.priority = u32::try_from(input.number).unwrap_or_default(),
        ),
    ),
    read_write(
        "block_on_fault",
        |k, id| line(u8::from(k.wq(id).settings.block_on_fault)),
        Store::guarded(
            ValueFormat::Flag,
            &[
                check(Errno::OPNOTSUPP, |k, id, _| k.dsa(id).capabilities().gen_cap.block_on_fault()),
                CONFIGURABLE,
                DISABLED_NXIO,
            ],
            &[check(Errno::OPNOTSUPP, |k, id, input| input.number == 0 || !k.wq(id).settings.prs_disable)],
            |k, id, input| k.wq_mut(id).settings.block_on_fault = input.number != 0,
        ),
    ),
    read_write(
        "threshold",
        |k, id| line(k.wq(id).settings.threshold),
        Store::value(
            ValueFormat::AnyBase,
            &[
                check(Errno::INVAL, |k, id, input| (1..=i128::from(k.wq(id).size)).contains(&input.number)),
                CONFIGURABLE,
                DISABLED_NXIO,
                check(Errno::INVAL, |k, id, _| k.wq(id).shared()),
            ],
            |k, id, input| k.wq_mut(id).settings.threshold = u32::try_from(input.number).unwrap_or_default(),
        ),
    ),
    read_write(
        "type",
        |k, id| line(k.wq(id).settings.kind.name()),
        Store::guarded(
            ValueFormat::Text,
            &[DISABLED, check(Errno::INVAL, |_, _, input| type_of(input.text).is_some())],
            &[],
            |k, id, input| {
                let settings = &mut k.wq_mut(id).settings;
                let kind = type_of(input.text).unwrap_or_default();
                if kind != settings.kind {
                    settings.name.clear();
                }
                settings.kind = kind;
            },
        ),
    ),
    read_write(
        "name",
        |k, id| line(&k.wq(id).settings.name),
        Store::guarded(
            ValueFormat::Text,
            &[
                DISABLED,
                check(Errno::INVAL, |_, _, input| (1..=NAME_BYTES).contains(&input.text.len())),
                // Before 6.6, kernel queues did not use PASIDs.
                check(Errno::OPNOTSUPP, |k, id, _| {
                    k.abi() >= Abi::V6_6 || k.wq(id).settings.kind != QueueType::Kernel || !k.dsa(id).user_pasid()
                }),
            ],
            &[],
            |k, id, input| k.wq_mut(id).settings.name = input.text.trim().into(),
        ),
    ),
    read_only("cdev_minor", |k, id| line(k.wq(id).minor.ok_or(Errno::NXIO)?)),
    read_write(
        "max_transfer_size",
        |k, id| line(k.wq(id).settings.max_transfer),
        Store::guarded(
            ValueFormat::AnyBase,
            &[CONFIGURABLE, DISABLED],
            &[check(Errno::INVAL, |k, id, input| {
                rounded(input.number).is_some_and(|bytes| bytes <= k.dsa(id).capabilities().max_transfer())
            })],
            |k, id, input| k.wq_mut(id).settings.max_transfer = rounded(input.number).unwrap_or(1),
        ),
    ),
    read_write(
        "max_batch_size",
        |k, id| line(k.wq(id).settings.max_batch),
        Store::guarded(
            ValueFormat::AnyBase,
            &[CONFIGURABLE, DISABLED],
            &[check(Errno::INVAL, |k, id, input| {
                rounded(input.number).is_some_and(|count| count <= k.dsa(id).capabilities().max_batch().into())
            })],
            |k, id, input| k.wq_mut(id).settings.max_batch = rounded(input.number).unwrap_or(1),
        ),
    ),
    read_write(
        "ats_disable",
        |k, id| line(u8::from(k.wq(id).settings.ats_disable)),
        Store::guarded(ValueFormat::Flag, &[DISABLED], &[], |k, id, input| {
            k.wq_mut(id).settings.ats_disable = input.number != 0;
        }),
    )
    .visible(|caps| caps.wq_cap.ats_disable()),
    read_write(
        "prs_disable",
        |k, id| line(u8::from(k.wq(id).settings.prs_disable)),
        Store::guarded(ValueFormat::Flag, &[DISABLED], &[], |k, id, input| {
            let settings = &mut k.wq_mut(id).settings;
            settings.prs_disable = input.number != 0;
            if settings.prs_disable {
                settings.block_on_fault = false;
            }
        }),
    )
    .since(Abi::V6_6)
    .visible(|caps| caps.wq_cap.prs_disable()),
    read_only("occupancy", |k, id| {
        if !k.dsa(id).capabilities().wq_cap.occupancy() {
            return Err(Errno::OPNOTSUPP);
        }
        line(k.wq(id).occupancy)
    }),
    read_write(
        "enqcmds_retries",
        |k, id| if k.wq(id).shared() { line(k.wq(id).settings.enqcmds_retries) } else { Err(Errno::OPNOTSUPP) },
        Store::guarded(
            ValueFormat::Decimal,
            &[check(Errno::OPNOTSUPP, |k, id, _| k.wq(id).shared())],
            &[],
            |k, id, input| {
                let retries = input.number.min(MAX_RETRIES);
                k.wq_mut(id).settings.enqcmds_retries = u32::try_from(retries).unwrap_or_default();
            },
        ),
    )
    .since(Abi::V6_1),
    read_write(
        "op_config",
        |k, id| line(bitmap(&k.shown_operations(k.wq(id).settings.op_config).0)),
        Store::guarded(
            ValueFormat::Text,
            &[
                DISABLED,
                check(Errno::OVERFLOW, |_, _, input| parse_bitmap(input.text) != Err(Errno::OVERFLOW)),
                check(Errno::INVAL, |k, id, input| {
                    parse_bitmap(input.text)
                        .is_ok_and(|words| OpCap(words).is_subset_of(&k.dsa(id).capabilities().op_cap))
                }),
            ],
            &[],
            |k, id, input| k.wq_mut(id).settings.op_config = OpCap(parse_bitmap(input.text).unwrap_or_default()),
        ),
    )
    .since(Abi::V6_1)
    .visible(|caps| caps.wq_cap.op_config()),
    read_write(
        "driver_name",
        |k, id| line(&k.wq(id).driver_name),
        Store::guarded(
            ValueFormat::Text,
            &[DISABLED, check(Errno::INVAL, |_, _, input| (1..=DRIVER_NAME_BYTES).contains(&input.text.len()))],
            &[],
            |k, id, input| k.wq_mut(id).driver_name = input.text.trim().into(),
        ),
    )
    .since(Abi::V6_12),
];

/// Compares a word, ignoring blanks around it.
fn is(text: &str, word: &str) -> bool {
    text.trim() == word
}

fn type_of(text: &str) -> Option<QueueType> {
    QueueType::ALL.into_iter().find(|kind| is(text, kind.name()))
}

/// Rounds up to a power of two; `None` for 0 and if there is none.
fn rounded(number: i128) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)?.checked_next_power_of_two()
}
