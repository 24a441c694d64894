//! Programs that wait in poll(2) until the device has something to tell.

use super::super::tree::Tree;
use fuser::PollNotifier;
use std::sync::{Mutex, PoisonError};

/// Who waits for which open file.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<Vec<(u64, PollNotifier)>>,
}

impl Waiters {
    /// One more.
    pub(super) fn add(&self, open: u64, notifier: PollNotifier) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // A kernel's handle stands for one open file and all who wait for it; it comes again with each poll.
        waiting.retain(|(_, other)| other.handle().0 != notifier.handle().0);
        waiting.push((open, notifier));
    }

    /// Nobody waits for a file that is closed.
    pub(super) fn forget(&self, open: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != open);
    }

    /// Wakes those whose file is ready now.
    pub(crate) fn wake(&self, tree: &dyn Tree) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The common case, on every write: nobody waits, and nobody is asked.
        for (_, notifier) in waiting.extract_if(.., |(open, _)| tree.poll_ready(*open)) {
            // Fails if the file is gone: then nobody waits.
            let _ = notifier.notify();
        }
    }
}
