//! General registers before an instruction, and the addresses of its operands.

use crate::decode::{Base, Memory, Pointer, Segment};

/// The arithmetic flags of rflags that ENQCMD, UMWAIT and TPAUSE write: CF, PF, AF, ZF, SF, OF.
pub const ARITHMETIC: u64 = CF | 1 << 2 | 1 << 4 | ZF | 1 << 7 | 1 << 11;
/// Carry.
pub const CF: u64 = 1;
/// Zero.
pub const ZF: u64 = 1 << 6;

/// Registers, numbered as the processor does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub general: [u64; 16],
    /// Address of the next instruction.
    pub next: u64,
}

impl Registers {
    /// Returns a register's value.
    #[must_use]
    pub fn get(&self, register: u8) -> u64 {
        self.general[usize::from(register & 15)]
    }

    /// Returns the address in a register. `base` returns the base of FS or GS.
    pub fn pointer(&self, pointer: Pointer, base: impl FnOnce(Segment) -> u64) -> u64 {
        add_segment(narrowed(self.get(pointer.register), pointer.narrow), pointer.segment, base)
    }

    /// Returns the address of a memory operand. `base` returns the base of FS or GS.
    pub fn address(&self, memory: Memory, base: impl FnOnce(Segment) -> u64) -> u64 {
        let mut sum = memory.displacement.cast_unsigned();
        sum = sum.wrapping_add(match memory.base {
            Base::Absent => 0,
            Base::Register(register) => self.get(register),
            Base::NextInstruction => self.next,
        });
        if let Some((index, scale)) = memory.index {
            sum = sum.wrapping_add(self.get(index) << scale);
        }
        add_segment(narrowed(sum, memory.narrow), memory.segment, base)
    }
}

fn narrowed(address: u64, narrow: bool) -> u64 {
    if narrow { address & 0xffff_ffff } else { address }
}

fn add_segment(offset: u64, segment: Segment, base: impl FnOnce(Segment) -> u64) -> u64 {
    match segment {
        Segment::Flat | Segment::Stack => offset,
        Segment::Fs | Segment::Gs => offset.wrapping_add(base(segment)),
    }
}
