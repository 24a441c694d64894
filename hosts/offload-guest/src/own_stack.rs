//! Calls a function on a stack of its own: the program's may be the small one of a signal handler or a coroutine. Then
//! errno is as before.
#![allow(unsafe_code, reason = "changes the stack, and keeps errno")]

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect, munmap};
use std::arch::asm;
use std::ffi::c_void;
use std::ptr;

/// Bytes below the stack that may not be accessed, so that an overflow ends the process.
const GUARD: usize = 4096;
/// Bytes of the stack. Source: chosen; a modelled device starts on a tenth of it.
const BYTES: usize = 512 << 10;

/// Calls the function with this argument. The caller sees to it that the thread is neither cancelled meanwhile nor
/// interrupted by a handler that does not return.
///
/// # Errors
/// Without memory for the stack; then the function is not called.
pub(crate) fn run<T>(function: extern "C" fn(&mut T), argument: &mut T) -> Result<(), Errno> {
    let stack: *mut c_void = telpher_os::map_private(GUARD + BYTES)?.as_ptr().cast();
    // SAFETY: a new mapping, whose first page nothing uses. Without this guard, the stack is as good.
    let _ = unsafe { mprotect(stack, GUARD, MprotectFlags::empty()) };
    let top = stack.wrapping_byte_add(GUARD + BYTES);
    // SAFETY: this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: a C function with its argument, on a stack that nothing else uses and that is aligned to 16 bytes. It
    // does not unwind, because a panic aborts in an `extern "C"` function. r12 is kept by the callee.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            in("rdi") ptr::from_mut(argument),
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    // SAFETY: the mapping of above, which nothing uses any more.
    unsafe { munmap(stack, GUARD + BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_runs_elsewhere_and_returns() {
        extern "C" fn function((value, place): &mut (u64, usize)) {
            let local = 0_u8;
            (*value, *place) = (*value * 7, (&raw const local).addr());
        }
        let mut argument = (6, 0);
        run(function, &mut argument).unwrap();
        let here = 0_u8;
        assert_eq!(argument.0, 42);
        assert!(argument.1.abs_diff((&raw const here).addr()) > BYTES);
    }
}
