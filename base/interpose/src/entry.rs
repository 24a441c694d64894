//! The path from a rewritten site, or from a trap, into the emulation and back.
//!
//! A trampoline steps over the red zone (the 128 bytes below the stack pointer belong to the interrupted function) and
//! calls [`enter`]. `enter` saves general registers and flags in a [`Frame`] on the program's stack, takes a stack from
//! the pool, saves the vector state there, calls [`emulate`](crate::emulate::emulate), and undoes it all. A trap
//! handler continues the thread at [`enter_trapped`], which is such a trampoline for any site. From the first increment
//! of `Thread::inside` to the last decrement, the program's signal handlers are deferred.
//!
//! There are three ways to leave, see [`Exit`]. The third executes an invalid opcode with all the program's registers
//! restored: the handler of SIGILL then finds the same context in which the kernel would have delivered a fault or a
//! signal.
#![allow(unsafe_code, reason = "assembly that saves and restores a whole processor state")]

use crate::emulate;
use crate::frame::{Exit, Frame, RED_ZONE};
use crate::kernel;
use crate::thread::Thread;
use std::arch::naked_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How the vector state is saved, and the stack pool. Written once, before any site can be entered, except for `free`.
#[repr(C)]
#[derive(Debug)]
struct Machine {
    /// One of the `SAVE_*`.
    save: AtomicU32,
    /// Components to save: bits of XCR0.
    components: AtomicU32,
    /// Bytes of the state.
    area: AtomicUsize,
    /// Start of the pool; meaningless while no stack is free.
    stacks: AtomicUsize,
    /// A bit for every unused stack of the pool.
    free: AtomicU32,
}

/// FXSAVE: processors without XSAVE, and before anything was detected.
const SAVE_FX: u32 = 0;
/// XSAVE.
const SAVE_X: u32 = 1;
/// XSAVEC: omits components in their initial state.
const SAVE_XC: u32 = 2;

static MACHINE: Machine = Machine {
    save: AtomicU32::new(SAVE_FX),
    components: AtomicU32::new(0),
    area: AtomicUsize::new(LEGACY_BYTES),
    stacks: AtomicUsize::new(0),
    free: AtomicU32::new(0),
};

/// Bytes of x87 and SSE state: all that FXSAVE writes, and the start of every XSAVE area.
const LEGACY_BYTES: usize = 512;
/// Bytes of the header after it.
const HEADER_BYTES: usize = 64;
/// SSE, AVX, opmask, upper halves of zmm, zmm16 to zmm31. Compiled code that runs inside uses no other component: x87
/// (whose restoring alone takes some 25 ns), tiles, PKRU and bounds stay unchanged.
const COMPONENTS: u32 = 0xe6;

/// Stacks in the pool. If more threads are inside at once, the others use their own stack.
const STACKS: usize = 16;
/// Bytes of one stack; the lowest page is a guard.
const STACK_SPAN: usize = crate::STACK_BYTES + GUARD_BYTES + SAVED_BYTES;
const GUARD_BYTES: usize = 4096;
/// Space for the vector state, rounded up to pages.
const SAVED_BYTES: usize = 4096;

/// Detects the components to save, and the instruction for saving them.
#[allow(unused_unsafe, reason = "safe since Rust 1.94, unsafe in the oldest supported one")]
pub(crate) fn detect() {
    // SAFETY: every x86-64 processor has CPUID and leaf 1.
    let xsave = unsafe { __cpuid(1) }.ecx & 1 << 27 != 0;
    if !xsave {
        return;
    }
    // SAFETY: OSXSAVE says that XGETBV may be executed.
    let enabled = unsafe { xcr0() } & COMPONENTS;
    // SAFETY: processors with XSAVE have leaf 0xd.
    let compact = unsafe { __cpuid_count(0xd, 1) }.eax & 1 << 1 != 0;
    let mut area = LEGACY_BYTES + HEADER_BYTES;
    for component in 2..8 {
        if enabled & 1 << component != 0 {
            // SAFETY: as before.
            let leaf = unsafe { __cpuid_count(0xd, component) };
            // Bit 1 of ECX: aligned to 64 bytes in the compact format; the standard format has its own offsets.
            let start = if compact { area.next_multiple_of(64) } else { leaf.ebx as usize };
            area = area.max(start + leaf.eax as usize);
        }
    }
    // Relaxed: no thread enters before `install` has continued.
    MACHINE.components.store(enabled, Ordering::Relaxed);
    MACHINE.area.store(area, Ordering::Relaxed);
    MACHINE.save.store(if compact { SAVE_XC } else { SAVE_X }, Ordering::Relaxed);
}

