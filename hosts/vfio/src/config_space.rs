//! PCI configuration space of a function: what the guest reads and writes, and the effect on the function.
//!
//! Source: SPEC §9.1, App. C for identity and capabilities. Address translation, PASIDs and page requests are absent:
//! vfio-user has no PASID in its messages, so a guest cannot use them.

use telpher_model::config_space::{
    ConfigRegister, ConfigRegisters, MEMORY_64_PREFETCHABLE, config_offset as at, portal_bytes,
};
use telpher_model::{Capabilities, layout};

/// Registers with a value: offset, bytes, value, bits that software can change.
const REGISTERS: &[ConfigRegister] = &[
    // Intel, DSA of Sapphire Rapids and later parts.
    (0x00, 4, 0x0b25_8086, 0),
    // Memory space, bus master, error reporting; no legacy interrupt.
    (at::COMMAND, 2, 0, 0x0547),
    // A list of capabilities.
    (0x06, 2, 0x0010, 0),
    // System peripheral, other.
    (0x08, 4, 0x0880_0000, 0),
    (0x0c, 1, 0, 0xff),
    (0x2c, 4, 0x0000_8086, 0),
    (0x34, 1, 0x40, 0),
    (0x3c, 1, 0, 0xff),
    // PCI Express: root-complex integrated endpoint, version 2, with function-level reset.
    (0x40, 4, 0x0092_8010, 0),
    (0x44, 4, 0x1000_8022, 0),
    (at::DEVCTL, 2, 0x2910, 0x7fff),
    (0x64, 4, 0x0000_0810, 0),
    (0x68, 2, 0, 0xffff),
    // MSI-X, table and pending bits in BAR0.
    (0x80, 2, 0x9011, 0),
    (0x84, 4, 0x2000, 0),
    (0x88, 4, 0x3000, 0),
    // Power management: no state is lost in D3hot.
    (0x90, 4, 0x0003_0001, 0),
    (0x94, 2, 0x0008, 0x0003),
];

const _: () = assert!(layout::MSIX_TABLE == 0x2000 && layout::MSIX_PBA == 0x3000);

/// What a write asks of the function.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// Bus mastering was switched.
    BusMaster(bool),
    /// A function-level reset.
    Reset,
}

/// The space of one function.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace(ConfigRegisters);

impl ConfigSpace {
    /// The state after a reset.
    pub(crate) fn new(caps: &Capabilities) -> ConfigSpace {
        let mut registers = ConfigRegisters::new(REGISTERS);
        for (offset, size) in [(at::BAR0, layout::BAR0_BYTES), (at::BAR2, portal_bytes(caps))] {
            registers.put(offset, &[MEMORY_64_PREFETCHABLE]);
            // Sizes are powers of two of at least a page: software that writes ones reads the size back.
            registers.allow(offset, &(!(size - 1)).to_le_bytes());
        }
        registers.put(at::MSIX_CONTROL, &(caps.msix_entries - 1).to_le_bytes());
        // Enable, and the mask of all vectors.
        registers.allow(at::MSIX_CONTROL + 1, &[0xc0]);
        ConfigSpace(registers)
    }

    /// Returns bytes of the space; `offset` and `len` lie in it.
    pub(crate) fn read(&self, offset: usize, len: usize) -> &[u8] {
        self.0.read(offset, len)
    }

    /// Writes the writable bits of some bytes.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> Effect {
        let before = self.0.bus_master();
        let reset = self.0.write(offset, data);
        match self.0.bus_master() {
            _ if reset => Effect::Reset,
            after if after != before => Effect::BusMaster(after),
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_model::Preset;
    use telpher_model::config_space::CONFIG_BYTES;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Preset::Spr.capabilities())
    }

    #[test]
    fn the_capability_list_is_complete_and_terminated() {
        let space = space();
        let mut seen = Vec::new();
        let mut next = usize::from(space.read(0x34, 1)[0]);
        while next != 0 {
            seen.push((next, space.read(next, 1)[0]));
            next = usize::from(space.read(next + 1, 1)[0]);
        }
        assert_eq!(seen, [(0x40, 0x10), (0x80, 0x11), (0x90, 0x01)]);
        assert_eq!(space.read(0x100, 4), [0; 4], "no extended capabilities");
        assert_eq!(space.read(0x82, 2), [8, 0], "nine vectors");
    }

    #[test]
    fn bars_read_back_their_sizes() {
        let mut space = space();
        for (offset, size) in [(0x10, 0x2_0000_u64), (0x18, 0x2_0000)] {
            assert_eq!(space.write(offset, &[0xff; 8]), Effect::None);
            let bar = u64::from_le_bytes(space.read(offset, 8).try_into().unwrap());
            assert_eq!(bar, !(size - 1) | 0xc);
        }
    }

    #[test]
    fn writes_switch_bus_mastering_and_start_resets() {
        let mut space = space();
        assert_eq!(space.write(4, &[6, 0]), Effect::BusMaster(true));
        assert_eq!(space.write(4, &[6, 4]), Effect::None);
        assert_eq!(space.write(4, &[2]), Effect::BusMaster(false));
        assert_eq!(space.write(0x48, &0xa910_u16.to_le_bytes()), Effect::Reset);
        assert_eq!(space.read(0x48, 2), 0x2910_u16.to_le_bytes(), "the bit reads as zero");
    }

    #[test]
    fn identity_cannot_be_written_and_ends_are_respected() {
        let mut space = space();
        assert_eq!(space.write(0, &[0xff; 4]), Effect::None);
        assert_eq!(space.read(0, 4), [0x86, 0x80, 0x25, 0x0b]);
        assert_eq!(space.write(CONFIG_BYTES - 1, &[0xff; 64]), Effect::None);
        assert!(space.read(usize::MAX, 1).is_empty());
    }
}
