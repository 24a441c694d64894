//! What movers count: for one mover the memory that it keeps, for a process what its movers have done.
//!
//! The counts of a process are in memory that readers in other processes find (`telpher_os::published_words`). A forked
//! child counts in its parent's.

use crate::sync::AtomicU64;
use crate::thread_stripe::{self, STRIPES};
use std::sync::OnceLock;
use std::time::Duration;
use telpher_metrics::{Position, SharedCells, metrics};

metrics! {
    /// Jobs whose buffers a mover keeps until the device has written their record. A split job counts once for each of
    /// its descriptors in flight.
    #[non_exhaustive]
    pub struct Stats {
        /// Jobs that were dropped before the device wrote their record.
        pub orphaned: u64 = gauge "telpher_mover_orphaned_jobs",
        /// Jobs whose deadline passed before the device wrote their record.
        pub quarantined: u64 = gauge "telpher_mover_quarantined_jobs",
    }
}

/// The help of operations by what executed them.
const OPERATIONS: &str = "Operations that ended, by what executed them. Copies below the threshold are not counted.";
/// The help of bytes by what executed their operation.
const BYTES: &str = "Bytes of operations that ended, by what executed the operation.";
/// The help of operations that the CPU finished.
const FALLBACKS: &str = "How often the CPU did the rest of an operation, or of a part of one, that was meant for a \
                         device, by reason.";

metrics! {
    /// What the movers of this process have done: jobs, scopes and batches. Programs that use channels, `Copies` and
    /// `MemoryCalls` count them themselves, except for the time in full queues.
    #[non_exhaustive]
    pub struct Work {
        /// Operations that a device executed alone.
        pub by_device: u64 = counter "telpher_mover_operations_total" by executor ["device"] => OPERATIONS,
        /// Operations that the CPU executed alone, because of the policy or as a fallback.
        pub by_cpu: u64 = counter "telpher_mover_operations_total" by executor ["cpu"] => OPERATIONS,
        /// Operations that a device and the CPU executed together.
        pub by_both: u64 = counter "telpher_mover_operations_total" by executor ["both"] => OPERATIONS,
        /// Bytes of the operations that a device executed alone.
        pub device_bytes: u64 = counter(Bytes) "telpher_mover_bytes_total" by executor ["device"] => BYTES,
        /// Bytes of the operations that the CPU executed alone.
        pub cpu_bytes: u64 = counter(Bytes) "telpher_mover_bytes_total" by executor ["cpu"] => BYTES,
        /// Bytes of the operations that both executed.
        pub both_bytes: u64 = counter(Bytes) "telpher_mover_bytes_total" by executor ["both"] => BYTES,
        /// Every queue answered Retry as often as the policy allows.
        pub queues_full: u64 = counter "telpher_mover_fallbacks_total" by reason ["queues full"] => FALLBACKS,
        /// No queue works, or none can execute the operation.
        pub no_queue: u64 = counter "telpher_mover_fallbacks_total" by reason ["no queue"] => FALLBACKS,
        /// The device stopped at a page that was not present.
        pub page_fault: u64 = counter "telpher_mover_fallbacks_total" by reason ["page fault"] => FALLBACKS,
        /// The device ended the descriptor with an error.
        pub refused: u64 = counter "telpher_mover_fallbacks_total" by reason ["error of device"] => FALLBACKS,
        /// Descriptors that queues refused with Retry.
        pub retries: u64 = counter "telpher_mover_retries_total",
        /// Descriptors of single operations that ended with a page fault.
        pub page_faults: u64 = counter "telpher_mover_page_faults_total",
        /// Time in which operations waited for room in full queues, summed over the operations; of channels and `Copies`,
        /// in which the oldest one waited.
        pub waiting: Duration = counter(Seconds) "telpher_mover_full_queue_seconds_total",
        /// Jobs whose buffers are kept.
        pub kept: Stats = set,
    }
}

/// The cells in which all movers of this process count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts(Option<&'static SharedCells<Work>>);

impl Counts {
    /// Returns the cells. The first call maps them, so it must not be made in a signal handler.
    pub(crate) fn of_this_process() -> Counts {
        static CELLS: OnceLock<Option<SharedCells<Work>>> = OnceLock::new();
        let create = || SharedCells::create(words(SharedCells::<Work>::words(STRIPES))?, STRIPES, "").ok();
        // The models of loom count nothing: what they check is between other words.
        Counts(if cfg!(loom) { None } else { CELLS.get_or_init(create).as_ref() })
    }

    /// Adds to a value.
    #[inline]
    pub(crate) fn add(self, position: Position<Work>, more: u64) {
        if let Some(cells) = self.0 {
            cells.add(thread_stripe::of_this_thread(), position, more);
        }
    }

    /// Subtracts from a gauge.
    pub(crate) fn subtract(self, position: Position<Work>, less: u64) {
        if let Some(cells) = self.0 {
            cells.subtract(thread_stripe::of_this_thread(), position, less);
        }
    }
}

/// Returns words that other processes find.
#[cfg(not(loom))]
fn words(words: usize) -> Option<&'static [AtomicU64]> {
    Some(telpher_os::published_words_or_own(words))
}

#[cfg(loom)]
fn words(_words: usize) -> Option<&'static [AtomicU64]> {
    None
}

impl Work {
    /// Returns what all movers of this process have done.
    ///
    /// **Staleness**: each number is right for some moment during the call.
    #[must_use]
    pub fn of_this_process() -> Work {
        Counts::of_this_process().0.map(SharedCells::snapshot).unwrap_or_default()
    }
}
