//! Reading, writing, duplicating and closing: calls with a descriptor, which cost one load if it is not ours.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::route::refuse;
use super::served::{self, before_read, is_foreign, is_node, is_ours};
use super::standard;
use crate::files::table::{self, Kind};
use crate::files::{self, descriptor};
use crate::sys::{self, Errno, answer};
use crate::{guard, node, perf, submit, windows};
use libc::{iovec, off_t, ssize_t};
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use telpher_interpose::interpose;

/// Most segments of a vector. Source: UAPI limits.h, UIO_MAXIOV.
const MAX_SEGMENTS: usize = 1024;
/// Most bytes of one write to an attribute.
const PAGE: usize = 4096;

/// A read, by any of the functions.
fn read_by(fd: c_int, offset: Option<off_t>, next: impl FnOnce() -> ssize_t) -> ssize_t {
    if !is_foreign(fd)
        && let Err(error) = before_read(fd, offset)
    {
        return answer(Err(error));
    }
    next()
}

/// A write from one buffer, by any of the functions.
fn write_by(
    fd: c_int,
    from: *const c_void,
    len: usize,
    offset: Option<off_t>,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if is_foreign(fd) { next() } else { served::write(fd, from, len, offset).map_or_else(next, answer) }
}

/// A write from a vector, by any of the functions.
unsafe fn write_vector_by(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: Option<off_t>,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if is_foreign(fd) || vector.is_null() || count > MAX_SEGMENTS {
        return next();
    }
    // SAFETY: the number of segments that the program passes, as writev() requires.
    let segments = unsafe { std::slice::from_raw_parts(vector, count) };
    if is_node(fd) {
        // The driver's write() is called for each segment. Source: K612 fs/read_write.c, do_loop_readv_writev.
        let mut total = 0;
        for segment in segments {
            match submit::write(fd, segment.iov_base.cast_const().cast(), segment.iov_len) {
                Ok(written) => total += written,
                Err(error) if total == 0 => return answer(Err(error)),
                Err(_) => break,
            }
        }
        return answer(Ok(total));
    }
    if files::attribute_of(fd).is_none() {
        return next();
    }
    // An attribute receives the whole vector as one write.
    let mut page = [0; PAGE];
    let mut filled = 0;
    for segment in segments {
        let space = &mut page[filled..];
        let len = segment.iov_len.min(space.len());
        if let Err(error) = descriptor::fetch(segment.iov_base.cast_const().cast(), &mut space[..len]) {
            return answer(Err(error));
        }
        filled += len;
    }
    served::write(fd, page.as_ptr().cast(), filled, offset).map_or_else(next, answer)
}

/// lseek, by any of the functions. An attribute has the size of stat(2) and no holes, however short its text is:
/// copying programs rely on it. Source: K612 fs/read_write.c, generic_file_llseek.
fn seek_by(fd: c_int, offset: off_t, whence: c_int, next: impl FnOnce(off_t, c_int) -> off_t) -> off_t {
    let relative = [libc::SEEK_END, libc::SEEK_DATA, libc::SEEK_HOLE].contains(&whence);
    if !relative || table::kind(fd) != Kind::Attribute {
        return next(offset, whence);
    }
    let Some(status) = files::attribute_of(fd).and_then(|_| files::status_of(fd)) else { return next(offset, whence) };
    let size = status.st_size;
    match whence {
        libc::SEEK_END => next(size.saturating_add(offset), libc::SEEK_SET),
        _ if offset < 0 || offset >= size => refuse(Errno::NXIO).into(),
        libc::SEEK_DATA => next(offset, libc::SEEK_SET),
        _ => next(size, libc::SEEK_SET),
    }
}

/// True for a request that the kernel handles before the driver. Source: K612 fs/ioctl.c, do_vfs_ioctl.
fn is_every_files(request: c_ulong) -> bool {
    [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO].contains(&request)
}

/// Updates the tables after `new` has become a duplicate of `old`.
fn duplicated(old: c_int, new: c_int) {
    // A child of vfork has its own descriptors, but shares its parent's tables.
    if new < 0 || !table::belongs_here() {
        return;
    }
    files::record_kind(new, table::kind(old));
    if node::is_node(old) && node::is_still(old) {
        node::duplicated(old, new);
        table::notice(new);
    }
    standard::settle(new);
}

