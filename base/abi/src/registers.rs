//! Capability, configuration and command registers of BAR0, and the portal addresses in BAR2. Source: SPEC ch. 9; K612
//! `registers.h`.
//!
//! Offsets are bytes from BAR0. 32-bit registers are kept in the low half of one 64-bit word.

use crate::{Opcode, WindowFlags};

/// Byte offsets of the fixed registers. Source: SPEC Figure 9-1.
pub mod offset {
    /// VERSION, 4 bytes.
    pub const VERSION: u64 = 0x00;
    /// GENCAP, 8 bytes.
    pub const GENCAP: u64 = 0x10;
    /// WQCAP, 8 bytes.
    pub const WQCAP: u64 = 0x20;
    /// GRPCAP, 8 bytes.
    pub const GRPCAP: u64 = 0x30;
    /// ENGCAP, 8 bytes.
    pub const ENGCAP: u64 = 0x38;
    /// OPCAP, 32 bytes.
    pub const OPCAP: u64 = 0x40;
    /// OFFSETS, 16 bytes.
    pub const OFFSETS: u64 = 0x60;
    /// GENCFG, 4 bytes.
    pub const GENCFG: u64 = 0x80;
    /// GENCTRL, 4 bytes.
    pub const GENCTRL: u64 = 0x88;
    /// GENSTS, 4 bytes.
    pub const GENSTS: u64 = 0x90;
    /// INTCAUSE, 4 bytes.
    pub const INTCAUSE: u64 = 0x98;
    /// CMD, 4 bytes.
    pub const CMD: u64 = 0xa0;
    /// CMDSTATUS, 4 bytes.
    pub const CMDSTATUS: u64 = 0xa8;
    /// CMDCAP, 8 bytes.
    pub const CMDCAP: u64 = 0xb0;
    /// SWERROR, 32 bytes.
    pub const SWERROR: u64 = 0xc0;
    /// EVLCFG, 16 bytes.
    pub const EVLCFG: u64 = 0xe0;
    /// EVLSTATUS, 8 bytes.
    pub const EVLSTATUS: u64 = 0xf0;
    /// IDCAP, 8 bytes.
    pub const IDCAP: u64 = 0x100;
    /// IDBR, 4 bytes.
    pub const IDBR: u64 = 0x108;
    /// DSACAP0, 8 bytes (3.0).
    pub const DSACAP0: u64 = 0x180;
    /// DSACAP1, 8 bytes (3.0).
    pub const DSACAP1: u64 = 0x188;
    /// DSACAP2, 8 bytes (3.0).
    pub const DSACAP2: u64 = 0x190;
    /// CMDPARAM, 8 bytes.
    pub const CMDPARAM: u64 = 0xe000;
    /// The dummy portal page, 4 KiB.
    pub const DUMMY_PORTAL: u64 = 0xf000;
}

/// VERSION of a 1.x device.
pub const VERSION_1: u32 = 0x100;
/// VERSION of a 2.x device.
pub const VERSION_2: u32 = 0x200;
/// VERSION of a 3.0 device.
pub const VERSION_3: u32 = 0x300;

