//! Threads that run no signal handlers of the program.
#![allow(unsafe_code, reason = "the mask of signals is set by functions of the C library")]

use libc::{SIG_BLOCK, SIG_SETMASK, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, c_int, sigset_t};
use std::mem::MaybeUninit;

/// Signals raised by a thread's own instructions, including the page faults of `telpher_mem::Local`.
const OWN: [c_int; 6] = [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS];

/// Calls `start` with all other signals blocked; the threads that it starts inherit the mask. Otherwise a handler that
/// copies and waits could interrupt the very thread that has to do the copy, and wait for ever.
pub(super) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<sigset_t>::uninit();
    let mut before = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set, `pthread_sigmask` the old mask; neither fails with these arguments.
    let _restore = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in OWN {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        Restore(before.assume_init())
    };
    start()
}

/// Restores the calling thread's mask on drop.
struct Restore(sigset_t);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: the mask that `pthread_sigmask` returned.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
