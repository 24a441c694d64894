//! A queue that is only talked about.

use telpher_portal::{Offer, Portal, QueueInfo, Submission};

/// What a queue tells of itself, and nothing behind it.
#[derive(Debug)]
pub(crate) struct Sign(pub(crate) QueueInfo);

// SAFETY: it takes nothing, so it executes nothing, keeps nothing and touches nothing.
unsafe impl Portal for Sign {
    fn info(&self) -> &QueueInfo {
        &self.0
    }

    fn offer(&self, _: &Submission) -> Offer {
        Offer::Retry
    }
}
