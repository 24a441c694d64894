//! System calls, made directly: the C library's functions of the same names may be the ones we stand in for.
#![allow(unsafe_code, reason = "makes system calls")]

use std::arch::asm;

/// A negated return value of the kernel.
pub type Errno = i32;

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KernelAction {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// One system call with up to six arguments.
///
/// # Safety
/// The arguments are what the call of that number asks for, and what it does to this process is what the caller wants.
#[inline]
unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the kernel's calling convention: it preserves everything but rax, rcx and r11. What it does to memory is the
    // caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // Errors are -4095..=-1; the cast keeps such a small number.
    #[allow(clippy::cast_possible_truncation, reason = "between -4095 and -1")]
    if (-4095..0).contains(&result) { Err(-result as Errno) } else { Ok(result.cast_unsigned()) }
}

/// `rt_sigaction`.
///
/// # Safety
/// A new handler is fit to be called for `signal` on any thread, and returns through its restorer.
pub(crate) unsafe fn action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |new| std::ptr::from_ref(new).addr());
    // SAFETY: both are structures of the kernel's layout that live across the call; the handler is the caller's promise.
    unsafe {
        call(libc::SYS_rt_sigaction, [signal as usize, new, (&raw mut old).expose_provenance(), SET_BYTES, 0, 0])?;
    }
    Ok(old)
}

/// How [`mask`] changes the thread's signal mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds to it.
    Block,
    /// Takes from it.
    Unblock,
    /// Replaces it.
    Set,
}

/// `rt_sigprocmask`: the mask before.
pub(crate) fn mask(change: Option<(Change, u64)>) -> u64 {
    let mut old = 0u64;
    let (how, set) = match &change {
        None => (libc::SIG_BLOCK, 0),
        Some((Change::Block, set)) => (libc::SIG_BLOCK, (&raw const *set).addr()),
        Some((Change::Unblock, set)) => (libc::SIG_UNBLOCK, (&raw const *set).addr()),
        Some((Change::Set, set)) => (libc::SIG_SETMASK, (&raw const *set).addr()),
    };
    // SAFETY: both sets have the kernel's eight bytes and live across the call. With such arguments the call cannot fail.
    let _ = unsafe {
        call(libc::SYS_rt_sigprocmask, [how as usize, set, (&raw mut old).expose_provenance(), SET_BYTES, 0, 0])
    };
    old
}
