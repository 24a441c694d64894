//! The program's view of signal actions and masks.
//!
//! The kernel knows our handlers, and the `table` contains the program's actions. `deliver` calls the program's
//! handlers: at once, or when the emulation that they interrupt has ended. SIGILL, SIGBUS and SIGSEGV go to the traps,
//! whatever the program sets. They are never really blocked: the program only believes so. A signal that the program
//! must not see then waits or kills the process, as it would without us.
#![allow(unsafe_code, reason = "installs signal handlers, and calls the program's")]

mod action;
mod deferral;
pub(crate) mod deliver;
pub mod functions;
mod set;
mod symbols;
mod table;

use crate::kernel::{self, ALL, Errno, KernelAction};
use crate::thread::{MARK, Thread};
use action::handles;
use deliver::{FLAGS, SA_RESTORER, real_action, reinstall, restorer};
use std::sync::atomic::{AtomicUsize, Ordering};
use table::{SIGNALS, TABLE};

pub use crate::context::to_bits;
pub use crate::kernel::Change;
pub use action::Action;
pub use deferral::{Deferral, defer, end_deferrals, note_cancellations};
pub use set::PROTECTED;
pub(crate) use set::{PROTECTED_SIGNALS, bit};

/// Signals of the C library itself, which it hides from programs: cancellation and set-id.
const INTERNAL: u64 = bit(32) | bit(33);
/// The process whose actions the table contains.
static OWNER: AtomicUsize = AtomicUsize::new(0);

/// Makes the actions found at the start the program's actions. `trap_handler` is the address of the handler for the
/// protected signals.
pub(crate) fn adopt(trap_handler: usize) -> Result<(), Errno> {
    deliver::set_trap_handler(trap_handler);
    // Relaxed: the program's threads do not run yet, or do not know of us.
    OWNER.store(kernel::process(), Ordering::Relaxed);
    let lock = TABLE.lock();
    for signal in 1..=SIGNALS {
        if bit(signal) & INTERNAL != 0 {
            continue;
        }
        // SAFETY: queries only.
        let found = unsafe { kernel::action(signal, None) }?;
        let action = Action { handler: found.handler, flags: found.flags, mask: found.mask };
        TABLE.write(&lock, signal, action);
        if handles(&action) || bit(signal) & PROTECTED != 0 {
            // SAFETY: our handlers are valid for any signal.
            unsafe { kernel::action(signal, Some(&real_action(signal, action))) }?;
        }
    }
    drop(lock);
    let found = kernel::mask(Some((Change::Unblock, PROTECTED | MARK)));
    Thread::current().set_blocked(0, found);
    Ok(())
}

/// See [`crate::after_fork_child`].
pub(crate) fn after_fork_child() {
    if !is_adopted() {
        return;
    }
    OWNER.store(kernel::process(), Ordering::Relaxed);
    TABLE.after_fork_child();
    Thread::current().forget_sent();
}

/// `sigaction`: returns the action before, and sets the new one if there is one.
///
/// # Safety
/// A new handler is a function with the signature that its flags require.
///
/// # Errors
/// `EINVAL` as the C library returns it: no such signal, one of its own (32, 33), or a new action for SIGKILL or
/// SIGSTOP.
pub unsafe fn action(signal: i32, new: Option<Action>) -> Result<Action, Errno> {
    let fixed = signal == libc::SIGKILL || signal == libc::SIGSTOP;
    if !(1..=SIGNALS).contains(&signal) || bit(signal) & INTERNAL != 0 || (fixed && new.is_some()) {
        return Err(libc::EINVAL);
    }
    let Some(new) = new else {
        return Ok(if is_owner() { TABLE.read(signal).0 } else { action_in_kernel(signal)? });
    };
    let mask = new.mask & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP));
    let new = Action { handler: new.handler, flags: new.flags & FLAGS | SA_RESTORER, mask };
    if !is_owner() {
        return change_in_kernel(signal, new);
    }
    let lock = TABLE.lock();
    let (old, _) = TABLE.read(signal);
    // A thread that finds the default action in the table must find it in the kernel, too.
    if handles(&new) {
        TABLE.write(&lock, signal, new);
        reinstall(signal, new);
    } else {
        reinstall(signal, new);
        TABLE.write(&lock, signal, new);
        if new.handler == libc::SIG_IGN {
            // Ignoring a signal discards pending ones.
            Thread::current().drop_sent(signal);
        }
    }
    drop(lock);
    Ok(old)
}

/// False before [`adopt`]: then the program's actions and masks are those of the kernel.
fn is_adopted() -> bool {
    // Relaxed: changes once, before other threads run.
    OWNER.load(Ordering::Relaxed) != 0
}

