//! The program's registers during an emulation, and how the emulation returns to the program.

/// Bytes below the stack pointer that a function may use without adjusting it.
pub(crate) const RED_ZONE: usize = 128;

/// The data that [`enter`](crate::entry::enter) stores on the program's stack.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Frame {
    /// In the processor's order. Number 4, rsp, is the program's and is not restored from here.
    pub(crate) general: [u64; 16],
    pub(crate) flags: u64,
    /// The address at which the trampoline continues.
    pub(crate) back: u64,
    red_zone: [u8; RED_ZONE],
}

/// How the emulation returns.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Through the trampoline.
    Back = 0,
    /// To `Frame::back`, which has been changed to an address of the program.
    Elsewhere = 1,
    /// To the invalid opcode, with the thread still inside.
    Trap = 2,
}
