//! Counters that threads update without contention.

use crate::sync::thread_number;
use telpher_metrics::{Cells, Position, metrics};

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
        /// Blocks that stayed in their source, because no memory was free or the copy failed.
        pub fallbacks: u64 = counter "telpher_cache_fallbacks_total",
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

/// The counters of a cache.
#[derive(Debug)]
pub(crate) struct Counters(Cells<Stats>);

impl Counters {
    pub(crate) fn new() -> Self {
        Counters(Cells::new(STRIPES))
    }

    #[inline]
    pub(crate) fn add(&self, what: Position<Stats>, more: u64) {
        self.0.add(thread_number(), what, more);
    }

    #[inline]
    pub(crate) fn one(&self, what: Position<Stats>) {
        self.add(what, 1);
    }

    /// Returns the sums; present amounts, which are not counted here, are zero.
    pub(crate) fn read(&self) -> Stats {
        self.0.snapshot()
    }
}
