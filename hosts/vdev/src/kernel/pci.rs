//! PCI configuration space of a device: the contents for lspci and setpci, and the effect of writes on the function.
//! Source: SPEC §9.1, App. C; capability order as lspci lists it on Sapphire Rapids.

use telpher_model::config_space::{
    CONFIG_BYTES, ConfigRegister, ConfigRegisters, MEMORY_64_PREFETCHABLE, config_offset, portal_bytes,
};
use telpher_model::{Capabilities, PciControl, layout};

/// Intel's vendor identifier.
pub(crate) const VENDOR: u16 = 0x8086;
/// Device identifier of DSA in Sapphire Rapids.
pub(crate) const DEVICE: u16 = 0x0b25;
/// Class: system peripheral, other.
pub(crate) const CLASS: u32 = 0x08_8000;
/// Size of the space in bytes.
pub(crate) const BYTES: usize = CONFIG_BYTES;

/// Offsets of the registers that change how the device works.
mod at {
    pub(super) use super::config_offset::{BAR0, BAR2, COMMAND, DEVCTL, MSIX_CONTROL};
    pub(super) const ATSCTL: usize = 0x226;
    pub(super) const PASIDCTL: usize = 0x236;
    pub(super) const PRSCTL: usize = 0x244;
    pub(super) const PRSREQCAP: usize = 0x248;
    pub(super) const PRSREQALLOC: usize = 0x24c;
}

/// ATSCTL: enable.
const ATS_ENABLE: u16 = 1 << 15;
/// PASIDCTL: enable; Privileged Mode Enable.
const PASID_ENABLE: u16 = 1 << 0;
const PASID_PRIVILEGED: u16 = 1 << 2;
/// PRSCTL: enable.
const PRS_ENABLE: u16 = 1 << 0;
/// First BAR address, and the distance between two devices' BARs. Source: chosen, above the memory of a small machine.
const BAR_BASE: u64 = 0x2060_0000_0000;
const BAR_STRIDE: u64 = 0x10_0000;

/// Registers with a value: offset, bytes, value, bits that software can change.
const REGISTERS: &[ConfigRegister] = &[
    (0x00, 2, VENDOR as u32, 0),
    (0x02, 2, DEVICE as u32, 0),
    // Memory space, bus master, no legacy interrupt.
    (at::COMMAND, 2, 0x0406, 0x0547),
    (0x06, 2, 0x0010, 0),
    (0x08, 4, CLASS << 8, 0),
    (0x0c, 1, 0x10, 0xff),
    (0x2c, 2, VENDOR as u32, 0),
    (0x34, 1, 0x40, 0),
    (0x3c, 1, 0, 0xff),
    // PCI Express: root-complex integrated endpoint, version 2.
    (0x40, 4, 0x0092_8010, 0),
    (0x44, 4, 0x1000_8022, 0),
    (at::DEVCTL, 2, 0x2910, 0x7fff),
    (0x64, 4, 0x1073_0810, 0),
    (0x68, 2, 0, 0xffff),
    // MSI-X, enabled; table and pending bits in BAR0.
    (0x80, 2, 0x9011, 0),
    (0x84, 4, 0x2000, 0),
    (0x88, 4, 0x3000, 0),
    // Power management.
    (0x90, 4, 0x0003_0001, 0),
    (0x94, 2, 0x0008, 0),
    // Advanced error reporting; latency tolerance.
    (0x100, 4, 0x1502_0001, 0),
    (0x150, 4, 0x1601_0018, 0),
    // Processing hints: device-specific steering, requester enabled; clients need bits 8 and 1 (observed clients).
    (0x160, 4, 0x1701_0017, 0),
    (0x164, 4, 0x0000_0005, 0),
    (0x168, 4, 0x0000_0102, 0x0000_0307),
    // Virtual channels: TC0 on VC0, TC1 on VC1.
    (0x170, 4, 0x2001_0002, 0),
    (0x174, 4, 0x0000_0001, 0),
    (0x184, 4, 0x8000_0001, 0x0000_00fe),
    (0x190, 4, 0x8100_0002, 0x8700_00fe),
    // Designated vendor-specific: 0005, 24 bytes.
    (0x200, 4, 0x2201_0023, 0),
    (0x204, 4, 0x0180_8086, 0),
    (0x208, 2, 0x0005, 0),
    // Address translation, PASIDs (20 bits, privileged mode), page requests.
    (0x220, 4, 0x2301_000f, 0),
    (0x224, 2, 0x0020, 0),
    (at::ATSCTL, 2, 0, 0x801f),
    (0x230, 4, 0x2401_001b, 0),
    (0x234, 2, 0x1404, 0),
    (at::PASIDCTL, 2, 0, 0x0005),
    (0x240, 4, 0x0001_0013, 0),
    (at::PRSCTL, 2, 0, 0x0001),
    (0x246, 2, 0x8100, 0),
    (at::PRSREQALLOC, 4, 0, u32::MAX),
];

/// The space of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConfigSpace {
    registers: ConfigRegisters,
    /// BAR0 and BAR2: address and bytes.
    bars: [(u64, u64); 2],
}

