//! Standard descriptors that were closed when this process began (`>&-` in a shell).
//!
//! Rust's runtime opens /dev/null in their place before `main`, so that no other file takes their numbers. A program that is started
//! must find them closed, as it would without telpher: they are looked at before the runtime begins.
#![allow(unsafe_code, reason = "a function that the dynamic linker calls, and one between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each of the descriptors 0, 1 and 2.
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[used]
// SAFETY: the section holds addresses of functions that take no arguments they must have; this one only makes system calls.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: asks for a descriptor's flags.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            // Relaxed: there is one thread.
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Closes in a command's process the standard descriptors that were closed when this process began.
pub fn leave_closed(command: &mut Command) {
    // The reference keeps the linker from leaving the function out.
    std::hint::black_box(&LOOK);
    // Relaxed: written before `main`.
    let closed = CLOSED.load(Ordering::Relaxed);
    let close = move || {
        for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
            // SAFETY: what Rust's runtime has opened in place of a closed descriptor, and no code in this child uses.
            unsafe { libc::close(descriptor) };
        }
        Ok(())
    };
    if closed != 0 {
        // SAFETY: between fork and exec the closure makes system calls, allocates nothing and takes no lock.
        unsafe { command.pre_exec(close) };
    }
}
