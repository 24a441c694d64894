//! The C library's functions for signals: the program sees what it has set, and this library's traps stay installed.
#![allow(unsafe_code, reason = "replaces the C library's functions of these names")]

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec};
use std::ffi::c_int;
use telpher_interpose::interpose;
use telpher_interpose::signals::functions::{pointer, real_set};

/// The signals are taken over at the start, or never.
const fn nothing() {}

telpher_interpose::signal_symbols!(nothing);

// Functions that wait call the C library's, because a thread can be cancelled in them.
interpose! {
    fn sigsuspend(set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        next(pointer(real.as_ref()))
    } }
    fn ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        next(entries, count, timeout, pointer(real.as_ref()))
    } }
    fn __ppoll_chk(
        entries: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t, room: usize,
    ) -> c_int { |next| {
        let real = real_set(set);
        next(entries, count, timeout, pointer(real.as_ref()), room)
    } }
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        set: *const sigset_t,
    ) -> c_int { |next| {
        let real = real_set(set);
        next(count, read, write, except, timeout, pointer(real.as_ref()))
    } }
    fn epoll_pwait(
        fd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, set: *const sigset_t,
    ) -> c_int { |next| {
        let real = real_set(set);
        next(fd, events, most, timeout, pointer(real.as_ref()))
    } }
}