register! {
    /// General capabilities (GENCAP, 0x10). Source: SPEC §9.2.2.
    GenCap [1] {
        /// Block On Fault is supported.
        block_on_fault / with_block_on_fault: bool [0..0];
        /// Memory Move may overlap.
        overlapping_copy / with_overlapping_copy: bool [1..1];
        /// Cache control for memory writes.
        cache_control / with_cache_control: bool [2..2];
        /// 1.x early firmware: cache control for Cache Flush.
        cache_control_flush / with_cache_control_flush: bool [3..3];
        /// CMDCAP is present.
        command_capability / with_command_capability: bool [4..4];
        /// Durable writes.
        durable_write / with_durable_write: bool [5..5];
        /// Inter-domain operations.
        inter_domain / with_inter_domain: bool [6..6];
        /// Translation Fetch has a stride.
        translation_fetch_stride / with_translation_fetch_stride: bool [7..7];
        /// Destination readback.
        destination_readback / with_destination_readback: bool [8..8];
        /// Drain with explicit readback addresses.
        drain_readback / with_drain_readback: bool [9..9];
        /// 16-byte fill patterns.
        fill_16 / with_fill_16: bool [10..10];
        /// 64-bit CRC.
        crc64 / with_crc64: bool [11..11];
        /// Fault info in completion records.
        fault_info / with_fault_info: bool [12..12];
        /// Event log entry size: 0 none, 1, 2, 3 = 64, 128, 256 bytes.
        event_log_size_code / with_event_log_size_code: u8 [13..14];
        /// Batch continuation: result byte and batch-error flag.
        batch_continuation / with_batch_continuation: bool [15..15];
        /// Largest transfer is 2 to this many bytes.
        max_transfer_shift / with_max_transfer_shift: u8 [16..20];
        /// Largest batch is 2 to this many descriptors.
        max_batch_shift / with_max_batch_shift: u8 [21..24];
        /// Interrupt message storage entries, in units of 256.
        ims_size / with_ims_size: u8 [25..30];
        /// The tables can be configured.
        configurable / with_configurable: bool [31..31];
        /// A full event log drops (and reports) instead of blocking.
        event_log_overflow / with_event_log_overflow: bool [32..32];
        /// A batch may have one member.
        batch_1 / with_batch_1: bool [52..52];
        /// Strict ordering is not offered for memory destinations.
        no_strict_memory / with_no_strict_memory: bool [53..53];
        /// Strict ordering is not offered for peer destinations.
        no_strict_peer / with_no_strict_peer: bool [54..54];
    }
}

register! {
    /// Work queue capabilities (WQCAP, 0x20).
    WqCap [1] {
        /// Entries of all queues together.
        total_entries / with_total_entries: u16 [0..15];
        /// Number of queues.
        queues / with_queues: u8 [16..23];
        /// A WQCFG entry has 2 to this plus 5 bytes.
        wqcfg_size_shift / with_wqcfg_size_shift: u8 [24..27];
        /// Shared mode is supported.
        shared_mode / with_shared_mode: bool [48..48];
        /// Dedicated mode is supported.
        dedicated_mode / with_dedicated_mode: bool [49..49];
        /// ATS can be disabled per queue.
        ats_disable / with_ats_disable: bool [50..50];
        /// Priorities are supported.
        priority / with_priority: bool [51..51];
        /// Occupancy can be read.
        occupancy / with_occupancy: bool [52..52];
        /// Occupancy interrupts are supported.
        occupancy_interrupt / with_occupancy_interrupt: bool [53..53];
        /// Each queue has its own list of allowed operations.
        op_config / with_op_config: bool [54..54];
        /// PRS can be disabled per queue.
        prs_disable / with_prs_disable: bool [55..55];
    }
}

register! {
    /// Group capabilities (GRPCAP, 0x30).
    GrpCap [1] {
        /// Number of groups.
        groups / with_groups: u8 [0..7];
        /// Read buffers of the device.
        read_buffers / with_read_buffers: u8 [8..15];
        /// Read buffers can be assigned to groups.
        read_buffer_controls / with_read_buffer_controls: bool [16..16];
        /// A global read buffer limit exists.
        global_read_buffer_limit / with_global_read_buffer_limit: bool [17..17];
        /// In-progress limits exist per group.
        progress_limits / with_progress_limits: bool [18..18];
        /// Bandwidth limits exist per group.
        bandwidth_limits / with_bandwidth_limits: bool [19..19];
    }
}

register! {
    /// Engine capabilities (ENGCAP, 0x38).
    EngCap [1] {
        /// Number of engines.
        engines / with_engines: u8 [0..7];
        /// Work descriptors in progress per engine.
        work_descriptors / with_work_descriptors: u8 [8..15];
        /// Batch descriptors in progress per engine.
        batch_descriptors / with_batch_descriptors: u8 [16..23];
    }
}

/// Operations of a device (OPCAP, 0x40) or allowed on a queue (OPCFG): bit N is opcode N.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct OpCap(/** The 256 bits, low word first. */ pub [u64; 4]);

impl OpCap {
    /// Returns true if `opcode` is in the set.
    #[must_use]
    #[inline]
    pub const fn contains(&self, opcode: Opcode) -> bool {
        let code = opcode.code();
        self.0[(code >> 6) as usize] >> (code & 63) & 1 == 1
    }

    /// Returns true if every member of `self` is in `other`.
    #[must_use]
    pub fn is_subset_of(&self, other: &OpCap) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    /// Returns the set with `opcode` added or removed.
    #[must_use]
    pub const fn with(mut self, opcode: Opcode, present: bool) -> Self {
        let code = opcode.code();
        let bit = 1 << (code & 63);
        let word = &mut self.0[(code >> 6) as usize];
        *word = if present { *word | bit } else { *word & !bit };
        self
    }
}

