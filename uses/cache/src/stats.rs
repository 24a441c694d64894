//! Counters that threads update without contention.

use crate::sync::{AtomicU64, Ordering, thread_number};
use crossbeam_utils::CachePadded;

/// What a cache has done and contains. It has no times: callers measure those.
///
/// **Staleness**: each number is right for some moment during the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Accesses that found an entry, with its copy complete or in flight.
    pub hits: u64,
    /// Accesses that found no entry.
    pub misses: u64,
    /// Misses that requested no copy ([`Cache::peek`](crate::Cache::peek)); included in `misses`.
    pub weak_misses: u64,
    /// Prefetched blocks.
    pub prefetches: u64,
    /// Prefetches that were cancelled before their copy began; included in `prefetches`.
    pub cancelled: u64,
    /// Copies that succeeded.
    pub copies: u64,
    /// Bytes of these copies.
    pub bytes_copied: u64,
    /// Blocks that stayed in their source, because no memory was free or the copy failed.
    pub fallbacks: u64,
    /// Entries that were evicted because memory was needed.
    pub evictions: u64,
    /// Entries that were removed because their source was changed.
    pub invalidations: u64,
    /// Present entries.
    pub entries: u64,
    /// Copies in flight.
    pub in_flight: u64,
    /// Requested blocks whose copy has not begun.
    pub waiting: u64,
    /// Bytes lent by the pools: to entries, to copies in flight, and to handles of removed entries.
    pub bytes: u64,
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

/// A counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Hits,
    Misses,
    WeakMisses,
    Prefetches,
    Cancelled,
    Copies,
    BytesCopied,
    Fallbacks,
    Evictions,
    Invalidations,
}

const COUNTS: usize = Count::Invalidations as usize + 1;

/// Threads with separate counters; more threads share them. Source: assumed, as many as use one cache at a time on one
/// node.
const STRIPES: usize = 32;

/// The counters of a cache.
#[derive(Debug)]
pub(crate) struct Counters(Box<[CachePadded<[AtomicU64; COUNTS]>]>);

impl Counters {
    pub(crate) fn new() -> Self {
        Counters((0..STRIPES).map(|_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)))).collect())
    }

    #[inline]
    pub(crate) fn add(&self, what: Count, more: u64) {
        // Relaxed: a counter, nothing more.
        self.0[thread_number() % STRIPES][what as usize].fetch_add(more, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn one(&self, what: Count) {
        self.add(what, 1);
    }

    /// Returns the sums; present amounts, which are not counted here, are zero.
    pub(crate) fn read(&self) -> Stats {
        let sum = |what: Count| self.0.iter().map(|stripe| stripe[what as usize].load(Ordering::Relaxed)).sum();
        Stats {
            hits: sum(Count::Hits),
            misses: sum(Count::Misses),
            weak_misses: sum(Count::WeakMisses),
            prefetches: sum(Count::Prefetches),
            cancelled: sum(Count::Cancelled),
            copies: sum(Count::Copies),
            bytes_copied: sum(Count::BytesCopied),
            fallbacks: sum(Count::Fallbacks),
            evictions: sum(Count::Evictions),
            invalidations: sum(Count::Invalidations),
            ..Stats::default()
        }
    }
}
