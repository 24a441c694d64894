//! Where a call with a path goes: to the C library unchanged, to the C library with another path, or to this library.
#![allow(unsafe_code, reason = "strings of the program")]

use crate::files;
use crate::files::path::Path;
use crate::files::walk::Found;
use crate::sys::{self, Errno};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::RawFd;

/// The route of a path.
#[derive(Debug)]
pub(super) enum Route {
    /// The C library gives the same result.
    Unchanged,
    /// The C library serves it, with this absolute path without links.
    Resolved(Path),
    /// This library serves it.
    Ours(Found),
    /// Resolving the path fails.
    Refused(Errno),
}

/// Finds the route of a path relative to a directory.
///
/// # Safety
/// `path` is null or a string.
pub(super) unsafe fn route(directory: RawFd, path: *const c_char, follow: bool) -> Route {
    // SAFETY: the caller's promise.
    match unsafe { find(directory, path, follow) } {
        None => Route::Unchanged,
        Some(Err(error)) => Route::Refused(error),
        Some(Ok(found)) if found.is_ours() => Route::Ours(found),
        Some(Ok(found)) => Route::Resolved(found.path),
    }
}

/// Resolves a path; see [`files::find`].
///
/// # Safety
/// `path` is null or a string.
pub(super) unsafe fn find(directory: RawFd, path: *const c_char, follow: bool) -> Option<Result<Found, Errno>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, so the caller promises a string.
    files::find(directory, unsafe { CStr::from_ptr(path) }.to_bytes(), follow)
}

/// Sets `errno` and returns -1.
pub(super) fn refuse(error: Errno) -> c_int {
    sys::set_errno(error);
    -1
}

/// Sets `errno` and returns a null pointer.
pub(super) fn refuse_pointer<T>(error: Errno) -> *mut T {
    sys::set_errno(error);
    std::ptr::null_mut()
}