register! {
    /// Offsets of the tables (OFFSETS, 0x60), each in units of 0x100 bytes.
    Offsets [2] {
        /// Group configuration table.
        grpcfg / with_grpcfg: u16 [0..15];
        /// Queue configuration table.
        wqcfg / with_wqcfg: u16 [16..31];
        /// MSI-X permission table.
        msix_perm / with_msix_perm: u16 [32..47];
        /// Interrupt message storage.
        ims / with_ims: u16 [48..63];
        /// Performance monitoring block.
        perfmon / with_perfmon: u16 [64..79];
        /// Inter-domain permission table.
        idpt / with_idpt: u16 [80..95];
    }
}

register! {
    /// General configuration (GENCFG, 0x80); writable while the device is disabled.
    GenCfg [1] {
        /// Read buffers shared by groups that use the global limit.
        global_read_buffer_limit / with_global_read_buffer_limit: u8 [0..7];
        /// User mode may request completion interrupts.
        user_interrupts / with_user_interrupts: bool [12..12];
        /// The event log is enabled.
        event_log / with_event_log: bool [13..13];
    }
}

register! {
    /// General control (GENCTRL, 0x88).
    GenCtrl [1] {
        /// Interrupt when SWERROR latches.
        sw_error_interrupt / with_sw_error_interrupt: bool [0..0];
        /// Interrupt on halt.
        halt_interrupt / with_halt_interrupt: bool [1..1];
        /// Interrupt on a new event log entry.
        event_log_interrupt / with_event_log_interrupt: bool [2..2];
    }
}

register! {
    /// General status (GENSTS, 0x90).
    GenSts [1] {
        /// A [`DeviceState`] code.
        state_code / with_state_code: u8 [0..1];
        /// Weakest sufficient reset: 0 Reset Device, 1 function-level, 2 warm, 3 cold.
        reset_code / with_reset_code: u8 [2..3];
    }
}

/// State of the device (`GENSTS[1:0]`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DeviceState {
    /// Takes no descriptors; can be configured.
    Disabled = 0,
    /// Takes descriptors.
    Enabled = 1,
    /// Being disabled or reset: completes the descriptors it has.
    Draining = 2,
    /// Stopped by an error.
    Halted = 3,
}

impl DeviceState {
    /// Decodes two bits; higher bits are ignored.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => DeviceState::Disabled,
            1 => DeviceState::Enabled,
            2 => DeviceState::Draining,
            _ => DeviceState::Halted,
        }
    }
}

bitflags::bitflags! {
    /// Causes of the device's own interrupt (INTCAUSE, 0x98); write 1 to clear.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct IntCause: u32 {
        /// SWERROR latched.
        const SW_ERROR = 1 << 0;
        /// A command finished.
        const COMMAND = 1 << 1;
        /// A queue's occupancy fell to its limit.
        const OCCUPANCY = 1 << 2;
        /// A performance counter overflowed.
        const PERFMON = 1 << 3;
        /// The device halted.
        const HALT = 1 << 4;
        /// An event log entry was written.
        const EVENT_LOG = 1 << 5;
        /// Interrupt handles were revoked.
        const HANDLES_REVOKED = 1 << 31;
        const _ = u32::MAX;
    }
}

register! {
    /// A command as written to CMD (0xA0).
    Command [1] {
        /// Operand; its meaning depends on the code.
        operand / with_operand: u32 [0..19];
        /// A [`CommandCode`].
        code / with_code: u8 [20..24];
        /// Reserved, zero.
        reserved / with_reserved: u8 [25..30];
        /// Interrupt when done.
        interrupt / with_interrupt: bool [31..31];
    }
}

impl Command {
    /// Creates a command without interrupt.
    #[must_use]
    pub fn new(code: CommandCode, operand: u32) -> Self {
        Command::default().with_code(code.code()).with_operand(operand)
    }
}

register! {
    /// Result of the last command (CMDSTATUS, 0xA8).
    CmdStatus [1] {
        /// A [`CommandError`] code.
        error_code / with_error_code: u8 [0..7];
        /// Result, for example an interrupt handle.
        result / with_result: u16 [8..23];
        /// A command is in progress.
        active / with_active: bool [31..31];
    }
}

