//! Handlers of SIGSEGV and SIGBUS: faults of our kernels continue at their landing, all others go to the previous
//! handler.
//!
//! The handler takes no lock and uses no allocator and no thread-local. It needs less than a kilobyte of stack,
//! including the signal sets of the chaining path. So it may run on the small alternate stack that the Rust runtime
//! installs, or on the thread's own. It first replaces a page that a [`SharedMapping`](crate::SharedMapping) mapping
//! lost; the access then continues.
//!
//! **Chaining.** A foreign fault is handled as if this handler did not exist. If the previous action is ignore or
//! default, the process ends by the same signal at the same instruction. A previous handler is called with the same
//! arguments, its mask, and its `SA_NODEFER` and `SA_RESETHAND`. One difference remains: a handler installed without
//! `SA_ONSTACK` runs on the alternate stack if the thread has one.
#![allow(unsafe_code, reason = "installs a signal handler and edits the interrupted context")]

use crate::shared;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// One row of the table in `asm/head.s`. Offsets are relative to the field that holds them.
#[repr(C)]
struct Fixup {
    instruction: i32,
    landing: i32,
    value: i32,
}

unsafe extern "C" {
    static telpher_mem_text_begin: u8;
    static telpher_mem_text_end: u8;
    static telpher_mem_fixups_begin: Fixup;
    static telpher_mem_fixups_end: Fixup;
}

/// Returns the start and length of the table. Only the addresses of the assembly blob's symbols are used.
fn table() -> (*const Fixup, usize) {
    let (begin, end) = (&raw const telpher_mem_fixups_begin, &raw const telpher_mem_fixups_end);
    (begin, (end.addr() - begin.addr()) / size_of::<Fixup>())
}

/// Returns the address that `offset`, stored at `field`, refers to.
fn target(field: *const i32, offset: i32) -> usize {
    field.addr().wrapping_add_signed(offset as isize)
}

/// Continues the thread of a fault at the landing of its instruction; see [`hook::resume`](crate::hook::resume).
pub(crate) fn resume(context: &mut ucontext_t) -> bool {
    let registers = &mut context.uc_mcontext.gregs;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a register's bits, 64 on x86-64")]
    let instruction = registers[libc::REG_RIP as usize] as usize;
    let Some((landing, value)) = lookup(instruction) else { return false };
    registers[libc::REG_RIP as usize] = landing.cast_signed() as i64;
    registers[libc::REG_R11 as usize] = i64::from(value);
    true
}

/// Returns landing and value for a faulting instruction of ours. Safe at any time: reads constant data only.
pub(crate) fn lookup(instruction: usize) -> Option<(usize, i32)> {
    let ours = (&raw const telpher_mem_text_begin).addr()..(&raw const telpher_mem_text_end).addr();
    if !ours.contains(&instruction) {
        return None;
    }
    let (rows, count) = table();
    // The assembler emits the rows in the order of their instructions; a test checks it.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        // SAFETY: middle < count, so the row lies between the two symbols, in constant data that was linked in.
        let row = unsafe { &*rows.add(middle) };
        let at = target(&row.instruction, row.instruction);
        if at == instruction {
            return Some((target(&row.landing, row.landing), row.value));
        }
        if at < instruction {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    None
}

/// The action that was installed for one signal before ours.
struct Previous {
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
    /// True once the action is written.
    known: AtomicBool,
    /// True if the action had `SA_RESETHAND` and has been used.
    spent: AtomicBool,
}

// SAFETY: `action` is written only under the `Once` of `install`, before the release store to `known`. It is read only
// after an acquire load of `known`. (An action that another thread installs between the two calls of `install_one` is
// not chained to.)
unsafe impl Sync for Previous {}

impl Previous {
    const fn new() -> Self {
        Previous {
            action: UnsafeCell::new(MaybeUninit::uninit()),
            known: AtomicBool::new(false),
            spent: AtomicBool::new(false),
        }
    }
}

static PREVIOUS_SEGV: Previous = Previous::new();
static PREVIOUS_BUS: Previous = Previous::new();

/// True if foreign handlers handle our faults.
static ADOPTED: AtomicBool = AtomicBool::new(false);

/// Leaves the signals to foreign handlers from now on.
pub(crate) fn adopt() {
    // Release: pairs with the Acquire in `install`. Code that makes a Local after that finds the foreign handlers.
    ADOPTED.store(true, Ordering::Release);
}

/// Installs the handlers, once per process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // Acquire: pairs with the Release in `adopt`.
    if ADOPTED.load(Ordering::Acquire) {
        return;
    }
    ONCE.call_once(|| {
        install_one(libc::SIGSEGV, &PREVIOUS_SEGV);
        install_one(libc::SIGBUS, &PREVIOUS_BUS);
    });
}

fn install_one(signal: c_int, previous: &Previous) {
    // SAFETY: an all-zero sigaction is a valid value: default action, empty mask, no flags.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_fault;
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: only this thread accesses `action` until `known` is set, under the `Once`; sigaction fills it. It cannot
    // fail: the signal exists and may be caught, and both pointers are valid. It is written before our handler is
    // installed, so that a fault of another thread right after that finds it.
    let failed = unsafe { libc::sigaction(signal, ptr::null(), (*previous.action.get()).as_mut_ptr()) };
    assert_eq!(failed, 0, "sigaction reports the action of a signal that exists");
    // Release: pairs with the Acquire in `chain`.
    previous.known.store(true, Ordering::Release);
    // SAFETY: `ours` is a valid action whose handler is async-signal-safe (see the module's documentation).
    let failed = unsafe { libc::sigaction(signal, &ours, ptr::null_mut()) };
    assert_eq!(failed, 0, "sigaction installs a handler for a signal that may be caught");
}

