//! BAR0: the word at an offset, and the writes that are allowed. Source: SPEC ch. 9, Figure 9-1.
//!
//! Accesses have 1, 2, 4 or 8 bytes and are aligned. The model reads aligned 8-byte words and cuts them; narrow writes
//! change only their bytes.

use crate::capabilities::{MAX_GROUPS, MAX_IMS, MAX_MSIX, MAX_WQS};
use crate::device::Device;
use crate::sync::{Ordering, fence};
use telpher_abi::registers::{Command, DeviceState, GenSts, Offsets, WqCfg, WqState, offset};

/// The model's table offsets in BAR0. Source: SPEC §9.2 lets a device choose; the MSI-X table and pending bits are at
/// the offsets in the capability of App. C.
pub mod layout {
    /// MSI-X permission table.
    pub const MSIX_PERM: u64 = 0x400;
    /// Group configuration table.
    pub const GRPCFG: u64 = 0x600;
    /// Queue configuration table.
    pub const WQCFG: u64 = 0xc00;
    /// Performance monitoring block.
    pub const PERFMON: u64 = 0x1000;
    /// MSI-X table.
    pub const MSIX_TABLE: u64 = 0x2000;
    /// MSI-X pending bits.
    pub const MSIX_PBA: u64 = 0x3000;
    /// Inter-domain permissions table.
    pub const IDPT: u64 = 0x8000;
    /// Interrupt message storage.
    pub const IMS: u64 = 0x1_0000;
    /// The size of BAR0 in bytes.
    pub const BAR0_BYTES: u64 = 0x2_0000;
}

/// The register or table entry of an aligned 8-byte word of BAR0.
enum RegisterLocation {
    Fixed(u64),
    MsixPerm(usize),
    Group(usize, usize),
    Queue(usize, usize),
    Perfmon(u64),
    Msix(usize, usize),
    Pending,
    Ims(usize, usize),
    Idpt(usize, usize),
    Dummy,
    Nothing,
}

impl Device {
    /// Reads 1, 2, 4 or 8 bytes of BAR0. Misaligned, oversized and reserved reads return 0.
    #[must_use]
    pub fn read_register(&self, at: u64, bytes: u8) -> u64 {
        if !is_access(at, bytes) {
            return 0;
        }
        let word = self.read_word(at & !7);
        let shifted = word >> (8 * (at & 7));
        if bytes == 8 { shifted } else { shifted & ((1 << (8 * bytes)) - 1) }
    }

    /// Writes 1, 2, 4 or 8 bytes of BAR0. Misaligned and oversized writes, writes to read-only and to locked registers
    /// are ignored.
    pub fn write_register(&self, at: u64, bytes: u8, value: u64) {
        if !is_access(at, bytes) {
            return;
        }
        let shift = 8 * (at & 7);
        let mask = if bytes == 8 { u64::MAX } else { ((1 << (8 * bytes)) - 1) << shift };
        self.write_word(at & !7, value << shift & mask, mask);
    }

    fn locate(&self, at: u64) -> RegisterLocation {
        // Cannot lose bits: BAR0 offsets are far below 2^32.
        #[allow(clippy::cast_possible_truncation, reason = "BAR0 offsets are far below the address width")]
        let entry = |base: u64, stride: u64| (((at - base) / stride) as usize, ((at - base) % stride / 8) as usize);
        let stride = self.wqcfg_stride();
        match at {
            0..0x400 => RegisterLocation::Fixed(at),
            layout::MSIX_PERM..layout::GRPCFG => RegisterLocation::MsixPerm(entry(layout::MSIX_PERM, 8).0),
            layout::GRPCFG..layout::WQCFG => {
                let (group, word) = entry(layout::GRPCFG, 64);
                if group < MAX_GROUPS { RegisterLocation::Group(group, word) } else { RegisterLocation::Nothing }
            }
            layout::WQCFG..layout::PERFMON => {
                let (wq, word) = entry(layout::WQCFG, stride);
                if wq < self.queues().min(MAX_WQS) && word < 8 {
                    RegisterLocation::Queue(wq, word)
                } else {
                    RegisterLocation::Nothing
                }
            }
            layout::PERFMON..layout::MSIX_TABLE => RegisterLocation::Perfmon(at - layout::PERFMON),
            layout::MSIX_TABLE..layout::MSIX_PBA => {
                let (index, half) = entry(layout::MSIX_TABLE, 16);
                if index < MAX_MSIX { RegisterLocation::Msix(index, half) } else { RegisterLocation::Nothing }
            }
            layout::MSIX_PBA => RegisterLocation::Pending,
            layout::IDPT..offset::CMDPARAM => {
                let (index, word) = entry(layout::IDPT, 32);
                if index < self.idpt_entries() {
                    RegisterLocation::Idpt(index, word)
                } else {
                    RegisterLocation::Nothing
                }
            }
            offset::CMDPARAM => RegisterLocation::Fixed(at),
            offset::DUMMY_PORTAL..layout::IMS => RegisterLocation::Dummy,
            layout::IMS..layout::BAR0_BYTES => {
                let (index, half) = entry(layout::IMS, 16);
                if index < MAX_IMS.min(self.capabilities.ims_entries()) {
                    RegisterLocation::Ims(index, half)
                } else {
                    RegisterLocation::Nothing
                }
            }
            _ => RegisterLocation::Nothing,
        }
    }

