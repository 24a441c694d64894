//! Performance monitoring block. Source: SPEC ch. 6, §9.2.25, App. D; K612 `perfmon.c`.

use crate::registers::{VERSION_1, VERSION_2, VERSION_3};

/// Byte offsets inside the block (whose base is in OFFSETS).
pub mod offset {
    /// PERFCAP, 8 bytes.
    pub const PERFCAP: u64 = 0x000;
    /// PERFRST.
    pub const PERFRST: u64 = 0x010;
    /// PERFFRZ.
    pub const PERFFRZ: u64 = 0x020;
    /// OVFSTATUS, write 1 to clear.
    pub const OVFSTATUS: u64 = 0x030;
    /// EVNTCAP of category 0; 8 bytes a category.
    pub const EVNTCAP: u64 = 0x080;
    /// CNTRCFG of counter 0; 8 bytes a counter.
    pub const CNTRCFG: u64 = 0x100;
    /// CNTRDATA of counter 0; 8 bytes a counter.
    pub const CNTRDATA: u64 = 0x200;
    /// FLTCFG of counter 0, filter 0; 4 bytes a filter, 32 bytes a counter.
    pub const FLTCFG: u64 = 0x300;
    /// CNTRCAP of counter 0; 64 bytes a counter.
    pub const CNTRCAP: u64 = 0x800;
}

register! {
    /// Capabilities of the block (PERFCAP).
    PerfCap [1] {
        /// Number of counters.
        counters / with_counters: u8 [0..5];
        /// Bits per counter.
        counter_width / with_counter_width: u8 [8..15];
        /// Number of event categories.
        categories / with_categories: u8 [16..19];
        /// Categories that every counter can count, one bit each.
        global_categories / with_global_categories: u16 [20..35];
        /// Filters, one bit each (0 queue, 1 TC, 2 page size, 3 transfer size, 4 engine, 5 PASID).
        filters / with_filters: u8 [36..43];
        /// Counters have capabilities of their own.
        per_counter / with_per_counter: bool [52..52];
        /// Counters can be written while enabled.
        writable / with_writable: bool [53..53];
        /// Counters can be frozen.
        freeze / with_freeze: bool [54..54];
        /// Overflow can interrupt.
        overflow_interrupt / with_overflow_interrupt: bool [55..55];
    }
}

register! {
    /// Configuration of one counter (CNTRCFG).
    CntrCfg [1] {
        /// Enabled.
        enable / with_enable: bool [0..0];
        /// Interrupt on overflow.
        interrupt / with_interrupt: bool [1..1];
        /// Freeze all counters on overflow.
        global_freeze / with_global_freeze: bool [2..2];
        /// Event category.
        category / with_category: u8 [8..11];
        /// Events of the category, one bit each.
        events / with_events: u32 [32..59];
    }
}

/// One countable event: its category and its bit in EVNTCAP and CNTRCFG.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Event {
    /// Category 0–15.
    pub category: u8,
    /// The event's bit.
    pub bit: u32,
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $category:literal, $bit:literal, $text:literal;)*) => {
        impl Event {
            $($(#[$doc])* pub const $name: Event = Event { category: $category, bit: $bit };)*
            /// All events but those of operations.
            pub const ALL: &'static [Event] = &[$(Event::$name),*];
            /// Names of the events above, for people. Source: chosen; the kernel's PMU has none.
            const TEXTS: &'static [&'static str] = &[$($text),*];
        }
    };
}

