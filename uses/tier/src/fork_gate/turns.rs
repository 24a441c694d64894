//! Forks and exchanges take turns through one atomic word. There is no lock, because a child would inherit it locked by
//! a thread that it does not have.
//!
//! Modelled in tests/loom_turns.rs.

use crate::sync::{AtomicU32, Ordering};

/// The count of a fork. Source: chosen; a process has fewer forking threads, and fewer threads with exchanges.
const FORK: u32 = 1 << 16;

/// Allows any number of exchanges at once, or any number of forks.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The exchanges under way; each fork adds [`FORK`], more than there can be exchanges.
    inside: AtomicU32,
}

impl Turns {
    /// Creates the state without exchanges or forks.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Turns {
        Turns { inside: AtomicU32::new(0) }
    }

    /// Creates the state without exchanges or forks. Loom's atomics cannot be created at compile time.
    #[cfg(loom)]
    pub(crate) fn new() -> Turns {
        Turns { inside: AtomicU32::new(0) }
    }

    /// Begins an exchange. Returns false if a fork is under way, or spuriously.
    #[must_use]
    pub(crate) fn try_exchange(&self) -> bool {
        // Relaxed: the compare-exchange below orders.
        let inside = self.inside.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `end_fork`.
        let enter = || self.inside.compare_exchange_weak(inside, inside + 1, Ordering::Acquire, Ordering::Relaxed);
        inside < FORK && enter().is_ok()
    }

    /// Ends an exchange: all its pages are back.
    pub(crate) fn end_exchange(&self) {
        // Release: pairs with the Acquire in `may_fork`.
        self.inside.fetch_sub(1, Ordering::Release);
    }

    /// Announces a fork: no exchange begins from now on.
    pub(crate) fn announce_fork(&self) {
        // Relaxed: `may_fork` orders.
        self.inside.fetch_add(FORK, Ordering::Relaxed);
    }

    /// Returns whether a fork waits or is under way. This load orders nothing.
    #[must_use]
    pub(crate) fn is_fork_announced(&self) -> bool {
        // Relaxed: the page map's lock, taken by the thread that sets traps and by the one that forks, orders their
        // accesses.
        self.inside.load(Ordering::Relaxed) >= FORK
    }

    /// Returns whether all exchanges that began before the announcement have ended.
    #[must_use]
    pub(crate) fn may_fork(&self) -> bool {
        // Acquire: pairs with the Release in `end_exchange`, also for all but the last exchange, because each change
        // continues the release sequence.
        self.inside.load(Ordering::Acquire).is_multiple_of(FORK)
    }

    /// Ends a fork, in the parent.
    pub(crate) fn end_fork(&self) {
        // Release: pairs with the Acquire in `try_exchange`.
        self.inside.fetch_sub(FORK, Ordering::Release);
    }

    /// Resets the state in a child, which has no other thread: neither exchanges nor other forks.
    pub(crate) fn begin_child(&self) {
        // Relaxed: there is no other thread.
        self.inside.store(0, Ordering::Relaxed);
    }
}
