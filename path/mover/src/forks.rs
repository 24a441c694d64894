//! What a fork finds: the parent's queues at rest, as far as a short wait can bring that about.
//!
//! A child gets a copy of the memory as it is at that moment, and a device goes on in the parent's alone
//! ([`Standing`](crate::standing::Standing)). What has landed before the copy is made, the child has; so the thread that forks
//! first lets what is in the air land, for a bounded time. What has not landed then ends in the child on the CPU.

use crate::inflight::Core;
use crate::nest;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How long a fork waits for descriptors in flight.
/// Source: assumed; more than most descriptors take, and less than a fork of a large process itself.
const BOUND: Duration = Duration::from_millis(5);

/// The movers of this process.
static MOVERS: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

thread_local! {
    /// The list, held across a fork, so that the child does not inherit it from a thread that it does not have.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Weak<Core>>>>> = const { RefCell::new(None) };
}

/// Tries for the list before a new mover goes without: only where a handler forked in the middle of this can it be held for
/// ever. Source: assumed.
const TRIES: u32 = 10_000;

/// From now on forks wait for this mover's descriptors.
pub(crate) fn attend(mover: &Arc<Core>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| telpher_os::on_fork(before, after));
    let _inside = nest::Inside::enter();
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

/// In the thread that forks, before it does.
extern "C" fn before() {
    // A handler that has interrupted a portal, or `attend`, can wait for neither.
    if nest::is_inside() {
        return;
    }
    let movers = MOVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let end = Instant::now() + BOUND;
    for mover in movers.iter().filter_map(Weak::upgrade) {
        // What a child has of its parent's never lands.
        let is_ours = mover.lanes.all().iter().all(crate::route::Lane::is_home);
        while is_ours && mover.is_in_the_air() && Instant::now() < end {
            mover.lanes.all().iter().for_each(crate::route::Lane::drive);
            std::thread::yield_now();
        }
        // The last handle may have gone meanwhile; its end is no work for a fork.
        if Arc::strong_count(&mover) == 1 {
            std::mem::forget(mover);
        }
    }
    // A thread that is almost gone has nowhere to hold it, and goes without.
    let _ = HELD.try_with(|held| held.replace(Some(movers)));
}

/// In the same thread of the parent and of the child, afterwards.
extern "C" fn after() {
    let _ = HELD.try_with(RefCell::take);
}
