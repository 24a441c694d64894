//! Mutexes that the kernel writes to: with priority inheritance (`PTHREAD_PRIO_INHERIT`), and robust ones that survive
//! their owner (`PTHREAD_MUTEX_ROBUST`).
//!
//! The kernel does not wait for a page in flight then. Locking a mutex of the first kind fails with `EFAULT`, which the
//! C library treats as a system fault (Linux, kernel/futex/core.c, `fault_in_user_writeable`). For the second kind, the
//! owner's end is not reported (`handle_futex_death`). So this library interposes the function that initialises a
//! mutex, and has the pages of such mutexes released for good.
#![allow(unsafe_code, reason = "interposes a function of the C library")]

use crate::REQUESTS;
use crate::requests::Request;
use std::ffi::c_int;
use std::mem::transmute;
use telpher_interpose::preload::Original;

type Init = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

/// Returns whether the kernel writes to mutexes with these attributes.
///
/// # Safety
/// The pointer is to initialised attributes.
unsafe fn is_the_kernels(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let (mut protocol, mut robust) = (libc::PTHREAD_PRIO_NONE, libc::PTHREAD_MUTEX_STALLED);
    // SAFETY: the caller's promise, and local variables for the answers.
    unsafe {
        libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
        libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
    }
    protocol == libc::PTHREAD_PRIO_INHERIT || robust == libc::PTHREAD_MUTEX_ROBUST
}

/// # Safety
/// As for pthread_mutex_init(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    static NEXT: Original = Original::new(c"pthread_mutex_init");
    let Some(address) = NEXT.find() else { return libc::ENOMEM };
    // SAFETY: the C library's function of that name, with the caller's arguments; attributes only if there are any.
    let (answer, is_the_kernels) = unsafe {
        let init: Init = transmute(address);
        (init(mutex, attributes), !attributes.is_null() && is_the_kernels(attributes))
    };
    if answer == 0 && is_the_kernels {
        let (start, len) = (mutex.expose_provenance() as u64, size_of::<libc::pthread_mutex_t>() as u64);
        // For the life of the process, because the end of a mutex is not reported.
        let process = rustix::process::getpid().as_raw_pid();
        let request =
            Request::Release { start: start / 4096 * 4096, end: (start + len).next_multiple_of(4096), thread: process };
        REQUESTS.send(request, None);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    #[test]
    fn mutexes_that_the_kernel_writes_to_are_recognised() {
        let mut attributes = MaybeUninit::uninit();
        let attributes: *mut libc::pthread_mutexattr_t = attributes.as_mut_ptr();
        // SAFETY: attributes of this test, initialised first.
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
