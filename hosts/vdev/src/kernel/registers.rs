//! A device's registers: the driver's writes to them, and its commands. The device behind them is the model, so
//! refusals and their codes come from the model.

use super::device::{Dsa, Group, Wq};
use telpher_abi::registers::{Command, CommandCode, CommandError, EvlCfg, GenCfg, GenCtrl, GrpCfg, WqCfg, offset};
use telpher_model::{Capabilities, CapabilityError, Device, PciControl, layout};

/// Page of the event log. No engine works on this device (descriptors are executed by their submitters), so nothing is
/// ever written there; the register only needs a value.
const EVENT_LOG_PAGE: u64 = 1;

/// A device's registers.
#[derive(Debug)]
pub(crate) struct DeviceRegisters {
    device: Box<Device>,
}

impl DeviceRegisters {
    /// A device after power-on, with or without PASIDs (and the features that depend on them).
    pub(crate) fn power_on(capabilities: Capabilities, shared_virtual_memory: bool) -> Result<Self, CapabilityError> {
        // The IOMMU driver enables every feature of the PASID capability, including privileged mode.
        let with = PciControl { privileged: true, ..PciControl::SHARED_VIRTUAL_MEMORY };
        let pci =
            if shared_virtual_memory { with } else { PciControl { pasid: false, prs: false, ats: false, ..with } };
        let registers = DeviceRegisters { device: Device::new(capabilities, pci)? };
        registers.unmask();
        Ok(registers)
    }

    /// Resets the function; afterwards the device is in its power-on state.
    pub(crate) fn function_level_reset(&mut self) {
        let (capabilities, pci) = (*self.device.capabilities(), self.device.pci());
        // Cannot fail: the capabilities were accepted before.
        if let Ok(device) = Device::new(capabilities, pci) {
            self.device = device;
            self.unmask();
        }
    }

    /// Unmasks interrupts, as the driver does at start and after a reset.
    pub(crate) fn unmask(&self) {
        for entry in 0..u64::from(self.device.capabilities().msix_entries) {
            self.device.write_register(layout::MSIX_TABLE + entry * 16 + 12, 4, 0);
        }
        let control = GenCtrl::default().with_sw_error_interrupt(true).with_halt_interrupt(true);
        self.device.write_register(offset::GENCTRL, 4, control.0[0]);
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    /// Executes a command and waits for its end. No command takes long: this device has no descriptors.
    pub(crate) fn command(&self, code: CommandCode, operand: u32) -> CommandError {
        if !self.device.start_command(Command::new(code, operand)) {
            return CommandError::Hardware;
        }
        while self.device.cmd_status().active() {
            self.device.advance_command();
        }
        CommandError::from_code(self.device.cmd_status().error_code())
    }

    pub(crate) fn gen_cfg(&self) -> GenCfg {
        GenCfg([self.device.read_register(offset::GENCFG, 4)])
    }

    pub(crate) fn set_gen_cfg(&self, config: GenCfg) {
        self.device.write_register(offset::GENCFG, 4, config.0[0]);
    }

    pub(crate) fn set_group(&self, group: usize, config: &GrpCfg) {
        self.write_words(layout::GRPCFG + 64 * group as u64, &config.0);
    }

    pub(crate) fn set_wq(&self, wq: usize, config: &WqCfg) {
        let words = 4 << self.capabilities().wq_cap.wqcfg_size_shift().min(1);
        let stride = 8 * words as u64;
        self.write_words(layout::WQCFG + stride * wq as u64, &config.0[..words]);
    }

    /// Enables the event log with this number of entries, or disables it with 0.
    pub(crate) fn set_event_log(&self, entries: u16) {
        let config = if entries == 0 {
            EvlCfg::default()
        } else {
            EvlCfg::default().with_base_page(EVENT_LOG_PAGE).with_entries(entries)
        };
        self.write_words(offset::EVLCFG, &config.0);
        self.set_gen_cfg(self.gen_cfg().with_event_log(entries > 0));
        let control = GenCtrl([self.device.read_register(offset::GENCTRL, 4)]).with_event_log_interrupt(entries > 0);
        self.device.write_register(offset::GENCTRL, 4, control.0[0]);
    }

    /// Makes the device halt, as an internal error does.
    pub(crate) fn halt(&self) {
        // Changing a setting of the function while the device is enabled is an error that halts it (SPEC §9.1);
        // afterwards the setting is restored.
        let pci = self.device.pci();
        self.device.set_pci(PciControl { bus_master: !pci.bus_master, ..pci });
        self.device.set_pci(pci);
    }

    fn write_words(&self, at: u64, words: &[u64]) {
        for (word, at) in words.iter().zip((at..).step_by(8)) {
            self.device.write_register(at, 8, *word);
        }
    }
}

impl Dsa {
    /// GRPCFG of a group. Flags are written for every group, members or not (K612 `device.c`).
    pub(crate) fn group_register(&self, index: usize) -> GrpCfg {
        let Some(group) = self.groups.get(index) else { return GrpCfg::default() };
        let set = |members: &mut dyn Iterator<Item = Option<usize>>| {
            members.enumerate().filter(|(_, group)| *group == Some(index)).fold(0_u64, |set, (bit, _)| set | 1 << bit)
        };
        let byte = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let Group {
            read_buffers_reserved,
            read_buffers_allowed,
            use_read_buffer_limit,
            traffic_class_a,
            traffic_class_b,
            desc_progress_limit,
            batch_progress_limit,
        } = group;
        GrpCfg::default()
            .with_wqs(set(&mut self.wqs.iter().map(|wq| wq.group)))
            .with_engines(set(&mut self.engines.iter().map(|engine| engine.group)))
            .with_tc_a(*traffic_class_a)
            .with_tc_b(*traffic_class_b)
            .with_use_global_limit(*use_read_buffer_limit)
            .with_read_buffers_reserved(byte(*read_buffers_reserved))
            .with_read_buffers_allowed(byte(*read_buffers_allowed))
            .with_work_limit_code(*desc_progress_limit)
            .with_batch_limit_code(*batch_progress_limit)
    }

    /// WQCFG of a queue: the hardware's value with the driver's settings. Mode and block on fault are only added to the
    /// register's value until the queue is reset (K612 `device.c`). PASIDs are set elsewhere.
    pub(crate) fn wq_register(&self, index: usize) -> WqCfg {
        let hardware = self.registers.device().wq_cfg(index);
        let Some(wq) = self.wqs.get(index) else { return hardware };
        let Wq { size, settings, .. } = wq;
        let caps = self.capabilities();
        let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let shift = |value: u64| u8::try_from(value.max(1).ilog2()).unwrap_or(u8::MAX);
        let config = hardware
            .with_size(short(*size))
            .with_threshold(short(settings.threshold))
            .with_dedicated(hardware.dedicated() || settings.dedicated)
            .with_priority(u8::try_from(settings.priority).unwrap_or(u8::MAX))
            .with_block_on_fault(hardware.block_on_fault() || caps.gen_cap.block_on_fault() && settings.block_on_fault)
            .with_ats_disable(caps.wq_cap.ats_disable() && settings.ats_disable)
            .with_prs_disable(caps.wq_cap.prs_disable() && settings.prs_disable)
            .with_max_transfer_shift(shift(settings.max_transfer))
            .with_max_batch_shift(shift(settings.max_batch));
        if caps.wq_cap.op_config() { config.with_op_config(settings.op_config) } else { config }
    }
}
