//! The C library's functions for signal actions and masks, with its results and its errno: for the symbols that a
//! preloaded library exports ([`signal_symbols!`](crate::signal_symbols)).
#![allow(unsafe_code, reason = "the program's structures, and the C library's errno")]

use super::{Action, Change};
use crate::kernel::Errno;
use std::ffi::c_int;

/// Result of the old functions on failure.
const SIG_ERR: usize = usize::MAX;
/// Result of sigset(3) for a blocked signal, and its argument that blocks one.
const SIG_HOLD: usize = 2;

fn set_errno(errno: Errno) {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Converts a result to the C library's.
fn answer(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// sigaction(2).
///
/// # Safety
/// As sigaction(2).
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: forwarded.
    answer(unsafe { super::sigaction(signal, new, old) })
}

/// Sets a handler, with flags; returns the former one.
///
/// # Safety
/// The handler is a function that takes a signal's number.
unsafe fn set_handler(signal: c_int, handler: usize, flags: c_int) -> usize {
    let bit = if flags & libc::SA_NODEFER == 0 { bit_of(signal) } else { 0 };
    let new = Action { handler, flags: u64::from(flags.cast_unsigned()), mask: bit };
    // SAFETY: forwarded.
    match unsafe { super::action(signal, Some(new)) } {
        Ok(before) => before.handler,
        Err(errno) => {
            set_errno(errno);
            SIG_ERR
        }
    }
}

fn bit_of(signal: c_int) -> u64 {
    if (1..=64).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// signal(2), as in the C library: with BSD semantics.
///
/// # Safety
/// As signal(2).
pub unsafe fn signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { set_handler(number, handler, libc::SA_RESTART) }
}

/// System V's signal: the action is used once, and its signal is not blocked meanwhile.
///
/// # Safety
/// As signal(2).
pub unsafe fn sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { set_handler(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// sigset(3).
///
/// # Safety
/// As sigset(3).
pub unsafe fn sigset(number: c_int, handler: usize) -> usize {
    let bit = bit_of(number);
    let held = super::mask(None) & bit != 0;
    let before = if handler == SIG_HOLD {
        super::mask(Some((Change::Block, bit)));
        // SAFETY: only reads the action.
        unsafe { super::action(number, None) }.map_or(SIG_ERR, |action| action.handler)
    } else {
        // SAFETY: forwarded.
        let before = unsafe { set_handler(number, handler, 0) };
        if before != SIG_ERR {
            super::mask(Some((Change::Unblock, bit)));
        }
        before
    };
    if held && before != SIG_ERR { SIG_HOLD } else { before }
}

/// sighold(3).
pub fn sighold(number: c_int) -> c_int {
    change_one(number, Change::Block)
}

/// sigrelse(3).
pub fn sigrelse(number: c_int) -> c_int {
    change_one(number, Change::Unblock)
}

fn change_one(number: c_int, change: Change) -> c_int {
    let bit = bit_of(number);
    if bit == 0 {
        return answer(Err(libc::EINVAL));
    }
    super::mask(Some((change, bit)));
    0
}

/// sigignore(3).
pub fn sigignore(number: c_int) -> c_int {
    // SAFETY: SIG_IGN is not a function.
    if unsafe { set_handler(number, libc::SIG_IGN, 0) } == SIG_ERR { -1 } else { 0 }
}

/// siginterrupt(3).
pub fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    let restart = u64::from(libc::SA_RESTART.cast_unsigned());
    // SAFETY: reads the action, then sets the same handler.
    let changed = unsafe {
        super::action(number, None).and_then(|action| {
            let flags = if interrupts == 0 { action.flags | restart } else { action.flags & !restart };
            super::action(number, Some(Action { flags, ..action }))
        })
    };
    answer(changed.map(|_| ()))
}

/// sigprocmask(2).
///
/// # Safety
/// As sigprocmask(2).
pub unsafe fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: forwarded.
    answer(unsafe { super::sigprocmask(how, set, old) })
}

/// pthread_sigmask(3), which returns the error itself.
///
/// # Safety
/// As pthread_sigmask(3).
pub unsafe fn pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: forwarded.
    unsafe { super::sigprocmask(how, set, old) }.err().unwrap_or(0)
}

/// sigblock(3), for the first 32 signals.
pub fn sigblock(mask: c_int) -> c_int {
    low_half(super::mask(Some((Change::Block, mask.cast_unsigned().into()))))
}

/// sigsetmask(3), for the first 32 signals.
pub fn sigsetmask(mask: c_int) -> c_int {
    low_half(super::mask(Some((Change::Set, mask.cast_unsigned().into()))))
}

/// siggetmask(3), for the first 32 signals.
pub fn siggetmask() -> c_int {
    low_half(super::mask(None))
}

#[allow(clippy::cast_possible_truncation, reason = "the functions support 32 signals")]
fn low_half(mask: u64) -> c_int {
    (mask as u32).cast_signed()
}

/// sigpending(2).
///
/// # Safety
/// As sigpending(2).
pub unsafe fn sigpending(set: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's set.
    match unsafe { set.as_mut() } {
        Some(set) => *set = super::from_bits(super::pending()),
        None => return answer(Err(libc::EFAULT)),
    }
    0
}

/// Returns the set to pass to the kernel for the program's set; `None` for a null pointer.
///
/// # Safety
/// The set is null or readable.
pub unsafe fn real_set(set: *const libc::sigset_t) -> Option<libc::sigset_t> {
    // SAFETY: the caller's set.
    let set = unsafe { set.as_ref() }.copied()?;
    Some(if super::is_adopted() { super::from_bits(super::real_mask(super::to_bits(&set))) } else { set })
}

/// Returns a pointer to the set, or null.
#[must_use]
pub fn pointer(set: Option<&libc::sigset_t>) -> *const libc::sigset_t {
    set.map_or(std::ptr::null(), std::ptr::from_ref)
}