use crate::status::codes;

codes! {
    /// Command codes (`CMD[24:20]`). Source: SPEC §9.2.11.
    CommandCode {
        /// Enable the device.
        EnableDevice = 1, "enable device";
        /// Disable the device.
        DisableDevice = 2, "disable device";
        /// Wait for all descriptors submitted before.
        DrainAll = 3, "drain all";
        /// Drain, but abandon descriptors where possible.
        AbortAll = 4, "abort all";
        /// Abort, disable, clear the configuration.
        ResetDevice = 5, "reset device";
        /// Enable one queue.
        EnableWq = 6, "enable WQ";
        /// Disable queues of a bank of 16.
        DisableWq = 7, "disable WQ";
        /// Drain queues of a bank of 16.
        DrainWq = 8, "drain WQ";
        /// Abort queues of a bank of 16.
        AbortWq = 9, "abort WQ";
        /// Reset queues of a bank of 16.
        ResetWq = 10, "reset WQ";
        /// Drain one PASID.
        DrainPasid = 11, "drain PASID";
        /// Abort one PASID.
        AbortPasid = 12, "abort PASID";
        /// Request an interrupt handle.
        RequestInterruptHandle = 13, "request interrupt handle";
        /// Release an interrupt handle.
        ReleaseInterruptHandle = 14, "release interrupt handle";
        /// Request an inter-domain handle.
        RequestIdptHandle = 15, "request IDPT handle";
        /// Release an inter-domain handle.
        ReleaseIdptHandle = 16, "release IDPT handle";
        /// Invalidate the submitter bitmap cache.
        InvalidateBitmapCache = 17, "invalidate submitter bitmap cache";
    }
}

codes! {
    /// Error codes of commands (`CMDSTATUS[7:0]`). Source: SPEC §9.2.12.
    CommandError {
        /// No error.
        None = 0x00, "ok";
        /// Unknown command.
        UnknownCommand = 0x01, "unknown command";
        /// Queue index out of range.
        WqIndex = 0x02, "WQ index out of range";
        /// Hardware error.
        Hardware = 0x03, "hardware error";
        /// A reserved field is not zero.
        NonZeroReserved = 0x04, "a reserved field is not zero";
        /// The device is halted.
        Halted = 0x05, "the device is halted";
        /// The device is not disabled.
        DeviceNotDisabled = 0x10, "the device is not disabled";
        /// Unspecified configuration error.
        Configuration = 0x11, "unspecified configuration error";
        /// Bus mastering is off.
        BusMaster = 0x12, "PCI bus mastering is off";
        /// Page request allocation is zero or too large.
        PageRequestAllocation = 0x13, "page request allocation is zero or too large";
        /// Queue sizes exceed the total.
        WqSizes = 0x14, "the queues' sizes exceed the device's entries";
        /// A group has only queues or only engines.
        GroupMembers = 0x15, "a group has queues but no engine, or engines but no queue";
        /// Queue grouping is wrong.
        WqGrouping = 0x16, "a queue is in two groups, or has a size and no group, or a group and no size";
        /// Engine grouping is wrong.
        EngineGrouping = 0x17, "an engine is in two groups or does not exist";
        /// Read buffer or bandwidth limits are wrong.
        ReadBuffers = 0x18, "read buffer or bandwidth limits are inconsistent";
        /// Event log configuration is wrong.
        EventLog = 0x19, "event log configuration";
        /// ATS does not meet the platform's requirement.
        Ats = 0x1a, "address translation service configuration";
        /// PASID or privilege of the event log or bitmap is wrong.
        ConfigPasid = 0x1b, "PASID or privilege of the event log";
        /// The device is not enabled.
        DeviceNotEnabled = 0x20, "the device is not enabled";
        /// The queue is not disabled.
        WqNotDisabled = 0x21, "the WQ is not disabled";
        /// The queue's size is zero.
        WqSizeZero = 0x22, "the WQ's size is zero";
        /// The queue's priority is zero.
        WqPriorityZero = 0x23, "the WQ's priority is zero";
        /// The queue's mode is not supported.
        WqMode = 0x24, "the WQ's mode is not supported";
        /// Block on fault is not possible.
        WqBlockOnFault = 0x25, "block on fault is not possible";
        /// PASID enable is wrong for the mode.
        WqPasid = 0x26, "PASID enable is wrong for the WQ's mode";
        /// Maximum batch size is wrong.
        WqMaxBatch = 0x27, "the WQ's maximum batch size";
        /// Maximum transfer size is wrong.
        WqMaxTransfer = 0x28, "the WQ's maximum transfer size";
        /// Privileged mode is not possible.
        WqPrivilege = 0x2a, "privileged dedicated WQ without privileged mode";
        /// Occupancy interrupt table or handle is wrong.
        WqOccupancyInterrupt = 0x2b, "the WQ's occupancy interrupt";
        /// ATS cannot be disabled.
        WqAtsDisable = 0x2c, "address translation cannot be disabled for a WQ";
        /// Operations exceed the device's.
        WqOpConfig = 0x2d, "the WQ's operations are not a subset of the device's";
        /// PRS cannot be disabled.
        WqPrsDisable = 0x2e, "page requests cannot be disabled for this WQ";
        /// Disable: the device is not enabled.
        DisableNotEnabled = 0x31, "the device is not enabled";
        /// A listed queue is not enabled.
        WqNotEnabled = 0x32, "a listed WQ is not enabled";
        /// Interrupt table index out of range.
        InterruptIndex = 0x41, "interrupt table index out of range";
        /// No interrupt handle left.
        NoInterruptHandle = 0x42, "no interrupt handle left";
        /// Inter-domain index out of range.
        IdptIndex = 0x51, "IDPT index out of range";
        /// No inter-domain handle left.
        NoIdptHandle = 0x52, "no IDPT handle left";
    }
}

