//! Status, access, links, and resolved paths.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::route::{Route, find, refuse, refuse_pointer, route};
use crate::files::path::{LONGEST, Path};
use crate::files::walk::FileKind;
use crate::files::{self, attribute, descriptor, status as look};
use crate::node;
use crate::run;
use crate::sys::{self, Errno, answer};
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_long, size_t, ssize_t};
use rustix::fs::Stat;
use std::ffi::{CStr, c_char, c_int, c_uint};
use telpher_interpose::interpose;
use telpher_vdev_wire::settings::View;

/// Writes a status to the program's structure.
///
/// # Safety
/// `into` can be written.
unsafe fn write_stat(status: &Stat, into: *mut libc::stat) -> c_int {
    // SAFETY: an all-zero structure is a valid value.
    let mut given: libc::stat = unsafe { std::mem::zeroed() };
    given.st_dev = status.st_dev;
    given.st_ino = status.st_ino;
    given.st_nlink = status.st_nlink;
    given.st_mode = status.st_mode;
    given.st_uid = status.st_uid;
    given.st_gid = status.st_gid;
    given.st_rdev = status.st_rdev;
    given.st_size = status.st_size;
    given.st_blksize = status.st_blksize;
    given.st_blocks = status.st_blocks;
    (given.st_atime, given.st_atime_nsec) = (status.st_atime, status.st_atime_nsec.cast_signed());
    (given.st_mtime, given.st_mtime_nsec) = (status.st_mtime, status.st_mtime_nsec.cast_signed());
    (given.st_ctime, given.st_ctime_nsec) = (status.st_ctime, status.st_ctime_nsec.cast_signed());
    // SAFETY: the caller's promise.
    unsafe { into.write(given) };
    0
}

