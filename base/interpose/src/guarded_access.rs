//! Accesses to the program's memory that may fault: a fault is returned as a value, exactly as the kernel reported it.
//!
//! The functions are leaves that keep nothing on the stack, so a fault anywhere in their code continues at a single
//! landing.
#![allow(unsafe_code, reason = "accesses the program's memory by assembly whose faults are caught")]

use crate::context;
use crate::fault::{FAULT_REGISTERS, FROM_KERNEL, Fault};
use crate::thread::Thread;
use std::arch::{global_asm, is_x86_feature_detected};
use std::sync::atomic::{AtomicBool, Ordering};

global_asm!(
    r#"
    .pushsection .text.telpher_interpose_guarded,"ax",@progbits
    .p2align 4
    .hidden telpher_interpose_guarded_begin
    .globl telpher_interpose_guarded_begin
telpher_interpose_guarded_begin:

    // rdi: from, rsi: to
    .hidden telpher_interpose_load64
    .globl telpher_interpose_load64
telpher_interpose_load64:
    movups xmm0, [rdi]
    movups xmm1, [rdi + 16]
    movups xmm2, [rdi + 32]
    movups xmm3, [rdi + 48]
    movups [rsi], xmm0
    movups [rsi + 16], xmm1
    movups [rsi + 32], xmm2
    movups [rsi + 48], xmm3
    xor eax, eax
    ret

    // rdi: to, aligned to 64 bytes; rsi: from
    .hidden telpher_interpose_store64
    .globl telpher_interpose_store64
telpher_interpose_store64:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movaps [rdi], xmm0
    movaps [rdi + 16], xmm1
    movaps [rdi + 32], xmm2
    movaps [rdi + 48], xmm3
    xor eax, eax
    ret

    // The same in a single store.
    .hidden telpher_interpose_store64_whole
    .globl telpher_interpose_store64_whole
telpher_interpose_store64_whole:
    vmovdqu64 zmm0, [rsi]
    vmovdqa64 [rdi], zmm0
    xor eax, eax
    vzeroupper
    ret

    // rdi: to, rsi: value, edx: bytes, 4 or 8
    .hidden telpher_interpose_store_word
    .globl telpher_interpose_store_word
telpher_interpose_store_word:
    xor eax, eax
    cmp edx, 8
    je 2f
    mov [rdi], esi
    ret
2:  mov [rdi], rsi
    ret

    // rdi: address of a byte
    .hidden telpher_interpose_probe_read
    .globl telpher_interpose_probe_read
telpher_interpose_probe_read:
    movzx eax, byte ptr [rdi]
    xor eax, eax
    ret

    // rdi: address of a byte, which keeps its value
    .hidden telpher_interpose_probe_write
    .globl telpher_interpose_probe_write
telpher_interpose_probe_write:
    lock or byte ptr [rdi], 0
    xor eax, eax
    ret

    .hidden telpher_interpose_guarded_end
    .globl telpher_interpose_guarded_end
telpher_interpose_guarded_end:
telpher_interpose_guarded_landing:
    .hidden telpher_interpose_guarded_landing
    .globl telpher_interpose_guarded_landing
    mov eax, 1
    ret
    .popsection
    "#
);

unsafe extern "sysv64" {
    static telpher_interpose_guarded_begin: u8;
    static telpher_interpose_guarded_end: u8;
    static telpher_interpose_guarded_landing: u8;
    fn telpher_interpose_load64(from: u64, to: *mut u64) -> u32;
    fn telpher_interpose_store64(to: u64, from: *const u64) -> u32;
    fn telpher_interpose_store64_whole(to: u64, from: *const u64) -> u32;
    fn telpher_interpose_store_word(to: u64, value: u64, bytes: u32) -> u32;
    fn telpher_interpose_probe_read(address: u64) -> u32;
    fn telpher_interpose_probe_write(address: u64) -> u32;
}

/// The access failed; the thread's `fault` contains the details.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Faulted;

fn outcome(result: u32) -> Result<(), Faulted> {
    if result == 0 { Ok(()) } else { Err(Faulted) }
}

/// True if the processor has 64-byte stores and the system enables them.
static WHOLE: AtomicBool = AtomicBool::new(false);

/// Detects 64-byte stores; before the detection, smaller stores are used.
pub(crate) fn detect() {
    // Relaxed: a hint, either value is correct.
    WHOLE.store(is_x86_feature_detected!("avx512f"), Ordering::Relaxed);
}

/// Reads 64 bytes at any address. Other threads may be writing them: they are read once.
pub(crate) fn load(address: u64) -> Result<[u64; 8], Faulted> {
    let mut data = [0; 8];
    // SAFETY: writes 64 bytes of ours; an unreadable source ends at the landing.
    outcome(unsafe { telpher_interpose_load64(address, data.as_mut_ptr()) })?;
    Ok(data)
}

/// Stores 64 bytes, in a single store if the processor has one.
///
/// # Safety
/// `address` is 64-byte aligned, and no code of ours relies on the bytes there: the program itself stores there.
pub(crate) unsafe fn store(address: u64, data: &[u64; 8]) -> Result<(), Faulted> {
    let store = if WHOLE.load(Ordering::Relaxed) { telpher_interpose_store64_whole } else { telpher_interpose_store64 };
    // SAFETY: reads 64 bytes of ours; an unwritable destination ends at the landing; the rest is the caller's promise.
    outcome(unsafe { store(address, data.as_ptr()) })
}

/// Stores 8 bytes, or the low 4.
///
/// # Safety
/// No code of ours relies on the bytes there: the program itself stores there.
pub(crate) unsafe fn store_word(address: u64, value: u64, bytes: u8) -> Result<(), Faulted> {
    // SAFETY: an unwritable destination ends at the landing; the rest is the caller's promise.
    outcome(unsafe { telpher_interpose_store_word(address, value, bytes.into()) })
}

/// Checks that a byte can be read.
pub(crate) fn probe_read(address: u64) -> Result<(), Faulted> {
    // SAFETY: an unreadable address ends at the landing.
    outcome(unsafe { telpher_interpose_probe_read(address) })
}

/// Checks that a byte can be written.
pub(crate) fn probe_write(address: u64) -> Result<(), Faulted> {
    // SAFETY: an atomic OR with zero changes no byte; an unwritable address ends at the landing.
    outcome(unsafe { telpher_interpose_probe_write(address) })
}

/// Called by the handler of SIGSEGV and SIGBUS: returns true if the fault was in this code and the thread continues at
/// the landing.
pub(crate) fn fixup(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    let instruction = context::instruction(context);
    let code = (&raw const telpher_interpose_guarded_begin).addr()..(&raw const telpher_interpose_guarded_end).addr();
    if !usize::try_from(instruction).is_ok_and(|instruction| code.contains(&instruction)) {
        return false;
    }
    let fault =
        Fault { signal, info: *info, registers: FAULT_REGISTERS.map(|register| context::get(context, register)) };
    // SAFETY: this thread's; it is read only after the interrupted function has returned the error.
    unsafe { (*Thread::current().fault.get()).write(fault) };
    context::continue_at(context, (&raw const telpher_interpose_guarded_landing).addr() as u64);
    true
}

/// Returns #GP as Linux reports it.
pub(crate) fn general_protection() -> Fault {
    const TRAP_GP: u64 = 13;
    // SAFETY: plain data, of which zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGSEGV, FROM_KERNEL);
    Fault { signal: libc::SIGSEGV, info, registers: [TRAP_GP, 0, 0] }
}
