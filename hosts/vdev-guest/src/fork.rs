//! fork(2): what the child must not take for its own, and what it must find whole.
//!
//! Handlers that the C library calls around its fork do the work. Ours are registered before anybody else's, whoever asks first,
//! so that a client that reopens its queues in its own child handler finds this library ready: handlers of children run in
//! the order of their registration, those before a fork in the opposite one.
#![allow(unsafe_code, reason = "the C library's registration of handlers, and a state shared by the three of them")]

use crate::sync::{AtomicU32, Ordering};
use crate::{HEAP, guard, node, observe, replica, run, sys};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use telpher_interpose::signals::{self, Deferral};

/// A handler around a fork.
pub(crate) type Around = unsafe extern "C" fn();
/// The C library's own registration.
pub(crate) type Register = unsafe extern "C" fn(Option<Around>, Option<Around>, Option<Around>, *mut c_void) -> c_int;

/// The thread that forks right now, or 0.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The forking thread's signals are put off.
struct PutOff(UnsafeCell<Option<Deferral>>);

// SAFETY: touched only by the thread that holds the nodes' lock for a fork; the lock orders one fork after the other.
unsafe impl Sync for PutOff {}

static PUT_OFF: PutOff = PutOff(UnsafeCell::new(None));

/// The C library's registration of handlers.
pub(crate) fn real_register() -> Option<Register> {
    // SAFETY: the name is a C string; the C library has such a function since 2.3.2, of this type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr());
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Register>(found))
    }
}

/// Registers the handlers.
pub(crate) fn register() {
    if let Some(register) = real_register() {
        // SAFETY: the handlers may run around any fork, and this library is never unloaded.
        unsafe { register(Some(before), Some(after), Some(after_in_child), std::ptr::null_mut()) };
    }
}

/// Takes every lock, last the heap's, which those who hold the others use.
pub(crate) extern "C" fn before() {
    let this = sys::thread();
    // A fork by other means may come to the same handlers twice.
    if FORKING.load(Ordering::Relaxed) == this {
        return;
    }
    let put_off = signals::defer();
    observe::before_fork();
    node::before_fork();
    replica::PAGEMAP.take();
    HEAP.lock().take();
    FORKING.store(this, Ordering::Relaxed);
    // SAFETY: the nodes' lock is held.
    unsafe { *PUT_OFF.0.get() = Some(put_off) };
}

/// Gives the locks back, in the parent.
pub(crate) extern "C" fn after() {
    if FORKING.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    // SAFETY: the nodes' lock is held.
    let put_off = unsafe { (*PUT_OFF.0.get()).take() };
    HEAP.lock().give();
    replica::PAGEMAP.give();
    node::after_fork();
    observe::after_fork();
    drop(put_off);
}

/// Makes the child an address space of its own.
pub(crate) extern "C" fn after_in_child() {
    telpher_interpose::after_fork_child();
    if FORKING.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    // SAFETY: the child has this thread only, and the nodes' lock is held.
    let put_off = unsafe { (*PUT_OFF.0.get()).take() };
    run::renew_space();
    HEAP.lock().give();
    replica::PAGEMAP.give();
    replica::forget_pagemap();
    node::after_fork_child();
    guard::close_all();
    observe::after_fork_in_child();
    drop(put_off);
}
