//! Forks that the kernel does not tell of: where a process may not have that event, nothing may be out while it forks.
//!
//! A child that is forked while a page is out would find it empty. The event of a fork wants `CAP_SYS_PTRACE`; without, the C library's handlers
//! hold a fork back until what is out has come back, and an exchange until the fork is over. A `fork` by a bare system call is missed.
//!
//! Who is inside is one word and no lock: a child would have the lock of a thread that it has not, and wait for it for ever.

#[cfg(test)]
mod tests;

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use telpher_mem::on_fork;

/// Exchanges that are under way; a fork counts as many as there can be, and one.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Source: chosen: threads that fork at once, and threads with exchanges, are fewer.
const FORK: u32 = 1 << 16;

/// The process that forks.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Forks wait for this from now on, process-wide.
pub(crate) fn hold_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| on_fork(before, after));
}

/// Waits until it is so.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let mut rests = 0_u32;
    while !is_so() {
        rests = rests.saturating_add(1);
        match rests {
            0..64 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

extern "C" fn before() {
    // Relaxed: read in this thread, and in its copy in the child.
    FORKS.store(std::process::id(), Ordering::Relaxed);
    // No exchange begins from here on. Relaxed: what is to be seen is seen below.
    INSIDE.fetch_add(FORK, Ordering::Relaxed);
    // Acquire: pairs with the Release of the last exchange's end; what it had out is back.
    wait_until(|| INSIDE.load(Ordering::Acquire).is_multiple_of(FORK));
}

extern "C" fn after() {
    if FORKS.load(Ordering::Relaxed) == std::process::id() {
        // Release: pairs with the Acquire in `NoFork::new`; the fork is over.
        INSIDE.fetch_sub(FORK, Ordering::Release);
    } else {
        // A child, which has no other thread: neither exchanges nor other forks.
        INSIDE.store(0, Ordering::Relaxed);
    }
}

/// An exchange, during which nobody forks.
#[derive(Debug)]
pub(crate) struct NoFork(());

impl NoFork {
    /// Waits for a fork that is under way.
    pub(crate) fn new() -> NoFork {
        wait_until(|| {
            let inside = INSIDE.load(Ordering::Relaxed);
            // Acquire: pairs with the Release in `after`.
            inside < FORK
                && INSIDE.compare_exchange_weak(inside, inside + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        NoFork(())
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `before`.
        INSIDE.fetch_sub(1, Ordering::Release);
    }
}
