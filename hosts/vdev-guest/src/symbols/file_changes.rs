//! Functions that create, remove or rename files, or change their attributes.
//!
//! sysfs creates and removes no files for programs, so these functions refuse with its errnos. Permissions, owners,
//! times and extended attributes are those of the placeholder in the shadow tree.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::route::{Route, refuse, route};
use crate::files;
use crate::files::walk::{FileKind, Found};
use crate::sys::{self, Errno};
use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, dev_t, gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t};
use std::ffi::{c_char, c_int, c_uint, c_void};
use telpher_interpose::interpose;

/// Creating a file: it exists already, or the file system does not support it.
unsafe fn make_at(directory: c_int, path: *const c_char, next: impl FnOnce(c_int, *const c_char) -> c_int) -> c_int {
    // SAFETY: a string or null, as the C library requires.
    match unsafe { route(directory, path, false) } {
        Route::Unchanged => next(directory, path),
        Route::Resolved(path) => next(AT_FDCWD, path.as_c_str().as_ptr()),
        Route::Refused(error) => refuse(error),
        Route::Ours(found) if found.kind != FileKind::Missing => refuse(Errno::EXIST),
        Route::Ours(_) => refuse(Errno::PERM),
    }
}

/// Removing or renaming a file: the file system does not support it.
unsafe fn remove_at(directory: c_int, path: *const c_char, next: impl FnOnce(c_int, *const c_char) -> c_int) -> c_int {
    // SAFETY: a string or null, as the C library requires.
    match unsafe { route(directory, path, false) } {
        Route::Unchanged => next(directory, path),
        Route::Resolved(path) => next(AT_FDCWD, path.as_c_str().as_ptr()),
        Route::Refused(error) => refuse(error),
        Route::Ours(found) if found.kind == FileKind::Missing => refuse(Errno::NOENT),
        Route::Ours(_) => refuse(Errno::PERM),
    }
}

/// rename and link: checks both paths.
unsafe fn move_at(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    next: impl FnOnce((c_int, *const c_char), (c_int, *const c_char)) -> c_int,
) -> c_int {
    // SAFETY: strings or null, as the C library requires.
    unsafe {
        remove_at(from.0, from.1, |directory, path| {
            let from = (directory, path);
            match route(to.0, to.1, false) {
                Route::Unchanged => next(from, to),
                Route::Resolved(path) => next(from, (AT_FDCWD, path.as_c_str().as_ptr())),
                Route::Refused(error) => refuse(error),
                // Two different file systems.
                Route::Ours(_) => refuse(Errno::XDEV),
            }
        })
    }
}

/// Reads or changes a file's attributes on its placeholder. `failure` is the function's result with `errno`.
unsafe fn on_placeholder<T>(
    directory: c_int,
    path: *const c_char,
    follow: bool,
    failure: T,
    next: impl FnOnce(c_int, *const c_char) -> T,
) -> T {
    // SAFETY: a string or null, as the C library requires.
    let error = match unsafe { route(directory, path, follow) } {
        Route::Unchanged => return next(directory, path),
        Route::Resolved(path) => return next(AT_FDCWD, path.as_c_str().as_ptr()),
        Route::Ours(found) => match placeholder(&found) {
            Ok(path) => return next(AT_FDCWD, path.as_c_str().as_ptr()),
            Err(error) => error,
        },
        Route::Refused(error) => error,
    };
    sys::set_errno(error);
    failure
}

fn placeholder(found: &Found) -> Result<files::path::Path, Errno> {
    if found.kind == FileKind::Missing {
        return Err(Errno::NOENT);
    }
    files::tree().ok_or(Errno::NOENT)?.location(&found.path)
}

interpose! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { |next| make_at(AT_FDCWD, path, |_, path| next(path, mode)) }
    fn mkdirat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int { |next|
        make_at(directory, path, |directory, path| next(directory, path, mode))
    }
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int { |next|
        make_at(AT_FDCWD, path, |_, path| next(path, mode, device))
    }
    fn mknodat(directory: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int { |next|
        make_at(directory, path, |directory, path| next(directory, path, mode, device))
    }
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int { |next| make_at(AT_FDCWD, path, |_, path| next(path, mode)) }
    fn mkfifoat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int { |next|
        make_at(directory, path, |directory, path| next(directory, path, mode))
    }
    fn symlink(text: *const c_char, path: *const c_char) -> c_int { |next|
        make_at(AT_FDCWD, path, |_, path| next(text, path))
    }
    fn symlinkat(text: *const c_char, directory: c_int, path: *const c_char) -> c_int { |next|
        make_at(directory, path, |directory, path| next(text, directory, path))
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int { |next|
        move_at((AT_FDCWD, from), (AT_FDCWD, to), |from, to| next(from.1, to.1))
    }
    fn linkat(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int) -> c_int { |next|
        move_at((from_at, from), (to_at, to), |from, to| next(from.0, from.1, to.0, to.1, flags))
    }
    fn rename(from: *const c_char, to: *const c_char) -> c_int { |next|
        move_at((AT_FDCWD, from), (AT_FDCWD, to), |from, to| next(from.1, to.1))
    }
    fn renameat(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char) -> c_int { |next|
        move_at((from_at, from), (to_at, to), |from, to| next(from.0, from.1, to.0, to.1))
    }
    fn renameat2(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint) -> c_int { |next|
        move_at((from_at, from), (to_at, to), |from, to| next(from.0, from.1, to.0, to.1, flags))
    }
    fn unlink(path: *const c_char) -> c_int { |next| remove_at(AT_FDCWD, path, |_, path| next(path)) }
    fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int { |next|
        remove_at(directory, path, |directory, path| next(directory, path, flags))
    }
    fn rmdir(path: *const c_char) -> c_int { |next| remove_at(AT_FDCWD, path, |_, path| next(path)) }
    fn remove(path: *const c_char) -> c_int { |next| remove_at(AT_FDCWD, path, |_, path| next(path)) }
    fn chmod(path: *const c_char, mode: mode_t) -> c_int { |next| on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, mode)) }
    fn fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int { |next|
        on_placeholder(directory, path, flags & AT_SYMLINK_NOFOLLOW == 0, -1, |directory, path| next(directory, path, mode, flags))
    }
    fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, user, group))
    }
    fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, false, -1, |_, path| next(path, user, group))
    }
    fn fchownat(directory: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int { |next|
        on_placeholder(directory, path, flags & AT_SYMLINK_NOFOLLOW == 0, -1, |directory, path| next(directory, path, user, group, flags))
    }
    fn utimensat(directory: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int { |next|
        on_placeholder(directory, path, flags & AT_SYMLINK_NOFOLLOW == 0, -1, |directory, path| next(directory, path, times, flags))
    }
    fn utimes(path: *const c_char, times: *const timeval) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, times))
    }
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, times))
    }
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, name, value, size))
    }
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t { |next|
        on_placeholder(AT_FDCWD, path, false, -1, |_, path| next(path, name, value, size))
    }
    fn listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, list, size))
    }
    fn llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t { |next|
        on_placeholder(AT_FDCWD, path, false, -1, |_, path| next(path, list, size))
    }
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, name, value, size, flags))
    }
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, false, -1, |_, path| next(path, name, value, size, flags))
    }
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(path, name))
    }
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, false, -1, |_, path| next(path, name))
    }
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int { |next|
        on_placeholder(AT_FDCWD, path, true, -1, |_, path| next(fd, path, mask))
    }
}
