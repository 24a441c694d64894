//! Calls the program's handlers as the kernel would have called them, and installs the kernel's actions for this.

use super::action::{Action, handles};
use super::set::{PROTECTED, bit};
use super::table::{Locked, TABLE};
use crate::context;
use crate::fault::FAULT_REGISTERS;
use crate::kernel::{self, ALL, Change, KernelAction};
use crate::thread::{MARK, Thread};
use libc::{siginfo_t, ucontext_t};
use std::arch::naked_asm;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The kernel's `SA_RESTORER`, which the C library sets on every action and does not hide.
pub(super) const SA_RESTORER: u64 = 0x0400_0000;
/// The `SA_*` flags that the kernel keeps.
pub(super) const FLAGS: u64 =
    0x1 | 0x2 | 0x4 | 0x800 | SA_RESTORER | 0x0800_0000 | 0x1000_0000 | 0x4000_0000 | 0x8000_0000;

/// Converts a flag of `libc` to the kernel's type.
const fn flag(flag: i32) -> u64 {
    flag.cast_unsigned() as u64
}

/// The address of the handler for the protected signals; set before any action is installed.
static TRAP_HANDLER: OnceLock<usize> = OnceLock::new();

/// Sets the handler for the protected signals, which runs above this module.
pub(super) fn set_trap_handler(address: usize) {
    // A second call sets the same address.
    let _ = TRAP_HANDLER.set(address);
}

/// Returns the address of the handler for the protected signals.
fn trap_handler() -> usize {
    *TRAP_HANDLER.get().expect("it is set before any action is installed")
}

/// True if `address` is one of our handlers.
pub(super) fn is_ours(address: usize) -> bool {
    address == wrapper as *const () as usize || TRAP_HANDLER.get() == Some(&address)
}

/// A handler of the program. A handler with one argument ignores the other two.
type Function = extern "C-unwind" fn(i32, *mut siginfo_t, *mut ucontext_t);

/// Returns from a signal. Debuggers and unwinders recognise exactly these bytes.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn restorer() {
    naked_asm!("mov rax, 15", "syscall")
}

/// Returns the kernel's action for the program's `action`.
pub(super) fn real_action(signal: i32, action: Action) -> KernelAction {
    if bit(signal) & PROTECTED != 0 {
        // On the alternate stack only if the program asks for it: it may be small, and a stack overflow needs it.
        let flags = flag(libc::SA_SIGINFO | libc::SA_NODEFER) | SA_RESTORER | action.flags & flag(libc::SA_ONSTACK);
        return KernelAction { handler: trap_handler(), flags, restorer: restorer as *const () as usize, mask: ALL };
    }
    if !handles(&action) {
        return KernelAction { handler: action.handler, flags: action.flags & FLAGS, restorer: 0, mask: 0 };
    }
    // The reset is done when the program's handler is called, which may be later.
    let flags = action.flags & FLAGS & !flag(libc::SA_RESETHAND) | flag(libc::SA_SIGINFO) | SA_RESTORER;
    KernelAction {
        handler: wrapper as *const () as usize,
        flags,
        restorer: restorer as *const () as usize,
        mask: real(action.mask),
    }
}

/// Installs the kernel's action for the program's `action`.
pub(super) fn reinstall(signal: i32, action: Action) {
    // SAFETY: our handlers are valid for any signal; a default or ignored action needs nothing.
    let _ = unsafe { kernel::action(signal, Some(&real_action(signal, action))) };
}

/// True if the processor or the kernel raised the signal because of this thread's action; false if it was sent.
pub(crate) fn is_raised(info: &siginfo_t) -> bool {
    /// `BUS_MCEERR_AO`: memory was lost that has not been accessed yet.
    const LOST_ELSEWHERE: i32 = 5;
    info.si_code > 0 && !(info.si_signo == libc::SIGBUS && info.si_code == LOST_ELSEWHERE)
}

/// Records the alternate stack on which we run, if any.
fn note_stack(thread: &Thread, context: &ucontext_t) {
    let stack = &context.uc_stack;
    let here = std::ptr::from_ref(context).addr();
    if here.wrapping_sub(stack.ss_sp.addr()) < stack.ss_size {
        thread.alternate[0].store(stack.ss_sp.addr(), Ordering::Relaxed);
        thread.alternate[1].store(stack.ss_size, Ordering::Relaxed);
    }
}

