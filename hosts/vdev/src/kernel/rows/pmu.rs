//! The perf PMU of a device, in event_source: how events are encoded. The guest answers perf_event_open() for its type.
//! Source: K612 `perfmon.c`; SPEC §9.2. The driver has no `events/`; it is added here, so that events have names.

use super::super::attribute::{Attribute, Store, ValueFormat, check, line, read_only, read_write};
use crate::tree::Errno;
use telpher_abi::perfmon::Event;
use telpher_vdev_wire::message::FIRST_PMU_TYPE;

/// The attribute table of the PMU.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("cpumask", |_, _| line(0)),
    read_write(
        "perf_event_mux_interval_ms",
        |_, _| line(1),
        Store::value(ValueFormat::Signed, &[check(Errno::INVAL, |_, _, input| input.number >= 1)], |_, _, _| {}),
    ),
    read_only("type", |k, id| line(FIRST_PMU_TYPE + k.dsa(id).number)),
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

/// Declares an attribute for each event of these names.
macro_rules! events {
    ($($name:literal)*) => {
        /// The attribute table of its `events/`: those that the model counts and the device's version has, with the
        /// unit of bytes.
        pub(crate) static EVENTS: &[Attribute] = &[
            $(read_only($name, |_, _| event($name)).visible(|caps| is_of_version($name, caps.version)),)*
            read_only("engine_input.scale", |_, _| line(32)),
            read_only("engine_input.unit", |_, _| line("Bytes")),
            read_only("engine_output.scale", |_, _| line(32)),
            read_only("engine_output.unit", |_, _| line("Bytes")),
        ];
    };
}

events! {
    "done_error"
    "done_partial"
    "done_success"
    "dwq_accepted"
    "dwq_full"
    "engine_from_batch"
    "engine_from_wq"
    "engine_input"
    "engine_output"
    "op_apply_delta"
    "op_batch"
    "op_cache_flush"
    "op_compare"
    "op_compare_pattern"
    "op_copy_crc"
    "op_crc"
    "op_create_delta"
    "op_dif_check"
    "op_dif_insert"
    "op_dif_strip"
    "op_dif_update"
    "op_dix_generate"
    "op_drain"
    "op_dualcast"
    "op_fill"
    "op_gather_copy"
    "op_gather_reduce"
    "op_id_compare"
    "op_id_compare_pattern"
    "op_id_copy"
    "op_id_fill"
    "op_memmove"
    "op_noop"
    "op_reduce"
    "op_reduce_dualcast"
    "op_scatter_copy"
    "op_scatter_fill"
    "op_translation_fetch"
    "op_type_conversion"
    "op_update_window"
    "page_request_ok"
    "swq_accepted_limited"
    "swq_accepted_unlimited"
    "swq_retry_limited"
    "swq_retry_unlimited"
    "xlate_pasid_fault"
}

/// True if devices of this version have the event.
fn is_of_version(name: &str, version: u32) -> bool {
    Event::of_name(name).is_some_and(|event| event.since() <= version)
}

/// The encoding of an event in the terms of `format/`.
fn event(name: &str) -> Result<String, Errno> {
    let Event { category, bit } = Event::of_name(name).ok_or(Errno::NOENT)?;
    line(format_args!("event_category={category:#x},event={bit:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_that_the_model_counts() {
        let mut counted: Vec<_> =
            Event::named().filter(|(_, event)| telpher_model::is_counted(*event)).map(|(name, _)| name).collect();
        counted.sort_unstable();
        let shown: Vec<_> = EVENTS.iter().map(|row| row.name).filter(|name| !name.contains('.')).collect();
        assert_eq!(shown, counted);
        assert_eq!(event("op_memmove").unwrap(), "event_category=0x3,event=0x8\n");
        assert_eq!(event("op_scatter_fill").unwrap(), "event_category=0x5,event=0x20000\n");
    }

    #[test]
    fn a_device_has_the_events_of_its_version() {
        let of =
            |version| EVENTS.iter().filter(move |row| row.name.starts_with("op_") && is_of_version(row.name, version));
        assert_eq!([0x100, 0x200, 0x300].map(|version| of(version).count()), [17, 24, 31]);
    }
}
