//! A portal without a device behind it.
#![allow(unsafe_code, reason = "a queue that executes nothing")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use telpher_portal::{Health, Offer, Portal, QueueInfo, Submission};

/// A queue that takes or refuses everything.
#[derive(Debug)]
pub(super) struct StubPortal {
    pub(super) info: QueueInfo,
    pub(super) refuses: AtomicBool,
    pub(super) has_stopped: AtomicBool,
    pub(super) taken: AtomicU32,
}

// SAFETY: it executes nothing.
unsafe impl Portal for StubPortal {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    fn offer(&self, _: &Submission) -> Offer {
        if self.refuses.load(Ordering::Relaxed) {
            return Offer::Retry;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Offer::Taken
    }

    fn health(&self) -> Health {
        if self.has_stopped.load(Ordering::Relaxed) { Health::Stopped("disabled".into()) } else { Health::Working }
    }
}