    /// Returns the distance in bytes between two queues' configurations.
    fn wqcfg_stride(&self) -> u64 {
        // At most 64 bytes are modelled; validated capabilities announce 32 or 64.
        32 << self.capabilities.wq_cap.wqcfg_size_shift().min(1)
    }

    fn read_word(&self, at: u64) -> u64 {
        match self.locate(at) {
            RegisterLocation::Fixed(at) => self.read_fixed(at),
            RegisterLocation::MsixPerm(index) => self.msix_perm.get(index).map_or(0, crate::sync::Word::get),
            RegisterLocation::Group(group, word) => self.grpcfg[group][word].get(),
            RegisterLocation::Queue(wq, word) => self.wq_cfg(wq).0[word],
            RegisterLocation::Perfmon(at) => self.read_perfmon(at),
            RegisterLocation::Msix(index, half) => self.msix_table[index][half].get(),
            RegisterLocation::Pending => self.msix_pending.get(),
            RegisterLocation::Ims(index, half) => self.ims[index][half].get(),
            RegisterLocation::Idpt(index, word) => self.read_idpt(index, word),
            RegisterLocation::Dummy | RegisterLocation::Nothing => 0,
        }
    }

    fn read_fixed(&self, at: u64) -> u64 {
        let caps = &self.capabilities;
        match at {
            offset::VERSION => caps.version.into(),
            offset::GENCAP => caps.gen_cap.0[0],
            offset::WQCAP => caps.wq_cap.0[0],
            offset::GRPCAP => caps.grp_cap.0[0],
            offset::ENGCAP => caps.eng_cap.0[0],
            offset::OPCAP..offset::OFFSETS => {
                #[allow(clippy::cast_possible_truncation, reason = "one of four words")]
                let word = ((at - offset::OPCAP) / 8) as usize;
                caps.op_cap.0[word]
            }
            offset::OFFSETS | 0x68 => {
                let unit = |bytes: u64| u16::try_from(bytes / 0x100).unwrap_or_default();
                let offsets = Offsets::default()
                    .with_grpcfg(unit(layout::GRPCFG))
                    .with_wqcfg(unit(layout::WQCFG))
                    .with_msix_perm(unit(layout::MSIX_PERM))
                    .with_ims(if caps.ims_entries() > 0 { unit(layout::IMS) } else { 0 })
                    .with_perfmon(unit(layout::PERFMON))
                    .with_idpt(if self.idpt_entries() > 0 { unit(layout::IDPT) } else { 0 });
                offsets.0[usize::from(at != offset::OFFSETS)]
            }
            offset::GENCFG => self.general.gencfg.get(),
            offset::GENCTRL => self.general.genctrl.get(),
            offset::GENSTS => GenSts::default().with_state_code(self.state() as u8).0[0],
            offset::INTCAUSE => self.general.intcause.get(),
            offset::CMDSTATUS => self.cmd_status().0[0],
            offset::CMDCAP if caps.gen_cap.command_capability() => caps.cmd_cap,
            offset::SWERROR..offset::EVLCFG => {
                #[allow(clippy::cast_possible_truncation, reason = "one of four words")]
                let word = ((at - offset::SWERROR) / 8) as usize;
                self.sw_error().0[word]
            }
            offset::EVLCFG => self.general.evlcfg[0].get(),
            0xe8 => self.general.evlcfg[1].get(),
            offset::EVLSTATUS => self.evl_status().0[0],
            offset::IDCAP => caps.id_cap.0[0],
            offset::IDBR if caps.gen_cap.inter_domain() => self.idbr().0[0],
            offset::DSACAP0 => caps.dsa_cap_0.0[0],
            offset::DSACAP1 => caps.dsa_cap_1.0[0],
            offset::DSACAP2 => caps.dsa_cap_2.0[0],
            offset::CMDPARAM => self.general.cmdparam.get(),
            _ => 0,
        }
    }

