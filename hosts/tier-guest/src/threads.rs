//! Threads of the program: the word in which the kernel reports a thread's end.
//!
//! That word (`CLONE_CHILD_CLEARTID`) is in the C library's table of the thread. The kernel writes it while the thread
//! exits, and then does not wait for a missing page: it gives up, the word keeps its value, and a thread that joins
//! waits forever (Linux, fs/userfaultfd.c, handle_userfault: `PF_EXITING`). So this library interposes the functions
//! that start a thread. Each new thread first has the pages of its table released for good.
//!
//! If the thread did this itself, it would hold this library's locks while its stack may be in flight. It sends a
//! [request](crate::requests) instead, and allocates memory of the program.
#![allow(unsafe_code, reason = "interposes functions of the C library")]

use crate::REQUESTS;
use crate::requests::Request;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use telpher_interpose::preload::Original;
use telpher_interpose::sanitizer;

/// Bytes of a thread's table. Source: derived: the C library's `struct pthread` has 2304 (glibc 2.36, x86-64), and
/// fewer in others; chosen: a page.
const TABLE: u64 = 4096;

/// The start function of a thread.
type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;
/// The start function in C11.
type Start11 = unsafe extern "C" fn(*mut c_void) -> c_int;
type Create11 = unsafe extern "C" fn(*mut libc::pthread_t, Start11, *mut c_void) -> c_int;

thread_local! {
    /// True in threads of the library and in threads that they start: their stacks are not managed.
    static OF_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// Marks threads that are started in `run` as the library's.
pub(crate) fn of_library<T>(run: impl FnOnce() -> T) -> T {
    let before = OF_LIBRARY.replace(true);
    let done = run();
    OF_LIBRARY.set(before);
    done
}

/// Returns whether this thread is the library's.
pub(crate) fn is_of_library() -> bool {
    OF_LIBRARY.get()
}

/// Releases this thread's table for its lifetime; for a thread of the library also its stack.
fn release(of_library: bool) {
    OF_LIBRARY.set(of_library);
    if of_library {
        sanitizer::allow_leaks_of_this_thread();
    }
    // SAFETY: returns a number, which in the C library is the table's address, at the top of the stack.
    let table = unsafe { libc::pthread_self() };
    let thread = rustix::thread::gettid().as_raw_pid();
    let request = if of_library {
        Request::ReleaseStack { at: table, thread }
    } else {
        Request::Release { start: table / 4096 * 4096, end: (table + TABLE).next_multiple_of(4096), thread }
    };
    REQUESTS.send(request, None);
}

/// What a new thread is to run.
struct ThreadStart<F> {
    start: F,
    arg: *mut c_void,
    of_library: bool,
}

impl<F> ThreadStart<F> {
    /// Stores it in memory of the program; null if there is none.
    fn put(start: F, arg: *mut c_void) -> *mut ThreadStart<F> {
        // SAFETY: allocates enough memory, aligned for any type.
        unsafe {
            let slot: *mut ThreadStart<F> = libc::malloc(size_of::<ThreadStart<F>>()).cast();
            if !slot.is_null() {
                slot.write(ThreadStart { start, arg, of_library: OF_LIBRARY.get() });
            }
            slot
        }
    }

    /// Reads it and frees the memory.
    ///
    /// # Safety
    /// It was created by [`put`](ThreadStart::put), and is taken once.
    unsafe fn take(slot: *mut ThreadStart<F>) -> ThreadStart<F> {
        // SAFETY: the caller's promise.
        unsafe {
            let begun = ptr::read(slot);
            libc::free(slot.cast());
            begun
        }
    }
}

unsafe extern "C" fn run(begun: *mut c_void) -> *mut c_void {
    // SAFETY: created below, for this thread.
    let ThreadStart::<Start> { start, arg, of_library } = unsafe { ThreadStart::take(begun.cast()) };
    release(of_library);
    // SAFETY: as the program requested.
    unsafe { start(arg) }
}

unsafe extern "C" fn run11(begun: *mut c_void) -> c_int {
    // SAFETY: created below, for this thread.
    let ThreadStart::<Start11> { start, arg, of_library } = unsafe { ThreadStart::take(begun.cast()) };
    release(of_library);
    // SAFETY: as the program requested.
    unsafe { start(arg) }
}

/// # Safety
/// As for pthread_create(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    arg: *mut c_void,
) -> c_int {
    static NEXT: Original = Original::new(c"pthread_create");
    let Some(address) = NEXT.find() else { return libc::EAGAIN };
    // SAFETY: the C library's function of that name.
    let create: Create = unsafe { transmute(address) };
    let begun = ThreadStart::put(start, arg);
    if begun.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the caller's arguments; `run` takes what was created for it.
    let answer = unsafe { create(thread, attributes, run, begun.cast()) };
    if answer != 0 {
        // SAFETY: no thread has taken it.
        let _ = unsafe { ThreadStart::take(begun) };
    }
    answer
}

/// # Safety
/// As for thrd_create(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn thrd_create(thread: *mut libc::pthread_t, start: Start11, arg: *mut c_void) -> c_int {
    /// `thrd_error` and `thrd_nomem`. Source: threads.h of the C library.
    const ERROR: c_int = 2;
    const NO_MEMORY: c_int = 3;
    static NEXT: Original = Original::new(c"thrd_create");
    let Some(address) = NEXT.find() else { return ERROR };
    // SAFETY: the C library's function of that name.
    let create: Create11 = unsafe { transmute(address) };
    let begun = ThreadStart::put(start, arg);
    if begun.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: the caller's arguments; `run11` takes what was created for it.
    let answer = unsafe { create(thread, run11, begun.cast()) };
    if answer != 0 {
        // SAFETY: no thread has taken it.
        let _ = unsafe { ThreadStart::take(begun) };
    }
    answer
}
