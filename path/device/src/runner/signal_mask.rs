//! Threads that run no signal handler of the program's.
#![allow(unsafe_code, reason = "the mask of signals is set by functions of the C library")]

use libc::{SIG_BLOCK, SIG_SETMASK, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, c_int, sigset_t};
use std::mem::MaybeUninit;

/// What a thread's own instructions raise, the page faults of `telpher_mem::Local` among them.
const OWN: [c_int; 6] = [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS];

/// Calls `start` with every other signal blocked; the threads that it starts stay so. A handler that copies and waits would wait
/// for ever if it interrupted the very thread that has to do it.
pub(super) fn unheard<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<sigset_t>::uninit();
    let mut before = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: `sigfillset` makes the set a value, `pthread_sigmask` the mask before; neither fails with arguments like these.
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

/// The calling thread's own mask.
struct Restore(sigset_t);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: the mask that `pthread_sigmask` told.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