/// The handler that the kernel calls for every signal handled by the program, except the protected ones.
///
/// # Safety
/// Called by the kernel only.
pub(super) unsafe extern "C-unwind" fn wrapper(signal: i32, info: *mut siginfo_t, context: *mut ucontext_t) {
    let thread = Thread::current();
    // SAFETY: the kernel's frame, on this stack, valid during this call.
    let (info_seen, context_seen) = unsafe { (&*info, &mut *context) };
    if thread.is_inside() {
        defer_signal(thread, signal, info_seen, context_seen);
        return;
    }
    note_stack(thread, context_seen);
    let Some(action) = take_action(signal) else { return by_default(signal, info_seen, context_seen) };
    if action.handler == libc::SIG_IGN {
        return;
    }
    let before = thread.blocked(context::mask(context_seen));
    // SAFETY: forwarded; the kernel has applied the mask, with the mark if needed.
    unsafe { run(thread, signal, action, before | action.mask, info, context) };
}

/// Defers a signal until the emulation, or another deferral, ends.
fn defer_signal(thread: &Thread, signal: i32, info: &siginfo_t, context: &mut ucontext_t) {
    // Blocks all signals until the return from this one: the signal that interrupts last must be the last to store the
    // mask to restore.
    kernel::mask(Some((Change::Block, ALL)));
    thread.mask.store(context::mask(context), Ordering::Relaxed);
    thread.deferred.store(1, Ordering::Relaxed);
    context::set_mask(context, ALL);
    // The signal is blocked, so it arrives again when the mask is restored. A real-time signal is lost if the queue has
    // been filled to its limit since the signal was taken from it.
    let _ = kernel::send_again(signal, info);
}

/// Returns the action for an arrived signal, and resets it if it is one-shot; `None` for the default action.
fn take_action(signal: i32) -> Option<Action> {
    let (action, version) = TABLE.read(signal);
    if action.handler == libc::SIG_DFL {
        return None;
    }
    if action.flags & libc::SA_RESETHAND.cast_unsigned() as u64 == 0 || !handles(&action) {
        return Some(action);
    }
    let lock = TABLE.lock();
    let (action, now) = TABLE.read(signal);
    if now != version {
        // Another thread was faster: it used the action, or set another.
        drop(lock);
        return take_action(signal);
    }
    reset(&lock, signal, action);
    Some(action)
}

/// `SA_RESETHAND`: the next signal finds the default action.
fn reset(lock: &Locked, signal: i32, action: Action) {
    // The kernel keeps the other fields, too.
    let reset_action = Action { handler: libc::SIG_DFL, ..action };
    reinstall(signal, reset_action);
    TABLE.write(lock, signal, reset_action);
}

/// Lets the kernel's default action for the signal happen on our return.
fn by_default(signal: i32, info: &siginfo_t, context: &mut ucontext_t) {
    let set = bit(signal);
    kernel::mask(Some((Change::Block, set)));
    if set & PROTECTED != 0 {
        // For the other signals the kernel already has the default action.
        // SAFETY: the default action is valid for any signal.
        let _ = unsafe { kernel::action(signal, Some(&KernelAction::default())) };
    }
    let _ = kernel::send_again(signal, info);
    // The frame contains the mask after the return, so the signal must not be blocked there.
    let mask = context::mask(context) & !set;
    context::set_mask(context, mask);
}

