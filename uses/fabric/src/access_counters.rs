//! Counters of the accesses of peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What counts the accesses of peers to the memory of this process. Each counts an access when it has ended.
#[derive(Clone, Debug, Default)]
pub struct AccessCounters {
    /// Counts reads, and atomic operations that return elements.
    pub reads: Option<Arc<AtomicU64>>,
    /// Counts writes and the other atomic operations.
    pub writes: Option<Arc<AtomicU64>>,
}

impl AccessCounters {
    /// Returns what counts an access.
    pub(crate) fn of(&self, is_read: bool) -> Option<&AtomicU64> {
        if is_read { self.reads.as_deref() } else { self.writes.as_deref() }
    }
}

/// Counts an access. A thread that sees the number sees the bytes of the access.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Release);
}
