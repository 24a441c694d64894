//! What has happened, counted without threads getting into each other's way.

use crate::sync::{AtomicU64, Ordering, thread_number};
use crossbeam_utils::CachePadded;

/// What a cache has done and has. Times are not among them: they are the caller's.
///
/// **Staleness**: each number is right for some moment during the call that asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Accesses that found an entry, be its copy there or under way.
    pub hits: u64,
    /// Accesses that found none.
    pub misses: u64,
    /// Of the misses, those that asked for nothing to be copied ([`Cache::peek`](crate::Cache::peek)).
    pub weak_misses: u64,
    /// Blocks asked for ahead of time.
    pub prefetches: u64,
    /// Of these, those that were cancelled before their copy began.
    pub cancelled: u64,
    /// Copies that ended well.
    pub copies: u64,
    /// Bytes they brought.
    pub bytes_copied: u64,
    /// Blocks that stayed where they were, because no memory was free or the copy failed.
    pub fallbacks: u64,
    /// Entries that had to go because memory was needed.
    pub evictions: u64,
    /// Entries that went because their source was changed.
    pub invalidations: u64,
    /// Entries there are.
    pub entries: u64,
    /// Copies under way.
    pub in_flight: u64,
    /// Blocks asked for whose copy has not begun.
    pub waiting: u64,
    /// Bytes of the pools that are lent: to entries, to copies under way, and to handles of entries that are gone.
    pub bytes: u64,
}

impl Stats {
    /// Accesses that found an entry, of all; nothing if there were none.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// One thing that is counted.
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

/// Threads that count apart from each other; more share. Source: assumed, as many as use one cache at a time on one node.
const STRIPES: usize = 32;

/// The counts of a cache.
#[derive(Debug)]
pub(crate) struct Counters(Box<[CachePadded<[AtomicU64; COUNTS]>]>);

impl Counters {
    pub(crate) fn new() -> Self {
        Counters((0..STRIPES).map(|_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)))).collect())
    }

    #[inline]
    pub(crate) fn add(&self, what: Count, more: u64) {
        // Relaxed: counted, nothing more.
        self.0[thread_number() % STRIPES][what as usize].fetch_add(more, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn one(&self, what: Count) {
        self.add(what, 1);
    }

    /// Summed; what is there and not counted is left at zero.
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
