//! The registers of a PCI configuration space: their bytes, and the bits that software can change.
//!
//! What the registers are is the caller's: a virtual function and a device of the host differ in their capabilities.

use crate::Capabilities;
use telpher_abi::registers::PORTAL_STRIDE;

/// Bytes of a space with extended capabilities. Source: PCI Express.
pub const CONFIG_BYTES: usize = 4096;

/// Offsets of registers that change how a function works, as in Sapphire Rapids. Source: SPEC App. C.
pub mod config_offset {
    /// Command.
    pub const COMMAND: usize = 0x04;
    /// The first BAR: registers.
    pub const BAR0: usize = 0x10;
    /// The third BAR: portals.
    pub const BAR2: usize = 0x18;
    /// Device Control of PCI Express.
    pub const DEVCTL: usize = 0x48;
    /// Message Control of MSI-X.
    pub const MSIX_CONTROL: usize = 0x82;
}

/// Low bits of a 64-bit prefetchable memory BAR.
pub const MEMORY_64_PREFETCHABLE: u8 = 0xc;
/// COMMAND: bus mastering.
const BUS_MASTER: u16 = 1 << 2;
/// DEVCTL: start a function-level reset. The bit reads as zero.
const FUNCTION_LEVEL_RESET: u16 = 1 << 15;

/// A register with a value: offset, bytes, value, bits that software can change.
pub type ConfigRegister = (usize, usize, u32, u32);

/// The registers of one function. What is not in a table reads as zero and cannot be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigRegisters {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl ConfigRegisters {
    /// Takes the values of a table.
    #[must_use]
    pub fn new(table: &[ConfigRegister]) -> ConfigRegisters {
        let mut registers = ConfigRegisters { bytes: vec![0; CONFIG_BYTES], writable: vec![0; CONFIG_BYTES] };
        for &(offset, bytes, value, mask) in table {
            registers.put(offset, &value.to_le_bytes()[..bytes]);
            registers.allow(offset, &mask.to_le_bytes()[..bytes]);
        }
        registers
    }

    /// Sets a register, also bits that software cannot change.
    ///
    /// # Panics
    /// If the register is not within the space.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets which bits software can change.
    ///
    /// # Panics
    /// If the register is not within the space.
    pub fn allow(&mut self, offset: usize, mask: &[u8]) {
        self.writable[offset..offset + mask.len()].copy_from_slice(mask);
    }

    /// Returns bytes of the space; fewer at its end.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> &[u8] {
        let from = offset.min(CONFIG_BYTES);
        &self.bytes[from..from.saturating_add(len).min(CONFIG_BYTES)]
    }

    /// Writes the bits that software can change; bytes beyond the space are dropped. Returns true if the write requests
    /// a function-level reset.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let mut reset = false;
        for (at, value) in (offset..CONFIG_BYTES).zip(data) {
            let mask = self.writable[at];
            reset |= at == config_offset::DEVCTL + 1 && u16::from(*value) << 8 & FUNCTION_LEVEL_RESET != 0;
            self.bytes[at] = self.bytes[at] & !mask | value & mask;
        }
        reset
    }

    /// Returns a register of two bytes.
    ///
    /// # Panics
    /// If the register is not within the space.
    #[must_use]
    pub fn word(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.bytes[offset], self.bytes[offset + 1]])
    }

    /// True if the function may access memory.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.word(config_offset::COMMAND) & BUS_MASTER != 0
    }
}

/// Bytes of the portals' BAR.
#[must_use]
pub fn portal_bytes(capabilities: &Capabilities) -> u64 {
    (u64::from(capabilities.wq_cap.queues()) * PORTAL_STRIDE).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_changes_only_the_bits_that_it_may() {
        let mut registers = ConfigRegisters::new(&[(0x00, 4, 0x0b25_8086, 0), (0x04, 2, 0x0400, 0x0547)]);
        assert!(!registers.write(0, &[0xff; 8]));
        assert_eq!(registers.read(0, 8), [0x86, 0x80, 0x25, 0x0b, 0x47, 0x05, 0, 0]);
        assert!(registers.bus_master());
        registers.allow(0x10, &[0xf0]);
        registers.put(0x10, &[0x0c]);
        registers.write(0x10, &[0xff]);
        assert_eq!(registers.word(0x10), 0xfc);
    }

    #[test]
    fn a_function_level_reset_is_requested_and_reads_as_zero() {
        let mut registers = ConfigRegisters::new(&[(config_offset::DEVCTL, 2, 0x2910, 0x7fff)]);
        assert!(registers.write(config_offset::DEVCTL, &0xa910_u16.to_le_bytes()));
        assert_eq!(registers.word(config_offset::DEVCTL), 0x2910);
        assert!(!registers.write(config_offset::DEVCTL, &0x2910_u16.to_le_bytes()));
    }

    #[test]
    fn nothing_lies_beyond_the_end() {
        let mut registers = ConfigRegisters::new(&[]);
        assert!(!registers.write(CONFIG_BYTES - 1, &[0xff; 64]));
        assert_eq!(registers.read(CONFIG_BYTES - 6, 100).len(), 6);
        assert!(registers.read(usize::MAX, usize::MAX).is_empty());
    }
}