impl ConfigSpace {
    /// The state after the driver has bound the function, with the features that `pci` enables.
    pub(crate) fn new(caps: &Capabilities, number: u32, pci: PciControl) -> Self {
        let base = BAR_BASE + BAR_STRIDE * u64::from(number);
        let bars = [(base, layout::BAR0_BYTES), (base + BAR_STRIDE / 2, portal_bytes(caps))];
        let mut registers = ConfigRegisters::new(REGISTERS);
        for (offset, (address, _)) in [at::BAR0, at::BAR2].into_iter().zip(bars) {
            registers.put(offset, &(address | u64::from(MEMORY_64_PREFETCHABLE)).to_le_bytes());
        }
        registers.put(at::MSIX_CONTROL, &((caps.msix_entries - 1) | 1 << 15).to_le_bytes());
        registers.allow(at::MSIX_CONTROL + 1, &[0xc0]);
        registers.put(at::PRSREQCAP, &caps.page_request_capacity.to_le_bytes());
        registers.put(at::PRSREQALLOC, &pci.page_requests.to_le_bytes());
        let mut put = |offset, word: u16| registers.put(offset, &word.to_le_bytes());
        put(at::ATSCTL, if pci.ats { ATS_ENABLE } else { 0 });
        let privileged = if pci.privileged { PASID_PRIVILEGED } else { 0 };
        put(at::PASIDCTL, if pci.pasid { PASID_ENABLE | privileged } else { 0 });
        put(at::PRSCTL, if pci.prs { PRS_ENABLE } else { 0 });
        ConfigSpace { registers, bars }
    }

    /// Reads bytes from an offset; returns fewer at the end.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        self.registers.read(usize::try_from(offset).unwrap_or(usize::MAX), len).to_vec()
    }

    /// Writes the writable bits of some bytes; `true` if the write requests a function-level reset.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        self.registers.write(offset, data)
    }

    /// The settings of the function, from the current register values.
    pub(crate) fn control(&self) -> PciControl {
        let pasid = self.registers.word(at::PASIDCTL);
        PciControl {
            bus_master: self.registers.bus_master(),
            pasid: pasid & PASID_ENABLE != 0,
            ats: self.registers.word(at::ATSCTL) & ATS_ENABLE != 0,
            prs: self.registers.word(at::PRSCTL) & PRS_ENABLE != 0,
            page_requests: u32::from(self.registers.word(at::PRSREQALLOC))
                | u32::from(self.registers.word(at::PRSREQALLOC + 2)) << 16,
            privileged: pasid & PASID_PRIVILEGED != 0,
        }
    }

    /// The `resource` file: six BARs, the ROM, six virtual functions' BARs; start, end, flags.
    pub(crate) fn resources(&self) -> String {
        /// 64-bit prefetchable memory. Source: K612 `include/linux/ioport.h`.
        const FLAGS: u64 = 0x14_220c;
        let mut lines = [(0, 0, 0); 13];
        for (line, (address, bytes)) in [0, 2].into_iter().zip(self.bars) {
            lines[line] = (address, address + bytes - 1, FLAGS);
        }
        lines.iter().map(|(from, to, flags)| format!("{from:#018x} {to:#018x} {flags:#018x}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_model::Preset;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Preset::Spr.capabilities(), 0, PciControl::SHARED_VIRTUAL_MEMORY)
    }

    #[test]
    fn the_capability_lists_are_complete_and_terminated() {
        let space = space();
        let mut next = usize::from(space.read(0x34, 1)[0]);
        let mut seen = Vec::new();
        while next != 0 {
            seen.push((next, space.read(next as u64, 1)[0]));
            next = usize::from(space.read(next as u64 + 1, 1)[0]);
        }
        assert_eq!(seen, [(0x40, 0x10), (0x80, 0x11), (0x90, 0x01)]);
        let mut extended = Vec::new();
        let mut next = 0x100;
        while next != 0 {
            let header = u32::from_le_bytes(space.read(next as u64, 4).try_into().unwrap());
            extended.push((next, header & 0xffff));
            next = (header >> 20) as usize;
        }
        let expected = [
            (0x100, 0x01),
            (0x150, 0x18),
            (0x160, 0x17),
            (0x170, 0x02),
            (0x200, 0x23),
            (0x220, 0x0f),
            (0x230, 0x1b),
            (0x240, 0x13),
        ];
        assert_eq!(extended, expected);
    }

    #[test]
    fn writes_change_the_settings_of_the_function() {
        let mut space = space();
        assert_eq!(space.control(), PciControl::SHARED_VIRTUAL_MEMORY);
        assert!(!space.write(at::COMMAND, &0x0402_u16.to_le_bytes()));
        assert!(!space.control().bus_master);
        assert!(space.write(at::DEVCTL, &(0x2910_u16 | 1 << 15).to_le_bytes()));
        assert_eq!(space.registers.word(at::DEVCTL), 0x2910);
    }

    #[test]
    fn identity_and_bars_cannot_be_written() {
        let mut space = space();
        let before = space.read(0, 0x40);
        space.write(0, &[0xff; 4]);
        space.write(at::BAR0, &[0xff; 16]);
        assert_eq!(space.read(0, 0x40), before);
        assert_eq!(space.read(4090, 100).len(), 6);
        assert!(space.read(u64::MAX, 1).is_empty());
    }

    #[test]
    fn the_resource_file_has_thirteen_lines() {
        let text = space().resources();
        assert_eq!(text.lines().count(), 13);
        assert_eq!(text.lines().next(), Some("0x0000206000000000 0x000020600001ffff 0x000000000014220c"));
    }
}
