//! Forks and exchanges take turns, by one word and no lock: a child would have the lock of a thread that it has not, and wait for it for ever.
//!
//! Modelled in tests/loom_turns.rs.

use crate::sync::{AtomicU32, Ordering};

/// What a fork counts. Source: chosen: threads that fork at once, and threads with exchanges, are fewer.
const FORK: u32 = 1 << 16;

/// Any number of exchanges at once, or any number of forks.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Exchanges that are under way; a fork counts as many as there can be, and one.
    inside: AtomicU32,
}

impl Turns {
    /// Nobody is inside.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Turns {
        Turns { inside: AtomicU32::new(0) }
    }

    /// Nobody is inside. Loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub(crate) fn new() -> Turns {
        Turns { inside: AtomicU32::new(0) }
    }

    /// An exchange begins, unless a fork is under way: false. It may be false without a reason, too.
    #[must_use]
    pub(crate) fn try_exchange(&self) -> bool {
        // Relaxed: what is to be seen is seen below.
        let inside = self.inside.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `end_fork`.
        let enter = || self.inside.compare_exchange_weak(inside, inside + 1, Ordering::Acquire, Ordering::Relaxed);
        inside < FORK && enter().is_ok()
    }

    /// It is over: what it had out is back.
    pub(crate) fn end_exchange(&self) {
        // Release: pairs with the Acquire in `may_fork`.
        self.inside.fetch_sub(1, Ordering::Release);
    }

    /// A fork is to come: no exchange begins from here on.
    pub(crate) fn announce_fork(&self) {
        // Relaxed: what is to be seen is seen in `may_fork`.
        self.inside.fetch_add(FORK, Ordering::Relaxed);
    }

    /// A fork waits, or is under way. By itself this orders nothing.
    #[must_use]
    pub(crate) fn is_fork_announced(&self) -> bool {
        // Relaxed: the lock between who sets traps and who forks has one see what the other did before it.
        self.inside.load(Ordering::Relaxed) >= FORK
    }

    /// True if the exchanges that had begun before it was announced have come to their end.
    #[must_use]
    pub(crate) fn may_fork(&self) -> bool {
        // Acquire: pairs with the Release in `end_exchange`, also of those before the last: each change of the word carries them on.
        self.inside.load(Ordering::Acquire).is_multiple_of(FORK)
    }

    /// It is over, in the parent.
    pub(crate) fn end_fork(&self) {
        // Release: pairs with the Acquire in `try_exchange`.
        self.inside.fetch_sub(FORK, Ordering::Release);
    }

    /// A child begins, which has no other thread: neither exchanges nor other forks.
    pub(crate) fn begin_child(&self) {
        // Relaxed: nobody else is there.
        self.inside.store(0, Ordering::Relaxed);
    }
}
