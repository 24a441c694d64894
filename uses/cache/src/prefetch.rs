//! A prefetch, which can be cancelled.

use crate::cache::Cache;
use crate::entry::Entry;
use crate::source::Source;
use std::sync::{Arc, Weak};

/// A prefetched block. Dropping this changes nothing.
#[derive(Debug)]
pub struct Prefetch<S: Source> {
    cache: Cache<S>,
    entry: Weak<Entry<S>>,
}

impl<S: Source> Prefetch<S> {
    pub(crate) fn new(cache: Cache<S>, entry: &Arc<Entry<S>>) -> Self {
        Prefetch { cache, entry: Arc::downgrade(entry) }
    }

    /// Cancels it if its copy has not begun; returns true if it did so, once. Existing handles to the block then read
    /// its source.
    pub fn cancel(&self) -> bool {
        let cancelled = self.entry.upgrade().is_some_and(|entry| entry.cancel());
        if cancelled {
            self.cache.cancelled();
        }
        cancelled
    }

    /// Returns whether the copy is complete.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.cache.drive();
        self.entry.upgrade().is_some_and(|entry| {
            entry.turn_if_begun();
            entry.is_fast()
        })
    }
}
