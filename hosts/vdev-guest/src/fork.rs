//! fork(2): the child becomes another address space, and this library's state in it must be consistent.
//!
//! The C library calls handlers around its fork. Ours are registered before all others, so a client that reopens its
//! queues in its own child handler finds this library ready: child handlers run in the order of registration, handlers
//! before a fork in reverse order.
#![allow(unsafe_code, reason = "registers fork handlers with the C library; the three handlers share state")]

use crate::sync::{AtomicU32, Ordering};
use crate::{HEAP, guard, node, observe, replica, run, sys, windows};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use telpher_interpose::preload::Original;
use telpher_interpose::signals::{self, Deferral};

/// A handler around a fork.
pub(crate) type Around = unsafe extern "C" fn();
/// The C library's function that registers handlers.
pub(crate) type Register = unsafe extern "C" fn(Option<Around>, Option<Around>, Option<Around>, *mut c_void) -> c_int;

/// The thread that is forking, or 0.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The deferred signals of the forking thread.
struct DeferredSignals(UnsafeCell<Option<Deferral>>);

// SAFETY: accessed only by the thread that holds the nodes' lock for a fork; the lock serialises forks.
unsafe impl Sync for DeferredSignals {}

static DEFERRED: DeferredSignals = DeferredSignals(UnsafeCell::new(None));

/// Returns the C library's function that registers handlers.
pub(crate) fn real_register() -> Option<Register> {
    static NEXT: Original = Original::new(c"__register_atfork");
    // SAFETY: the C library has a function of this type since 2.3.2.
    NEXT.find().map(|found| unsafe { std::mem::transmute::<*mut c_void, Register>(found) })
}

/// Registers the handlers.
pub(crate) fn register() {
    if let Some(register) = real_register() {
        // SAFETY: the handlers may run around any fork, and this library is never unloaded.
        unsafe { register(Some(before), Some(after), Some(after_in_child), std::ptr::null_mut()) };
    }
}

/// Takes all locks, the heap's last, because holders of the others use the heap.
pub(crate) extern "C" fn before() {
    let this = sys::thread();
    // Another kind of fork may call the same handlers twice.
    if FORKING.load(Ordering::Relaxed) == this {
        return;
    }
    let deferred = signals::defer();
    windows::MEMORY.take();
    observe::before_fork();
    node::before_fork();
    replica::PAGEMAP.take();
    HEAP.take();
    FORKING.store(this, Ordering::Relaxed);
    // SAFETY: the nodes' lock is held.
    unsafe { *DEFERRED.0.get() = Some(deferred) };
}

/// Releases the locks in the parent.
pub(crate) extern "C" fn after() {
    if FORKING.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    // SAFETY: the nodes' lock is held.
    let deferred = unsafe { (*DEFERRED.0.get()).take() };
    HEAP.give();
    replica::PAGEMAP.give();
    node::after_fork();
    observe::after_fork();
    windows::MEMORY.give();
    drop(deferred);
}

/// Makes the child its own address space and releases the locks.
pub(crate) extern "C" fn after_in_child() {
    telpher_interpose::after_fork_child();
    if FORKING.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    // SAFETY: the child has only this thread, and the nodes' lock is held.
    let deferred = unsafe { (*DEFERRED.0.get()).take() };
    run::renew_space();
    HEAP.give();
    replica::PAGEMAP.give();
    replica::forget_pagemap();
    node::after_fork_child();
    guard::close_all();
    observe::after_fork_in_child();
    windows::MEMORY.give();
    drop(deferred);
}
