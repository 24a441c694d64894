//! A fault of an access to the program's memory.

use crate::decode::Segment;

/// A fault as the kernel reported it.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) signal: i32,
    pub(crate) info: libc::siginfo_t,
    /// `REG_TRAPNO`, `REG_ERR`, `REG_CR2` of the context.
    pub(crate) registers: [u64; 3],
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fault")
            .field("signal", &self.signal)
            .field("registers", &self.registers)
            .finish_non_exhaustive()
    }
}

/// The registers of a context that describe a fault.
pub(crate) const FAULT_REGISTERS: [i32; 3] = [libc::REG_TRAPNO, libc::REG_ERR, libc::REG_CR2];

/// `SI_KERNEL`: a signal from the kernel without an address.
pub(crate) const FROM_KERNEL: i32 = 0x80;

impl Fault {
    /// Adapts the fault to an access by `segment`: non-canonical addresses by the stack segment raise #SS.
    pub(crate) fn seen_by(mut self, segment: Segment) -> Self {
        const TRAP_SS: u64 = 12;
        if segment == Segment::Stack && self.info.si_code == FROM_KERNEL {
            self.signal = libc::SIGBUS;
            self.info.si_signo = libc::SIGBUS;
            self.registers[0] = TRAP_SS;
        }
        self
    }
}
