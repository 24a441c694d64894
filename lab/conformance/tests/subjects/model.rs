//! The modelled device as a subject, under either of its runners.
#![allow(unsafe_code, reason = "the judge writes the device's registers and submits as a supervisor")]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::registers::{Command, CommandCode, offset};
use telpher_conformance::{
    Capabilities, Device, DeviceSpec, Guarantees, HERE, Instruction, Interrupt, PortalSpec, Refusal, Registers,
    Residency, Subject, bring_up,
};
use telpher_device::{CountsIn, ModelDevice, ModelOptions, Preset, Runner};
use telpher_model::{Identity, PciControl, Write, layout};
use telpher_portal::Portal;

/// Longest wait for a device with threads to complete its work.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of checked entries of the interrupt message storage.
const IMS_SEEN: u16 = 4;

/// A preset under a runner.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) preset: Preset,
    pub(crate) runner: Runner,
    pub(crate) promises: Guarantees,
    /// Where its devices count.
    pub(crate) counts: CountsIn,
}

impl Model {
    /// With every promise.
    pub(crate) fn new(preset: Preset, runner: Runner) -> Self {
        let tolerances = preset.capabilities().tolerances;
        let promises = Guarantees {
            equal_delta_offsets: Some(tolerances.equal_delta_offsets),
            result_mask_bits: Some(tolerances.result_mask_bits),
            ..Guarantees::ALL
        };
        Model { preset, runner, promises, counts: CountsIn::default() }
    }
}

impl Subject for Model {
    fn name(&self) -> String {
        format!("model:{} {:?}", self.preset.name(), self.runner)
    }

    fn capabilities(&self) -> Capabilities {
        let c = self.preset.capabilities();
        Capabilities {
            version: c.version,
            gen_cap: c.gen_cap,
            wq_cap: c.wq_cap,
            grp_cap: c.grp_cap,
            eng_cap: c.eng_cap,
            op_cap: c.op_cap,
            id_cap: c.id_cap,
            dsa_cap_0: c.dsa_cap_0,
            dsa_cap_1: c.dsa_cap_1,
            dsa_cap_2: c.dsa_cap_2,
        }
    }

    fn promises(&self) -> Guarantees {
        self.promises
    }

    fn device(&self, spec: &DeviceSpec) -> Result<Box<dyn Device>, Refusal> {
        let mut options = ModelOptions::of(self.preset).with_runner(self.runner).with_counts(self.counts.clone());
        if let Some(c) = spec.capabilities {
            options.capabilities = telpher_model::Capabilities {
                version: c.version,
                gen_cap: c.gen_cap,
                wq_cap: c.wq_cap,
                grp_cap: c.grp_cap,
                eng_cap: c.eng_cap,
                op_cap: c.op_cap,
                id_cap: c.id_cap,
                dsa_cap_0: c.dsa_cap_0,
                dsa_cap_1: c.dsa_cap_1,
                dsa_cap_2: c.dsa_cap_2,
                ..options.capabilities
            };
        }
        options.capabilities.traffic_classes = spec.pci.traffic_classes;
        options.residency = match spec.residency {
            Residency::Lenient => telpher_device::Residency::Lenient,
            Residency::Strict => telpher_device::Residency::Strict,
        };
        let pci = spec.pci;
        options.pci = PciControl {
            bus_master: pci.bus_master,
            pasid: pci.pasid,
            ats: pci.ats,
            prs: pci.prs,
            page_requests: pci.page_requests,
            privileged: pci.privileged_mode,
        };
        let model = ModelDevice::power_on(options).map_err(|e| Refusal::Cannot(sentence(&e)))?;
        assert!(model.add_pasid(HERE), "a fresh device has room for a PASID");
        let device = Live { registers: Bar(model.clone()), model, seen: RefCell::default() };
        device.unmask_interrupts();
        bring_up(&device.registers, spec).map_err(Refusal::BringUp)?;
        let _ = device.interrupts();
        Ok(Box::new(device))
    }
}

/// An error with its cause.
fn sentence(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// One modelled device.
#[derive(Debug)]
struct Live {
    model: ModelDevice,
    registers: Bar,
    /// Deliveries already told, by entry: MSI-X, then IMS.
    seen: RefCell<Vec<u64>>,
}

/// The device's registers.
#[derive(Debug)]
struct Bar(ModelDevice);

impl Bar {
    fn device(&self) -> &telpher_model::Device {
        // SAFETY: the judge places event logs only in its arena. No other code uses the arena's memory, and it is never
        // unmapped, so the device may write there at any time.
        unsafe { self.0.device() }
    }
}

impl Registers for Bar {
    fn read(&self, offset: u64, bytes: u32) -> u64 {
        self.device().read_register(offset, u8::try_from(bytes).expect("4 or 8"))
    }

    fn write(&self, offset: u64, bytes: u32, value: u64) {
        self.device().write_register(offset, u8::try_from(bytes).expect("4 or 8"), value);
    }

    fn advance(&self) {
        self.0.advance();
        std::thread::yield_now();
    }
}

impl Live {
    fn unmask_interrupts(&self) {
        for entry in 0..u64::from(self.model.capabilities().msix_entries) {
            self.registers.write(layout::MSIX_TABLE + 16 * entry + 12, 4, 0);
        }
    }
}

impl Device for Live {
    fn portal(&self, spec: &PortalSpec) -> Option<Arc<dyn Portal>> {
        let queue = u32::try_from(spec.queue).ok()?;
        let deferrable = |privileged| Some(Write::Deferrable(Identity { pasid: spec.pasid, privileged }));
        let write = match spec.instruction {
            Instruction::Fitting => None,
            Instruction::Posted => Some(Write::Posted),
            Instruction::Deferrable => deferrable(false),
            Instruction::DeferrableSupervisor => deferrable(true),
        };
        Some(self.model.portal_as(queue, spec.kind, write, spec.pasid))
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(&self.registers)
    }

    fn hold(&self, stop: bool) -> bool {
        self.model.hold(stop);
        true
    }

    fn settle(&self) {
        let device = self.registers.device();
        self.model.advance();
        // Drain All ends when everything before it has. Not while another command is under way, or the device is off.
        if self.registers.read(offset::GENSTS, 4) & 3 == 1 && !device.cmd_status().active() {
            device.start_command(Command::new(CommandCode::DrainAll, 0));
            let end = Instant::now() + PATIENCE;
            while device.cmd_status().active() && Instant::now() < end {
                self.registers.advance();
            }
        }
    }

    fn interrupts(&self) -> Option<Vec<Interrupt>> {
        let device = self.registers.device();
        let msix = (0..self.model.capabilities().msix_entries).map(Interrupt::Msix);
        let all: Vec<Interrupt> = msix.chain((0..IMS_SEEN).map(Interrupt::Ims)).collect();
        let mut seen = self.seen.borrow_mut();
        seen.resize(all.len(), 0);
        let mut new = Vec::new();
        for (interrupt, reported) in all.into_iter().zip(seen.iter_mut()) {
            let (ims, index) = match interrupt {
                Interrupt::Msix(index) => (false, index),
                Interrupt::Ims(index) => (true, index),
            };
            let count = device.interrupts_delivered(telpher_model::Interrupt { ims, index });
            new.extend((*reported..count).map(|_| interrupt));
            *reported = count;
        }
        Some(new)
    }
}
