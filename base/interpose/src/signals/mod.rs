//! The program's view of signal actions and masks.
#![allow(unsafe_code, reason = "gives the kernel signal handlers")]

use crate::kernel::{self, Errno, KernelAction};

pub use crate::kernel::Change;

/// SIGILL, SIGBUS and SIGSEGV, which are never really blocked, ignored or defaulted. Bit `n - 1` is signal `n`.
pub const PROTECTED: u64 = 1 << (libc::SIGILL - 1) | 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1);

/// What the program asked to happen on a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Action {
    /// Address of a handler, or `SIG_DFL`, or `SIG_IGN`.
    pub handler: usize,
    /// `SA_*`.
    pub flags: u64,
    /// Signals blocked while it runs, besides its own. Bit `n - 1` is signal `n`.
    pub mask: u64,
}

/// `sigaction`: the action before, and the new one if there is one.
///
/// # Safety
/// A new handler is a function of the signature its flags ask for.
///
/// # Errors
/// `EINVAL` as the C library says it: no such signal, one of its own (32, 33), or a new action for SIGKILL or SIGSTOP.
pub unsafe fn action(signal: i32, new: Option<Action>) -> Result<Action, Errno> {
    let new = new.map(|new| KernelAction { handler: new.handler, flags: new.flags, restorer: 0, mask: new.mask });
    // SAFETY: forwarded.
    let old = unsafe { kernel::action(signal, new.as_ref()) }?;
    Ok(Action { handler: old.handler, flags: old.flags, mask: old.mask })
}

/// `sigaction` on the C library's structures.
///
/// # Safety
/// `new` and `old` are null or valid; a new handler is a function of the signature its flags ask for.
///
/// # Errors
/// As [`action`].
pub unsafe fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> Result<(), Errno> {
    // SAFETY: forwarded.
    let new = unsafe { new.as_ref() }.map(|new| Action {
        handler: new.sa_sigaction,
        flags: u64::from(new.sa_flags.cast_unsigned()),
        mask: to_bits(&new.sa_mask),
    });
    // SAFETY: forwarded.
    let before = unsafe { action(signal, new) }?;
    // SAFETY: forwarded.
    if let Some(old) = unsafe { old.as_mut() } {
        old.sa_sigaction = before.handler;
        // The flags are the low half; nothing uses the other.
        old.sa_flags = (before.flags & 0xffff_ffff) as u32 as i32;
        old.sa_mask = from_bits(before.mask);
        old.sa_restorer = None;
    }
    Ok(())
}

/// `pthread_sigmask`, `sigprocmask`: the thread's mask before, and its change if there is one.
pub fn mask(change: Option<(Change, u64)>) -> u64 {
    kernel::mask(change)
}

/// `sigprocmask` on the C library's sets.
///
/// # Safety
/// `set` and `old` are null or valid.
///
/// # Errors
/// `EINVAL`: `set` is there and `how` is unknown.
pub unsafe fn sigprocmask(how: i32, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> Result<(), Errno> {
    // SAFETY: forwarded.
    let change = match (unsafe { set.as_ref() }, how) {
        (None, _) => None,
        (Some(set), libc::SIG_BLOCK) => Some((Change::Block, to_bits(set))),
        (Some(set), libc::SIG_UNBLOCK) => Some((Change::Unblock, to_bits(set))),
        (Some(set), libc::SIG_SETMASK) => Some((Change::Set, to_bits(set))),
        _ => return Err(libc::EINVAL),
    };
    let before = mask(change);
    // SAFETY: forwarded.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = from_bits(before);
    }
    Ok(())
}

/// `sigpending`: what waits for this thread to unblock it.
#[must_use]
pub fn pending() -> u64 {
    0
}

/// The set the kernel may be given where the program names `set` as a mask for the time of a system call (`sigsuspend`,
/// `ppoll`, `pselect`, `epoll_pwait`): without the signals that must never be blocked.
#[must_use]
pub fn real_mask(set: u64) -> u64 {
    set & !PROTECTED
}

/// The kernel's 64 signals in the C library's set.
#[must_use]
pub fn to_bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set is at least eight bytes of plain data, and aligned like a word.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read() }
}

/// The C library's set of the kernel's 64 signals.
#[must_use]
pub fn from_bits(bits: u64) -> libc::sigset_t {
    // SAFETY: plain data, of which zero is the empty set; the first eight bytes are the first 64 signals.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        (&raw mut set).cast::<u64>().write(bits);
        set
    }
}

/// Puts the program's signal handlers off on this thread until it is dropped; nests. For code that the program's handlers
/// must not re-enter, such as ours that holds a lock.
#[derive(Debug)]
pub struct Deferral {
    /// It belongs to one thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// See [`Deferral`].
#[must_use]
pub fn defer() -> Deferral {
    Deferral { _here: std::marker::PhantomData }
}

/// True if a handler of the program has been put off on this thread: whoever waits should return.
#[must_use]
pub fn is_deferred() -> bool {
    false
}
