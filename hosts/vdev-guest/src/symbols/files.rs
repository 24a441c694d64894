//! Opening by path.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::route::{Route, find, refuse, route};
use super::standard;
use crate::files::table::Kind;
use crate::files::{self, shadow};
use crate::start::start;
use crate::sys::{Errno, answer_int};
use libc::{AT_FDCWD, mode_t, off_t};
use std::ffi::{c_char, c_int, c_void};
use telpher_interpose::interpose;

/// Opens a path. `mode` is undefined if the flags create no file: the C library's functions are variadic, and on x86-64
/// the argument is in the same register whether it was passed or not.
///
/// # Safety
/// `path` is null or a string.
pub(super) unsafe fn open_at(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    let follow = flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive;
    // SAFETY: the caller's promise.
    let fd = match unsafe { find(directory, path, follow) } {
        None => {
            let fd = next();
            files::record_kind(fd, Kind::Foreign);
            fd
        }
        Some(Err(error)) => return refuse(error),
        Some(Ok(found)) => {
            let mode = if flags & (libc::O_CREAT | libc::O_TMPFILE) == 0 { 0 } else { mode };
            // A constructor of another library may open a node before this library's constructor runs.
            start();
            answer_int(files::open(&found, flags, mode))
        }
    };
    standard::settle(fd);
    fd
}

interpose! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { |next|
        open_at(AT_FDCWD, path, flags, mode, || next(path, flags, mode))
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { |next|
        open_at(AT_FDCWD, path, flags, mode, || next(path, flags, mode))
    }
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int { |next|
        open_at(directory, path, flags, mode, || next(directory, path, flags, mode))
    }
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int { |next|
        open_at(directory, path, flags, mode, || next(directory, path, flags, mode))
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int { |next|
        open_at(AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode, || next(path, mode))
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int { |next|
        open_at(AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode, || next(path, mode))
    }
    // Called by programs built with _FORTIFY_SOURCE if the mode argument is missing.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int { |next|
        open_at(AT_FDCWD, path, flags, 0, || next(path, flags))
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int { |next|
        open_at(AT_FDCWD, path, flags, 0, || next(path, flags))
    }
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int { |next|
        open_at(directory, path, flags, 0, || next(directory, path, flags))
    }
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int { |next|
        open_at(directory, path, flags, 0, || next(directory, path, flags))
    }
    fn truncate(path: *const c_char, length: off_t) -> c_int { |next|
        truncate_at(path, |path| next(path, length))
    }
    fn truncate64(path: *const c_char, length: off_t) -> c_int { |next|
        truncate_at(path, |path| next(path, length))
    }
    fn mkstemp(template: *mut c_char) -> c_int { |next| temporary(template, || next(template)) }
    fn mkstemp64(template: *mut c_char) -> c_int { |next| temporary(template, || next(template)) }
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int { |next| temporary(template, || next(template, suffix)) }
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int { |next| temporary(template, || next(template, suffix)) }
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int { |next| temporary(template, || next(template, flags)) }
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int { |next| temporary(template, || next(template, flags)) }
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int { |next|
        temporary(template, || next(template, suffix, flags))
    }
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int { |next|
        temporary(template, || next(template, suffix, flags))
    }
    fn mkdtemp(template: *mut c_char) -> *mut c_void { |next|
        match route(AT_FDCWD, template, true) {
            // sysfs has no mkdir.
            Route::Ours(_) => super::route::refuse_pointer(Errno::PERM),
            Route::Refused(error) => super::route::refuse_pointer(error),
            Route::Unchanged | Route::Resolved(_) => next(template),
        }
    }
}

/// Truncating an attribute does nothing; a directory refuses.
unsafe fn truncate_at(path: *const c_char, next: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: a string or null, as the C library requires.
    match unsafe { route(AT_FDCWD, path, true) } {
        Route::Unchanged => next(path),
        Route::Resolved(path) => next(path.as_c_str().as_ptr()),
        Route::Refused(error) => refuse(error),
        Route::Ours(found) => match found.status.map(|status| shadow::kind(&status)) {
            None => refuse(Errno::NOENT),
            Some(rustix::fs::FileType::Directory) => refuse(Errno::ISDIR),
            Some(_) => 0,
        },
    }
}

/// The C library opens temporary files with an internal call; our directories allow no new files.
unsafe fn temporary(template: *mut c_char, next: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: a string or null, as the C library requires.
    match unsafe { route(AT_FDCWD, template, true) } {
        Route::Ours(_) => refuse(Errno::ACCESS),
        Route::Refused(error) => refuse(error),
        Route::Unchanged | Route::Resolved(_) => next(),
    }
}