/// # Safety
/// OSXSAVE is set.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u32 {
    // The components of interest are in the low half.
    // SAFETY: forwarded.
    (unsafe { _xgetbv(0) } & 0xffff_ffff) as u32
}

/// Creates the pool of stacks on the first trap. Without memory for it there is no pool, and threads use their own
/// stacks.
pub(crate) fn make_stacks() {
    if MACHINE.stacks.load(Ordering::Relaxed) != 0 {
        return;
    }
    let Ok(start) = kernel::map(None, STACKS * STACK_SPAN, libc::PROT_READ | libc::PROT_WRITE) else {
        return;
    };
    for stack in 0..STACKS {
        // SAFETY: just mapped and unused. Without a guard the stack still works.
        let _ = unsafe { kernel::forbid(start + stack * STACK_SPAN, GUARD_BYTES) };
    }
    // Two threads may both come here: the first pool is used, the second is unused address space.
    // Release: pairs with the locked exchange in `enter`, which takes a bit that is set below.
    if MACHINE.stacks.compare_exchange(0, start, Ordering::Release, Ordering::Relaxed).is_ok() {
        MACHINE.free.store((1 << STACKS) - 1, Ordering::Release);
    }
}

/// In a new process with one thread, which is not inside: marks all stacks as free.
pub(crate) fn after_fork_child() {
    if MACHINE.stacks.load(Ordering::Relaxed) != 0 {
        MACHINE.free.store((1 << STACKS) - 1, Ordering::Relaxed);
    }
}