/// Delivers SIGILL, SIGBUS or SIGSEGV to the program, whose context is `context`.
///
/// # Safety
/// Called from the handler of `signal` or another protected signal, with the kernel's frame, and with all signals
/// except the protected ones blocked.
pub(crate) unsafe fn deliver(thread: &Thread, signal: i32, info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the kernel's frame, on this stack.
    let (info_seen, context_seen) = unsafe { (&*info, &mut *context) };
    let raised = is_raised(info_seen);
    if !raised && thread.is_inside() {
        // As in `defer_signal`, but this signal cannot be blocked.
        thread.keep_sent(signal, info_seen);
        if thread.deferred.load(Ordering::Relaxed) == 0 {
            thread.mask.store(context::mask(context_seen), Ordering::Relaxed);
            thread.deferred.store(1, Ordering::Relaxed);
            context::set_mask(context_seen, ALL);
        }
        return;
    }
    // A fault within a deferral (for example our access to an address of the program): the handler may never return, so
    // it runs as outside of the deferral.
    thread.inside.store(0, Ordering::Relaxed);
    note_stack(thread, context_seen);
    let before = thread.blocked(context::mask(context_seen));
    if before & bit(signal) != 0 {
        if raised {
            by_default(signal, info_seen, context_seen);
        } else {
            thread.keep_sent(signal, info_seen);
        }
        return;
    }
    match take_action(signal) {
        None => by_default(signal, info_seen, context_seen),
        // The kernel does not let a fault be ignored.
        Some(action) if action.handler == libc::SIG_IGN => {
            if raised {
                by_default(signal, info_seen, context_seen);
            }
            send_unblocked(thread, before);
        }
        Some(action) => {
            let own = if action.flags & libc::SA_NODEFER as u64 == 0 { bit(signal) } else { 0 };
            let blocked = before | action.mask | own;
            kernel::mask(Some((Change::Set, real(context::mask(context_seen) | blocked))));
            // SAFETY: forwarded.
            unsafe { run(thread, signal, action, blocked, info, context) };
        }
    }
}

/// Returns the kernel's mask for a handler of the program that should believe `mask` blocked.
pub(super) fn real(mask: u64) -> u64 {
    let mark = if mask & PROTECTED == 0 { 0 } else { MARK };
    mask & ALL | mark
}

/// Runs a handler of the program; `blocked` are the protected signals that it may believe blocked.
///
/// # Safety
/// `info` and `context` are the kernel's frame on this stack, `action` has a handler, and the kernel's mask is the
/// result of [`real`].
unsafe fn run(
    thread: &Thread,
    signal: i32,
    action: Action,
    blocked: u64,
    info: *mut siginfo_t,
    context: *mut ucontext_t,
) {
    // SAFETY: the kernel's frame.
    let seen = unsafe { &mut *context };
    // The program's view of the mask that is restored.
    let mask = context::mask(seen);
    let mark = mask & MARK;
    context::set_mask(seen, mask & !MARK | thread.blocked(mask));
    if (blocked | action.mask) & PROTECTED != 0 {
        thread.set_blocked(MARK, blocked);
    }
    // SAFETY: the program passed it to `action` with that promise.
    let handler: Function = unsafe { std::mem::transmute(action.handler) };
    handler(signal, info, context);
    // SAFETY: the kernel's frame; the handler has returned.
    let seen = unsafe { &mut *context };
    let mask = context::mask(seen);
    thread.set_blocked(mark, mask);
    context::set_mask(seen, mask & !(PROTECTED | MARK) | mark);
    send_unblocked(thread, mask);
}

/// Lets kept protected signals that are not in `blocked` arrive after the return.
fn send_unblocked(thread: &Thread, blocked: u64) {
    if thread.sent() & !blocked != 0 {
        kernel::mask(Some((Change::Block, PROTECTED)));
        thread.send_kept(blocked);
    }
}

/// Finishes an emulation that has ended at the invalid opcode; the program's context is complete except for the changes
/// here.
///
/// # Safety
/// Called from the handler of SIGILL with the kernel's frame.
pub(crate) unsafe fn leave(thread: &Thread, info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the kernel's frame, on this stack.
    let seen = unsafe { &mut *context };
    thread.inside.store(0, Ordering::Relaxed);
    context::continue_at(seen, thread.resume.load(Ordering::Relaxed));
    if thread.deferred.swap(0, Ordering::Relaxed) != 0 {
        context::set_mask(seen, thread.mask.load(Ordering::Relaxed));
    }
    if thread.faulted.replace(false) {
        // SAFETY: the flag shows that it was written.
        let fault = unsafe { (*thread.fault.get()).assume_init() };
        for (register, value) in FAULT_REGISTERS.into_iter().zip(fault.registers) {
            context::set(seen, register, value);
        }
        // SAFETY: the kernel's frame, whose siginfo has not been read yet.
        unsafe { info.write(fault.info) };
        // SAFETY: forwarded.
        unsafe { deliver(thread, fault.signal, info, context) };
        return;
    }
    let blocked = thread.blocked(context::mask(seen));
    send_unblocked(thread, blocked);
}