register! {
    /// Event log configuration (EVLCFG, 0xE0).
    EvlCfg [2] {
        /// The log is addressed with a PASID.
        pasid_enable / with_pasid_enable: bool [0..0];
        /// The log is written with supervisor privilege.
        privileged / with_privileged: bool [1..1];
        /// Base address bits 63:12.
        base_page / with_base_page: u64 [12..63];
        /// Entries, at least 64.
        entries / with_entries: u16 [64..79];
        /// PASID of the log.
        pasid / with_pasid: u32 [80..99];
    }
}

register! {
    /// Event log status (EVLSTATUS, 0xF0).
    EvlStatus [1] {
        /// The next entry that software will read.
        head / with_head: u16 [0..15];
        /// The next entry that the device will write.
        tail / with_tail: u16 [32..47];
        /// An interrupt is pending (write 1 to clear).
        interrupt_pending / with_interrupt_pending: bool [62..62];
    }
}

register! {
    /// One group's configuration (GRPCFG, stride 64 bytes).
    GrpCfg [8] {
        /// Queues 0–63 of the group, one bit each.
        wqs / with_wqs: u64 [0..63];
        /// Engines of the group, one bit each (byte 32).
        engines / with_engines: u64 [256..319];
        /// Traffic class A (byte 40).
        tc_a / with_tc_a: u8 [320..322];
        /// Traffic class B.
        tc_b / with_tc_b: u8 [323..325];
        /// The group uses the global read buffer limit.
        use_global_limit / with_use_global_limit: bool [327..327];
        /// Read buffers reserved.
        read_buffers_reserved / with_read_buffers_reserved: u8 [328..335];
        /// Read buffers allowed.
        read_buffers_allowed / with_read_buffers_allowed: u8 [340..347];
        /// Work descriptors in progress: 0 all, 1 half, 2 quarter, 3 eighth.
        work_limit_code / with_work_limit_code: u8 [352..353];
        /// Batch descriptors in progress: 0 all, 1 half, 2 quarter, 3 eighth.
        batch_limit_code / with_batch_limit_code: u8 [356..357];
        /// Read bandwidth: 0 all, 1 half, 2 quarter, 3 eighth.
        read_bandwidth_code / with_read_bandwidth_code: u8 [360..363];
        /// Write bandwidth: 0 all, 1 half, 2 quarter, 3 eighth.
        write_bandwidth_code / with_write_bandwidth_code: u8 [364..367];
    }
}

