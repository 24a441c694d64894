//! Instructions as bytes, and what they ask for. Pure: no memory is touched but the slice.

mod prefixes;

/// A decoded instruction that this crate can emulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Bytes it takes, 2 to 15.
    pub length: u8,
    /// What it does.
    pub operation: Operation,
}

/// What an instruction does. Registers are numbered as the processor does: 0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi,
/// 7 rdi, 8 to 15 r8 to r15.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// MOVDIR64B: 64 bytes from memory to the address in a register.
    Movdir64b {
        /// Holds the destination's address.
        destination: Pointer,
        /// The 64 bytes.
        source: Memory,
    },
    /// ENQCMD, ENQCMDS.
    Enqcmd {
        /// ENQCMDS, which user programs may not execute.
        supervisor: bool,
        /// Holds the destination's address.
        destination: Pointer,
        /// The 64 bytes.
        source: Memory,
    },
    /// MOVDIRI: a direct store of 4 or 8 bytes.
    Movdiri {
        /// Where.
        destination: Memory,
        /// Register that is stored.
        source: u8,
        /// 4 or 8.
        bytes: u8,
    },
    /// UMONITOR: arms the monitor on a line.
    Umonitor {
        /// Holds the address.
        address: Pointer,
    },
    /// UMWAIT.
    Umwait {
        /// Register with the control bits.
        control: u8,
    },
    /// TPAUSE.
    Tpause {
        /// Register with the control bits.
        control: u8,
    },
    /// A 64-byte vector store.
    Store64 {
        /// Where.
        destination: Memory,
        /// zmm register, 0 to 31.
        source: u8,
        /// Mask register, 1 to 7; 0 for no mask.
        mask: u8,
        /// Elements the mask chooses from: 8, 16, 32 or 64.
        elements: u8,
    },
    /// Any shorter store. A portal drops it.
    Store {
        /// Where.
        destination: Memory,
        /// How many bytes.
        bytes: u8,
    },
    /// STOS or MOVS: stores at ES:rdi and moves the pointers on. A portal drops what is stored.
    StringStore {
        /// MOVS, which moves rsi on as well.
        moves: bool,
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// With a repeat prefix: counts rcx down.
        repeat: bool,
        /// With 67h: rcx, rsi and rdi have 32 bits.
        narrow: bool,
    },
}

/// A register that holds an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The register.
    pub register: u8,
    /// With 67h: only its low 32 bits count.
    pub narrow: bool,
    /// What is added. Destinations of MOVDIR64B and ENQCMD are in ES and have none.
    pub segment: Segment,
}

/// A memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// What the displacement is added to.
    pub base: Base,
    /// Index register and the power of two it is scaled by, if there is one.
    pub index: Option<(u8, u8)>,
    /// Signed displacement, scaled already where the encoding scales it.
    pub displacement: i32,
    /// What is added to the sum.
    pub segment: Segment,
    /// With 67h: the sum, without the segment, has 32 bits.
    pub narrow: bool,
}

/// The base of a memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// None.
    Absent,
    /// A register.
    Register(u8),
    /// The address of the next instruction.
    NextInstruction,
}

/// The segments that matter in 64-bit mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// A base of zero.
    Flat,
    /// A base of zero, by the stack segment: an address that is not canonical raises #SS instead of #GP.
    Stack,
    /// FS.
    Fs,
    /// GS.
    Gs,
}

/// The longest instruction.
pub const LONGEST: usize = 15;

/// The instruction at the start of `bytes`; `None` if it is none of ours, or longer than `bytes`.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Instruction> {
    prefixes::decode(bytes)
}
