//! Memory shared by one open file and the host: counters and, if enabled, every descriptor and completion record.
//!
//! The host reads it while the guest writes, and a last time after the guest has ended, in whatever way.

pub use crate::ring::{TRACE_ENTRIES, TraceEntry, TraceKind, TraceRing};
use crate::sync::{AtomicU64, Ordering};

/// Counters of one open file.
#[derive(Debug)]
#[repr(C)]
pub struct Statistics {
    /// Descriptors by operation (0 to 63) and status (bits 5:0); status [0](Statistics::NO_STATUS) for those that ended
    /// without a record.
    pub outcomes: [[AtomicU64; 64]; 64],
    /// Descriptors by operation and size: bucket N holds sizes of N bits (0 for size 0).
    pub sizes: [[AtomicU64; 33]; 64],
    /// Bytes completed by operation.
    pub bytes: [AtomicU64; 64],
    /// Deferrable writes that got Retry.
    pub retries: AtomicU64,
    /// Posted writes that were lost.
    pub dropped: AtomicU64,
    /// Page faults that ended or interrupted a descriptor.
    pub faults: AtomicU64,
    /// Instructions emulated by a trap.
    pub traps: AtomicU64,
    /// Instructions emulated at a rewritten site.
    pub calls: AtomicU64,
    /// Trace entries for which there was no space, or whose writer was killed.
    pub lost: AtomicU64,
}

impl Statistics {
    /// Column of [`outcomes`](Statistics::outcomes) for descriptors that wrote no record.
    pub const NO_STATUS: usize = 0;
}

/// The shared memory of one open file.
#[derive(Debug)]
#[repr(C)]
pub struct FileMemory {
    /// Counters.
    pub statistics: Statistics,
    /// Descriptors and completion records, if they are traced.
    pub ring: TraceRing,
}

impl FileMemory {
    /// Appends an entry to the trace; see [`TraceRing::append`].
    pub fn append(&self, entry: &TraceEntry) -> bool {
        self.ring.append(entry)
    }

    /// Removes the trace's next entry; skipped entries count as lost. See [`TraceRing::take`].
    pub fn take(&self, gone: bool) -> Option<TraceEntry> {
        self.ring.take(gone, &self.statistics.lost)
    }
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: the counter publishes nothing.
    counter.fetch_add(by, Ordering::Relaxed);
}