/// Duplicates onto a number that the program chooses.
fn duplicate_onto(old: c_int, new: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let plain = is_foreign(old) && is_foreign(new) && !guard::is_guard(new) && !may_end_a_window(new);
    if plain || old == new || sys::fcntl(old, libc::F_GETFD, 0).is_err() {
        return next();
    }
    let ends_a_window = may_end_a_window(new);
    if table::belongs_here() {
        if let Err(error) = guard::make_room(new, node::guard_moved) {
            return refuse(error);
        }
        node::forget(new);
    }
    let window = windows::number(new).filter(|_| ends_a_window);
    let answered = next();
    duplicated(old, answered);
    after_close(ends_a_window, window, answered)
}

/// True if closing this descriptor may end a window or a right of this process. Costs one load in a process without
/// windows.
#[inline]
fn may_end_a_window(fd: c_int) -> bool {
    windows::are_used() && (!is_foreign(fd) || windows::is_window(fd))
}

/// Returns the answer of a call that has closed descriptors, once no window that this ended is accessed any more. The
/// descriptors are closed also if the host does not say so in time, as close(2) does with other errors. `window`: the
/// number of the window whose descriptor the call has closed.
fn after_close(ends_a_window: bool, window: Option<u64>, answered: c_int) -> c_int {
    if !ends_a_window || answered < 0 {
        return answered;
    }
    match window.map_or(Ok(()), windows::closed).and_then(|()| windows::settle()) {
        Ok(()) => answered,
        Err(error) => refuse(error),
    }
}

/// Closes a range; `range` closes a part without guards.
fn close_all(first: c_uint, last: c_uint, range: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let mut untold = None;
    if table::belongs_here() {
        for fd in number(first)..=number(last).min(table::highest()) {
            if node::is_node(fd) {
                node::forget(fd);
            }
            if windows::are_used()
                && table::kind(fd) == Kind::Window
                && let Some(window) = windows::number(fd)
            {
                let _ = sys::close(fd);
                untold = windows::closed(window).err().or(untold);
            }
            table::set(fd, Kind::Foreign);
        }
    }
    let mut from = first;
    while let Some(kept) = guard::next(number(from)).map(c_int::cast_unsigned).filter(|kept| *kept <= last) {
        if from < kept && range(from, kept - 1) != 0 {
            return -1;
        }
        // Cannot overflow: descriptors are positive ints.
        from = kept + 1;
    }
    let answered = if from <= last || from == first { range(from, last) } else { 0 };
    standard::settle(libc::STDOUT_FILENO);
    standard::settle(libc::STDERR_FILENO);
    untold.filter(|_| answered >= 0).map_or(answered, refuse)
}

