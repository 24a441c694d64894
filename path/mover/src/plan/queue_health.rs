//! Whether a queue is still usable, and whether descriptors that it took can still touch memory.
//!
//! A queue is *dead* in two cases. Its portal reported that it has stopped ([`Health::Stopped`] is a promise that no
//! descriptor taken before touches memory any more). Or this process was forked from the one that opened the queue: a
//! device works in the parent's address space and cannot reach the child's. In both cases, a record that is missing
//! when the queue is seen to be dead never comes, and no device has its memory. A dead queue stays dead; a queue that
//! is enabled again must be opened again.
//!
//! [`Health::Stopped`]: telpher_portal::Health::Stopped

use crate::sync::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use telpher_os::Lineage;

const ALIVE: u8 = 0;
const DEAD: u8 = 1;

/// The health of one queue.
#[derive(Debug)]
pub(crate) struct QueueHealth {
    state: AtomicU8,
    /// The reason that the portal gave; set before `state` is [`DEAD`].
    why: OnceLock<Arc<str>>,
    opened_in: Lineage,
}

impl QueueHealth {
    /// A queue that works, opened in this process.
    pub(crate) fn new() -> Self {
        QueueHealth { state: AtomicU8::new(ALIVE), why: OnceLock::new(), opened_in: Lineage::current() }
    }

    /// Returns true once the queue is known to be dead. A thread that sees true also sees every record that the queue
    /// wrote.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        // Acquire: pairs with the Release in `stop`; records written before the queue stopped are visible after this
        // load.
        self.state.load(Ordering::Acquire) == DEAD || !self.is_own_process()
    }

    /// Returns true in the process that opened the queue; no function of its portal may be called in another process.
    #[inline]
    pub(crate) fn is_own_process(&self) -> bool {
        self.opened_in.is_current()
    }

    /// Records that the queue has stopped.
    pub(crate) fn stop(&self, why: String) {
        // The first reason is kept; all of them are true.
        let _ = self.why.set(why.into());
        // Release: pairs with the Acquire in `is_dead`; publishes what the queue wrote before it reported the stop.
        self.state.store(DEAD, Ordering::Release);
    }

    /// Returns why the queue is dead, as a sentence.
    pub(crate) fn why(&self) -> Arc<str> {
        match self.why.get() {
            Some(why) => Arc::clone(why),
            None if self.is_own_process() => "it still works".into(),
            None => "it belongs to the process that this one was forked from".into(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_alive_until_it_stops_and_keeps_the_first_reason() {
        let health = QueueHealth::new();
        assert!(!health.is_dead() && health.is_own_process());
        health.stop("device dsa0 is halted".into());
        health.stop("wq0.0 is disabled".into());
        assert!(health.is_dead() && health.is_own_process());
        assert_eq!(&*health.why(), "device dsa0 is halted");
    }
}
