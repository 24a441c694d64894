//! Mutexes that the kernel writes to: those that hand on a priority (`PTHREAD_PRIO_INHERIT`), and those that survive their owner (`PTHREAD_MUTEX_ROBUST`).
//!
//! It does not wait for a page that is on its way then. Who locks one of the first gets `EFAULT`, which the C library takes for a fault of the system's (Linux,
//! kernel/futex/core.c, `fault_in_user_writeable`); of one of the second nobody is told that its owner has ended (`handle_futex_death`). So this library stands
//! in front of the function that makes a mutex, and the pages of these are let go for good.
#![allow(unsafe_code, reason = "stands in front of a function of the C library")]

use crate::desk::Errand;
use crate::next::next;
use crate::start::DESK;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicPtr;

type Init = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

/// The kernel writes to mutexes with these attributes.
///
/// # Safety
/// They are attributes.
unsafe fn is_the_kernels(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let (mut protocol, mut robust) = (libc::PTHREAD_PRIO_NONE, libc::PTHREAD_MUTEX_STALLED);
    // SAFETY: the caller's promise, and places for the answers.
    unsafe {
        libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
        libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
    }
    protocol == libc::PTHREAD_PRIO_INHERIT || robust == libc::PTHREAD_MUTEX_ROBUST
}

/// # Safety
/// As of pthread_mutex_init(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let address = next(c"pthread_mutex_init", &NEXT);
    if address.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the C library's function of that name, as called; attributes, if there are any.
    let (answer, is_the_kernels) = unsafe {
        let init: Init = transmute(address);
        (init(mutex, attributes), !attributes.is_null() && is_the_kernels(attributes))
    };
    if answer == 0 && is_the_kernels {
        let (start, len) = (mutex.expose_provenance() as u64, size_of::<libc::pthread_mutex_t>() as u64);
        // As long as the process lives: that its memory is given back is not told of.
        let process = rustix::process::getpid().as_raw_pid();
        let errand =
            Errand::LetGo { start: start / 4096 * 4096, end: (start + len).next_multiple_of(4096), thread: process };
        DESK.ask(errand, None);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    #[test]
    fn those_are_the_kernels_that_it_writes_to() {
        let mut attributes = MaybeUninit::uninit();
        let attributes: *mut libc::pthread_mutexattr_t = attributes.as_mut_ptr();
        // SAFETY: attributes of this test's, which are made first.
        unsafe {
            assert_eq!(libc::pthread_mutexattr_init(attributes), 0);
            assert!(!is_the_kernels(attributes));
            assert_eq!(libc::pthread_mutexattr_settype(attributes, libc::PTHREAD_MUTEX_RECURSIVE), 0);
            assert!(!is_the_kernels(attributes));
            assert_eq!(libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_INHERIT), 0);
            assert!(is_the_kernels(attributes));
            assert_eq!(libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_NONE), 0);
            assert_eq!(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST), 0);
            assert!(is_the_kernels(attributes));
        }
    }
}
