//! Prepares movers for a fork: waits a short time until the parent's descriptors in flight complete.
//!
//! A child gets a copy of the memory as it is at that moment, and a device goes on in the parent's memory only
//! ([`QueueHealth`](crate::plan::queue_health::QueueHealth)). The child has the results of all descriptors that
//! completed before the copy. So the thread that forks first waits, for a bounded time, until descriptors in flight
//! have completed. The child finishes the remaining ones on the CPU.

use crate::inflight::Core;
use crate::reentrancy;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How long a fork waits for descriptors in flight.
/// Source: assumed; more than most descriptors take, and less than a fork of a large process itself.
const BOUND: Duration = Duration::from_millis(5);

/// The movers of this process.
static MOVERS: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

thread_local! {
    /// The list, locked across a fork, so that the child does not inherit a lock held by a thread that it does not
    /// have.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Weak<Core>>>>> = const { RefCell::new(None) };
}

/// Tries to lock the list before a new mover goes on without registering. The lock can be held for ever only if a
/// signal handler forked during `register`. Source: assumed.
const TRIES: u32 = 10_000;

/// Makes forks wait for this mover's descriptors from now on.
pub(crate) fn register(mover: &Arc<Core>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| telpher_os::on_fork(before, after));
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
    // A thread that is exiting has no storage for the lock, and forks without it.
    let _ = HELD.try_with(|held| held.replace(Some(movers)));
}

/// Runs in the same thread of the parent and of the child, after the fork.
extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}
