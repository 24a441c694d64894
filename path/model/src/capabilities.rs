//! The device's capabilities as data: the read-only registers, and the properties of its PCI function that affect
//! legality.

use telpher_abi::Opcode;
use telpher_abi::registers::{
    DsaCap0, DsaCap1, DsaCap2, EngCap, GenCap, GrpCap, IdCap, OpCap, VERSION_1, VERSION_2, VERSION_3, WqCap,
};

/// Most queues a modelled device may have. Source: assumed; silicon has 8.
pub const MAX_WQS: usize = 16;
/// Most groups a modelled device may have. Source: assumed; silicon has 4.
pub const MAX_GROUPS: usize = 16;
/// Most engines a modelled device may have. Source: assumed; silicon has 4.
pub const MAX_ENGINES: usize = 16;
/// Most queue entries a modelled device may have. Source: assumed; silicon has 128.
pub const MAX_ENTRIES: usize = 256;

/// Most entries of the inter-domain permissions table that a modelled device may have. Source: chosen; Intel's
/// dsa-perf-micros creates 256 windows in one of its cases.
pub const MAX_WINDOWS: usize = 256;

/// All capabilities that a device announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// VERSION: 0x100 for 1.x, 0x200 for 2.x.
    pub version: u32,
    /// GENCAP.
    pub gen_cap: GenCap,
    /// WQCAP.
    pub wq_cap: WqCap,
    /// GRPCAP.
    pub grp_cap: GrpCap,
    /// ENGCAP.
    pub eng_cap: EngCap,
    /// OPCAP.
    pub op_cap: OpCap,
    /// CMDCAP, used if GENCAP announces it: bit N is command N.
    pub cmd_cap: u64,
    /// IDCAP; zero without `GENCAP[6]`.
    pub id_cap: IdCap,
    /// DSACAP0; zero before 3.0.
    pub dsa_cap_0: DsaCap0,
    /// DSACAP1; zero before 3.0.
    pub dsa_cap_1: DsaCap1,
    /// DSACAP2; zero before 3.0.
    pub dsa_cap_2: DsaCap2,
    /// Page requests that the function can have in flight (PRSREQCAP); 0 without a page request service.
    pub page_request_capacity: u32,
    /// Entries of the MSI-X table; entry 0 belongs to the device itself.
    pub msix_entries: u16,
    /// The number of performance counters.
    pub counters: u8,
    /// Traffic classes mapped to an enabled virtual channel, one bit each.
    pub traffic_classes: u8,
    /// Descriptors it accepts beyond the specification's text.
    pub tolerances: Tolerances,
}

/// Descriptors that a device accepts although the specification's text refuses them. No register shows these. Intel's
/// tests of hardware expect them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Tolerances {
    /// Apply Delta Record: an entry may have the offset of the entry before it. The text requires status 0x07.
    pub equal_delta_offsets: bool,
    /// Create Delta Record: bits 7:3 of the expected-result mask are ignored. The text requires status 0x12 if they are
    /// not zero.
    pub result_mask_bits: bool,
}

impl Tolerances {
    /// Strictly the specification's text.
    pub const NONE: Tolerances = Tolerances { equal_delta_offsets: false, result_mask_bits: false };
    /// The tolerances that Intel's tests of hardware expect of Sapphire Rapids. Source: Intel DML's tests on the
    /// hardware path. For the mask: `ta_equal_vectors_bad_check_result` in `tests/job_api_tests/ta_create_delta.cpp`,
    /// which expects 0x02.
    pub const SAPPHIRE_RAPIDS: Tolerances = Tolerances { equal_delta_offsets: true, result_mask_bits: true };
}

