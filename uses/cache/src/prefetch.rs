//! Something that will be asked for, and can be called off.

use crate::cache::Cache;
use crate::entry::Entry;
use crate::source::Source;
use std::sync::{Arc, Weak};

/// A block that was asked for ahead of time. Dropping it changes nothing.
#[derive(Debug)]
pub struct Prefetch<S: Source> {
    cache: Cache<S>,
    entry: Weak<Entry<S>>,
}

impl<S: Source> Prefetch<S> {
    pub(crate) fn new(cache: Cache<S>, entry: &Arc<Entry<S>>) -> Self {
        Prefetch { cache, entry: Arc::downgrade(entry) }
    }

    /// Calls it off, if its copy has not begun; true if so, once. Who has a handle to the block by then finds it in its source.
    pub fn cancel(&self) -> bool {
        let cancelled = self.entry.upgrade().is_some_and(|entry| entry.cancel());
        if cancelled {
            self.cache.cancelled();
        }
        cancelled
    }

    /// The copy is there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.cache.drive();
        self.entry.upgrade().is_some_and(|entry| {
            entry.turn_if_begun();
            entry.is_fast()
        })
    }
}
