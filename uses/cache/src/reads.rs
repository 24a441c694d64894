//! What is being read of sources to be copied: from before a copy begins until its buffers are given back, whoever has them then.
//!
//! An entry that goes while its copy is under way leaves it to the mover, which keeps the buffers until the device has done with them.
//! Who withdraws a source's bytes asks here, not the entries, whether anybody still reads them: a mention goes with the buffers
//! themselves, so there is no moment between two owners in which nobody seems to have them.

use crate::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// What is being read, by `T`.
#[derive(Debug)]
pub(crate) struct Reads<T>(Mutex<Vec<T>>);

/// One of those that are being read, as long as it is there.
#[derive(Debug)]
pub(crate) struct Read<T: Copy + PartialEq> {
    what: T,
    reads: Arc<Reads<T>>,
}

impl<T: Copy + PartialEq> Reads<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Reads(Mutex::new(Vec::new())))
    }

    // A panic under it leaves a list that is whole.
    fn with<R>(&self, f: impl FnOnce(&mut Vec<T>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// To be called before anybody is told to read.
    pub(crate) fn begin(self: &Arc<Self>, what: T) -> Read<T> {
        self.with(|all| all.push(what));
        Read { what, reads: Arc::clone(self) }
    }

    /// Whether any of them is one of these.
    ///
    /// **Staleness**: others begin and end meanwhile. Of what cannot begin any more, none stays none.
    pub(crate) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        self.with(|all| all.iter().any(is))
    }
}

impl<T: Copy + PartialEq> Drop for Read<T> {
    fn drop(&mut self) {
        // Equals are as good as each other; as many as are under way, the first of which mostly end first.
        self.reads.with(|all| all.iter().position(|other| *other == self.what).map(|at| all.swap_remove(at)));
    }
}
