//! Source ranges that copies are reading: from before a copy begins until its buffers are released, by whichever owner.
//!
//! An entry that is dropped while its copy is in flight leaves the copy to the mover, which keeps the buffers until the
//! device has finished with them. `withdraw` asks here, not the entries, whether the bytes are still being read. A note
//! travels with the buffers themselves, so there is no moment between two owners in which none seems to have them.

use crate::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// The ranges of type `T` that are being read.
#[derive(Debug)]
pub(crate) struct ActiveReads<T>(Mutex<Vec<T>>);

/// A note that a range is being read, as long as it exists.
#[derive(Debug)]
pub(crate) struct ActiveRead<T: Copy + PartialEq> {
    what: T,
    reads: Arc<ActiveReads<T>>,
}

impl<T: Copy + PartialEq> ActiveReads<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(ActiveReads(Mutex::new(Vec::new())))
    }

    // A panic under the lock leaves the list consistent.
    fn with<R>(&self, f: impl FnOnce(&mut Vec<T>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Must be called before the copy is submitted.
    pub(crate) fn begin(self: &Arc<Self>, what: T) -> ActiveRead<T> {
        self.with(|all| all.push(what));
        ActiveRead { what, reads: Arc::clone(self) }
    }

    /// Returns whether `is` accepts any of the ranges.
    ///
    /// **Staleness**: others begin and end meanwhile. If no new reads can begin, none stays none.
    pub(crate) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        self.with(|all| all.iter().any(is))
    }
}

impl<T: Copy + PartialEq> Drop for ActiveRead<T> {
    fn drop(&mut self) {
        // Equal notes are interchangeable. There are as many as copies in flight, and the first ones mostly end first.
        self.reads.with(|all| all.iter().position(|other| *other == self.what).map(|at| all.swap_remove(at)));
    }
}
