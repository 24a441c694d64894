//! Threads of the program: where the kernel writes that one has ended.
//!
//! That word (`CLONE_CHILD_CLEARTID`), in the C library's table of the thread, is written when the thread is on its way out, and then nobody waits for a
//! page that is not there: the kernel gives up, the word stays, and whoever joins the thread waits for ever (Linux, fs/userfaultfd.c,
//! handle_userfault: `PF_EXITING`). So this library stands in front of the functions that begin a thread, and each thread, before it does anything else,
//! has the pages of its table let go for good.
//!
//! By the thread itself that would be done with this library's locks, while its stack may be on its way: it asks at the [desk](crate::desk), and
//! allocates as the program does.
#![allow(unsafe_code, reason = "stands in front of functions of the C library")]

use crate::desk::Errand;
use crate::next::next;
use crate::start::DESK;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use telpher_interpose::sanitizer;

/// Bytes of a thread's table. Source: derived: the C library's `struct pthread` has 2304 of them (glibc 2.36, x86-64), and less in others; chosen: a page.
const TABLE: u64 = 4096;

/// What a thread does.
type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;
/// The same in C11's words.
type Start11 = unsafe extern "C" fn(*mut c_void) -> c_int;
type Create11 = unsafe extern "C" fn(*mut libc::pthread_t, Start11, *mut c_void) -> c_int;

thread_local! {
    /// This thread is the library's, as are those that it begins: their stacks are left alone.
    static OF_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// Threads that are begun in this are the library's.
pub(crate) fn of_library<T>(run: impl FnOnce() -> T) -> T {
    let before = OF_LIBRARY.replace(true);
    let done = run();
    OF_LIBRARY.set(before);
    done
}

/// This thread is the library's.
pub(crate) fn is_of_library() -> bool {
    OF_LIBRARY.get()
}

/// This thread's table is not moved, from here on; nor is the stack of one of the library's.
fn let_go(of_library: bool) {
    OF_LIBRARY.set(of_library);
    if of_library {
        sanitizer::allow_leaks_of_this_thread();
    }
    // SAFETY: asks for a number, which in the C library is the table's address, at the top of the stack.
    let table = unsafe { libc::pthread_self() };
    let thread = rustix::thread::gettid().as_raw_pid();
    let errand = if of_library {
        Errand::LetStackGo { at: table, thread }
    } else {
        Errand::LetGo { start: table / 4096 * 4096, end: (table + TABLE).next_multiple_of(4096), thread }
    };
    DESK.ask(errand, None);
}

/// What a thread is to do.
struct Begun<F> {
    start: F,
    arg: *mut c_void,
    of_library: bool,
}

impl<F> Begun<F> {
    /// In memory of the program's; none if it has none.
    fn put(start: F, arg: *mut c_void) -> *mut Begun<F> {
        // SAFETY: asks for memory, which is enough, and aligned for it as for all.
        unsafe {
            let place: *mut Begun<F> = libc::malloc(size_of::<Begun<F>>()).cast();
            if !place.is_null() {
                place.write(Begun { start, arg, of_library: OF_LIBRARY.get() });
            }
            place
        }
    }

    /// Gives it back.
    ///
    /// # Safety
    /// It was [put](Begun::put), and is taken once.
    unsafe fn take(place: *mut Begun<F>) -> Begun<F> {
        // SAFETY: the caller's promise.
        unsafe {
            let begun = ptr::read(place);
            libc::free(place.cast());
            begun
        }
    }
}

unsafe extern "C" fn run(begun: *mut c_void) -> *mut c_void {
    // SAFETY: made below, for this thread.
    let Begun::<Start> { start, arg, of_library } = unsafe { Begun::take(begun.cast()) };
    let_go(of_library);
    // SAFETY: as the program would have been called.
    unsafe { start(arg) }
}

unsafe extern "C" fn run11(begun: *mut c_void) -> c_int {
    // SAFETY: made below, for this thread.
    let Begun::<Start11> { start, arg, of_library } = unsafe { Begun::take(begun.cast()) };
    let_go(of_library);
    // SAFETY: as the program would have been called.
    unsafe { start(arg) }
}

/// # Safety
/// As of pthread_create(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    arg: *mut c_void,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let address = next(c"pthread_create", &NEXT);
    if address.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the C library's function of that name.
    let create: Create = unsafe { transmute(address) };
    let begun = Begun::put(start, arg);
    if begun.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: as called; what runs first takes what was made for it.
    let answer = unsafe { create(thread, attributes, run, begun.cast()) };
    if answer != 0 {
        // SAFETY: no thread has it.
        let _ = unsafe { Begun::take(begun) };
    }
    answer
}

/// # Safety
/// As of thrd_create(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn thrd_create(thread: *mut libc::pthread_t, start: Start11, arg: *mut c_void) -> c_int {
    /// `thrd_error` and `thrd_nomem`. Source: threads.h of the C library.
    const ERROR: c_int = 2;
    const NO_MEMORY: c_int = 3;
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let address = next(c"thrd_create", &NEXT);
    if address.is_null() {
        return ERROR;
    }
    // SAFETY: the C library's function of that name.
    let create: Create11 = unsafe { transmute(address) };
    let begun = Begun::put(start, arg);
    if begun.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: as called; what runs first takes what was made for it.
    let answer = unsafe { create(thread, run11, begun.cast()) };
    if answer != 0 {
        // SAFETY: no thread has it.
        let _ = unsafe { Begun::take(begun) };
    }
    answer
}
