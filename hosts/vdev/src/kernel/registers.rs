//! A device's registers: the driver's writes to them, and its commands. The device behind them is the model, so
//! refusals and their codes come from the model.

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
