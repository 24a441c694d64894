//! Standard descriptors that were closed when this process started (`>&-` in a shell).
//!
//! Before `main`, Rust's runtime opens /dev/null in their place, so that no other file gets their numbers. A program
//! that we start must find them closed, as it would without telpher. So they are checked before the runtime starts.
#![allow(unsafe_code, reason = "a function that the dynamic linker calls, and one between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// One bit for each of the descriptors 0, 1 and 2.
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[used]
// SAFETY: the section holds addresses of functions that need no arguments; this function only makes system calls.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: F_GETFD only reads a descriptor's flags.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            // Relaxed: only one thread exists.
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Closes in a command's process the standard descriptors that were closed when this process started.
pub fn leave_closed(command: &mut Command) {
    // This reference keeps the linker from removing the function.
    std::hint::black_box(&LOOK);
    // Relaxed: written before `main`.
    let closed = CLOSED.load(Ordering::Relaxed);
    let close = move || {
        for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
            // SAFETY: Rust's runtime opened this descriptor in place of a closed one, and no code in the child uses it.
            unsafe { libc::close(descriptor) };
        }
        Ok(())
    };
    if closed != 0 {
        // SAFETY: between fork and exec the closure makes system calls, allocates nothing and takes no lock.
        unsafe { command.pre_exec(close) };
    }
}
