//! A userfaultfd of the program's own, registered on memory that this library has adopted.
//!
//! The kernel permits one userfaultfd per mapping and answers `EBUSY` to a second. So this library interposes `ioctl`.
//! If `UFFDIO_REGISTER` is refused in this way, the map scanner releases the range, and the call is repeated. From then
//! on the kernel refuses the library until the program unregisters the range.
#![allow(unsafe_code, reason = "interposes a function of the C library")]

use crate::REQUESTS;
use crate::requests::Request;
use crate::threads;
use std::ffi::{c_int, c_ulong, c_void};
use std::mem::transmute;
use telpher_interpose::preload::Original;

type Control = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;

/// `UFFDIO_REGISTER`. Source: UAPI linux/userfaultfd.h: `_IOWR(0xAA, 0x00, struct uffdio_register)`, of 32 bytes.
const REGISTER: c_ulong = 0xc020_aa00;
/// The kernel takes an `unsigned int`; a program may have passed a negative `int`.
const REQUEST: c_ulong = 0xffff_ffff;

/// The beginning of `struct uffdio_register`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

/// # Safety
/// As for ioctl(2). There is at most one further argument, which is a machine word.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    static NEXT: Original = Original::new(c"ioctl");
    // SAFETY: this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the C library's function of that name.
    let control: Control = unsafe { transmute(NEXT.get()) };
    // SAFETY: the caller's arguments.
    let answer = unsafe { control(fd, request, argument) };
    // SAFETY: as above.
    let is_refused = answer == -1 && request & REQUEST == REGISTER && unsafe { *errno } == libc::EBUSY;
    if !is_refused || !REQUESTS.is_open() || threads::is_of_library() {
        return answer;
    }
    // SAFETY: the kernel has just read it there: it checks mappings after reading the range.
    let Range { start, len } = unsafe { argument.cast::<Range>().read_unaligned() };
    let (end, thread) = (start.saturating_add(len), rustix::thread::gettid().as_raw_pid());
    REQUESTS.send(Request::Release { start, end, thread }, None);
    // SAFETY: the caller's arguments. If another userfaultfd of the program has the range, the answer is the same.
    let answer = unsafe { control(fd, request, argument) };
    // SAFETY: as above.
    let said = unsafe { *errno };
    REQUESTS.send(Request::MayAdopt { start, end, thread }, None);
    // SAFETY: as above.
    unsafe { *errno = said };
    answer
}
