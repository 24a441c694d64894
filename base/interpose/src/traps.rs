//! SIGILL, SIGSEGV and SIGBUS: who they are for, and what becomes of them.
//!
//! A trap of an instruction that is ours is not emulated here but right behind the handler, on the interrupted thread and
//! its own mask (`entry::enter_trapped`): the handler may be on an alternate stack that is small, and a fault in the
//! emulation would start at that stack's top again.
#![allow(unsafe_code, reason = "handles signals and edits the interrupted context")]

use crate::decode::{self, Instruction, Operation};
use crate::emulate::segment_base;
use crate::signals::deliver::{self, is_raised};
use crate::sites::{self, Seen};
use crate::thread::{Thread, Trapped};
use crate::{Errno, Handler, context, entry, guarded, signals, vectors};
use libc::{siginfo_t, ucontext_t};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// What [`install`] may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Rewrite sites of five bytes and more after their first trap.
    pub rewrite: bool,
}

/// Set before the first trap can come.
static HANDLER: OnceLock<&'static dyn Handler> = OnceLock::new();
/// What became of [`install`]: set after everything else.
static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();

/// Who was installed.
pub(crate) fn handler() -> &'static dyn Handler {
    *HANDLER.get().expect("traps and sites are there only since `install`")
}

/// Takes over the process' signals. To be called once, before the program's first thread if possible; the actions that are
/// installed already become the program's. A second call changes nothing: it waits for the first to end, and returns the same.
/// So whoever has returned from it may submit. Not for signal handlers.
///
/// # Errors
/// What the kernel said to `rt_sigaction`.
pub fn install(handler: &'static dyn Handler, options: Options) -> Result<(), Errno> {
    *INSTALLED.get_or_init(|| {
        // Nobody else comes here, so it is still free.
        let _ = HANDLER.set(handler);
        entry::detect();
        guarded::detect();
        vectors::detect();
        sites::set_rewriting(options.rewrite);
        signals::adopt()
    })
}

/// To be called first thing in the child of a `fork`, before its signal actions change: what other threads of the parent
/// held is free again.
pub fn after_fork_child() {
    signals::after_fork_child();
    sites::after_fork_child();
    entry::after_fork_child();
}

/// The handler's address.
pub(crate) fn entry() -> usize {
    trap as *const () as usize
}

/// The handler of the three signals.
///
/// # Safety
/// Called by the kernel only.
unsafe extern "C-unwind" fn trap(signal: i32, info: *mut siginfo_t, context: *mut ucontext_t) {
    let thread = Thread::current();
    // SAFETY: the kernel's frame, on this stack, for the time of this call.
    let (info_seen, context_seen) = unsafe { (&*info, &mut *context) };
    if is_raised(info_seen) {
        let taken = if signal == libc::SIGILL {
            if context::instruction(context_seen) == entry::trap_address() {
                // SAFETY: the kernel's frame of SIGILL.
                return unsafe { deliver::leave(thread, info, context) };
            }
            illegal(thread, context_seen)
        } else {
            guarded::fixup(signal, info_seen, context_seen)
                || handler().fixup(context_seen)
                || refused(thread, info_seen, context_seen)
        };
        if taken {
            return;
        }
    }
    // SAFETY: the kernel's frame of `signal`.
    unsafe { deliver::deliver(thread, signal, info, context) }
}

/// SIGILL that the processor raised: true if the thread goes on in the emulation.
fn illegal(thread: &Thread, context: &mut ucontext_t) -> bool {
    let site = context::instruction(context);
    let code = match sites::look(site) {
        Seen::Rewritten { trampoline } => {
            context::go_on(context, trampoline);
            return true;
        }
        Seen::Code(code) => code,
    };
    match decode::decode(code.bytes()) {
        None => false,
        // Every processor has these.
        Some(Instruction {
            operation: Operation::Store { .. } | Operation::StringStore { .. } | Operation::Store64 { .. },
            ..
        }) => false,
        Some(instruction) => {
            sites::rewrite_after_trap(site, instruction);
            emulate_after_return(thread, context, Trapped { instruction, site, data: [0; 8] });
            true
        }
    }
}