/// Named capability sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Preset {
    /// Sapphire Rapids, first firmware: with delta operations.
    #[default]
    Spr,
    /// Sapphire Rapids, current firmware: no delta operations, no cache control for Cache Flush.
    SprFw2,
    /// All features of a 1.x device, including the event log.
    Full,
    /// A 2.x device with the operations that Sierra Forest announces. Synthetic apart from OPCAP.
    Srf,
    /// All features of a 2.x device. Synthetic.
    V2Full,
    /// All features of a 3.0 device. Synthetic apart from DSACAP0 to DSACAP2.
    V3Full,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 6] =
        [Preset::Spr, Preset::SprFw2, Preset::Full, Preset::Srf, Preset::V2Full, Preset::V3Full];

    /// Returns the name that users type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Preset::Spr => "spr",
            Preset::SprFw2 => "spr-fw2",
            Preset::Full => "full",
            Preset::Srf => "srf",
            Preset::V2Full => "v2-full",
            Preset::V3Full => "v3-full",
        }
    }

    /// Returns the preset with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Returns its capabilities.
    ///
    /// `spr` and `spr-fw2`: GENCAP, OPCAP and the counts of groups, queues, engines, entries and read buffers come from
    /// published accel-config listings of Sapphire Rapids parts. In-progress limits, WQCFG size and the number of
    /// performance counters are not published: *assumed*.
    ///
    /// `srf`, `v2-full`: synthetic. Of 2.x silicon only the OPCAP of Sierra Forest is published (accel-config's tests:
    /// `0000007b,00bf067f`), and `srf` has it; the other registers of both are chosen.
    ///
    /// `v3-full`: synthetic. DSACAP0 to DSACAP2 have the values in the documentation of Linux's attribute `dsacaps`;
    /// the other registers are chosen.
    #[must_use]
    pub fn capabilities(self) -> Capabilities {
        let spr = Capabilities {
            version: VERSION_1,
            gen_cap: GenCap([0x40_915f_010f]),
            wq_cap: WqCap::default()
                .with_total_entries(128)
                .with_queues(8)
                .with_shared_mode(true)
                .with_dedicated_mode(true)
                .with_ats_disable(true)
                .with_priority(true)
                .with_occupancy(true)
                .with_occupancy_interrupt(true),
            grp_cap: GrpCap::default()
                .with_groups(4)
                .with_read_buffers(96)
                .with_read_buffer_controls(true)
                .with_global_read_buffer_limit(true),
            eng_cap: EngCap::default().with_engines(4).with_work_descriptors(64).with_batch_descriptors(16),
            op_cap: OpCap([0x1_003f_03ff, 0, 0, 0]),
            cmd_cap: 0,
            id_cap: IdCap::default(),
            dsa_cap_0: DsaCap0::default(),
            dsa_cap_1: DsaCap1::default(),
            dsa_cap_2: DsaCap2::default(),
            // Source: SPEC App. C, PRSREQCAP.
            page_request_capacity: 0x200,
            // Source: SPEC App. C, MSI-X control 0x0008: nine entries.
            msix_entries: 9,
            counters: 8,
            traffic_classes: 0b11,
            tolerances: Tolerances::SAPPHIRE_RAPIDS,
        };
        let full = Capabilities {
            gen_cap: spr
                .gen_cap
                .with_command_capability(true)
                .with_drain_readback(true)
                .with_fill_16(true)
                .with_fault_info(true)
                .with_event_log_size_code(1)
                .with_batch_continuation(true)
                .with_batch_1(true)
                .with_event_log_overflow(true),
            wq_cap: spr.wq_cap.with_op_config(true).with_prs_disable(true).with_wqcfg_size_shift(1),
            grp_cap: spr.grp_cap.with_progress_limits(true).with_bandwidth_limits(true),
            // Commands 1 to 14: all except the inter-domain ones, interrupt handles included.
            cmd_cap: 0x7ffe,
            tolerances: Tolerances::NONE,
            ..spr
        };
        let v2 = Capabilities {
            version: VERSION_2,
            gen_cap: full
                .gen_cap
                // From 2.0 on this bit is unused; batches of one belong to 3.0.
                .with_cache_control_flush(false)
                .with_batch_1(false)
                .with_inter_domain(true)
                .with_translation_fetch_stride(true)
                .with_crc64(true),
            grp_cap: full.grp_cap.with_bandwidth_limits(false),
            op_cap: OpCap([0x7b_00bf_07ff, 0, 0, 0]),
            // All commands.
            cmd_cap: 0x3_fffe,
            id_cap: IdCap::default()
                .with_single_submitter(true)
                .with_submitter_bitmap(true)
                .with_entries(256)
                .with_offset_mode(true)
                .with_suppress_drain(true),
            ..full
        };
        match self {
            Preset::Spr => spr,
            Preset::SprFw2 => Capabilities {
                gen_cap: GenCap([0x40_915f_0107]),
                op_cap: spr.op_cap.with(Opcode::CreateDelta, false).with(Opcode::ApplyDelta, false),
                ..spr
            },
            Preset::Full => full,
            Preset::V2Full => v2,
            Preset::V3Full => Capabilities {
                version: VERSION_3,
                gen_cap: v2.gen_cap.with_batch_1(true).with_durable_write(true),
                grp_cap: v2.grp_cap.with_bandwidth_limits(true),
                op_cap: OpCap([0x7b_7fbf_07ff, 0, 0, 0]),
                dsa_cap_0: DsaCap0([0x0014_000e_0000_07aa]),
                dsa_cap_1: DsaCap1([0x00fa_01ff_01ff_03ff]),
                dsa_cap_2: DsaCap2([0xf18d]),
                ..v2
            },
            Preset::Srf => Capabilities {
                gen_cap: v2.gen_cap.with_translation_fetch_stride(false),
                op_cap: OpCap([0x7b_00bf_067f, 0, 0, 0]),
                // No handles of windows are issued, and bitmaps are not cached.
                cmd_cap: 0x7ffe,
                id_cap: IdCap::default().with_single_submitter(true).with_entries(256),
                ..v2
            },
        }
    }
}

