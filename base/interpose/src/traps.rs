//! SIGILL, SIGSEGV and SIGBUS: to whom they belong, and how they are handled.
//!
//! A trap of an instruction of ours is not emulated here. The emulation runs right after the handler, on the
//! interrupted thread with its own mask (`entry::enter_trapped`). The handler may be on a small alternate stack, and a
//! fault in the emulation would start at the top of that stack again.
#![allow(unsafe_code, reason = "handles signals and edits the interrupted context")]

use crate::decode::{self, Instruction, Operation};
use crate::fault::FROM_KERNEL;
use crate::handler::{Handler, handler, set_handler};
use crate::joined::pass_on_signals;
use crate::kernel::Errno;
use crate::signals::deliver::{self, is_raised};
use crate::sites::{self, Inspected};
use crate::thread::{Thread, Trapped, segment_base};
use crate::{context, entry, guarded_access, signals, vector_registers};
use libc::{siginfo_t, ucontext_t};
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Options of [`install`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Rewrite sites of five bytes and more after their first trap.
    pub rewrite: bool,
}

/// The result of [`install`]: set after everything else.
static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();

/// Takes over the process' signals. Call it once, before the program's first thread if possible; the actions that are
/// already installed become the program's. A second call changes nothing: it waits for the first to end, and returns
/// the same. So a thread may submit once its call has returned. Not for signal handlers.
///
/// # Errors
/// The kernel's error from `rt_sigaction`.
pub fn install(handler: &'static dyn Handler, options: Options) -> Result<(), Errno> {
    *INSTALLED.get_or_init(|| {
        // Only one thread comes here, so no handler is set yet.
        set_handler(handler);
        entry::detect();
        guarded_access::detect();
        vector_registers::detect();
        sites::set_rewriting(options.rewrite);
        signals::adopt(trap as *const () as usize)
    })
}

/// What a joined library does about a fault: see [`Handler::fixup`].
pub type Fixup = unsafe extern "C" fn(&mut ucontext_t) -> bool;

/// The function that a library with traps exports, for a second library of this project in the same process. Its type
/// is `extern "C" fn(Fixup) -> bool`; its result is that of [`share`].
const SHARE_SYMBOL: &CStr = c"telpher_share_signals";

/// The [`Fixup`] of the library that has joined this one.
static JOINED_FIXUP: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Joins the library of this process that has taken over the signals: two sets of handlers would take each other for
/// the program's. Returns false if there is none; then call [`install`]. Afterwards
///
/// - `fixup` is asked about faults that are not the other library's;
/// - [`signals::defer`] blocks the signals;
/// - the functions of [`signal_symbols!`](crate::signal_symbols) call the next library's.
///
/// Call it once, before `main`.
pub fn join(fixup: Fixup) -> bool {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SHARE_SYMBOL.as_ptr()) };
    if found.is_null() {
        return false;
    }
    // SAFETY: only a library of this project exports this name, and its function has this type.
    let share = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(Fixup) -> bool>(found) };
    let is_joined = share(fixup);
    if is_joined {
        pass_on_signals();
    }
    is_joined
}

/// Lets another library join, which calls this through the function that this library exports as
/// `telpher_share_signals`. Returns false if this library has no traps.
pub fn share(fixup: Fixup) -> bool {
    let installed = INSTALLED.get() == Some(&Ok(()));
    if installed {
        // Release: pairs with the Acquire in `joined_fixup`.
        JOINED_FIXUP.store(fixup as *mut c_void, Ordering::Release);
    }
    installed
}

/// Asks the library that has joined this one.
fn joined_fixup(context: &mut ucontext_t) -> bool {
    // Acquire: pairs with the Release in `share`.
    let fixup = JOINED_FIXUP.load(Ordering::Acquire);
    // SAFETY: null, or the function that `share` has stored; it may change the context, as our own may.
    !fixup.is_null() && unsafe { std::mem::transmute::<*mut c_void, Fixup>(fixup)(context) }
}

/// Call this first in the child of a `fork`, before its signal actions change: it releases what other threads of the
/// parent held.
pub fn after_fork_child() {
    signals::after_fork_child();
    sites::after_fork_child();
    entry::after_fork_child();
}

