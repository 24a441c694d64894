//! A portal without a queue behind it.

use telpher_portal::{Offer, Portal, QueueInfo, Submission};

/// A portal that only describes a queue and takes no descriptor.
#[derive(Debug)]
pub(crate) struct StubPortal(pub(crate) QueueInfo);

// SAFETY: it takes no descriptor, so it executes nothing, keeps nothing and touches no memory.
unsafe impl Portal for StubPortal {
    fn info(&self) -> &QueueInfo {
        &self.0
    }

    fn offer(&self, _: &Submission) -> Offer {
        Offer::Retry
    }
}
