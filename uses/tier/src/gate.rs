//! Forks that the kernel does not tell of: where a process may not have that event, nothing may be out while it forks.
//!
//! A child that is forked while a page is out would find it empty. The event of a fork wants `CAP_SYS_PTRACE`; without, the C library's handlers
//! hold a fork back until what is out has come back, and an exchange until the fork is over. A `fork` by a bare system call is missed.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use telpher_mem::on_fork;

/// Who is inside: any number of exchanges, or one fork.
#[derive(Debug, Default)]
struct Inside {
    exchanges: u32,
    forks: u32,
}

static INSIDE: Mutex<Inside> = Mutex::new(Inside { exchanges: 0, forks: 0 });
static CHANGED: Condvar = Condvar::new();

/// Forks wait for this from now on, process-wide.
pub(crate) fn hold_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| on_fork(before, after));
}

extern "C" fn before() {
    let inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
    let free = CHANGED.wait_while(inside, |inside| inside.exchanges > 0).unwrap_or_else(PoisonError::into_inner);
    let mut inside = free;
    inside.forks += 1;
}

extern "C" fn after() {
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner).forks -= 1;
    CHANGED.notify_all();
}

/// An exchange, during which nobody forks.
#[derive(Debug)]
pub(crate) struct NoFork(());

impl NoFork {
    /// Waits for a fork that is under way.
    pub(crate) fn new() -> NoFork {
        let inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
        let free = CHANGED.wait_while(inside, |inside| inside.forks > 0).unwrap_or_else(PoisonError::into_inner);
        let mut inside = free;
        inside.exchanges += 1;
        NoFork(())
    }
}

impl std::ops::Drop for NoFork {
    fn drop(&mut self) {
        INSIDE.lock().unwrap_or_else(PoisonError::into_inner).exchanges -= 1;
        CHANGED.notify_all();
    }
}
