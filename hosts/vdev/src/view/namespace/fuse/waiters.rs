//! Programs that wait in poll(2) for a device error.

use super::super::tree::Tree;
use fuser::PollNotifier;
use std::sync::{Mutex, PoisonError};

/// The pollers of each open file.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<Vec<(u64, PollNotifier)>>,
}

impl Waiters {
    /// Adds a poller.
    pub(super) fn add(&self, open: u64, notifier: PollNotifier) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel uses one handle for an open file and all its pollers, and sends it with each poll.
        waiting.retain(|(_, other)| other.handle().0 != notifier.handle().0);
        waiting.push((open, notifier));
    }

    /// Removes the pollers of a closed file.
    pub(super) fn forget(&self, open: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != open);
    }

    /// Wakes the pollers of files that are ready now.
    pub(crate) fn wake(&self, tree: &dyn Tree) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The common case, on every write: the list is empty.
        for (_, notifier) in waiting.extract_if(.., |(open, _)| tree.poll_ready(*open)) {
            // Fails if the file is gone; then it has no pollers.
            let _ = notifier.notify();
        }
    }
}