register! {
    /// One queue's configuration (WQCFG): the first 32 bytes are fields, the next 32 the allowed operations.
    WqCfg [8] {
        /// Entries; writable while the device is disabled.
        size / with_size: u16 [0..15];
        /// Shared queues: the most entries that the limited portal may fill; always writable.
        threshold / with_threshold: u16 [32..47];
        /// True for a dedicated queue.
        dedicated / with_dedicated: bool [64..64];
        /// Descriptors may request block on fault.
        block_on_fault / with_block_on_fault: bool [65..65];
        /// 1 disables the address translation service.
        ats_disable / with_ats_disable: bool [66..66];
        /// 1 disables page requests.
        prs_disable / with_prs_disable: bool [67..67];
        /// Priority 1–15.
        priority / with_priority: u8 [68..71];
        /// PASID of a dedicated queue.
        pasid / with_pasid: u32 [72..91];
        /// PASIDs are enabled; must be 1 for a shared queue.
        pasid_enable / with_pasid_enable: bool [92..92];
        /// A dedicated queue submits with supervisor privilege.
        privileged / with_privileged: bool [93..93];
        /// Largest transfer is 2 to this many bytes.
        max_transfer_shift / with_max_transfer_shift: u8 [96..100];
        /// Largest batch is 2 to this many descriptors.
        max_batch_shift / with_max_batch_shift: u8 [101..104];
        /// Largest scatter-gather list is 2 to this (3.0).
        max_sgl_shift / with_max_sgl_shift: u8 [105..108];
        /// Occupancy interrupt handle.
        occupancy_handle / with_occupancy_handle: u16 [128..143];
        /// Occupancy interrupt table: 0 MSI-X, 1 IMS.
        occupancy_table / with_occupancy_table: bool [144..144];
        /// Occupancy at which the interrupt is raised.
        occupancy_limit / with_occupancy_limit: u16 [160..175];
        /// The occupancy interrupt is enabled.
        occupancy_interrupt / with_occupancy_interrupt: bool [176..176];
        /// Waiting descriptors; read only.
        occupancy / with_occupancy: u16 [192..207];
        /// An occupancy interrupt was generated (write 1 to clear).
        occupancy_interrupt_done / with_occupancy_interrupt_done: bool [208..208];
        /// Fixed configuration: the mode can still be selected.
        mode_support / with_mode_support: bool [221..221];
        /// A [`WqState`] code; read only.
        state_code / with_state_code: u8 [222..223];
    }
}

impl WqCfg {
    /// Returns bytes 32–63: the allowed operations.
    #[must_use]
    pub fn op_config(&self) -> OpCap {
        OpCap([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    /// Replaces the allowed operations.
    #[must_use]
    pub fn with_op_config(mut self, ops: OpCap) -> Self {
        self.0[4..].copy_from_slice(&ops.0);
        self
    }
}

/// State of a queue (WQCFG byte 27, bits 7:6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WqState {
    /// Takes no descriptors.
    Disabled = 0,
    /// Takes descriptors.
    Enabled = 1,
    /// Takes no descriptors and completes those it has.
    Draining = 2,
    /// Not a valid state; kept as read.
    Reserved = 3,
}

impl WqState {
    /// Decodes two bits; higher bits are ignored.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => WqState::Disabled,
            1 => WqState::Enabled,
            2 => WqState::Draining,
            _ => WqState::Reserved,
        }
    }
}

register! {
    /// One entry of the MSI-X permission table (stride 8 bytes).
    MsixPerm [1] {
        /// Drop interrupts to this entry.
        ignore / with_ignore: bool [2..2];
        /// The PASID must match.
        pasid_enable / with_pasid_enable: bool [3..3];
        /// PASID whose interrupts are allowed.
        pasid / with_pasid: u32 [12..31];
    }
}

register! {
    /// One 16-byte entry of the interrupt message storage.
    ImsEntry [2] {
        /// Message address; upper 44 bits must be 0x00000000FEE.
        address / with_address: u64 [0..63];
        /// Message data.
        data / with_data: u32 [64..95];
        /// Mask: hold interrupts back and set Pending.
        mask / with_mask: bool [96..96];
        /// An interrupt was held back.
        pending / with_pending: bool [97..97];
        /// Drop interrupts.
        ignore / with_ignore: bool [98..98];
        /// The PASID must match.
        pasid_enable / with_pasid_enable: bool [99..99];
        /// PASID whose interrupts are allowed.
        pasid / with_pasid: u32 [108..127];
    }
}