/// False in the child of a `vfork`: it has its own actions, but shares our memory, which contains its parent's actions.
fn is_owner() -> bool {
    // Relaxed: changes only before other threads run.
    OWNER.load(Ordering::Relaxed) == kernel::process()
}

/// Returns the action that the kernel has, in a `vfork` child or before [`adopt`].
fn action_in_kernel(signal: i32) -> Result<Action, Errno> {
    // SAFETY: queries only.
    let found = unsafe { kernel::action(signal, None) }?;
    if deliver::is_ours(found.handler) {
        return Ok(TABLE.read(signal).0);
    }
    Ok(Action { handler: found.handler, flags: found.flags, mask: found.mask })
}

/// Changes an action in the kernel only. Before [`adopt`] that is all there is. In a `vfork` child a handler is not
/// deferred, but such a child runs only briefly; its traps stay.
fn change_in_kernel(signal: i32, new: Action) -> Result<Action, Errno> {
    let old = action_in_kernel(signal)?;
    let adopted = is_adopted();
    if adopted && handles(&new) && bit(signal) & PROTECTED != 0 {
        return Ok(old);
    }
    let restorer = restorer as *const () as usize;
    let mask = if adopted { new.mask & ALL } else { new.mask };
    let new = KernelAction { handler: new.handler, flags: new.flags, restorer, mask };
    // SAFETY: the promise of `action`'s caller.
    unsafe { kernel::action(signal, Some(&new)) }?;
    Ok(old)
}

/// `sigaction` on the C library's structures.
///
/// # Safety
/// `new` and `old` are null or valid; a new handler is a function with the signature that its flags require.
///
/// # Errors
/// As for [`action`].
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
        // The flags are in the low half; the high half is unused.
        old.sa_flags = ((before.flags & 0xffff_ffff) as u32).cast_signed();
        old.sa_mask = from_bits(before.mask);
        old.sa_restorer = None;
    }
    Ok(())
}

/// `pthread_sigmask`, `sigprocmask`: returns the thread's mask before, and changes it if there is a change.
pub fn mask(change: Option<(Change, u64)>) -> u64 {
    let thread = Thread::current();
    // The C library's own signals cannot be blocked; the kernel never blocks its two.
    let change = change.map(|(how, set)| match how {
        Change::Unblock => (how, set),
        Change::Block | Change::Set => (how, set & !(INTERNAL | bit(libc::SIGKILL) | bit(libc::SIGSTOP))),
    });
    if !is_adopted() {
        return kernel::mask(change);
    }
    if thread.is_inside() && thread.deferred.load(Ordering::Relaxed) != 0 {
        // All signals are blocked now; this mask will be restored.
        let before = thread.mask.load(Ordering::Relaxed);
        let blocked = thread.blocked(before);
        if let Some((how, set)) = change {
            let after = how.apply(before & !MARK | blocked, set);
            thread.set_blocked(before, after);
            thread.mask.store(after & ALL & !MARK | before & MARK, Ordering::Relaxed);
        }
        return before & !MARK | blocked;
    }
    let before = match change {
        // The mark must be kept.
        Some((Change::Set, set)) if thread.may_be_marked() => {
            let mark = kernel::mask(None) & MARK;
            kernel::mask(Some((Change::Set, set & ALL | mark)))
        }
        change => kernel::mask(change.map(|(how, set)| (how, set & ALL & !MARK))),
    };
    let blocked = thread.blocked(before);
    if let Some((how, set)) = change {
        let after = how.apply(blocked, set);
        thread.set_blocked(before, after);
        if thread.sent() & !after != 0 && !thread.is_inside() {
            thread.send_kept(after);
        }
    }
    before & !MARK | blocked
}

/// `sigprocmask` on the C library's sets.
///
/// # Safety
/// `set` and `old` are null or valid.
///
/// # Errors
/// `EINVAL`: `set` is given and `how` is unknown.
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

/// `sigpending`: returns the signals that are pending for this thread.
#[must_use]
pub fn pending() -> u64 {
    kernel::pending() | Thread::current().sent()
}

/// Returns the mask to pass to the kernel when the program passes `set` as the mask during a system call (`sigsuspend`,
/// `ppoll`, `pselect`, `epoll_pwait`): without the signals that must never be blocked.
#[must_use]
pub fn real_mask(set: u64) -> u64 {
    set & !PROTECTED
}

/// Converts the kernel's 64 signals to the C library's set.
#[must_use]
pub fn from_bits(bits: u64) -> libc::sigset_t {
    // SAFETY: plain data, of which zero is the empty set; the first eight bytes are the first 64 signals.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        (&raw mut set).cast::<u64>().write(bits);
        set
    }
}

/// True if a handler of the program has been deferred on this thread: waiting code should return.
#[must_use]
pub fn is_deferred() -> bool {
    Thread::current().deferred.load(Ordering::Relaxed) != 0
}
