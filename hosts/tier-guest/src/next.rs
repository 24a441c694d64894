//! The C library's functions that this library interposes.
#![allow(unsafe_code, reason = "asks the dynamic linker")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Returns the function that the program would have called without this library.
pub(crate) fn next(name: &'static CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a terminated name.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    found.store(address, Ordering::Relaxed);
    address
}
