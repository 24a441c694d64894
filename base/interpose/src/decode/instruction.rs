//! The instructions that this crate emulates, and their operands.

/// A decoded instruction that this crate can emulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Its length in bytes, 2 to 15.
    pub length: u8,
    /// Its operation.
    pub operation: Operation,
}

/// The operation of an instruction. Registers are numbered as the processor does: 0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5
/// rbp, 6 rsi, 7 rdi, 8 to 15 r8 to r15.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// MOVDIR64B: 64 bytes from memory to the address in a register.
    Movdir64b {
        /// The register with the destination's address.
        destination: Pointer,
        /// The 64 bytes.
        source: Memory,
    },
    /// ENQCMD, ENQCMDS.
    Enqcmd {
        /// ENQCMDS, which user programs may not execute.
        supervisor: bool,
        /// The register with the destination's address.
        destination: Pointer,
        /// The 64 bytes.
        source: Memory,
    },
    /// MOVDIRI: a direct store of 4 or 8 bytes.
    Movdiri {
        /// The destination.
        destination: Memory,
        /// The stored register.
        source: u8,
        /// 4 or 8.
        bytes: u8,
    },
    /// UMONITOR: arms the monitor on a line.
    Umonitor {
        /// The register with the address.
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
        /// The destination.
        destination: Memory,
        /// zmm register, 0 to 31.
        source: u8,
        /// Mask register, 1 to 7; 0 for no mask.
        mask: u8,
        /// Number of elements that the mask selects from: 8, 16, 32 or 64.
        elements: u8,
    },
    /// Any shorter store. A portal drops it.
    Store {
        /// The destination.
        destination: Memory,
        /// The number of bytes.
        bytes: u8,
    },
    /// STOS or MOVS: stores at ES:rdi and advances the pointers. A portal drops the stored data.
    StringStore {
        /// True for MOVS, which advances rsi as well.
        moves: bool,
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// With a repeat prefix: decrements rcx.
        repeat: bool,
        /// With 67h: rcx, rsi and rdi have 32 bits.
        narrow: bool,
    },
}

/// A register that contains an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The register.
    pub register: u8,
    /// With 67h: only its low 32 bits are used.
    pub narrow: bool,
    /// The segment whose base is added. Destinations of MOVDIR64B and ENQCMD are in ES and have none.
    pub segment: Segment,
}

/// A memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The base, to which the displacement is added.
    pub base: Base,
    /// Index register and its scale as a power of two, if present.
    pub index: Option<(u8, u8)>,
    /// Signed displacement, already scaled if the encoding scales it.
    pub displacement: i64,
    /// The segment whose base is added to the sum.
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

/// The segments that have an effect in 64-bit mode.
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