/// The reason why capabilities cannot be modelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CapabilityError {
    /// A count is zero or exceeds the model's limit.
    #[error("{what}: {value} is not between 1 and {max}")]
    Count {
        /// The counted item.
        what: &'static str,
        /// The requested value.
        value: usize,
        /// The model's limit.
        max: usize,
    },
    /// The model does not support this version.
    #[error("version {version:#x} is not modelled; 0x100 (DSA 1.x), 0x200 (2.x) and 0x300 (3.0) are")]
    Version {
        /// The requested version.
        version: u32,
    },
    /// `GENCAP[31]` is 0: the tables would be fixed, and no source gives their values.
    #[error("a device whose configuration is fixed (GENCAP bit 31 clear) is not modelled")]
    FixedConfiguration,
    /// The inter-domain permissions table is not modelled so; entries of 32 bytes are.
    #[error("IDPT entry size code {shift} is not modelled; 0 (32 bytes) is")]
    WindowSize {
        /// `IDCAP[27:26]`.
        shift: u8,
    },
    /// IDCAP says something, but the device has no inter-domain operations, which `GENCAP[6]` announces.
    #[error("IDCAP is {id_cap:#x}, but GENCAP bit 6 announces no inter-domain operations")]
    InterDomain {
        /// IDCAP.
        id_cap: u64,
    },
    /// Gather Reduce has blocks that the model has no room for.
    #[error("Gather Reduce of blocks of 2^{shift} bytes is not modelled; up to 2^{MAX_GATHER_BLOCK_SHIFT} bytes are")]
    GatherBlock {
        /// `DSACAP0[7:4]`.
        shift: u8,
    },
    /// The WQCFG entry size is not modelled; 32 bytes, and 64 bytes with OPCFG in the second half, are.
    #[error(
        "WQCFG size code {shift} is not modelled: 0 (32 bytes) or 1 (64 bytes, needed for per-queue operations) is"
    )]
    WqCfgSize {
        /// `WQCAP[27:24]`.
        shift: u8,
    },
    /// An announced operation is not modelled.
    #[error("operation {opcode} is announced but not modelled")]
    Operation {
        /// The operation.
        opcode: Opcode,
    },
}