register! {
    /// Inter-domain capabilities (IDCAP, 0x100); zero without `GENCAP[6]`. Source: SPEC §9.2.18.
    IdCap [1] {
        /// Entries for a single submitter.
        single_submitter / with_single_submitter: bool [0..0];
        /// Entries for the submitters of a bitmap.
        submitter_bitmap / with_submitter_bitmap: bool [1..1];
        /// Entries of the inter-domain permissions table.
        entries / with_entries: u16 [8..23];
        /// Windows can be addressed by offset.
        offset_mode / with_offset_mode: bool [24..24];
        /// Update Window can complete without a drain.
        suppress_drain / with_suppress_drain: bool [25..25];
        /// An entry has 2 to this plus 5 bytes; the first 32 are defined.
        entry_size_shift / with_entry_size_shift: u8 [26..27];
    }
}

register! {
    /// Identity of the device's reads of submitter bitmaps (IDBR, 0x108); writable while the device is disabled.
    IdBr [1] {
        /// The bitmaps are addressed with a PASID.
        pasid_enable / with_pasid_enable: bool [0..0];
        /// The bitmaps are read with supervisor privilege.
        privileged / with_privileged: bool [1..1];
        /// Traffic class of the reads.
        traffic_class / with_traffic_class: u8 [2..4];
        /// PASID of the bitmaps.
        pasid / with_pasid: u32 [8..27];
    }
}

register! {
    /// One entry of the inter-domain permissions table (IDPT). Source: SPEC §9.2.29.
    IdptEntry [4] {
        /// The entry can be used.
        usable / with_usable: bool [0..0];
        /// Update Window may change the window.
        allow_update / with_allow_update: bool [1..1];
        /// An [`IdptType`] code.
        type_code / with_type_code: u8 [2..3];
        /// The PASID that may use an entry for a single submitter.
        submitter_pasid / with_submitter_pasid: u32 [12..31];
        /// Submitters may read.
        read / with_read: bool [32..32];
        /// Submitters may write.
        write / with_write: bool [33..33];
        /// Accesses have the descriptor's privilege; 0 forces user privilege.
        access_privilege / with_access_privilege: bool [34..34];
        /// Base and size limit the accesses.
        window_enable / with_window_enable: bool [35..35];
        /// Operands are offsets into the window.
        offset_mode / with_offset_mode: bool [36..36];
        /// The PASID whose memory the entry gives access to.
        access_pasid / with_access_pasid: u32 [44..63];
        /// First byte of the window (byte 8).
        window_base / with_window_base: u64 [64..127];
        /// Bytes of the window (byte 16).
        window_size / with_window_size: u64 [128..191];
        /// Address bits 63:12 of the submitter bitmap (byte 24).
        bitmap_page / with_bitmap_page: u64 [204..255];
    }
}

impl IdptEntry {
    /// Returns permissions, enable and mode as Update Window writes them.
    #[must_use]
    pub fn window_flags(&self) -> WindowFlags {
        let flags = [
            (WindowFlags::READ, self.read()),
            (WindowFlags::WRITE, self.write()),
            (WindowFlags::ENABLE, self.window_enable()),
            (WindowFlags::OFFSET_MODE, self.offset_mode()),
        ];
        flags.into_iter().filter(|(_, set)| *set).map(|(flag, _)| flag).collect()
    }

    /// Replaces permissions, enable and mode.
    #[must_use]
    pub fn with_window_flags(self, flags: WindowFlags) -> Self {
        self.with_read(flags.contains(WindowFlags::READ))
            .with_write(flags.contains(WindowFlags::WRITE))
            .with_window_enable(flags.contains(WindowFlags::ENABLE))
            .with_offset_mode(flags.contains(WindowFlags::OFFSET_MODE))
    }
}

/// The submitters that may use an IDPT entry (byte 0, bits 3:2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum IdptType {
    /// One submitter: the entry names its PASID (SASS).
    SingleSubmitter = 0,
    /// The submitters of a bitmap in memory (SAMS).
    SubmitterBitmap = 1,
    /// Reserved; kept as read.
    Reserved2 = 2,
    /// Reserved; kept as read.
    Reserved3 = 3,
}

impl IdptType {
    /// Decodes two bits; higher bits are ignored.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => IdptType::SingleSubmitter,
            1 => IdptType::SubmitterBitmap,
            2 => IdptType::Reserved2,
            _ => IdptType::Reserved3,
        }
    }
}

/// Bytes of a submitter bitmap: one bit for each of 2^20 PASIDs. Source: SPEC §9.2.29.
pub const SUBMITTER_BITMAP_BYTES: u64 = 1 << 17;

