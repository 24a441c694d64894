//! Forks that the kernel does not report: no page may be out while the process forks.
//!
//! A child that is forked while a page is out would find zeros there. The kernel reports forks only to processes with
//! `CAP_SYS_PTRACE`. Without it, the C library's fork handlers delay a fork until all pages are back, and an exchange
//! until the fork is over. A `fork` by a bare system call is missed.
//!
//! Trapped pages stay out longer than a fork should wait, and a child would need copies of them. A fork therefore
//! recalls them first, also where the kernel reports forks. A thread of the heap brings them back. The forking thread
//! cannot, because its own stack might be out: while it held the page map's lock, it would wait for the fault handler,
//! which waits for that lock.

#[cfg(test)]
mod tests;
mod turns;

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

/// The threads that recall traps, each with its process. The lock is tried but never waited for, because a child may
/// inherit it locked by a thread that it does not have. If the lock is not free, the fork waits until the traps end on
/// their own.
static RECALLERS: Mutex<Vec<(Lineage, Thread)>> = Mutex::new(Vec::new());

/// Makes forks of this process wait for exchanges from now on.
pub(crate) fn hold_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| on_fork(before, after));
}

/// Locks the list of recallers, with at most this many tries.
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

/// A thread that recalls traps when a fork is announced.
#[derive(Debug)]
pub(crate) struct Recaller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recaller {
    /// Starts the thread, which calls `recall` for each fork that is announced. Forks wait for traps from now on.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn start(recall: impl Fn() + Send + 'static) -> std::io::Result<Recaller> {
        /// Attempts to register the thread.
        const TIMES: u32 = 1000;
        hold_forks();
        let stop = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&stop);
        let thread = spawn_unsignalled("telpher-forks", move || {
            // Relaxed: it publishes no other data.
            while !its.load(Ordering::Relaxed) {
                std::thread::park();
                if is_fork_announced() {
                    recall();
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

/// Returns whether a fork waits. A thread that has just set traps then recalls them. It asks after releasing the page
/// map's lock under which it set them: either the fork has found the traps, or the fork is seen here.
pub(crate) fn is_fork_announced() -> bool {
    TURNS.is_fork_announced()
}

/// Waits until `is_so` returns true.
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
    // Relaxed: read only by this thread, and by its copy in the child.
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

/// Held during an exchange: no thread forks.
#[derive(Debug)]
pub(crate) struct NoFork(());

impl NoFork {
    /// Waits until no fork is under way.
    pub(crate) fn new() -> NoFork {
        wait_until(|| TURNS.try_exchange());
        NoFork(())
    }

    /// Returns none if a fork is under way, or spuriously.
    pub(crate) fn try_new() -> Option<NoFork> {
        TURNS.try_exchange().then(|| NoFork(()))
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        TURNS.end_exchange();
    }
}