/// True if the path is empty and the flags select the descriptor itself.
unsafe fn is_descriptor_itself(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: a string or null, as the C library requires; a string has a first byte.
    flags & AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// The device number of a queue's node in the namespace view, which FUSE can only serve as a regular file. The file
/// system encodes the number in the node's size (`1 << 31 | major << 20 | minor`).
fn node_number(mode: u32, size: u64, device: u64) -> Option<u64> {
    if size >> 31 != 1 || mode & libc::S_IFMT != libc::S_IFREG || run::view() != Some(View::Namespace) {
        return None;
    }
    // Only for files of our file system; its directory of nodes always exists.
    let ours = rustix::fs::stat(c"/dev/dsa").ok()?.st_dev;
    let (major, minor) = (size >> 20 & 0x7ff, size & 0xf_ffff);
    let (major, minor) = (u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
    (ours == device).then(|| rustix::fs::makedev(major, minor))
}

/// Presents a node of the namespace view as a character device.
///
/// # Safety
/// If `result` is 0, the C library has just written `into`.
unsafe fn as_node(result: c_int, into: *mut libc::stat) -> c_int {
    if result == 0 {
        // SAFETY: the caller's promise.
        let status = unsafe { &mut *into };
        if let Some(number) = node_number(status.st_mode, status.st_size.cast_unsigned(), status.st_dev) {
            status.st_mode = status.st_mode & !libc::S_IFMT | libc::S_IFCHR;
            (status.st_rdev, status.st_size) = (number, 0);
        }
    }
    result
}

/// The same for statx.
///
/// # Safety
/// As for [`as_node`].
unsafe fn as_node_extended(result: c_int, into: *mut libc::statx) -> c_int {
    if result == 0 {
        // SAFETY: the caller's promise.
        let status = unsafe { &mut *into };
        let device = rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor);
        if let Some(number) = node_number(status.stx_mode.into(), status.stx_size, device) {
            status.stx_mode = status.stx_mode & 0o7777 | 0o020_000;
            (status.stx_rdev_major, status.stx_rdev_minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            status.stx_size = 0;
        }
    }
    result
}

/// stat and its variants.
unsafe fn status_at(
    directory: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the arguments are as the C library requires.
    unsafe {
        if is_descriptor_itself(path, flags) && directory != AT_FDCWD {
            return match files::status_of(directory) {
                Some(status) => write_stat(&status, into),
                None => as_node(next(directory, path), into),
            };
        }
        let path_given = if is_descriptor_itself(path, flags) { c".".as_ptr() } else { path };
        match route(directory, path_given, flags & AT_SYMLINK_NOFOLLOW == 0) {
            Route::Unchanged => as_node(next(directory, path), into),
            Route::Resolved(path) => next(AT_FDCWD, path.as_c_str().as_ptr()),
            Route::Refused(error) => refuse(error),
            Route::Ours(found) => files::status(&found).map_or_else(refuse, |status| write_stat(&status, into)),
        }
    }
}

unsafe fn status_of(fd: c_int, into: *mut libc::stat, next: impl FnOnce() -> c_int) -> c_int {
    match files::status_of(fd) {
        // SAFETY: as the C library asks for.
        Some(status) => unsafe { write_stat(&status, into) },
        // SAFETY: as the C library asks for.
        None => unsafe { as_node(next(), into) },
    }
}

/// Writes a status in statx's form.
unsafe fn write_statx(status: &Stat, into: *mut libc::statx) -> c_int {
    // SAFETY: an all-zero structure is a valid value.
    let mut given: libc::statx = unsafe { std::mem::zeroed() };
    let time = |seconds: i64, nanoseconds: u64| {
        // SAFETY: an all-zero structure is a valid value.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        time.tv_sec = seconds;
        // Cannot lose bits: less than a thousand million.
        time.tv_nsec = u32::try_from(nanoseconds).unwrap_or(0);
        time
    };
    given.stx_mask = libc::STATX_BASIC_STATS;
    given.stx_blksize = u32::try_from(status.st_blksize).unwrap_or(0);
    given.stx_nlink = u32::try_from(status.st_nlink).unwrap_or(u32::MAX);
    given.stx_uid = status.st_uid;
    given.stx_gid = status.st_gid;
    // Cannot lose bits: type and permissions have 16 bits.
    given.stx_mode = u16::try_from(status.st_mode & 0xffff).unwrap_or(0);
    given.stx_ino = status.st_ino;
    given.stx_size = status.st_size.cast_unsigned();
    given.stx_blocks = status.st_blocks.cast_unsigned();
    given.stx_atime = time(status.st_atime, status.st_atime_nsec);
    given.stx_mtime = time(status.st_mtime, status.st_mtime_nsec);
    given.stx_ctime = time(status.st_ctime, status.st_ctime_nsec);
    (given.stx_rdev_major, given.stx_rdev_minor) =
        (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    (given.stx_dev_major, given.stx_dev_minor) = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
    // SAFETY: as the C library asks for.
    unsafe { into.write(given) };
    0
}

/// access and its variants.
unsafe fn access_at(
    directory: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the arguments are as the C library asks for.
    match unsafe { route(directory, path, flags & AT_SYMLINK_NOFOLLOW == 0) } {
        Route::Unchanged => next(directory, path),
        Route::Resolved(path) => next(AT_FDCWD, path.as_c_str().as_ptr()),
        Route::Refused(error) => refuse(error),
        Route::Ours(_) if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 => refuse(Errno::INVAL),
        Route::Ours(found) => match found.status {
            None => refuse(Errno::NOENT),
            Some(status) if look::is_accessible(&status, mode) => 0,
            Some(_) => refuse(Errno::ACCESS),
        },
    }
}

/// readlink and its variants. `next` reads the link at a path into a buffer.
unsafe fn link_at(
    directory: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
    next: impl Fn(c_int, *const c_char, *mut c_char, size_t) -> ssize_t,
) -> ssize_t {
    // SAFETY: the arguments are as the C library asks for.
    let found = match unsafe { route(directory, path, false) } {
        Route::Unchanged => return hide_run_files(into, size, |into, size| next(directory, path, into, size)),
        Route::Resolved(path) => {
            return hide_run_files(into, size, |into, size| next(AT_FDCWD, path.as_c_str().as_ptr(), into, size));
        }
        Route::Refused(error) => return answer(Err(error)),
        Route::Ours(found) => found,
    };
    let text = &mut [0; LONGEST];
    let answered = match (found.kind, files::tree()) {
        (FileKind::Missing, _) | (_, None) => Err(Errno::NOENT),
        (FileKind::Link, Some(_)) if size == 0 => Err(Errno::INVAL),
        (FileKind::Link, Some(tree)) => tree.link(&found.path, text),
        _ => Err(Errno::INVAL),
    };
    // SAFETY: the program passes the size of its buffer.
    answer(answered.map(|text| unsafe { put(text, into, size) }))
}

/// Copies as much of a text as fits, without a final zero.
///
/// # Safety
/// `into` has this size.
unsafe fn put(text: &[u8], into: *mut c_char, size: size_t) -> usize {
    let len = text.len().min(size);
    // SAFETY: not more than the size, which the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), len) };
    len
}

/// Replaces paths that the program must not see in a link's text: the run directory (`/proc/self/cwd`), and the memory
/// file of an open attribute (`/proc/self/fd/3`).
fn hide_run_files(into: *mut c_char, size: size_t, read: impl Fn(*mut c_char, size_t) -> ssize_t) -> ssize_t {
    let len = read(into, size);
    let Ok(filled) = usize::try_from(len) else { return len };
    // SAFETY: the C library has written this many bytes.
    let seen = unsafe { std::slice::from_raw_parts(into.cast_const().cast::<u8>(), filled) };
    if !files::are_served() || !may_be_hidden(seen) {
        return len;
    }
    // Read the whole text: the program's buffer may be too small for it, but large enough for the replacement.
    let mut text = [0; LONGEST];
    let Ok(whole) = usize::try_from(read(text.as_mut_ptr().cast(), text.len())) else { return len };
    let text = &text[..whole];
    let path = match attribute::path_in_link(text) {
        Some(path) => Some(path),
        None => files::tree().and_then(|tree| tree.path_of(text)).and_then(|path| Path::new(path).ok()),
    };
    match path {
        // SAFETY: the program passes the size of its buffer.
        Some(path) => unsafe { put(path.as_bytes(), into, size) }.cast_signed(),
        None => len,
    }
}

/// True for a text, perhaps truncated, that may name a file of the run itself.
fn may_be_hidden(seen: &[u8]) -> bool {
    let own = crate::run::directory();
    let len = seen.len().min(own.len());
    seen.starts_with(b"/memfd:") || len > 1 && seen[..len] == own[..len]
}

/// The path of the node that a link to this process's descriptor stands for.
unsafe fn node_link(path: *const c_char) -> Option<Path> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, so a string, as the C library requires.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes();
    let fd = [&b"/proc/self/fd/"[..], b"/dev/fd/"].iter().find_map(|folder| text.strip_prefix(*folder))?;
    let fd = std::str::from_utf8(fd).ok()?.parse().ok()?;
    if node::is_node(fd) { files::path_of_descriptor(fd) } else { None }
}

/// realpath and its variants: the path, in the program's buffer or in one from its malloc.
unsafe fn real_path(path: *const c_char, into: *mut c_char, next: impl FnOnce() -> *mut c_char) -> *mut c_char {
    // SAFETY: the arguments are as the C library requires.
    let found = match unsafe { find(AT_FDCWD, path, true) } {
        None => return next(),
        Some(Err(error)) => return refuse_pointer(error),
        Some(Ok(found)) => found,
    };
    match found.kind {
        FileKind::Missing => refuse_pointer(Errno::NOENT),
        FileKind::Beyond => next(),
        // SAFETY: null or PATH_MAX bytes, as the C library requires.
        _ => unsafe { give_path(&found.path, into, libc::PATH_MAX.unsigned_abs() as usize) },
    }
}

/// Writes a path to the program's buffer, or to one from its malloc if there is none.
///
/// # Safety
/// `into` is null or has this size.
unsafe fn give_path(path: &Path, into: *mut c_char, size: usize) -> *mut c_char {
    let text = path.as_c_str().to_bytes_with_nul();
    if !into.is_null() && size < text.len() {
        return refuse_pointer(Errno::RANGE);
    }
    // SAFETY: malloc may be called wherever these functions may be called; its result has the requested size.
    unsafe {
        let into = if into.is_null() { libc::malloc(text.len()).cast() } else { into };
        if !into.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), text.len());
        }
        into
    }
}