/// The function that a trampoline calls, with the red zone stepped over. Never call it otherwise.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter() {
    naked_asm!(
        // The frame: flags and registers below the return address.
        "pushfq",
        "sub rsp, 128",
        "mov [rsp], rax",
        "mov [rsp + 8], rcx",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rbx",
        "lea rax, [rsp + {frame}]",
        "mov [rsp + 32], rax",
        "mov [rsp + 40], rbp",
        "mov [rsp + 48], rsi",
        "mov [rsp + 56], rdi",
        "mov [rsp + 64], r8",
        "mov [rsp + 72], r9",
        "mov [rsp + 80], r10",
        "mov [rsp + 88], r11",
        "mov [rsp + 96], r12",
        "mov [rsp + 104], r13",
        "mov [rsp + 112], r14",
        "mov [rsp + 120], r15",
        "mov rbx, rsp",
        // r13: offset of the thread's block from fs.
        "mov r13, qword ptr [rip + telpher_interpose_thread@GOTTPOFF]",
        "inc dword ptr fs:[r13 + {inside}]",
        // The ABI's state: string operations ascend, alignment is not checked.
        "cld",
        "test dword ptr [rbx + 128], 0x40000",
        "jz 2f",
        "pushfq",
        "and dword ptr [rsp], ~0x40000",
        "popfq",
        "2:",
        // r12: the stack taken from the pool, or -1. On the alternate signal stack none is taken: after a fault inside,
        // the kernel would start at the top of the alternate stack, over the frames of the handler that is running
        // there.
        "mov r12d, -1",
        "mov rcx, rsp",
        "sub rcx, fs:[r13 + {alternate}]",
        "cmp rcx, fs:[r13 + {alternate} + 8]",
        "jb 5f",
        "mov eax, [rip + {machine} + {free}]",
        "3:",
        "bsf ecx, eax",
        "jz 5f",
        "mov edx, eax",
        "btr edx, ecx",
        "lock cmpxchg [rip + {machine} + {free}], edx",
        "jne 3b",
        "mov r12d, ecx",
        "lea eax, [rcx + 1]",
        "imul rax, rax, {span}",
        "add rax, [rip + {machine} + {stacks}]",
        "mov rsp, rax",
        "5:",
        // r14: the vector state.
        "sub rsp, [rip + {machine} + {area}]",
        "and rsp, -64",
        "mov r14, rsp",
        "mov eax, [rip + {machine} + {components}]",
        "xor edx, edx",
        "cmp dword ptr [rip + {machine} + {save}], {save_x}",
        "jb 7f",
        // The header must be zero where the instruction does not write it.
        "mov [r14 + 512], rdx",
        "mov [r14 + 520], rdx",
        "mov [r14 + 528], rdx",
        "mov [r14 + 536], rdx",
        "mov [r14 + 544], rdx",
        "mov [r14 + 552], rdx",
        "mov [r14 + 560], rdx",
        "mov [r14 + 568], rdx",
        "je 6f",
        "xsavec [r14]",
        "jmp 8f",
        "6:",
        "xsave [r14]",
        "jmp 8f",
        "7:",
        "fxsave64 [r14]",
        "8:",
        // Dirty upper halves would slow down the code that follows.
        "test eax, 4",
        "jz 9f",
        "vzeroupper",
        "9:",
        // The ABI's rounding, and no floating-point exceptions.
        "push 0x1f80",
        "ldmxcsr dword ptr [rsp]",
        "add rsp, 8",
        "mov rdi, rbx",
        "call {emulate}",
        "mov r15d, eax",
        "mov eax, [rip + {machine} + {components}]",
        "xor edx, edx",
        "cmp dword ptr [rip + {machine} + {save}], {save_x}",
        "jb 11f",
        "xrstor [r14]",
        "jmp 12f",
        "11:",
        "fxrstor64 [r14]",
        "12:",
        "mov rsp, rbx",
        "test r12d, r12d",
        "js 13f",
        "lock bts dword ptr [rip + {machine} + {free}], r12d",
        "13:",
        "cmp r15d, {trap}",
        "je 15f",
        "dec dword ptr fs:[r13 + {inside}]",
        // Was a signal deferred while we were inside? Checked after the count: signals from now on are not deferred.
        "cmp dword ptr fs:[r13 + {deferred}], 0",
        "je 16f",
        "inc dword ptr fs:[r13 + {inside}]",
        "15:",
        "lea rax, [rip + {trap_here}]",
        "mov [rsp + 136], rax",
        "mov r15d, {elsewhere}",
        "16:",
        "test r15d, r15d",
        "mov rax, [rsp]",
        "mov rcx, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rbx, [rsp + 24]",
        "mov rbp, [rsp + 40]",
        "mov rsi, [rsp + 48]",
        "mov rdi, [rsp + 56]",
        "mov r8, [rsp + 64]",
        "mov r9, [rsp + 72]",
        "mov r10, [rsp + 80]",
        "mov r11, [rsp + 88]",
        "mov r12, [rsp + 96]",
        "mov r13, [rsp + 104]",
        "mov r14, [rsp + 112]",
        "mov r15, [rsp + 120]",
        "lea rsp, [rsp + 128]",
        "jnz 17f",
        "popfq",
        "ret",
        // Also past the red zone.
        "17:",
        "popfq",
        "ret {red_zone}",
        frame = const size_of::<Frame>(),
        inside = const offset_of!(Thread, inside),
        deferred = const offset_of!(Thread, deferred),
        alternate = const offset_of!(Thread, alternate),
        machine = sym MACHINE,
        free = const offset_of!(Machine, free),
        stacks = const offset_of!(Machine, stacks),
        area = const offset_of!(Machine, area),
        components = const offset_of!(Machine, components),
        save = const offset_of!(Machine, save),
        save_x = const SAVE_X,
        span = const STACK_SPAN,
        trap = const Exit::Trap as u32,
        elsewhere = const Exit::Elsewhere as u32,
        red_zone = const RED_ZONE,
        emulate = sym emulate::emulate,
        trap_here = sym trap_here,
    )
}

/// The address at which a trap handler continues the thread: a trampoline of no particular site. The thread is already
/// inside, and its `trapped` contains the instruction to emulate.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter_trapped() {
    naked_asm!(
        "lea rsp, [rsp - {red_zone}]",
        "call {enter}",
        "ud2",
        red_zone = const RED_ZONE,
        enter = sym enter,
    )
}

/// An invalid opcode at the end of emulations that the handler of SIGILL must finish.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn trap_here() {
    naked_asm!("ud2")
}

/// Returns the address of [`trap_here`].
pub(crate) fn trap_address() -> u64 {
    trap_here as *const () as u64
}