interpose! {
    fn read(fd: c_int, into: *mut c_void, len: usize) -> ssize_t { |next|
        match perf::event_of(fd) {
            Some(event) => answer(perf::read(event, into.cast(), len)),
            None => read_by(fd, None, || next(fd, into, len)),
        }
    }
    fn __read_chk(fd: c_int, into: *mut c_void, len: usize, space: usize) -> ssize_t { |next|
        match perf::event_of(fd) {
            Some(event) if len <= space => answer(perf::read(event, into.cast(), len)),
            _ => read_by(fd, None, || next(fd, into, len, space)),
        }
    }
    fn pread(fd: c_int, into: *mut c_void, len: usize, offset: off_t) -> ssize_t { |next|
        read_by(fd, Some(offset), || next(fd, into, len, offset))
    }
    fn pread64(fd: c_int, into: *mut c_void, len: usize, offset: off_t) -> ssize_t { |next|
        read_by(fd, Some(offset), || next(fd, into, len, offset))
    }
    fn __pread_chk(fd: c_int, into: *mut c_void, len: usize, offset: off_t, space: usize) -> ssize_t { |next|
        read_by(fd, Some(offset), || next(fd, into, len, offset, space))
    }
    fn __pread64_chk(fd: c_int, into: *mut c_void, len: usize, offset: off_t, space: usize) -> ssize_t { |next|
        read_by(fd, Some(offset), || next(fd, into, len, offset, space))
    }
    fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t { |next|
        read_by(fd, None, || next(fd, vector, count))
    }
    fn preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t { |next|
        read_by(fd, Some(offset), || next(fd, vector, count, offset))
    }
    fn preadv64(fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t { |next|
        read_by(fd, Some(offset), || next(fd, vector, count, offset))
    }
    fn preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t { |next|
        read_by(fd, Some(offset).filter(|offset| *offset != -1), || next(fd, vector, count, offset, flags))
    }
    fn preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t { |next|
        read_by(fd, Some(offset).filter(|offset| *offset != -1), || next(fd, vector, count, offset, flags))
    }
    fn write(fd: c_int, from: *const c_void, len: usize) -> ssize_t { |next|
        write_by(fd, from, len, None, || next(fd, from, len))
    }
    fn pwrite(fd: c_int, from: *const c_void, len: usize, offset: off_t) -> ssize_t { |next|
        write_by(fd, from, len, Some(offset), || next(fd, from, len, offset))
    }
    fn pwrite64(fd: c_int, from: *const c_void, len: usize, offset: off_t) -> ssize_t { |next|
        write_by(fd, from, len, Some(offset), || next(fd, from, len, offset))
    }
    fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t { |next|
        write_vector_by(fd, vector, count, None, || next(fd, vector, count))
    }
    fn pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t { |next|
        write_vector_by(fd, vector, count, Some(offset), || next(fd, vector, count, offset))
    }
    fn pwritev64(fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t { |next|
        write_vector_by(fd, vector, count, Some(offset), || next(fd, vector, count, offset))
    }
    fn pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t { |next|
        write_vector_by(fd, vector, count, Some(offset).filter(|offset| *offset != -1), || next(fd, vector, count, offset, flags))
    }
    fn pwritev64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t { |next|
        write_vector_by(fd, vector, count, Some(offset).filter(|offset| *offset != -1), || next(fd, vector, count, offset, flags))
    }
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t { |next|
        seek_by(fd, offset, whence, |offset, whence| next(fd, offset, whence))
    }
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t { |next|
        seek_by(fd, offset, whence, |offset, whence| next(fd, offset, whence))
    }
    // sysfs does not support copies inside the kernel; callers fall back to read and write.
    fn copy_file_range(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, len: usize, flags: c_uint) -> ssize_t { |next|
        if is_ours(from) || is_ours(to) { answer(Err(Errno::INVAL)) } else { next(from, at, to, to_at, len, flags) }
    }
    fn sendfile(to: c_int, from: c_int, at: *mut off_t, len: usize) -> ssize_t { |next|
        if is_ours(from) || is_ours(to) { answer(Err(Errno::INVAL)) } else { next(to, from, at, len) }
    }
    fn sendfile64(to: c_int, from: c_int, at: *mut off_t, len: usize) -> ssize_t { |next|
        if is_ours(from) || is_ours(to) { answer(Err(Errno::INVAL)) } else { next(to, from, at, len) }
    }
    fn splice(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, len: usize, flags: c_uint) -> ssize_t { |next|
        if is_ours(from) || is_ours(to) { answer(Err(Errno::INVAL)) } else { next(from, at, to, to_at, len, flags) }
    }
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int { |next|
        match perf::event_of(fd) {
            _ if is_every_files(request) => next(fd, request, argument),
            Some(event) => sys::answer_int(perf::control(event, request, argument)),
            None => match windows::ioctl(fd, request, argument) {
                Some(answered) => sys::answer_int(answered),
                None if is_node(fd) => refuse(Errno::NOTTY),
                None => next(fd, request, argument),
            },
        }
    }
    fn dup(fd: c_int) -> c_int { |next| {
        let new = next(fd);
        duplicated(fd, new);
        new
    } }
    fn dup2(old: c_int, new: c_int) -> c_int { |next| duplicate_onto(old, new, || next(old, new)) }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int { |next| duplicate_onto(old, new, || next(old, new, flags)) }
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int { |next| {
        let answered = next(fd, command, argument);
        if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
            duplicated(fd, answered);
        }
        answered
    } }
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int { |next| {
        let answered = next(fd, command, argument);
        if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
            duplicated(fd, answered);
        }
        answered
    } }
    fn close(fd: c_int) -> c_int { |next| {
        let ends_a_window = may_end_a_window(fd);
        let window = windows::number(fd).filter(|_| ends_a_window);
        let answered = served::close(fd, || next(fd));
        standard::settle(fd);
        after_close(ends_a_window, window, answered)
    } }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int { |next|
        if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0 || first > last {
            next(first, last, flags)
        } else {
            let answered = close_all(first, last, |first, last| next(first, last, flags));
            after_close(windows::are_used(), None, answered)
        }
    }
    fn closefrom(first: c_int) -> () { |next| {
        let range = |first: c_uint, last: c_uint| {
            let closed = sys::call(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0, 0]);
            sys::answer_int(closed.map(|_| 0))
        };
        let kept = sys::KeptErrno::new();
        if close_all(first.max(0).cast_unsigned(), c_uint::MAX, range) != 0 {
            drop(kept);
            // The kernel does not support that call.
            next(first);
        }
        if windows::are_used() {
            // No error can be returned.
            let _ = windows::settle();
        }
    } }
}

