//! Process creation and exit.
#![allow(unsafe_code, reason = "replaces the C library's functions of these names")]
#![allow(non_snake_case, reason = "the C library's names")]

use crate::files::table;
use crate::fork::{self, Around};
use crate::node;
use crate::run;
use crate::start::start;
use crate::sys::{call, word};
use std::ffi::{c_int, c_void};
use telpher_interpose::preload::Original;

/// The function that pthread_atfork(3) calls; our handlers are registered before the caller's.
///
/// # Safety
/// As pthread_atfork(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __register_atfork(
    before: Option<Around>,
    parent: Option<Around>,
    child: Option<Around>,
    object: *mut c_void,
) -> c_int {
    start();
    match fork::real_register() {
        // SAFETY: forwarded.
        Some(register) => unsafe { register(before, parent, child, object) },
        None => libc::ENOMEM,
    }
}

/// _Fork(3): fork(2) without handlers except ours.
///
/// # Safety
/// As _Fork(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn _Fork() -> libc::pid_t {
    static NEXT: Original = Original::new(c"_Fork");
    // SAFETY: the C library has a function of this type since 2.34, and older ones have no callers.
    let real = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(NEXT.get()) };
    let ours = run::view().is_some();
    if ours {
        fork::before();
    }
    // SAFETY: forwarded.
    let child = unsafe { real() };
    if ours {
        if child == 0 { fork::after_in_child() } else { fork::after() }
    }
    child
}

/// _exit(2): waits for the process's descriptors first, as the kernel's last close of a file does.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn _exit(status: c_int) -> ! {
    finish();
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [word(status), 0, 0, 0, 0, 0]) };
    }
}

/// _exit(2) under its C name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Waits for all submitted descriptors. Does nothing in a child of vfork, which has submitted nothing and ends before
/// its parent continues.
pub(crate) fn finish() {
    if run::view().is_some() && table::belongs_here() {
        let _deferred = telpher_interpose::signals::defer();
        node::each(crate::replica::Replica::drain);
    }
}