    /// Writes the bytes selected by `mask`.
    fn write_word(&self, at: u64, value: u64, mask: u64) {
        let merge = |old: u64| old & !mask | value;
        let device_disabled = self.state() == DeviceState::Disabled;
        match self.locate(at) {
            RegisterLocation::Fixed(at) => self.write_fixed(at, value, mask),
            RegisterLocation::MsixPerm(index) => {
                if let Some(word) = self.msix_perm.get(index).filter(|_| index < self.capabilities.msix_entries.into())
                {
                    // Ignore, PASID Enable and PASID; the rest of the entry is reserved.
                    word.set(merge(word.get()) & 0xffff_f00c);
                }
            }
            RegisterLocation::Group(group, word) => {
                if device_disabled && self.capabilities.gen_cap.configurable() {
                    let words = &self.grpcfg[group];
                    words[word].set(merge(words[word].get()));
                }
            }
            RegisterLocation::Queue(wq, word) => self.write_wq_cfg(wq, word, value, mask),
            RegisterLocation::Perfmon(at) => {
                // Write-1-to-clear: bytes outside the write clear nothing.
                let rw1c = at == telpher_abi::perfmon::offset::OVFSTATUS;
                self.write_perfmon(at, if rw1c { value } else { merge(self.read_perfmon(at)) });
            }
            RegisterLocation::Msix(index, half) => {
                self.write_msix_entry(index, half, merge(self.msix_table[index][half].get()));
            }
            RegisterLocation::Ims(index, half) => self.write_ims_entry(index, half, merge(self.ims[index][half].get())),
            RegisterLocation::Idpt(index, word) => self.write_idpt(index, word, value, mask),
            RegisterLocation::Pending | RegisterLocation::Dummy | RegisterLocation::Nothing => {}
        }
    }

    fn write_fixed(&self, at: u64, value: u64, mask: u64) {
        let merge = |old: u64| old & !mask | value;
        let general = &self.general;
        let device_disabled = self.state() == DeviceState::Disabled;
        match at {
            offset::GENCFG if device_disabled => general.gencfg.set(merge(general.gencfg.get()) & 0x30ff),
            offset::GENCTRL => general.genctrl.set(merge(general.genctrl.get()) & 0b111),
            offset::INTCAUSE => {
                general.intcause.and(!value);
            }
            // A command is one 4-byte write; a narrower write would start half a command.
            offset::CMD if mask & 0xffff_ffff == 0xffff_ffff => {
                self.start_command(Command([value & 0xffff_ffff]));
            }
            offset::SWERROR => self.clear_sw_error(value & mask),
            offset::EVLCFG if device_disabled => general.evlcfg[0].set(merge(general.evlcfg[0].get()) & !0xffc),
            0xe8 if device_disabled => general.evlcfg[1].set(merge(general.evlcfg[1].get()) & 0xf_ffff_ffff),
            offset::EVLSTATUS => {
                if mask & 0xffff != 0 {
                    self.errors.log_head.publish(merge(self.errors.log_head.get()) & 0xffff);
                }
                if value >> 62 & 1 == 1 {
                    self.errors.log_pending.set(0);
                    // SeqCst: orders the clearing before software's next read of the tail; pairs with `finish_append`.
                    fence(Ordering::SeqCst);
                }
            }
            offset::IDBR if device_disabled && self.capabilities.gen_cap.inter_domain() => {
                self.set_idbr(merge(self.idbr().0[0]));
            }
            offset::CMDPARAM => general.cmdparam.set(merge(general.cmdparam.get())),
            _ => {}
        }
    }

    /// Writes the bits of a queue's configuration that are currently writable. Source: SPEC register WQCFG.
    fn write_wq_cfg(&self, wq: usize, word: usize, value: u64, mask: u64) {
        let configurable = self.capabilities.gen_cap.configurable();
        let device_disabled = self.state() == DeviceState::Disabled;
        let wq_disabled = self.wq_state(wq) == WqState::Disabled;
        let when = |allowed: bool, bits: u64| if allowed { bits } else { 0 };
        let writable = match word {
            // Size; threshold.
            0 => when(device_disabled && configurable, 0xffff) | 0xffff_0000_0000,
            // Mode, fault and translation controls, priority, PASID; transfer, batch and list limits.
            1 => when(wq_disabled && configurable, 0x1fff_3fff_ffff),
            // Occupancy handle and table; limit while the interrupt is off; interrupt enable.
            2 => {
                let interrupt_off = !self.wq_cfg(wq).occupancy_interrupt();
                when(wq_disabled, 0x1_ffff) | when(interrupt_off, 0xffff_0000_0000) | 1 << 48
            }
            4..8 => when(wq_disabled && self.capabilities.wq_cap.op_config(), u64::MAX),
            _ => 0,
        };
        let words = &self.wqcfg[wq];
        words[word].set(words[word].get() & !(mask & writable) | value & writable);
        if word == 3 && value >> (208 - 192) & 1 == 1 {
            words[3].set(WqCfg([0; 8]).0[3]);
        }
    }
}

/// True for an aligned access of a legal width inside BAR0.
fn is_access(at: u64, bytes: u8) -> bool {
    matches!(bytes, 1 | 2 | 4 | 8) && at.is_multiple_of(u64::from(bytes)) && at < layout::BAR0_BYTES
}