events! {
    /// Shared queue: accepted through a limited portal.
    SWQ_LIMITED_ACCEPTED = 0, 0x01, "swq_accepted_limited";
    /// Shared queue: Retry through a limited portal.
    SWQ_LIMITED_RETRY = 0, 0x02, "swq_retry_limited";
    /// Shared queue: accepted through an unlimited portal.
    SWQ_UNLIMITED_ACCEPTED = 0, 0x04, "swq_accepted_unlimited";
    /// Shared queue: Retry through an unlimited portal.
    SWQ_UNLIMITED_RETRY = 0, 0x08, "swq_retry_unlimited";
    /// Dedicated queue: accepted.
    DWQ_ACCEPTED = 0, 0x10, "dwq_accepted";
    /// Dedicated queue: full, descriptor lost.
    DWQ_FULL = 0, 0x20, "dwq_full";
    /// Input processed, in units of 32 bytes.
    INPUT_32B = 1, 0x01, "engine_input";
    /// Data written, in units of 32 bytes.
    OUTPUT_32B = 1, 0x02, "engine_output";
    /// Descriptors that read source 1.
    READS_SOURCE_1 = 1, 0x04, "engine_src1_descriptors";
    /// Descriptors that write destination 1.
    WRITES_DESTINATION_1 = 1, 0x08, "engine_dst1_descriptors";
    /// Descriptors from batches.
    FROM_BATCH = 1, 0x10, "engine_from_batch";
    /// Descriptors from queues.
    FROM_WQ = 1, 0x20, "engine_from_wq";
    /// Translations with PASID that succeeded.
    TRANSLATED = 2, 0x01, "xlate_pasid_ok";
    /// Translations with PASID that faulted.
    TRANSLATION_FAULT = 2, 0x02, "xlate_pasid_fault";
    /// Page requests that succeeded.
    PAGE_REQUEST_OK = 2, 0x10, "page_request_ok";
    /// Page requests that were refused.
    PAGE_REQUEST_INVALID = 2, 0x20, "page_request_invalid";
    /// Completion interrupts by MSI-X.
    MSIX = 4, 0x01, "irq_msix";
    /// Completion interrupts by IMS.
    IMS = 4, 0x02, "irq_ims";
    /// Partial completions.
    PARTIAL = 4, 0x04, "done_partial";
    /// Completions with an error.
    ERROR = 4, 0x08, "done_error";
    /// Successful completions.
    SUCCESS = 4, 0x10, "done_success";
    /// Completion records written.
    RECORD_WRITTEN = 4, 0x20, "records_written";
    /// 2.0: bits of submitters that were read in a bitmap of the permissions table, and were set.
    BITMAP_GRANTED = 1, 0x40, "idpt_bitmap_granted";
    /// 2.0: bits of submitters that were read there, and were not set.
    BITMAP_DENIED = 1, 0x80, "idpt_bitmap_denied";
    /// 2.0: descriptors that read source 2.
    READS_SOURCE_2 = 1, 0x200, "engine_src2_descriptors";
    /// 2.0: descriptors that write destination 2.
    WRITES_DESTINATION_2 = 1, 0x400, "engine_dst2_descriptors";
    /// 2.0: members of batches with a fence that started.
    FENCE_PASSED = 3, 0x800_0000, "fence_passed";
    /// 2.0: fences that ended their batch.
    FENCE_ABANDONED = 3, 0x400_0000, "fence_abandoned";
    /// 2.0: moves whose source and destination overlap.
    OVERLAPPING_MOVE = 3, 0x200_0000, "overlapping_moves";
}

/// Events of 2.0 that are no operation's; in 1.x, their bits have other meanings.
const SINCE_2: [Event; 7] = [
    Event::BITMAP_GRANTED,
    Event::BITMAP_DENIED,
    Event::READS_SOURCE_2,
    Event::WRITES_DESTINATION_2,
    Event::FENCE_PASSED,
    Event::FENCE_ABANDONED,
    Event::OVERLAPPING_MOVE,
];

impl Event {
    /// Returns the event of an operation's dispatch, if there is one: of category 3, or 5 from 2.0 on.
    #[must_use]
    pub fn of_operation(opcode: crate::Opcode) -> Option<Event> {
        OPERATIONS.iter().find(|operation| operation.0 == opcode).map(|operation| operation.1)
    }

    /// Returns all events with their names, also those of operations.
    pub fn named() -> impl Iterator<Item = (&'static str, Event)> {
        let operations = OPERATIONS.iter().map(|(_, event, _, name)| (*name, *event));
        Event::TEXTS.iter().copied().zip(Event::ALL.iter().copied()).chain(operations)
    }

    /// Returns the version of the architecture that has added the event, as VERSION states it. The same bit may be
    /// another event, of one implementation, in earlier versions.
    #[must_use]
    pub fn since(self) -> u32 {
        let operation = OPERATIONS.iter().find(|operation| operation.1 == self).map(|operation| operation.2);
        operation.unwrap_or(if SINCE_2.contains(&self) { VERSION_2 } else { VERSION_1 })
    }

    /// Returns the event of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Event> {
        Event::named().find(|(of, _)| *of == name).map(|(_, event)| event)
    }
}

