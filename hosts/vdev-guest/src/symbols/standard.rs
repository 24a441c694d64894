//! A `FILE` over an attribute or a node. The C library flushes a `FILE` with an internal call that cannot be
//! interposed, so ours has its own read and write functions (fopencookie).
//!
//! Standard output and error are such files while their descriptors are ours (`echo 1 > attribute`): the variables
//! `stdout` and `stderr` point to our files meanwhile, and are restored afterwards.
#![allow(unsafe_code, reason = "gives the C library functions to call, and changes its variables")]

use super::route::refuse;
use super::served;
use crate::files::descriptor;
use crate::files::table::{self, Kind};
use crate::sync::{AtomicPtr, Ordering};
use crate::sys;
use libc::{FILE, off_t, ssize_t};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// Offset of the descriptor in the C library's FILE on x86-64. Source: glibc bits/types/struct_FILE.h, `_fileno`.
const DESCRIPTOR_AT: usize = 112;

/// The I/O functions of our FILE.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The descriptor in a FILE's cookie.
fn descriptor_of(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie.addr()).unwrap_or(-1)
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, into: *mut c_char, len: usize) -> ssize_t {
    let fd = descriptor_of(cookie);
    sys::answer(served::before_read(fd, None).and_then(|()| descriptor::read(fd, into.cast(), len)))
}

/// Writes everything, or up to the first error; then returns the bytes accepted before it.
unsafe extern "C" fn write_cookie(cookie: *mut c_void, from: *const c_char, len: usize) -> ssize_t {
    let fd = descriptor_of(cookie);
    let mut written = 0;
    while written < len {
        // SAFETY: the C library passes a buffer of this length.
        let rest = unsafe { from.add(written) };
        let answered = served::write(fd, rest.cast(), len - written, None)
            .unwrap_or_else(|| descriptor::write(fd, rest.cast(), len - written));
        match answered {
            Ok(0) => break,
            Ok(taken) => written += taken,
            Err(error) => {
                sys::set_errno(error);
                break;
            }
        }
    }
    written.cast_signed()
}

unsafe extern "C" fn seek_cookie(cookie: *mut c_void, offset: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: the C library passes a variable that holds an offset and receives one.
    unsafe {
        match descriptor::seek(descriptor_of(cookie), offset.read(), whence) {
            Ok(position) => {
                offset.write(i64::try_from(position).unwrap_or(i64::MAX));
                0
            }
            Err(error) => refuse(error),
        }
    }
}

pub(super) unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    let fd = descriptor_of(cookie);
    let answered = served::close(fd, || sys::answer_int(sys::close(fd).map(|()| 0)));
    settle(fd);
    answered
}

/// Closes our standard output or error: restores the variable first.
unsafe extern "C" fn close_standard(cookie: *mut c_void) -> c_int {
    if let Some(standard) = Standard::of(descriptor_of(cookie)) {
        standard.restore();
        standard.ours.store(ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { close_cookie(cookie) }
}

/// Creates a FILE over a descriptor of ours.
///
/// # Safety
/// `mode` is a string.
pub(super) unsafe fn over(
    fd: c_int,
    mode: *const c_char,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
) -> *mut FILE {
    let functions = Functions { read: read_cookie, write: write_cookie, seek: seek_cookie, close };
    let cookie = ptr::without_provenance_mut(usize::try_from(fd).unwrap_or_default());
    // SAFETY: the mode is a string; the functions have the required types. No other code has the new FILE yet. Its
    // descriptor is at the offset above; the C library sets it to a negative number for such files and reads it only in
    // fileno().
    unsafe {
        let file = fopencookie(cookie, mode, functions);
        if !file.is_null() {
            file.byte_add(DESCRIPTOR_AT).cast::<c_int>().write(fd);
        }
        file
    }
}

/// Standard output or error.
pub(super) struct Standard {
    /// Returns the C library's variable.
    variable: fn() -> *mut *mut FILE,
    /// Our FILE, once it exists.
    ours: AtomicPtr<FILE>,
    /// The former value of the variable.
    theirs: AtomicPtr<FILE>,
}

static OUTPUT: Standard = Standard::new(|| &raw mut stdout);
static ERROR: Standard = Standard::new(|| &raw mut stderr);

impl Standard {
    const fn new(variable: fn() -> *mut *mut FILE) -> Self {
        Standard { variable, ours: AtomicPtr::new(ptr::null_mut()), theirs: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(super) fn of(fd: c_int) -> Option<&'static Self> {
        match fd {
            libc::STDOUT_FILENO => Some(&OUTPUT),
            libc::STDERR_FILENO => Some(&ERROR),
            _ => None,
        }
    }

    fn current(&self) -> *mut FILE {
        // SAFETY: the C library's variable; a program that writes it while another thread redirects the descriptor has
        // that race without us too.
        unsafe { (self.variable)().read() }
    }

    pub(super) fn point_to(&self, file: *mut FILE) {
        // SAFETY: as above.
        unsafe { (self.variable)().write(file) };
    }

    /// Makes the variable point to our FILE.
    fn replace(&self, fd: c_int) {
        // Relaxed, here and below: a program does not redirect standard output in two threads at once.
        let mut ours = self.ours.load(Ordering::Relaxed);
        if ours.is_null() {
            // SAFETY: the mode is a string.
            ours = unsafe { over(fd, c"w".as_ptr(), close_standard) };
            if ours.is_null() {
                return;
            }
            if fd == libc::STDERR_FILENO {
                // SAFETY: a FILE to which nothing was written yet.
                unsafe { libc::setvbuf(ours, ptr::null_mut(), libc::_IONBF, 0) };
            }
            self.ours.store(ours, Ordering::Relaxed);
        }
        if self.current() != ours {
            self.theirs.store(self.current(), Ordering::Relaxed);
            self.point_to(ours);
        }
    }

    /// Restores the variable's former value.
    fn restore(&self) {
        let ours = self.ours.load(Ordering::Relaxed);
        if !ours.is_null() && self.current() == ours {
            self.point_to(self.theirs.load(Ordering::Relaxed));
        }
    }
}

/// Updates `stdout` or `stderr` after a descriptor may have changed.
#[inline]
pub(super) fn settle(fd: c_int) {
    if let Some(standard) = Standard::of(fd) {
        settle_standard(standard, fd);
    }
}

#[cold]
fn settle_standard(standard: &Standard, fd: c_int) {
    let ours = table::kind(fd) == Kind::Attribute || served::is_node(fd);
    if ours == (standard.current() == standard.ours.load(Ordering::Relaxed)) || !table::belongs_here() {
        return;
    }
    let _kept = sys::KeptErrno::new();
    if ours { standard.replace(fd) } else { standard.restore() }
}

/// Handles inherited descriptors at the start.
pub(crate) fn start() {
    settle(libc::STDOUT_FILENO);
    settle(libc::STDERR_FILENO);
}
