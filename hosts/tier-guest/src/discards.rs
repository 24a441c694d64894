//! Memory that the program lets the kernel free at some later time (`MADV_FREE`).
//!
//! The kernel reports this like `MADV_DONTNEED`, and discarded memory is ignored until it is filled again, which is
//! also reported. But pages that the kernel has not freed yet are simply written again, without a report: they would
//! stay where they are forever. So this library interposes `madvise` and discards the memory at once, which `MADV_FREE`
//! permits.
#![allow(unsafe_code, reason = "interposes a function of the C library")]

use crate::REQUESTS;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use telpher_interpose::preload::Original;

type Advise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// # Safety
/// As for madvise(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    static NEXT: Original = Original::new(c"madvise");
    // SAFETY: the C library's function of that name, with the caller's arguments. Memory that the kernel may free at
    // any time may be discarded now.
    unsafe {
        let advise: Advise = transmute(NEXT.get());
        let answer = advise(start, len, advice);
        // Memory that is not anonymous has been refused.
        if answer == 0 && advice == libc::MADV_FREE && REQUESTS.is_open() {
            advise(start, len, libc::MADV_DONTNEED)
        } else {
            answer
        }
    }
}