/// getcwd and its variants.
unsafe fn working_directory(into: *mut c_char, size: usize, next: impl FnOnce() -> *mut c_char) -> *mut c_char {
    if !files::is_near() {
        return next();
    }
    let mut text = [0; LONGEST];
    let location = descriptor::working_directory(&mut text).ok();
    let path = files::tree().zip(location).and_then(|(tree, location)| tree.path_of(location)).map(Path::new);
    match path.and_then(Result::ok) {
        None => next(),
        Some(_) if !into.is_null() && size == 0 => refuse_pointer(Errno::INVAL),
        // SAFETY: as the C library requires; a size without a buffer requests that much from malloc.
        Some(path) => unsafe { give_path(&path, into, size) },
    }
}

interpose! {
    fn stat(path: *const c_char, into: *mut libc::stat) -> c_int { |next|
        status_at(AT_FDCWD, path, into, 0, |_, path| next(path, into))
    }
    fn stat64(path: *const c_char, into: *mut libc::stat) -> c_int { |next|
        status_at(AT_FDCWD, path, into, 0, |_, path| next(path, into))
    }
    fn lstat(path: *const c_char, into: *mut libc::stat) -> c_int { |next|
        status_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW, |_, path| next(path, into))
    }
    fn lstat64(path: *const c_char, into: *mut libc::stat) -> c_int { |next|
        status_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW, |_, path| next(path, into))
    }
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int { |next| status_of(fd, into, || next(fd, into)) }
    fn fstat64(fd: c_int, into: *mut libc::stat) -> c_int { |next| status_of(fd, into, || next(fd, into)) }
    fn fstatat(directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int { |next|
        status_at(directory, path, into, flags, |directory, path| next(directory, path, into, flags))
    }
    fn fstatat64(directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int { |next|
        status_at(directory, path, into, flags, |directory, path| next(directory, path, into, flags))
    }
    // Called by programs built against a C library before 2.33.
    fn __xstat(_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int { |_next| stat(path, into) }
    fn __xstat64(_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int { |_next| stat(path, into) }
    fn __lxstat(_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int { |_next| lstat(path, into) }
    fn __lxstat64(_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int { |_next| lstat(path, into) }
    fn __fxstat(_version: c_int, fd: c_int, into: *mut libc::stat) -> c_int { |_next| fstat(fd, into) }
    fn __fxstat64(_version: c_int, fd: c_int, into: *mut libc::stat) -> c_int { |_next| fstat(fd, into) }
    fn __fxstatat(_version: c_int, directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int { |_next|
        fstatat(directory, path, into, flags)
    }
    fn __fxstatat64(_version: c_int, directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int { |_next|
        fstatat(directory, path, into, flags)
    }
    fn statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int { |next| {
        if is_descriptor_itself(path, flags) && directory != AT_FDCWD {
            return match files::status_of(directory) {
                Some(status) => write_statx(&status, into),
                None => as_node_extended(next(directory, path, flags, mask, into), into),
            };
        }
        let path_given = if is_descriptor_itself(path, flags) { c".".as_ptr() } else { path };
        match route(directory, path_given, flags & AT_SYMLINK_NOFOLLOW == 0) {
            Route::Unchanged => as_node_extended(next(directory, path, flags, mask, into), into),
            Route::Resolved(path) => next(AT_FDCWD, path.as_c_str().as_ptr(), flags, mask, into),
            Route::Refused(error) => refuse(error),
            Route::Ours(found) => files::status(&found).map_or_else(refuse, |status| write_statx(&status, into)),
        }
    } }
    fn access(path: *const c_char, mode: c_int) -> c_int { |next|
        access_at(AT_FDCWD, path, mode, 0, |_, path| next(path, mode))
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int { |next|
        access_at(AT_FDCWD, path, mode, 0, |_, path| next(path, mode))
    }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int { |next|
        access_at(AT_FDCWD, path, mode, 0, |_, path| next(path, mode))
    }
    fn faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int { |next|
        access_at(directory, path, mode, flags, |directory, path| next(directory, path, mode, flags))
    }
    fn readlink(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t { |next|
        match node_link(path) {
            Some(node) => put(node.as_bytes(), into, size).cast_signed(),
            None => link_at(AT_FDCWD, path, into, size, |_, path, into, size| next(path, into, size)),
        }
    }
    fn __readlink_chk(path: *const c_char, into: *mut c_char, size: size_t, all: size_t) -> ssize_t { |next|
        if size > all { next(path, into, size, all) } else { readlink(path, into, size) }
    }
    fn readlinkat(directory: c_int, path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t { |next|
        link_at(directory, path, into, size, |directory, path, into, size| next(directory, path, into, size))
    }
    fn __readlinkat_chk(directory: c_int, path: *const c_char, into: *mut c_char, size: size_t, all: size_t) -> ssize_t { |next|
        if size > all { next(directory, path, into, size, all) } else { readlinkat(directory, path, into, size) }
    }
    fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char { |next|
        real_path(path, into, || next(path, into))
    }
    fn __realpath_chk(path: *const c_char, into: *mut c_char, size: size_t) -> *mut c_char { |next|
        real_path(path, into, || next(path, into, size))
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char { |next|
        real_path(path, std::ptr::null_mut(), || next(path))
    }
    fn getcwd(into: *mut c_char, size: size_t) -> *mut c_char { |next|
        working_directory(into, size, || next(into, size))
    }
    fn __getcwd_chk(into: *mut c_char, size: size_t, all: size_t) -> *mut c_char { |next|
        if size > all { next(into, size, all) } else { working_directory(into, size, || next(into, size, all)) }
    }
    fn getwd(into: *mut c_char) -> *mut c_char { |next|
        working_directory(into, libc::PATH_MAX.unsigned_abs() as usize, || next(into))
    }
    fn get_current_dir_name() -> *mut c_char { |next|
        working_directory(std::ptr::null_mut(), 0, || next())
    }
    fn statfs(path: *const c_char, into: *mut libc::statfs) -> c_int { |next| mount_at(path, |path| next(path, into)) }
    fn statfs64(path: *const c_char, into: *mut libc::statfs) -> c_int { |next| mount_at(path, |path| next(path, into)) }
    fn statvfs(path: *const c_char, into: *mut libc::statvfs) -> c_int { |next| mount_at(path, |path| next(path, into)) }
    fn statvfs64(path: *const c_char, into: *mut libc::statvfs) -> c_int { |next| mount_at(path, |path| next(path, into)) }
    fn fstatfs(fd: c_int, into: *mut libc::statfs) -> c_int { |next|
        match mount_of(fd) { Some(mount) => statfs(mount.as_ptr(), into), None => next(fd, into) }
    }
    fn fstatfs64(fd: c_int, into: *mut libc::statfs) -> c_int { |next|
        match mount_of(fd) { Some(mount) => statfs(mount.as_ptr(), into), None => next(fd, into) }
    }
    fn fstatvfs(fd: c_int, into: *mut libc::statvfs) -> c_int { |next|
        match mount_of(fd) { Some(mount) => statvfs(mount.as_ptr(), into), None => next(fd, into) }
    }
    fn fstatvfs64(fd: c_int, into: *mut libc::statvfs) -> c_int { |next|
        match mount_of(fd) { Some(mount) => statvfs(mount.as_ptr(), into), None => next(fd, into) }
    }
    fn pathconf(path: *const c_char, name: c_int) -> c_long { |next|
        match route(AT_FDCWD, path, true) {
            Route::Unchanged => next(path, name),
            Route::Resolved(path) => next(path.as_c_str().as_ptr(), name),
            Route::Refused(error) => refuse(error).into(),
            Route::Ours(found) => next(look::mount_of(&found.path).as_ptr(), name),
        }
    }
}

/// statfs and its variants: the mount that our path appears in.
unsafe fn mount_at(path: *const c_char, next: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: a string or null, as the C library requires.
    match unsafe { route(AT_FDCWD, path, true) } {
        Route::Unchanged => next(path),
        Route::Resolved(path) => next(path.as_c_str().as_ptr()),
        Route::Refused(error) => refuse(error),
        Route::Ours(found) if found.status.is_none() => refuse(Errno::NOENT),
        Route::Ours(found) => next(look::mount_of(&found.path).as_ptr()),
    }
}

/// The mount that our descriptor appears in.
fn mount_of(fd: c_int) -> Option<&'static CStr> {
    let _kept = sys::KeptErrno::new();
    files::status_of(fd)?;
    files::path_of_descriptor(fd).map(|path| look::mount_of(&path))
}
