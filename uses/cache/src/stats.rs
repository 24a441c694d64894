//! Counters that threads update without contention, in memory that other processes can read.

use crate::sync::thread_number;
use telpher_metrics::{CellsOfObject, ObjectCells, Position, metrics};
use telpher_os::Lineage;

/// The help of blocks that stayed in their source.
const FALLBACKS: &str = "Blocks that stayed in their source, by reason.";

metrics! {
    /// What a cache has done and contains. It has no times: callers measure those.
    ///
    /// **Staleness**: each number is right for some moment during the call.
    #[non_exhaustive]
    pub struct Stats {
        /// Accesses that found an entry, with its copy complete or in flight.
        pub hits: u64 = counter "telpher_cache_hits_total",
        /// Accesses that found no entry.
        pub misses: u64 = counter "telpher_cache_misses_total",
        /// Misses that requested no copy (`Cache::peek`); included in the misses.
        pub weak_misses: u64 = counter "telpher_cache_weak_misses_total",
        /// Prefetched blocks.
        pub prefetches: u64 = counter "telpher_cache_prefetches_total",
        /// Prefetches that were cancelled before their copy began; included in the prefetches.
        pub cancelled: u64 = counter "telpher_cache_cancelled_prefetches_total",
        /// Copies that succeeded.
        pub copies: u64 = counter "telpher_cache_copies_total",
        /// Bytes of copies that succeeded.
        pub bytes_copied: u64 = counter(Bytes) "telpher_cache_copied_bytes_total",
        /// Blocks that stayed in their source because no memory was free.
        pub no_memory: u64 = counter "telpher_cache_fallbacks_total" by reason ["no memory"] => FALLBACKS,
        /// Blocks that stayed in their source because the copy failed.
        pub failed_copies: u64 = counter "telpher_cache_fallbacks_total" by reason ["copy failed"] => FALLBACKS,
        /// Entries that were evicted because memory was needed.
        pub evictions: u64 = counter "telpher_cache_evictions_total",
        /// Entries that were removed because their source was changed.
        pub invalidations: u64 = counter "telpher_cache_invalidations_total",
        /// Present entries.
        pub entries: u64 = gauge "telpher_cache_entries",
        /// Copies in flight.
        pub in_flight: u64 = gauge "telpher_cache_copies_in_flight",
        /// Requested blocks whose copy has not begun.
        pub waiting: u64 = gauge "telpher_cache_waiting_blocks",
        /// Bytes lent by the pools: to entries, to copies in flight, and to handles of removed entries.
        pub bytes: u64 = gauge(Bytes) "telpher_cache_lent_bytes",
    }
}

impl Stats {
    /// Returns the number of blocks that stayed in their source, for any reason.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.no_memory.saturating_add(self.failed_copies)
    }

    /// Returns the fraction of accesses that found an entry; none if there were no accesses.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// Threads with separate counters; more threads share them. Source: assumed, as many as use one cache at a time on one
/// node.
const STRIPES: usize = 32;

/// The counters of all caches of this process. The present amounts are not among them: a cache computes them when it is
/// asked.
static PUBLISHED: ObjectCells<telpher_metrics::Counters<Stats>> = ObjectCells::new(words);

/// Returns words that other processes find.
#[cfg(not(loom))]
fn words(words: usize) -> &'static [telpher_metrics::AtomicU64] {
    telpher_os::published_words_or_own(words)
}

/// The models of loom publish nothing.
#[cfg(loom)]
fn words(words: usize) -> &'static [telpher_metrics::AtomicU64] {
    Box::leak((0..words).map(|_| telpher_metrics::AtomicU64::new(0)).collect())
}

/// The counters of a cache. A forked child counts in its parent's.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Always some until the drop.
    cells: Option<CellsOfObject<telpher_metrics::Counters<Stats>>>,
    created_in: Lineage,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Counters { cells: Some(PUBLISHED.claim(STRIPES)), created_in: Lineage::current() }
    }

    #[inline]
    pub(crate) fn add(&self, what: Position<Stats>, more: u64) {
        if let Some(cells) = &self.cells {
            cells.add(thread_number(), what.of_counter(), more);
        }
    }

    #[inline]
    pub(crate) fn one(&self, what: Position<Stats>) {
        self.add(what, 1);
    }

    /// Returns the sums; present amounts, which are not counted here, are zero.
    pub(crate) fn read(&self) -> Stats {
        self.cells.as_ref().map(|cells| cells.snapshot().0).unwrap_or_default()
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if let Some(cells) = self.cells.take()
            && self.created_in.is_current()
        {
            cells.end();
        }
    }
}
