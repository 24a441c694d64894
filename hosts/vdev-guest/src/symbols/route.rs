//! Where a call with a path goes: on to the C library, with another path, or to us.
#![allow(unsafe_code, reason = "strings of the program")]

use crate::files;
use crate::files::path::Path;
use crate::files::walk::Found;
use crate::sys::{self, Errno};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::RawFd;

/// The answer.
#[derive(Debug)]
pub(super) enum Route {
    /// The C library finds the same by itself.
    On,
    /// The C library finds it at this path, absolute and without links on the way.
    At(Path),
    /// Ours.
    Ours(Found),
    /// The way there already fails.
    Refused(Errno),
}

/// Finds the route of a path relative to a directory.
///
/// # Safety
/// `path` is null or a string.
pub(super) unsafe fn route(directory: RawFd, path: *const c_char, follow: bool) -> Route {
    // SAFETY: the caller's promise.
    match unsafe { find(directory, path, follow) } {
        None => Route::On,
        Some(Err(error)) => Route::Refused(error),
        Some(Ok(found)) if found.is_ours() => Route::Ours(found),
        Some(Ok(found)) => Route::At(found.path),
    }
}

/// Walks a path; see [`files::find`].
///
/// # Safety
/// `path` is null or a string.
pub(super) unsafe fn find(directory: RawFd, path: *const c_char, follow: bool) -> Option<Result<Found, Errno>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, so a string by the caller's promise.
    files::find(directory, unsafe { CStr::from_ptr(path) }.to_bytes(), follow)
}

/// -1, with `errno`.
pub(super) fn refuse(error: Errno) -> c_int {
    sys::set_errno(error);
    -1
}

/// A null pointer, with `errno`.
pub(super) fn refuse_pointer<T>(error: Errno) -> *mut T {
    sys::set_errno(error);
    std::ptr::null_mut()
}
