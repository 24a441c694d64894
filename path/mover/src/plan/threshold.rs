//! The threshold: the size from which an operation is worth a descriptor.

use telpher_abi::Opcode;

/// The smallest transfer, in bytes, that goes to a device, for each operation. The CPU does shorter ones at once.
///
/// ```
/// use telpher_mover::{Opcode, Threshold};
/// let threshold = Threshold::default().with(Opcode::MemoryMove, 64 << 10);
/// assert_eq!(threshold.of(Opcode::MemoryMove), 64 << 10);
/// assert_eq!(threshold.of(Opcode::Fill), telpher_mover::DEFAULT_THRESHOLD);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// By opcode; the operations that work on one process's memory have codes below this length.
    from: [u64; OPERATIONS],
}

/// Codes 0x00 to 0x20: all operations but those between address spaces. Source: SPEC Table 8-2.
const OPERATIONS: usize = 0x21;

/// The default for every operation that moves or reads data, in bytes.
/// Source: the synchronous break-even on Sapphire Rapids (Kuper et al., ASPLOS 2024, §6.1, guideline G2).
pub const DEFAULT_THRESHOLD: u64 = 4096;

impl Threshold {
    /// Everything that a device can do goes there.
    pub const DEVICE: Threshold = Threshold { from: [0; OPERATIONS] };
    /// Nothing goes to a device.
    pub const CPU: Threshold = Threshold { from: [u64::MAX; OPERATIONS] };

    /// The same threshold for every operation. No-op and Drain have no size and go to a device unless `bytes` is
    /// [`u64::MAX`].
    #[must_use]
    pub const fn all(bytes: u64) -> Self {
        let mut threshold = Threshold { from: [bytes; OPERATIONS] };
        if bytes < u64::MAX {
            threshold.from[Opcode::Nop.code() as usize] = 0;
            threshold.from[Opcode::Drain.code() as usize] = 0;
        }
        threshold
    }

    /// Returns the threshold with another limit for one operation. Operations between address spaces have no limit and
    /// are ignored.
    #[must_use]
    pub fn with(mut self, opcode: Opcode, bytes: u64) -> Self {
        if let Some(from) = self.from.get_mut(usize::from(opcode.code())) {
            *from = bytes;
        }
        self
    }

    /// Returns the bytes from which `opcode` goes to a device.
    #[must_use]
    #[inline]
    pub fn of(&self, opcode: Opcode) -> u64 {
        self.from.get(usize::from(opcode.code())).copied().unwrap_or(u64::MAX)
    }
}

impl Default for Threshold {
    fn default() -> Self {
        Threshold::all(DEFAULT_THRESHOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_without_a_size_go_to_a_device_unless_all_stay_on_the_cpu() {
        assert_eq!(Threshold::default().of(Opcode::Nop), 0);
        assert_eq!(Threshold::all(u64::MAX), Threshold::CPU);
        assert_eq!(Threshold::CPU.of(Opcode::Drain), u64::MAX);
    }
}
