//! Buffered files: a `FILE` over an attribute or a node is one of [`standard`](super::standard).
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::descriptors;
use super::route::{find, refuse_pointer};
use super::served::is_ours;
use super::standard::{Standard, close_cookie, over, settle};
use crate::files;
use crate::start::start;
use crate::sys::Errno;
use libc::{AT_FDCWD, FILE};
use std::ffi::{CStr, c_char, c_int};
use telpher_interpose::interpose;

/// open(2)'s flags for fopen's mode.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let mut flags = match mode.first()? {
        b'r' => libc::O_RDONLY,
        b'w' => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    for letter in mode[1..].iter().take_while(|letter| **letter != b',') {
        match letter {
            b'+' => flags = flags & !libc::O_ACCMODE | libc::O_RDWR,
            b'x' => flags |= libc::O_EXCL,
            b'e' => flags |= libc::O_CLOEXEC,
            _ => {}
        }
    }
    Some(flags)
}

/// fopen and its variants.
unsafe fn open_by(
    path: *const c_char,
    mode: *const c_char,
    next: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the arguments are as the C library requires.
    unsafe {
        let found = match find(AT_FDCWD, path, true) {
            None => return next(path),
            Some(Err(error)) => return refuse_pointer(error),
            Some(Ok(found)) if !found.is_ours() => return next(found.path.as_c_str().as_ptr()),
            Some(Ok(found)) => found,
        };
        let Some(flags) = flags_of(CStr::from_ptr(mode).to_bytes()) else { return refuse_pointer(Errno::INVAL) };
        // A constructor of another library may open a node before this library's constructor runs.
        start();
        match files::open(&found, flags, 0o666) {
            Err(error) => refuse_pointer(error),
            Ok(fd) => {
                settle(fd);
                let file = fdopen(fd, mode);
                if file.is_null() {
                    descriptors::close(fd);
                }
                file
            }
        }
    }
}

/// freopen and its variants. Our FILE is not the one that the program passed: the program gets it as the result, and
/// from `stdout` and `stderr`.
unsafe fn reopen_by(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
    next: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the arguments are as the C library requires.
    unsafe {
        match find(AT_FDCWD, path, true) {
            Some(Ok(found)) if found.is_ours() => {}
            Some(_) | None => return next(),
        }
        let fd = libc::fileno(file);
        libc::fclose(file);
        let opened = fopen(path, mode);
        // The number that fclose has freed is the lowest free one, unless the program has closed lower ones.
        if !opened.is_null()
            && libc::fileno(opened) == fd
            && let Some(standard) = Standard::of(fd)
        {
            standard.point_to(opened);
        }
        opened
    }
}

interpose! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE { |next| open_by(path, mode, |path| next(path, mode)) }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE { |next| open_by(path, mode, |path| next(path, mode)) }
    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE { |next|
        reopen_by(path, mode, file, || next(path, mode, file))
    }
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE { |next|
        reopen_by(path, mode, file, || next(path, mode, file))
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE { |next|
        if is_ours(fd) { over(fd, mode, close_cookie) } else { next(fd, mode) }
    }
}