/// The handler of the three signals.
///
/// # Safety
/// Called by the kernel only.
unsafe extern "C-unwind" fn trap(signal: i32, info: *mut siginfo_t, context: *mut ucontext_t) {
    let thread = Thread::current();
    // SAFETY: the kernel's frame, on this stack, valid during this call.
    let (info_seen, context_seen) = unsafe { (&*info, &mut *context) };
    if is_raised(info_seen) {
        let taken = if signal == libc::SIGILL {
            if context::instruction(context_seen) == entry::trap_address() {
                // SAFETY: the kernel's frame of SIGILL.
                return unsafe { deliver::leave(thread, info, context) };
            }
            illegal(thread, context_seen)
        } else {
            guarded_access::fixup(signal, info_seen, context_seen)
                || handler().fixup(context_seen)
                || joined_fixup(context_seen)
                || refused(thread, info_seen, context_seen)
        };
        if taken {
            return;
        }
    }
    // SAFETY: the kernel's frame of `signal`.
    unsafe { deliver::deliver(thread, signal, info, context) }
}

/// Handles a SIGILL that the processor raised; returns true if the thread continues in the emulation.
fn illegal(thread: &Thread, context: &mut ucontext_t) -> bool {
    let site = context::instruction(context);
    let code = match sites::inspect(site) {
        Inspected::Rewritten { trampoline } => {
            context::continue_at(context, trampoline);
            return true;
        }
        Inspected::Code(code) => code,
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

/// Makes the thread continue in the emulation.
fn emulate_after_return(thread: &Thread, context: &mut ucontext_t, trapped: Trapped) {
    entry::make_stacks();
    sites::count_trap();
    thread.set_trapped(trapped);
    // Count now, so that a signal that arrives on the return is deferred. Otherwise it would be handled with RIP in our
    // code and this thread's `trapped` in use.
    thread.inside.fetch_add(1, Ordering::Relaxed);
    context::continue_at(context, entry::enter_trapped as *const () as u64);
}

/// Handles a SIGSEGV or SIGBUS of an access; returns true if the access was to a portal and the thread continues.
fn refused(thread: &Thread, info: &siginfo_t, context: &mut ucontext_t) -> bool {
    if thread.is_inside() {
        return false;
    }
    let site = context::instruction(context);
    let handler = handler();
    // SAFETY: a fault has an address, or zero.
    let faulted = unsafe { info.si_addr() }.addr() as u64;
    let code = match sites::inspect(site) {
        // The submission at this site has trapped, and another thread has rewritten the site before this handler ran. A
        // jump accesses no portal, and raises no general protection fault (which has no address).
        Inspected::Rewritten { trampoline } if handler.is_portal(faulted) || info.si_code == FROM_KERNEL => {
            context::continue_at(context, trampoline);
            return true;
        }
        // Not a fault of the original instruction.
        Inspected::Rewritten { .. } => return false,
        Inspected::Code(code) => code,
    };
    let Some(instruction) = decode::decode(code.bytes()) else {
        return false;
    };
    let registers = context::registers(context, instruction.length);
    match instruction.operation {
        Operation::Movdir64b { destination, .. } | Operation::Enqcmd { destination, .. } => {
            // The processor has the instruction, but the portal is a page of memory, or the process has no PASID.
            // Without a PASID it refuses every ENQCMD before it checks the destination (Intel's manual: #GP(0) if
            // IA32_PASID is not valid), even if CPUID hides the instruction.
            let without_pasid =
                matches!(instruction.operation, Operation::Enqcmd { .. }) && info.si_code == FROM_KERNEL;
            if !without_pasid && !handler.is_portal(registers.pointer(destination, segment_base)) {
                return false;
            }
            sites::rewrite_after_trap(site, instruction);
            emulate_after_return(thread, context, Trapped { instruction, site, data: [0; 8] });
        }
        Operation::Store64 { destination, source, mask, elements } if handler.is_portal(faulted) => {
            let destination = registers.address(destination, segment_base);
            let whole = vector_registers::mask(context, mask, elements);
            match vector_registers::zmm(context, source) {
                // Any other store reaches a device in pieces, and is dropped.
                Some(data) if whole && destination.is_multiple_of(64) => {
                    emulate_after_return(thread, context, Trapped { instruction, site, data });
                }
                _ => context::continue_at(context, registers.next),
            }
        }
        Operation::Store { .. } | Operation::Movdiri { .. } if handler.is_portal(faulted) => {
            context::continue_at(context, registers.next);
        }
        Operation::StringStore { moves, bytes, repeat, narrow } if handler.is_portal(faulted) => {
            drop_element(context, registers.next, moves, bytes, repeat, narrow);
        }
        _ => return false,
    }
    true
}

/// Drops one element of STOS or MOVS: advances the pointers, and counts.
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
        context::continue_at(context, next);
    }
}