/// The operations of categories 3 and 5: event, version, and name. Source: SPEC App. D.
const OPERATIONS: [(crate::Opcode, Event, u32, &str); 31] = {
    use crate::Opcode as O;
    const fn of(category: u8, bit: u32) -> Event {
        Event { category, bit }
    }
    [
        (O::Nop, of(3, 0x1), VERSION_1, "op_noop"),
        (O::Batch, of(3, 0x2), VERSION_1, "op_batch"),
        (O::Drain, of(3, 0x4), VERSION_1, "op_drain"),
        (O::MemoryMove, of(3, 0x8), VERSION_1, "op_memmove"),
        (O::Fill, of(3, 0x10), VERSION_1, "op_fill"),
        (O::Compare, of(3, 0x20), VERSION_1, "op_compare"),
        (O::ComparePattern, of(3, 0x40), VERSION_1, "op_compare_pattern"),
        (O::CreateDelta, of(3, 0x80), VERSION_1, "op_create_delta"),
        (O::ApplyDelta, of(3, 0x100), VERSION_1, "op_apply_delta"),
        (O::Dualcast, of(3, 0x200), VERSION_1, "op_dualcast"),
        (O::CrcGeneration, of(3, 0x400), VERSION_1, "op_crc"),
        (O::CopyCrc, of(3, 0x800), VERSION_1, "op_copy_crc"),
        (O::DifCheck, of(3, 0x1000), VERSION_1, "op_dif_check"),
        (O::DifInsert, of(3, 0x2000), VERSION_1, "op_dif_insert"),
        (O::DifStrip, of(3, 0x4000), VERSION_1, "op_dif_strip"),
        (O::DifUpdate, of(3, 0x8000), VERSION_1, "op_dif_update"),
        (O::CacheFlush, of(3, 0x1_0000), VERSION_1, "op_cache_flush"),
        (O::TranslationFetch, of(3, 0x2_0000), VERSION_2, "op_translation_fetch"),
        (O::DixGenerate, of(3, 0x4_0000), VERSION_2, "op_dix_generate"),
        (O::InterDomainCopy, of(5, 0x1), VERSION_2, "op_id_copy"),
        (O::InterDomainFill, of(5, 0x2), VERSION_2, "op_id_fill"),
        (O::InterDomainCompare, of(5, 0x4), VERSION_2, "op_id_compare"),
        (O::InterDomainComparePattern, of(5, 0x8), VERSION_2, "op_id_compare_pattern"),
        (O::UpdateWindow, of(5, 0x400), VERSION_2, "op_update_window"),
        (O::TypeConversion, of(5, 0x800), VERSION_3, "op_type_conversion"),
        (O::Reduce, of(5, 0x1000), VERSION_3, "op_reduce"),
        (O::ReduceDualcast, of(5, 0x2000), VERSION_3, "op_reduce_dualcast"),
        (O::GatherReduce, of(5, 0x4000), VERSION_3, "op_gather_reduce"),
        (O::GatherCopy, of(5, 0x8000), VERSION_3, "op_gather_copy"),
        (O::ScatterCopy, of(5, 0x1_0000), VERSION_3, "op_scatter_copy"),
        (O::ScatterFill, of(5, 0x2_0000), VERSION_3, "op_scatter_fill"),
    ]
};

/// The configuration of an event of the kernel's perf PMU, `perf_event_attr.config` and `config1`.
/// Source: Linux 6.12, `drivers/dma/idxd/perfmon.c`, the format attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PmuConfig {
    /// The category: config:0-3.
    pub category: u8,
    /// The events of the category, one bit each: config:4-31.
    pub events: u32,
    /// Only these queues, one bit each; 0 for all: config1:0-31.
    pub queues: u32,
    /// Only these transfer sizes: config1:44-51.
    pub sizes: u8,
    /// Only these engines: config1:52-59.
    pub engines: u8,
}

impl PmuConfig {
    /// Decodes both words. Filters by traffic class and page size are left out.
    #[must_use]
    pub const fn decode(config: u64, config1: u64) -> PmuConfig {
        PmuConfig {
            category: (config & 0xf) as u8,
            events: (config >> 4 & 0xfff_ffff) as u32,
            queues: (config1 & 0xffff_ffff) as u32,
            sizes: (config1 >> 44 & 0xff) as u8,
            engines: (config1 >> 52 & 0xff) as u8,
        }
    }

    /// Encodes an event without filters as `config`.
    #[must_use]
    pub const fn config_of(event: Event) -> u64 {
        event.category as u64 | (event.bit as u64) << 4
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::Opcode;
    use std::vec::Vec;

    #[test]
    fn names_and_events_are_unique_and_fit_the_format() {
        let all: Vec<_> = Event::named().collect();
        for (at, (name, event)) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|(other, of)| other != name && of != event), "{name}");
            assert_eq!(Event::of_name(name), Some(*event));
            let decoded = PmuConfig::decode(PmuConfig::config_of(*event), 0);
            assert_eq!((decoded.category, decoded.events), (event.category, event.bit), "{name}");
        }
        assert_eq!(Event::of_operation(Opcode::CacheFlush), Some(Event { category: 3, bit: 0x1_0000 }));
        assert_eq!(Event::of_name("op_memmove"), Some(Event { category: 3, bit: 0x8 }));
    }

    #[test]
    fn filters_are_in_the_second_word() {
        let decoded = PmuConfig::decode(0, 0x0ff0_f000_0000_0003);
        assert_eq!((decoded.queues, decoded.sizes, decoded.engines), (3, 0x0f, 0xff));
    }
}
