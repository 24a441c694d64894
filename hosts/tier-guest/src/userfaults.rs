//! A userfaultfd of the program's own, registered on memory that this library has taken over.
//!
//! The kernel lets a mapping have one userfaultfd, and answers `EBUSY` to a second. So this library stands in front of `ioctl`: where `UFFDIO_REGISTER` is
//! refused so, the scout lets the range go, and the program is asked for once more. From then on the kernel refuses the library, until the program has
//! given the range up.
#![allow(unsafe_code, reason = "stands in front of a function of the C library")]

use crate::desk::Errand;
use crate::next::next;
use crate::start::DESK;
use crate::threads;
use std::ffi::{c_int, c_ulong, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicPtr;

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
/// As of ioctl(2). It has at most one argument more, which is a word, whatever it is of.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let address = next(c"ioctl", &NEXT);
    // SAFETY: the C library's word for what went wrong, of this thread.
    let errno = unsafe { libc::__errno_location() };
    if address.is_null() {
        // SAFETY: as above.
        unsafe { *errno = libc::ENOSYS };
        return -1;
    }
    // SAFETY: the C library's function of that name, as called.
    let control: Control = unsafe { transmute(address) };
    // SAFETY: as called.
    let answer = unsafe { control(fd, request, argument) };
    // SAFETY: as above.
    let is_refused = answer == -1 && request & REQUEST == REGISTER && unsafe { *errno } == libc::EBUSY;
    if !is_refused || !DESK.is_open() || threads::is_of_library() {
        return answer;
    }
    // SAFETY: the kernel has read it there just now: it looks at mappings when it has the range.
    let Range { start, len } = unsafe { argument.cast::<Range>().read_unaligned() };
    let (end, thread) = (start.saturating_add(len), rustix::thread::gettid().as_raw_pid());
    DESK.ask(Errand::LetGo { start, end, thread }, None);
    // SAFETY: as called. Where another userfaultfd of the program's has it, the answer is the same.
    let answer = unsafe { control(fd, request, argument) };
    // SAFETY: as above.
    let said = unsafe { *errno };
    DESK.ask(Errand::MayTake { start, end, thread }, None);
    // SAFETY: as above.
    unsafe { *errno = said };
    answer
}