/// Makes the thread go on in the emulation.
fn emulate_after_return(thread: &Thread, context: &mut ucontext_t, trapped: Trapped) {
    entry::make_stacks();
    sites::count_trap();
    thread.set_trapped(trapped);
    // Now, so that a signal that arrives on the return is put off, and not handled with RIP in our code and this thread's
    // `trapped` in use.
    thread.inside.fetch_add(1, Ordering::Relaxed);
    context::go_on(context, entry::enter_trapped as *const () as u64);
}

/// SIGSEGV or SIGBUS of an access: true if it was to a portal and the thread goes on.
fn refused(thread: &Thread, info: &siginfo_t, context: &mut ucontext_t) -> bool {
    if thread.is_inside() {
        return false;
    }
    let site = context::instruction(context);
    let handler = handler();
    // SAFETY: a fault has an address, or zero.
    let faulted = unsafe { info.si_addr() }.addr() as u64;
    let code = match sites::look(site) {
        // The submission that was there has trapped, and another thread has rewritten the site before this handler ran: a
        // jump reaches no portal, and raises no general protection (which has no address).
        Seen::Rewritten { trampoline } if handler.is_portal(faulted) || info.si_code == guarded::FROM_KERNEL => {
            context::go_on(context, trampoline);
            return true;
        }
        // Not a fault of the instruction that was there.
        Seen::Rewritten { .. } => return false,
        Seen::Code(code) => code,
    };
    let Some(instruction) = decode::decode(code.bytes()) else {
        return false;
    };
    let registers = context::registers(context, instruction.length);
    match instruction.operation {
        Operation::Movdir64b { destination, .. } | Operation::Enqcmd { destination, .. } => {
            // The processor has the instruction, but a portal that is a page of memory, or no PASID: then it refuses every ENQCMD, before it looks where
            // that goes to (Intel's manual: #GP(0) if IA32_PASID is not valid), and a processor hides by its CPUID that it would.
            let without_pasid =
                matches!(instruction.operation, Operation::Enqcmd { .. }) && info.si_code == guarded::FROM_KERNEL;
            if !without_pasid && !handler.is_portal(registers.pointer(destination, segment_base)) {
                return false;
            }
            sites::rewrite_after_trap(site, instruction);
            emulate_after_return(thread, context, Trapped { instruction, site, data: [0; 8] });
        }
        Operation::Store64 { destination, source, mask, elements } if handler.is_portal(faulted) => {
            let destination = registers.address(destination, segment_base);
            let whole = vectors::mask(context, mask, elements);
            match vectors::zmm(context, source) {
                // Anything else reaches a device in pieces, and is dropped.
                Some(data) if whole && destination.is_multiple_of(64) => {
                    emulate_after_return(thread, context, Trapped { instruction, site, data });
                }
                _ => context::go_on(context, registers.next),
            }
        }
        Operation::Store { .. } | Operation::Movdiri { .. } if handler.is_portal(faulted) => {
            context::go_on(context, registers.next);
        }
        Operation::StringStore { moves, bytes, repeat, narrow } if handler.is_portal(faulted) => {
            drop_element(context, registers.next, moves, bytes, repeat, narrow);
        }
        _ => return false,
    }
    true
}

/// Drops one element of STOS or MOVS: moves the pointers on, and counts.
fn drop_element(context: &mut ucontext_t, next: u64, moves: bool, bytes: u8, repeat: bool, narrow: bool) {
    /// The direction flag.
    const DF: u64 = 1 << 10;
    let size = u64::from(bytes);
    let step = if context::get(context, libc::REG_EFL) & DF == 0 { size } else { size.wrapping_neg() };
    let mut add = |register: i32, step: u64| {
        let sum = context::get(context, register).wrapping_add(step);
        let sum = if narrow { sum & 0xffff_ffff } else { sum };
        context::set(context, register, sum);
        sum
    };
    add(libc::REG_RDI, step);
    if moves {
        add(libc::REG_RSI, step);
    }
    // With a count of zero it would not have faulted.
    if !repeat || add(libc::REG_RCX, u64::MAX) == 0 {
        context::go_on(context, next);
    }
}
