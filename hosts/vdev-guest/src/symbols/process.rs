//! Processes that come and go.
#![allow(unsafe_code, reason = "stands in front of the C library's functions of these names")]
#![allow(non_snake_case, reason = "the C library's names")]

use crate::files::table;
use crate::fork::{self, Around};
use crate::node;
use crate::run;
use crate::start::start;
use crate::sys::{self, call, word};
use std::ffi::{c_int, c_void};

/// What pthread_atfork(3) calls; ours is first, whoever asks.
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

/// _Fork(3): fork(2) without anybody's handlers but ours.
///
/// # Safety
/// As _Fork(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn _Fork() -> libc::pid_t {
    // SAFETY: the name is a C string; the C library has such a function since 2.34, of this type, and before nobody calls it.
    let real = unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"_Fork".as_ptr());
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(found))
    };
    let Some(real) = real else { return sys::answer_int(Err(sys::Errno::NOSYS)) };
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

/// _exit(2): a process that ends waits for its descriptors, as the kernel's last close of a file does.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn _exit(status: c_int) -> ! {
    finish();
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [word(status), 0, 0, 0, 0, 0]) };
    }
}

/// The same under its C name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Lets everything that was submitted end; not for a child of vfork, which has submitted nothing, and ends before its parent goes on.
pub(crate) fn finish() {
    if run::view().is_some() && table::belongs_here() {
        let _put_off = telpher_interpose::signals::defer();
        node::each(crate::replica::Replica::drain);
    }
}
