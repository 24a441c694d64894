//! Forked children: each opens a device of its own at its first long call, because the parent's device knows only the
//! parent's address space.
//!
//! ```text
//! fork ──► before: the heap is locked ──► in the child: unlocked; its number and the time are noted
//! long call ──► not the noted process, or just forked, or another thread opens? ──► CPU
//!          └──► this thread opens the device on a stack of its own, and later calls go to it
//! ```
//!
//! A child of `vfork`, of `posix_spawn` or of a bare clone(2) that shares memory has another number, so it changes
//! nothing. A child of `_Fork` or of a bare clone(2) with memory of its own runs no handler: another thread may have
//! held the heap's lock, so its calls stay with the CPU.
#![allow(unsafe_code, reason = "registers fork handlers that share state")]

use crate::HEAP;
use crate::device::{self, Device};
use crate::opening::Opening;
use crate::own_stack;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use telpher_interpose::signals::{Deferral, defer};

/// How long the calls of a new child stay with the CPU. All its pages are shared with its parent, so that a device
/// would fault at each; and many children soon execute another program. Source: chosen.
const YOUNG_NS: u64 = 100_000_000;

/// The last process that a handled fork has made; 0 if there was none.
static CHILD: AtomicU32 = AtomicU32::new(0);
/// When it was made: nanoseconds of CLOCK_MONOTONIC.
static BORN_NS: AtomicU64 = AtomicU64::new(0);
/// Which thread opens the device.
static OPENING: Opening = Opening::new();
/// Whether the handlers hold the heap's lock.
static FORKING: AtomicBool = AtomicBool::new(false);

/// The deferred signals of the forking thread.
struct Deferred(UnsafeCell<Option<Deferral>>);

// SAFETY: accessed only by the thread that holds the heap's lock for a fork.
unsafe impl Sync for Deferred {}

static DEFERRED: Deferred = Deferred(UnsafeCell::new(None));

/// Registers the handlers.
///
/// # Errors
/// Without memory; then children stay with the CPU.
pub(crate) fn watch_forks() -> Result<(), c_int> {
    // SAFETY: the handlers may run around any fork, and this library is never unloaded.
    match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

extern "C" fn before() {
    let deferred = defer();
    HEAP.take();
    // SAFETY: the heap's lock is held.
    unsafe { *DEFERRED.0.get() = Some(deferred) };
    // Relaxed, here and below: the lock orders it, and a fork orders memory by itself.
    FORKING.store(true, Ordering::Relaxed);
}

extern "C" fn after() {
    if FORKING.swap(false, Ordering::Relaxed) {
        // SAFETY: the heap's lock is held.
        let deferred = unsafe { (*DEFERRED.0.get()).take() };
        HEAP.give();
        drop(deferred);
    }
}

extern "C" fn after_in_child() {
    telpher_interpose::after_fork_child();
    BORN_NS.store(now_ns(), Ordering::Relaxed);
    CHILD.store(std::process::id(), Ordering::Relaxed);
    after();
}

fn now_ns() -> u64 {
    telpher_os::clock_ns(rustix::time::ClockId::Monotonic)
}

/// Returns whether this process may open a device: it is a forked child whose handlers have run, and not a young one.
#[cold]
pub(crate) fn may_open() -> bool {
    let child = CHILD.load(Ordering::Relaxed);
    child != 0 && child == std::process::id() && now_ns() >= BORN_NS.load(Ordering::Relaxed) + YOUNG_NS
}

/// Returns the device of this process, which is a forked child of the one that opened `parent`. Opens it if it is time.
/// The thread is inside a long call, so that the library's own stay with the CPU meanwhile.
#[cold]
pub(crate) fn device_of_child(parent: &'static Device) -> Option<&'static Device> {
    if !may_open() || !OPENING.begin(std::process::id()) {
        return None;
    }
    let mut opened = Opened { parent, device: None };
    // Without memory for the stack, the child has no device.
    let _ = own_stack::run(open, &mut opened);
    opened.device.map(device::publish)
}

/// The device that a child opens.
struct Opened {
    parent: &'static Device,
    device: Option<Device>,
}

/// Opens the device. A child whose device cannot be opened has no message: its parent has told the user what it uses.
extern "C" fn open(opened: &mut Opened) {
    opened.device = opened.parent.open_in_child().ok();
}