#[cfg(test)]
mod window_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{case, open};

    /// Runs `act` in a child that shares this process's memory, as vfork's child does; returns its exit status.
    fn in_vforked_child(act: extern "C" fn(*mut c_void) -> c_int, with: c_int) -> c_int {
        let mut stack = vec![0_u128; 16384];
        let mut with = with;
        // SAFETY: the stack outlives the child, which the parent waits for in the kernel.
        unsafe {
            let top = stack.as_mut_ptr().add(stack.len());
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let child = libc::clone(act, top.cast(), flags, (&raw mut with).cast());
            assert!(child > 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn a_number_closed_without_the_library_is_no_longer_a_node() {
        case(
            "symbols::descriptors::tests::a_number_closed_without_the_library_is_no_longer_a_node",
            |_| (),
            |host| {
                // SAFETY: this case owns the descriptors.
                unsafe {
                    let fd = open();
                    sys::close(fd).unwrap();
                    assert_eq!(super::super::files::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0), fd);
                    assert!(!node::is_node(fd));
                    libc::close(fd);
                    assert_eq!(open(), fd);
                    sys::close(fd).unwrap();
                    assert_eq!(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR), fd);
                    assert!(node::is_node(fd));
                    assert_eq!(write(fd, c"x".as_ptr().cast(), 1), 1);
                    assert!(!node::is_node(fd));
                    libc::close(fd);
                    assert_eq!(open(), fd);
                    sys::close(fd).unwrap();
                    let copy = dup(libc::STDIN_FILENO);
                    assert_eq!((copy, node::is_node(copy)), (fd, false));
                    assert!(host.is_gone(3));
                }
            },
        );
    }

    #[test]
    fn generic_requests_are_served_and_others_refused() {
        case(
            "symbols::descriptors::tests::generic_requests_are_served_and_others_refused",
            |_| (),
            |_| {
                let fd = open();
                let mut word: c_int = 1;
                // SAFETY: the word outlives the calls, which access no other memory.
                let mut ask = |request| unsafe { ioctl(fd, request, (&raw mut word).expose_provenance()) };
                let flags = |command| sys::fcntl(fd, command, 0).map(sys::descriptor).unwrap();
                for (request, set) in [(libc::FIOCLEX, libc::FD_CLOEXEC), (libc::FIONCLEX, 0)] {
                    assert_eq!((ask(request), flags(libc::F_GETFD)), (0, set));
                }
                assert_eq!(ask(libc::FIONBIO), 0);
                assert_ne!(flags(libc::F_GETFL) & libc::O_NONBLOCK, 0);
                assert_eq!((ask(libc::FIONREAD), sys::errno()), (-1, libc::ENOTTY));
            },
        );
    }

    #[test]
    fn duplicates_of_a_vforked_child_are_not_recorded() {
        extern "C" fn duplicate(fd: *mut c_void) -> c_int {
            // SAFETY: the argument points to the case's number; the calls duplicate its descriptor.
            unsafe {
                let fd = *fd.cast();
                let copies = [dup(fd), dup2(fd, 200), fcntl(fd, libc::F_DUPFD, 100)];
                crate::symbols::process::finish();
                copies.into_iter().find(|copy| *copy < 0).map_or(copies[0], |_| 0)
            }
        }
        case(
            "symbols::descriptors::tests::duplicates_of_a_vforked_child_are_not_recorded",
            |_| (),
            |_| {
                let fd = open();
                let copy = in_vforked_child(duplicate, fd);
                assert!(copy > 0);
                assert_eq!([copy, 100, 200].map(node::is_node), [false; 3]);
                assert!(node::is_node(fd));
            },
        );
    }
}