/// si_code of a machine check that no instruction of this thread consumed. Source: UAPI asm-generic/siginfo.h.
const BUS_MCEERR_AO: c_int = 5;

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // Positive codes come from the processor. A signal sent by kill() may also interrupt our kernels; it is not a
    // fault.
    let raised_here = code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    // A page of a shared file was truncated; any code may have touched it.
    if raised_here && signal == libc::SIGBUS {
        // SAFETY: the kernel passes a valid siginfo of a fault, so it contains an address.
        let address = unsafe { (*info).si_addr() }.addr();
        if shared::replace_lost_page(address) {
            return;
        }
    }
    if raised_here {
        // SAFETY: the kernel passes a valid ucontext, which we may edit until we return.
        if resume(unsafe { &mut *context.cast::<ucontext_t>() }) {
            return;
        }
    }
    // SAFETY: the same arguments, in a handler.
    unsafe { chain(signal, info, context, raised_here) }
}

/// Handles a foreign signal.
///
/// # Safety
/// Called from a handler with the kernel's own arguments.
#[cold]
unsafe fn chain(signal: c_int, info: *mut siginfo_t, context: *mut c_void, raised_here: bool) {
    let previous = if signal == libc::SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGV };
    // Acquire: pairs with the Release in `install_one`, which precedes the installation of this very handler.
    if !previous.known.load(Ordering::Acquire) {
        // SAFETY: forwarded.
        return unsafe { die(signal, raised_here) };
    }
    // SAFETY: `known` was seen, so `action` is written and never changes again.
    let action = unsafe { (*previous.action.get()).assume_init_ref() };
    // Relaxed: publishes nothing else. Of several simultaneous faults the first one uses the handler, as in the kernel.
    let spent = action.sa_flags & libc::SA_RESETHAND != 0 && previous.spent.swap(true, Ordering::Relaxed);
    match action.sa_sigaction {
        libc::SIG_IGN if !raised_here => {}
        // The kernel does not let a real fault be ignored either.
        // SAFETY: forwarded.
        libc::SIG_DFL | libc::SIG_IGN => unsafe { die(signal, raised_here) },
        // SAFETY: forwarded.
        _ if spent => unsafe { die(signal, raised_here) },
        handler => {
            // SAFETY: `action` came from the kernel. Sets and masks are valid objects on this stack or in `action`. The
            // return from the signal would also restore the mask that is restored here.
            unsafe {
                let mut before: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, &action.sa_mask, &mut before);
                if action.sa_flags & libc::SA_NODEFER != 0 {
                    let mut own: libc::sigset_t = std::mem::zeroed();
                    libc::sigaddset(&mut own, signal);
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &own, ptr::null_mut());
                }
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let call: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(handler);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(c_int) = std::mem::transmute(handler);
                    call(signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
            }
        }
    }
}

/// Lets the default action happen: at the faulting instruction if there is one, else by sending the signal again.
///
/// # Safety
/// Called from the handler of `signal`.
unsafe fn die(signal: c_int, raised_here: bool) {
    // SAFETY: an all-zero sigaction is the default action; the calls are async-signal-safe. The signal is blocked
    // during the handler, so a raised signal arrives when the handler returns, with the default action.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, ptr::null_mut());
        if !raised_here {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_in_the_order_of_their_instructions() {
        let (rows, count) = table();
        assert!(count > 300, "the table has {count} rows");
        // SAFETY: the rows between the two symbols are constant data.
        let rows = unsafe { std::slice::from_raw_parts(rows, count) };
        let at: Vec<usize> = rows.iter().map(|row| target(&row.instruction, row.instruction)).collect();
        assert!(at.is_sorted_by(|a, b| a < b));
        for (row, at) in rows.iter().zip(at) {
            assert_eq!(lookup(at), Some((target(&row.landing, row.landing), row.value)));
            assert_eq!(lookup(at + 1), None);
        }
    }

    /// A wrong order would show up only very rarely when executed, so the test checks the machine code.
    #[test]
    fn the_last_store_of_a_record_is_its_first_word() {
        let record = super::super::kernels::telpher_mem_record as *const u8;
        // The four stores: 4, 4, 4 and 3 bytes of code.
        let stores = [0, 4, 8, 12].map(|at| lookup(record.addr() + at));
        assert!(stores.iter().all(Option::is_some));
        // SAFETY: reads the code of a function that is at least as long.
        let last = unsafe { std::slice::from_raw_parts(record.add(12), 3) };
        assert_eq!(last, [0x48, 0x89, 0x37], "mov [rdi], rsi");
    }

    #[test]
    fn foreign_instructions_are_not_ours() {
        assert_eq!(lookup(0), None);
        assert_eq!(lookup(install as *const () as usize), None);
        assert_eq!(lookup(usize::MAX), None);
    }
}