impl Capabilities {
    /// Checks whether the model can be such a device.
    ///
    /// # Errors
    /// The first count, version or operation that the model does not support.
    pub fn validate(&self) -> Result<(), CapabilityError> {
        let count = |what, value: usize, max| {
            if (1..=max).contains(&value) { Ok(()) } else { Err(CapabilityError::Count { what, value, max }) }
        };
        if ![VERSION_1, VERSION_2, VERSION_3].contains(&self.version) {
            return Err(CapabilityError::Version { version: self.version });
        }
        if !self.gen_cap.configurable() {
            return Err(CapabilityError::FixedConfiguration);
        }
        if self.gen_cap.inter_domain() {
            count("IDPT entries", self.id_cap.entries().into(), MAX_WINDOWS)?;
            if self.id_cap.entry_size_shift() != 0 {
                return Err(CapabilityError::WindowSize { shift: self.id_cap.entry_size_shift() });
            }
        } else if self.id_cap != IdCap::default() {
            return Err(CapabilityError::InterDomain { id_cap: self.id_cap.0[0] });
        }
        let block_shift = self.dsa_cap_0.max_gather_block_shift();
        if block_shift > MAX_GATHER_BLOCK_SHIFT {
            return Err(CapabilityError::GatherBlock { shift: block_shift });
        }
        let stride_shift = self.wq_cap.wqcfg_size_shift();
        if stride_shift > 1 || (self.wq_cap.op_config() && stride_shift == 0) {
            return Err(CapabilityError::WqCfgSize { shift: stride_shift });
        }
        count("work queues", self.wq_cap.queues().into(), MAX_WQS)?;
        count("groups", self.grp_cap.groups().into(), MAX_GROUPS)?;
        count("engines", self.eng_cap.engines().into(), MAX_ENGINES)?;
        count("queue entries", self.wq_cap.total_entries().into(), MAX_ENTRIES)?;
        count("MSI-X entries", self.msix_entries.into(), MAX_MSIX)?;
        count("interrupt message storage entries", 1 + self.ims_entries(), 1 + MAX_IMS)?;
        count("performance counters", self.counters.into(), MAX_COUNTERS)?;
        for code in 0..=255 {
            let opcode = Opcode::from_code(code);
            if self.op_cap.contains(opcode) && crate::legality::row(opcode).is_none() {
                return Err(CapabilityError::Operation { opcode });
            }
        }
        Ok(())
    }

    /// Returns the number of interrupt message storage entries.
    #[must_use]
    pub fn ims_entries(&self) -> usize {
        usize::from(self.gen_cap.ims_size()) * 256
    }

    /// Returns the bytes of one event log entry; 0 without an event log.
    #[must_use]
    pub fn event_log_entry_bytes(&self) -> u64 {
        match self.gen_cap.event_log_size_code() {
            0 => 0,
            code => 32 << code,
        }
    }

    /// Returns the largest transfer in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> u64 {
        1 << self.gen_cap.max_transfer_shift()
    }

    /// Returns the largest batch in descriptors.
    #[must_use]
    pub fn max_batch(&self) -> u32 {
        1 << self.gen_cap.max_batch_shift()
    }
}

/// The largest block of Gather Reduce is 2 to this many bytes: half of the buffers that a runner lends.
const MAX_GATHER_BLOCK_SHIFT: u8 = 13;
/// The model's limit of MSI-X entries.
pub(crate) const MAX_MSIX: usize = 64;
/// The model's limit of interrupt message storage entries. Source: published GENCAP of Sapphire Rapids.
pub(crate) const MAX_IMS: usize = 2048;
/// The model's limit of performance counters.
pub(crate) const MAX_COUNTERS: usize = 16;
