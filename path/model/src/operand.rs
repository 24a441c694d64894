//! Operands and the address spaces that they are in. Source: SPEC §3.14.

use crate::windows::Window;
use telpher_abi::{Descriptor, Flags, OpFlags};

/// An address in one of the address spaces of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// First byte: as in the descriptor until it is [located](crate::Action::locate), then in its address space.
    pub address: u64,
    /// The address space.
    pub domain: Domain,
}

/// The address space of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Domain {
    /// The submitter's.
    Own,
    /// That of the handle at byte 60.
    Handle1,
    /// That of the handle at byte 62.
    Handle2,
}

impl Domain {
    /// Returns the window of the handle; `None` for the submitter's own memory.
    pub(crate) fn window(self, windows: &[Option<Window>; 2]) -> Option<Window> {
        match self {
            Domain::Own => None,
            Domain::Handle1 => windows[0],
            Domain::Handle2 => windows[1],
        }
    }
}

impl Operand {
    /// An operand of the submitter, or of a handle if the flag is set.
    fn of(address: u64, d: &Descriptor, flag: Flags, domain: Domain) -> Self {
        Operand { address, domain: if d.flags().contains(flag) { domain } else { Domain::Own } }
    }

    pub(crate) fn first(d: &Descriptor) -> Self {
        Operand::of(d.src(), d, OpFlags::ALTERNATE_SOURCE, Domain::Handle1)
    }

    pub(crate) fn second(d: &Descriptor) -> Self {
        Operand::of(d.dst(), d, OpFlags::ALTERNATE_DESTINATION, Domain::Handle2)
    }
}