register! {
    /// Scatter-gather capabilities of 3.0 (DSACAP0, 0x180). Source: SPEC §9.2.30.
    DsaCap0 [1] {
        /// Largest scatter-gather list is 2 to this many entries.
        max_sgl_shift / with_max_sgl_shift: u8 [0..3];
        /// Largest block of Gather Reduce is 2 to this many bytes.
        max_gather_block_shift / with_max_gather_block_shift: u8 [4..7];
        /// Type Conversion can use other address spaces.
        id_type_conversion / with_id_type_conversion: bool [8..8];
        /// Reduce can use other address spaces.
        id_reduce / with_id_reduce: bool [9..9];
        /// Reduce with Dualcast can use other address spaces.
        id_reduce_dualcast / with_id_reduce_dualcast: bool [10..10];
        /// Gather Copy can use other address spaces.
        id_gather_copy / with_id_gather_copy: bool [12..12];
        /// Scatter Copy can use other address spaces.
        id_scatter_copy / with_id_scatter_copy: bool [13..13];
        /// Scatter Fill can use other address spaces.
        id_scatter_fill / with_id_scatter_fill: bool [14..14];
        /// Bit N: list format N is supported.
        sgl_formats / with_sgl_formats: u16 [32..47];
        /// Scatter-gather descriptors in progress per engine.
        sgl_descriptors / with_sgl_descriptors: u8 [48..55];
    }
}

register! {
    /// Types and operations of 3.0 (DSACAP1, 0x188). Source: SPEC §9.2.31.
    DsaCap1 [1] {
        /// Bit N: data type N is supported.
        data_types / with_data_types: u16 [0..15];
        /// Floating-point conversions to a wider type, one bit for each pair.
        up_conversions / with_up_conversions: u16 [16..31];
        /// Floating-point conversions to a narrower type, one bit for each pair.
        down_conversions / with_down_conversions: u16 [32..47];
        /// Bit N: compute type N is supported.
        compute_types / with_compute_types: u16 [48..63];
    }
}

register! {
    /// Compute flags of 3.0 (DSACAP2, 0x190). Source: SPEC §9.2.32.
    DsaCap2 [1] {
        /// Operands can be negated.
        negate / with_negate: bool [0..0];
        /// Results below the normal range can become zero.
        flush_to_zero / with_flush_to_zero: bool [2..2];
        /// Operands below the normal range can count as zero.
        denormals_are_zero / with_denormals_are_zero: bool [3..3];
        /// Integers can be signed.
        signed / with_signed: bool [7..7];
        /// Integer results can saturate.
        saturate / with_saturate: bool [8..8];
        /// Bit N: rounding mode N is supported: to nearest even, down, up, toward zero.
        roundings / with_roundings: u8 [12..15];
    }
}

/// Bytes of BAR2 that belong to one queue: four portal pages. Source: SPEC §9.3.
pub const PORTAL_STRIDE: u64 = 0x4000;
/// Bytes of one portal page.
pub const PORTAL_PAGE: u64 = 0x1000;

/// The kind of a queue's four portal pages. Source: K612 `idxd.h` for the first two; the order of the IMS pair is
/// inferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PortalKind {
    /// Whole queue, interrupts by MSI-X.
    UnlimitedMsix = 0,
    /// Up to the threshold, interrupts by MSI-X: the page that Linux maps for users.
    LimitedMsix = 1,
    /// Whole queue, interrupts by IMS.
    UnlimitedIms = 2,
    /// Up to the threshold, interrupts by IMS.
    LimitedIms = 3,
}

impl PortalKind {
    /// Decodes address bits 13:12; higher bits are ignored.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => PortalKind::UnlimitedMsix,
            1 => PortalKind::LimitedMsix,
            2 => PortalKind::UnlimitedIms,
            _ => PortalKind::LimitedIms,
        }
    }

    /// Returns true if the threshold limits shared submissions.
    #[must_use]
    pub const fn is_limited(self) -> bool {
        matches!(self, PortalKind::LimitedMsix | PortalKind::LimitedIms)
    }

    /// Returns true if completion interrupts go to the interrupt message storage.
    #[must_use]
    pub const fn is_ims(self) -> bool {
        matches!(self, PortalKind::UnlimitedIms | PortalKind::LimitedIms)
    }
}
