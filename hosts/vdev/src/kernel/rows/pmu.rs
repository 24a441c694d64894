//! The perf PMU of a device, in event_source. It describes how events are encoded. Counting them needs the kernel's
//! perf_event_open(), which does not know this PMU. Source: K612 `perfmon.c`; SPEC §9.2.

use super::super::attribute::{Attribute, Store, ValueFormat, check, line, read_only, read_write};
use crate::tree::Errno;

/// First PMU type. Source: chosen, far above the types that a kernel assigns, so that it never equals another PMU's.
const FIRST_TYPE: u32 = 1000;

/// The attribute table of the PMU.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("cpumask", |_, _| line(0)),
    read_write(
        "perf_event_mux_interval_ms",
        |_, _| line(1),
        Store::value(ValueFormat::Signed, &[check(Errno::INVAL, |_, _, input| input.number >= 1)], |_, _, _| {}),
    ),
    read_only("type", |k, id| line(FIRST_TYPE + k.dsa(id).number)),
];

/// The attribute table of its `format/`.
pub(crate) static FORMAT: &[Attribute] = &[
    read_only("event", |_, _| line("config:4-31")),
    read_only("event_category", |_, _| line("config:0-3")),
    read_only("filter_eng", |_, _| line("config1:52-59")),
    read_only("filter_pgsz", |_, _| line("config1:40-43")),
    read_only("filter_sz", |_, _| line("config1:44-51")),
    read_only("filter_tc", |_, _| line("config1:32-39")),
    read_only("filter_wq", |_, _| line("config1:0-31")),
];
