//! Performance monitoring block. Source: SPEC ch. 6, §9.2.25, App. D; K612 `perfmon.c`.

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
    ($($(#[$doc:meta])* $name:ident = $category:literal, $bit:literal;)*) => {
        impl Event {
            $($(#[$doc])* pub const $name: Event = Event { category: $category, bit: $bit };)*
            /// All named events.
            pub const ALL: &'static [Event] = &[$(Event::$name),*];
        }
    };
}

events! {
    /// Shared queue: accepted through a limited portal.
    SWQ_LIMITED_ACCEPTED = 0, 0x01;
    /// Shared queue: Retry through a limited portal.
    SWQ_LIMITED_RETRY = 0, 0x02;
    /// Shared queue: accepted through an unlimited portal.
    SWQ_UNLIMITED_ACCEPTED = 0, 0x04;
    /// Shared queue: Retry through an unlimited portal.
    SWQ_UNLIMITED_RETRY = 0, 0x08;
    /// Dedicated queue: accepted.
    DWQ_ACCEPTED = 0, 0x10;
    /// Dedicated queue: full, descriptor lost.
    DWQ_FULL = 0, 0x20;
    /// Input processed, in units of 32 bytes.
    INPUT_32B = 1, 0x01;
    /// Data written, in units of 32 bytes.
    OUTPUT_32B = 1, 0x02;
    /// Descriptors that read source 1.
    READS_SOURCE_1 = 1, 0x04;
    /// Descriptors that write destination 1.
    WRITES_DESTINATION_1 = 1, 0x08;
    /// Descriptors from batches.
    FROM_BATCH = 1, 0x10;
    /// Descriptors from queues.
    FROM_WQ = 1, 0x20;
    /// Translations with PASID that succeeded.
    TRANSLATED = 2, 0x01;
    /// Translations with PASID that faulted.
    TRANSLATION_FAULT = 2, 0x02;
    /// Page requests that succeeded.
    PAGE_REQUEST_OK = 2, 0x10;
    /// Page requests that were refused.
    PAGE_REQUEST_INVALID = 2, 0x20;
    /// Completion interrupts by MSI-X.
    MSIX = 4, 0x01;
    /// Completion interrupts by IMS.
    IMS = 4, 0x02;
    /// Partial completions.
    PARTIAL = 4, 0x04;
    /// Completions with an error.
    ERROR = 4, 0x08;
    /// Successful completions.
    SUCCESS = 4, 0x10;
    /// Completion records written.
    RECORD_WRITTEN = 4, 0x20;
}

impl Event {
    /// Returns the category-3 event of an operation's dispatch, if there is one (1.x).
    #[must_use]
    pub const fn of_operation(opcode: crate::Opcode) -> Option<Event> {
        use crate::Opcode as O;
        let bit = match opcode {
            O::Nop => 0x1,
            O::Batch => 0x2,
            O::Drain => 0x4,
            O::MemoryMove => 0x8,
            O::Fill => 0x10,
            O::Compare => 0x20,
            O::ComparePattern => 0x40,
            O::CreateDelta => 0x80,
            O::ApplyDelta => 0x100,
            O::Dualcast => 0x200,
            O::CrcGeneration => 0x400,
            O::CopyCrc => 0x800,
            O::DifCheck => 0x1000,
            O::DifInsert => 0x2000,
            O::DifStrip => 0x4000,
            O::DifUpdate => 0x8000,
            O::CacheFlush => 0x1_0000,
            _ => return None,
        };
        Some(Event { category: 3, bit })
    }
}
