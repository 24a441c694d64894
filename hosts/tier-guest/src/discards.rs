//! Memory that the program lets the system take, some day (`MADV_FREE`).
//!
//! The kernel tells of it as of `MADV_DONTNEED`, and what is discarded is nobody's until it is filled again, which is told of, too. But pages that the system
//! has not taken yet are simply written again: they would stay where they are for ever. So this library stands in front of `madvise`, and has them taken at
//! once, which is one of the things that may become of them.
#![allow(unsafe_code, reason = "stands in front of a function of the C library")]

use crate::next::next;
use crate::start::DESK;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicPtr;

type Advise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// # Safety
/// As of madvise(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let address = next(c"madvise", &NEXT);
    if address.is_null() {
        // SAFETY: the C library's word for what went wrong, of this thread.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    }
    // SAFETY: the C library's function of that name, as called. What it lets the system take once, whenever that likes, may be taken now.
    unsafe {
        let advise: Advise = transmute(address);
        let answer = advise(start, len, advice);
        // What is not anonymous has been refused.
        if answer == 0 && advice == libc::MADV_FREE && DESK.is_open() {
            advise(start, len, libc::MADV_DONTNEED)
        } else {
            answer
        }
    }
}
