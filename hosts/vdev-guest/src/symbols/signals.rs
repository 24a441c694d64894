//! Signal actions and masks: the program sees what it has set, and this library's traps stay installed.
#![allow(unsafe_code, reason = "replaces the C library's functions of these names")]

use super::polling::{never_writable, poll_by};
use crate::start::start;
use crate::sys::{self, Errno};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec};
use std::ffi::c_int;
use telpher_interpose::interpose;
use telpher_interpose::signals::functions::{self, pointer};

/// A zero timeout.
static AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

telpher_interpose::signal_symbols!(start);

/// The set to pass to the kernel for the program's set; `None` for a null pointer.
///
/// # Safety
/// The set is null or readable.
unsafe fn real_set(set: *const sigset_t) -> Option<sigset_t> {
    start();
    // SAFETY: forwarded.
    unsafe { functions::real_set(set) }
}

// Functions that wait call the C library's, because a thread can be cancelled in them.
interpose! {
    fn sigsuspend(set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        if real.is_none() { sys::answer_int(Err(Errno::FAULT)) } else { next(pointer(real.as_ref())) }
    } }
    fn ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        poll_by(entries, count, |waits| next(entries, count, if waits { timeout } else { &raw const AT_ONCE }, pointer(real.as_ref())))
    } }
    fn __ppoll_chk(
        entries: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t, room: usize,
    ) -> c_int { |next| {
        let real = real_set(set);
        let next = |timeout| next(entries, count, timeout, pointer(real.as_ref()), room);
        // The C library aborts a program whose array is too short; the array must not be read before.
        if (room / size_of::<pollfd>()) as u64 >= count {
            poll_by(entries, count, |waits| next(if waits { timeout } else { &raw const AT_ONCE }))
        } else {
            next(timeout)
        }
    } }
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, set: *const sigset_t,
    ) -> c_int { |next| {
        never_writable(count, write);
        let real = real_set(set);
        next(count, read, write, except, timeout, pointer(real.as_ref()))
    } }
    fn epoll_pwait(fd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        next(fd, events, most, timeout, pointer(real.as_ref()))
    } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;
    use std::ptr::null_mut;
    use telpher_interpose::signals;

    type Body = extern "C" fn(*mut c_void) -> *mut c_void;

    /// The result of a cancelled thread.
    const CANCELED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    extern "C" fn in_sigsuspend(set: *mut c_void) -> *mut c_void {
        // SAFETY: the set of the case, which waits for this thread.
        unsafe { sigsuspend(set.cast()) };
        null_mut()
    }

    extern "C" fn in_ppoll(set: *mut c_void) -> *mut c_void {
        // SAFETY: as above; no entries.
        unsafe { ppoll(null_mut(), 0, null_mut(), set.cast()) };
        null_mut()
    }

    extern "C" fn in_checked_ppoll(set: *mut c_void) -> *mut c_void {
        // SAFETY: as above.
        unsafe { __ppoll_chk(null_mut(), 0, null_mut(), set.cast(), 0) };
        null_mut()
    }

    extern "C" fn in_pselect(set: *mut c_void) -> *mut c_void {
        // SAFETY: as above; no sets of descriptors.
        unsafe { pselect(0, null_mut(), null_mut(), null_mut(), null_mut(), set.cast()) };
        null_mut()
    }

    extern "C" fn in_epoll_pwait(set: *mut c_void) -> *mut c_void {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: as above; one event.
        unsafe { epoll_pwait(libc::epoll_create1(libc::EPOLL_CLOEXEC), &raw mut event, 1, -1, set.cast()) };
        null_mut()
    }

    #[test]
    fn a_thread_that_waits_can_be_cancelled() {
        for body in [in_sigsuspend, in_ppoll, in_checked_ppoll, in_pselect, in_epoll_pwait] as [Body; 5] {
            let mut set = signals::from_bits(0);
            let (mut thread, mut result) = (0, null_mut());
            // SAFETY: the set outlives the thread, which is joined.
            unsafe {
                assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), body, (&raw mut set).cast()), 0);
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert_eq!(pthread_cancel(thread), 0);
                assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            }
            assert_eq!(result, CANCELED);
        }
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        let (at_once, none) = (&raw const AT_ONCE, std::ptr::null());
        // SAFETY: null pointers where they are allowed.
        unsafe {
            assert_eq!(ppoll(null_mut(), 0, at_once, none), 0);
            assert_eq!(pselect(0, null_mut(), null_mut(), null_mut(), at_once, none), 0);
            assert_eq!((sigsuspend(none), sys::errno()), (-1, libc::EFAULT));
        }
    }
}
