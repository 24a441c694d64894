//! Whether a queue is still to be used, and whether what it took can still touch memory.
//!
//! A queue is *out* once somebody was told that it has stopped ([`Health::Stopped`] is a promise that nothing taken before
//! touches memory any more), and in every process forked off the one it was opened in: a device works in the address space
//! of the parent, and cannot reach the child's. Either way a record that is not there when a queue is seen out will never
//! come, and its memory is nobody else's. Out is for ever; a queue that was enabled again is opened anew.
//!
//! [`Health::Stopped`]: telpher_portal::Health::Stopped

use crate::sync::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use telpher_os::Lineage;

const USED: u8 = 0;
const OUT: u8 = 1;

/// The standing of one queue.
#[derive(Debug)]
pub(crate) struct Standing {
    state: AtomicU8,
    /// What the machine said; there before `state` is [`OUT`].
    why: OnceLock<Arc<str>>,
    opened_in: Lineage,
}

impl Standing {
    /// A queue that works, opened in this process.
    pub(crate) fn new() -> Self {
        Standing { state: AtomicU8::new(USED), why: OnceLock::new(), opened_in: Lineage::current() }
    }

    /// True from the moment the queue is known to be out. Whoever sees it sees every record the queue wrote.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        // Acquire: pairs with the Release in `stop`; records written before the queue stopped are seen behind this.
        self.state.load(Ordering::Acquire) == OUT || !self.is_home()
    }

    /// True in the process the queue was opened in; nothing of the queue may be called elsewhere.
    #[inline]
    pub(crate) fn is_home(&self) -> bool {
        self.opened_in.is_current()
    }

    /// The queue has said that it stopped.
    pub(crate) fn stop(&self, why: String) {
        // The first to tell is believed; all tell the truth.
        let _ = self.why.set(why.into());
        // Release: pairs with the Acquire in `is_out`; what the queue wrote before it told us goes along.
        self.state.store(OUT, Ordering::Release);
    }

    /// Why it is out, as a sentence.
    pub(crate) fn why(&self) -> Arc<str> {
        match self.why.get() {
            Some(why) => Arc::clone(why),
            None if self.is_home() => "it still works".into(),
            None => "it belongs to the process that this one was forked off".into(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_used_until_it_stops_and_keeps_the_first_reason() {
        let standing = Standing::new();
        assert!(!standing.is_out() && standing.is_home());
        standing.stop("device dsa0 is halted".into());
        standing.stop("wq0.0 is disabled".into());
        assert!(standing.is_out() && standing.is_home());
        assert_eq!(&*standing.why(), "device dsa0 is halted");
    }
}
