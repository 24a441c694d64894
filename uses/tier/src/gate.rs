//! Forks that the kernel does not tell of: where a process may not have that event, nothing may be out while it forks.
//!
//! A child that is forked while a page is out would find it empty. The event of a fork wants `CAP_SYS_PTRACE`; without, the C library's handlers
//! hold a fork back until what is out has come back, and an exchange until the fork is over. A `fork` by a bare system call is missed.
//!
//! Traps stay out for longer than a fork is to wait, and a child would have to be given copies of them: who forks has them called back first, also where
//! the kernel tells of forks. A thread of the heap's does it. The one that forks might have its stack out: with the book's lock it would wait for
//! who brings that back, who waits for the lock.

#[cfg(test)]
mod tests;
mod turns;

use crate::exchange::Exchange;
use crate::exchange::trapping::ALL;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use telpher_os::{Lineage, on_fork, spawn_unsignalled};
use turns::Turns;

#[cfg(not(loom))]
static TURNS: Turns = Turns::new();
#[cfg(loom)]
loom::lazy_static! {
    static ref TURNS: Turns = Turns::new();
}

/// The process that forks.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Who calls traps back, and in which process. It is tried, and never waited for: a child may have the lock of a thread that it has not. Then a
/// fork waits until the traps' time is over.
static RECALLERS: Mutex<Vec<(Lineage, Thread)>> = Mutex::new(Vec::new());

/// Forks wait for this from now on, process-wide.
pub(crate) fn hold_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| on_fork(before, after));
}

/// Those, if they can be had at one of so many tries.
fn recallers(times: u32) -> Option<MutexGuard<'static, Vec<(Lineage, Thread)>>> {
    for _ in 0..times {
        match RECALLERS.try_lock() {
            Ok(recallers) => return Some(recallers),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// A thread that calls back what is out in traps when a fork is announced.
#[derive(Debug)]
pub(crate) struct Recaller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recaller {
    /// Starts it. Forks wait from now on.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(exchange: &Arc<Exchange>) -> std::io::Result<Recaller> {
        /// Times that it is tried to be known to forks.
        const TIMES: u32 = 1000;
        hold_forks();
        let stop = Arc::new(AtomicBool::new(false));
        let (its, exchange) = (Arc::clone(&stop), Arc::clone(exchange));
        let thread = spawn_unsignalled("telpher-forks", move || {
            // Relaxed: nothing else is said by it.
            while !its.load(Ordering::Relaxed) {
                std::thread::park();
                if is_fork_announced() {
                    exchange.recall(&ALL);
                }
            }
        })?;
        if let Some(mut recallers) = recallers(TIMES) {
            recallers.retain(|(lineage, _)| lineage.is_current());
            recallers.push((Lineage::current(), thread.thread().clone()));
        }
        Ok(Recaller { stop, thread: Some(thread) })
    }
}

impl Drop for Recaller {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Some(mut recallers) = recallers(u32::MAX) {
            recallers.retain(|(_, other)| other.id() != thread.thread().id());
        }
        // Relaxed: as above.
        self.stop.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        let _ = thread.join();
    }
}

/// A fork waits: who has just set traps calls them back. Asked after the book's lock was given back under which they were set: then either the fork
/// has found them, or it is seen here.
pub(crate) fn is_fork_announced() -> bool {
    TURNS.is_fork_announced()
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
    TURNS.announce_fork();
    if let Some(recallers) = recallers(1) {
        recallers.iter().filter(|(lineage, _)| lineage.is_current()).for_each(|(_, thread)| thread.unpark());
    }
    wait_until(|| TURNS.may_fork());
}

extern "C" fn after() {
    if FORKS.load(Ordering::Relaxed) == std::process::id() { TURNS.end_fork() } else { TURNS.begin_child() }
}

/// An exchange, during which nobody forks.
#[derive(Debug)]
pub(crate) struct NoFork(());

impl NoFork {
    /// Waits for a fork that is under way.
    pub(crate) fn new() -> NoFork {
        wait_until(|| TURNS.try_exchange());
        NoFork(())
    }

    /// None if a fork is under way, or without a reason.
    pub(crate) fn try_new() -> Option<NoFork> {
        TURNS.try_exchange().then(|| NoFork(()))
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        TURNS.end_exchange();
    }
}
