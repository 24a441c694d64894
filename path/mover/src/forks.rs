//! Prepares movers for a fork: waits a short time until the parent's descriptors in flight complete.
//!
//! A child gets a copy of the memory as it is at that moment, and a device goes on in the parent's memory only
//! ([`QueueHealth`](crate::plan::queue_health::QueueHealth)). The child has the results of all descriptors that
//! completed before the copy. So the thread that forks first waits, for a bounded time, until descriptors in flight
//! have completed. The child finishes the remaining ones on the CPU.

use crate::inflight::Core;
use crate::reentrancy;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak,
};
use std::time::{Duration, Instant};

/// How long a fork waits for descriptors in flight.
/// Source: assumed; more than most descriptors take, and less than a fork of a large process itself.
const BOUND: Duration = Duration::from_millis(5);

/// The movers of this process.
static MOVERS: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// Read by the threads of notifiers while they step jobs.
static STEPS: RwLock<()> = RwLock::new(());

/// Set while a thread forks, so that threads of notifiers that never rest leave it a moment. SeqCst: forks are rare.
static FORKING: AtomicBool = AtomicBool::new(false);

/// What is locked across a fork.
struct Held {
    _movers: MutexGuard<'static, Vec<Weak<Core>>>,
    /// `None` if a notifier's thread took too long.
    _steps: Option<RwLockWriteGuard<'static, ()>>,
}

thread_local! {
    /// Locked across a fork, so that the child does not inherit a lock held by a thread that it does not have.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Tries to lock the list before a new mover goes on without registering. The lock can be held for ever only if a
/// signal handler forked during `register`. Source: assumed.
const TRIES: u32 = 10_000;

/// Makes forks wait for this mover's descriptors from now on.
pub(crate) fn register(mover: &Arc<Core>) {
    handle();
    let _inside = reentrancy::InPortal::enter();
    for _ in 0..TRIES {
        let mut movers = match MOVERS.try_lock() {
            Ok(movers) => movers,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                continue;
            }
        };
        movers.retain(|known| known.strong_count() > 0);
        movers.push(Arc::downgrade(mover));
        return;
    }
}

/// Registers the handlers of forks, once.
pub(crate) fn handle() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| telpher_os::on_fork(before, after));
}

/// While the result lives, a fork waits, for a bounded time: the child cannot unlock what this thread has locked.
pub(crate) fn no_fork() -> RwLockReadGuard<'static, ()> {
    while FORKING.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    STEPS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no notifier's thread steps a job. Bounded, because such a thread may wait for a lock of the one that
/// forks: Python holds the interpreter lock.
fn stop_steps() -> Option<RwLockWriteGuard<'static, ()>> {
    FORKING.store(true, Ordering::SeqCst);
    let end = Instant::now() + BOUND;
    loop {
        match STEPS.try_write() {
            Ok(steps) => return Some(steps),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// Runs in the thread that forks, before the fork.
extern "C" fn before() {
    // A handler that has interrupted a portal, or `register`, cannot wait for either.
    if reentrancy::is_in_portal() {
        return;
    }
    let movers = MOVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let end = Instant::now() + BOUND;
    for mover in movers.iter().filter_map(Weak::upgrade) {
        // A child's copies of the parent's descriptors never complete.
        let is_ours = mover.queues.all().iter().all(crate::plan::route::PortalQueue::is_own_process);
        while is_ours && mover.has_in_flight() && Instant::now() < end {
            mover.queues.all().iter().for_each(crate::plan::route::PortalQueue::drive);
            std::thread::yield_now();
        }
        // The last handle may have been dropped meanwhile; a fork must not run the mover's drop.
        if Arc::strong_count(&mover) == 1 {
            std::mem::forget(mover);
        }
    }
    let held = Held { _movers: movers, _steps: stop_steps() };
    // A thread that is exiting has no storage for the locks, and forks without them.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

/// Runs in the same thread of the parent and of the child, after the fork.
extern "C" fn after() {
    FORKING.store(false, Ordering::SeqCst);
    let _ = HELD.try_with(RefCell::take);
}
