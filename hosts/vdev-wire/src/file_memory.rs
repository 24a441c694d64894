//! Memory shared by one open file and the host: counters and, if enabled, every descriptor and completion record.
//!
//! The host reads it while the guest writes, and a last time after the guest has ended, in whatever way.

use crate::event::ReportedTo;
pub use crate::ring::{TRACE_ENTRIES, TraceEntry, TraceKind, TraceRing};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;
use telpher_abi::{CompletionRecord, Descriptor, Offer, Opcode, Status};
use telpher_model::DeviceCounts;

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

    fn count_offer(&self, offer: Offer) {
        match offer {
            Offer::Taken => {}
            Offer::Retry => count(&self.retries, 1),
            Offer::Lost => count(&self.dropped, 1),
        }
    }

    /// Counts a descriptor that has ended, as its completion record says.
    pub fn count_end(&self, descriptor: &Descriptor, record: &CompletionRecord, reported_to: ReportedTo) {
        // The tables have 64 operations, as the first word of the architecture's capability register.
        let operation = usize::from(descriptor.opcode_code() & 0x3f);
        let status = match reported_to {
            ReportedTo::Record | ReportedTo::Lost | ReportedTo::Elsewhere | ReportedTo::Unwritable => {
                usize::from(record.status_code() & 0x3f)
            }
            ReportedTo::NotRequested | ReportedTo::Abandoned => Statistics::NO_STATUS,
        };
        count(&self.outcomes[operation][status], 1);
        let size = descriptor.size();
        count(&self.sizes[operation][(u32::BITS - size.leading_zeros()) as usize], 1);
        let moves = !matches!(descriptor.opcode(), Opcode::Nop | Opcode::Batch | Opcode::Drain);
        match record.status() {
            Status::Success | Status::SuccessPredicateFalse if moves => {
                count(&self.bytes[operation], size.into());
            }
            status if status.has_direction() => {
                count(&self.faults, 1);
                if moves && status.is_page_fault() {
                    count(&self.bytes[operation], record.bytes_completed().into());
                }
            }
            _ => {}
        }
    }
}

/// The shared memory of one open file.
///
/// The totals come first, where readers of other processes find them: they read the first [`DeviceCounts::WORDS`]
/// words, and write one, the subscription.
#[derive(Debug)]
#[repr(C)]
pub struct FileMemory {
    /// The totals of the device for this file. The modelled device counts ends there, its owner the queue's answers.
    pub counts: DeviceCounts,
    /// Counters.
    pub statistics: Statistics,
    /// Descriptors and completion records, if they are traced.
    pub ring: TraceRing,
}

impl FileMemory {
    /// Counts a queue's answer to a descriptor.
    pub fn count_offer(&self, wq: u32, offer: Offer) {
        self.statistics.count_offer(offer);
        self.counts.offered(wq as usize, offer);
    }

    /// Appends an entry to the trace; see [`TraceRing::append`].
    pub fn append(&self, entry: &TraceEntry) -> bool {
        self.ring.append(entry)
    }

    /// Removes the trace's next entry; skipped entries count as lost. See [`TraceRing::take`].
    pub fn take(&self, gone: bool) -> Option<TraceEntry> {
        self.ring.take(gone, &self.statistics.lost)
    }
}

/// The totals in the memory of an open file, for the file's modelled device.
#[derive(Debug)]
pub struct CountsOf<L>(pub Arc<L>);

impl<L: AsRef<FileMemory>> AsRef<DeviceCounts> for CountsOf<L> {
    fn as_ref(&self) -> &DeviceCounts {
        &(*self.0).as_ref().counts
    }
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: the counter publishes nothing.
    counter.fetch_add(by, Ordering::Relaxed);
}
