//! The context in a signal frame: the program's registers and mask, which the return from the signal restores.
#![allow(unsafe_code, reason = "the kernel's signal set in the C library's longer one")]

use crate::registers::Registers;
use libc::ucontext_t;

/// The kernel's indices of rax, rcx, rdx, … in the processor's order.
const ORDER: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Returns a register by the C library's number, `REG_*`.
pub(crate) fn get(context: &ucontext_t, register: i32) -> u64 {
    context.uc_mcontext.gregs[register.cast_unsigned() as usize].cast_unsigned()
}

/// Changes a register.
pub(crate) fn set(context: &mut ucontext_t, register: i32, value: u64) {
    context.uc_mcontext.gregs[register.cast_unsigned() as usize] = value.cast_signed();
}

/// Returns the address of the instruction.
pub(crate) fn instruction(context: &ucontext_t) -> u64 {
    get(context, libc::REG_RIP)
}

/// Sets the address at which the thread continues.
pub(crate) fn continue_at(context: &mut ucontext_t, address: u64) {
    set(context, libc::REG_RIP, address);
}

/// Returns the general registers before an instruction of `length` bytes.
pub(crate) fn registers(context: &ucontext_t, length: u8) -> Registers {
    Registers { general: ORDER.map(|register| get(context, register)), next: instruction(context) + u64::from(length) }
}

/// Converts the C library's set to the kernel's 64 signals.
#[must_use]
pub fn to_bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set has at least eight bytes of plain data, and is aligned like a word.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read() }
}

/// Returns the mask that the return restores; the kernel reads and writes eight bytes of it.
pub(crate) fn mask(context: &ucontext_t) -> u64 {
    to_bits(&context.uc_sigmask)
}

/// Changes the mask that the return restores.
pub(crate) fn set_mask(context: &mut ucontext_t, mask: u64) {
    // SAFETY: the set has at least eight bytes; the kernel's frame has exactly these.
    unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(mask) }
}
