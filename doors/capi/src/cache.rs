//! Caches over memory that C lends, and handles to their entries.

use crate::failure::Failure;
use crate::raw::{Lent, pointer};
use crate::words::CacheStats;
use std::ffi::c_void;
use std::time::{Duration, Instant};
use telpher_cache::{AccessError, Cache as Inner, Handle, Prefetch as Ahead, Priority};
use telpher_mover::Mover;

/// A cache of C's memory. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Cache(Inner<Lent>);

/// A handle to an entry. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Entry(Handle<Lent>);

/// Something that was asked for ahead of time. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Prefetch(Ahead<Lent>);

/// What was asked for, or why it cannot be had.
type Answer<T> = Result<T, AccessError>;

impl Cache {
    pub(crate) fn new(inner: Inner<Lent>) -> Cache {
        Cache(inner)
    }

    pub(crate) fn access(&self, block: Lent) -> Answer<Entry> {
        self.0.access(&block, 0..block.size()).map(Entry)
    }

    pub(crate) fn access_in(&self, tier: usize, block: Lent) -> Answer<Entry> {
        self.0.access_in(tier, &block, 0..block.size()).map(Entry)
    }

    pub(crate) fn peek(&self, block: Lent) -> Answer<Option<Entry>> {
        Ok(self.0.peek(&block, 0..block.size())?.map(Entry))
    }

    pub(crate) fn prefetch(&self, block: Lent, priority: Priority) -> Answer<Prefetch> {
        self.0.prefetch(&block, 0..block.size(), priority).map(Prefetch)
    }

    /// Forgets what has any of these bytes, and returns when nobody reads them for the cache any more.
    pub(crate) fn withdraw(&self, block: Lent) -> Result<usize, Failure> {
        let gone = self.0.withdraw(&block, 0..block.size())?;
        // Copies of entries that were forgotten while nobody waited for them are the mover's.
        if settles(self.0.mover()) {
            return Ok(gone);
        }
        let why =
            "a device has not answered for a copy that was given up, and may still read its source; try again later";
        Err(Failure::Not(libc::EBUSY, why))
    }

    pub(crate) fn flush(&self) -> usize {
        self.0.flush()
    }

    pub(crate) fn clear(&self) -> usize {
        self.0.clear()
    }

    pub(crate) fn drive(&self) {
        self.0.drive();
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let stats = self.0.stats();
        CacheStats {
            hits: stats.hits,
            misses: stats.misses,
            weak_misses: stats.weak_misses,
            prefetches: stats.prefetches,
            cancelled: stats.cancelled,
            copies: stats.copies,
            bytes_copied: stats.bytes_copied,
            fallbacks: stats.fallbacks,
            evictions: stats.evictions,
            invalidations: stats.invalidations,
            entries: stats.entries,
            in_flight: stats.in_flight,
            waiting: stats.waiting,
            bytes: stats.bytes,
            reserved: [0; 4],
        }
    }
}

/// Waits until a mover has no abandoned operation left, at most the time it lingers; true if so.
pub(crate) fn settles(mover: &Mover) -> bool {
    let mut end = None;
    while mover.orphaned() > 0 {
        mover.drive();
        if Instant::now() >= *end.get_or_insert_with(|| Instant::now() + mover.policy().linger) {
            return mover.orphaned() == 0;
        }
        std::thread::yield_now();
    }
    true
}

impl Entry {
    /// Where the bytes are at the moment, and whether that is the copy.
    #[inline]
    pub(crate) fn location(&self) -> (*const c_void, bool) {
        // A copy that is there stays: if it is not after the address was taken, that was the source's.
        let address = self.0.address();
        match self.0.is_fast() {
            true => (pointer(self.0.address()), true),
            false => (pointer(address), false),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.0.is_settled()
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.0.is_stale()
    }

    /// Waits until there is nothing to wait for, or a time has passed; true if it was the former.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let Some(at_most) = at_most else {
            self.0.settle();
            return true;
        };
        let begun = Instant::now();
        while !self.0.is_settled() {
            if begun.elapsed() >= at_most {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    pub(crate) fn share(&self) -> Entry {
        Entry(self.0.clone())
    }
}

impl Prefetch {
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_there()
    }

    pub(crate) fn cancel(self) -> bool {
        self.0.cancel()
    }
}
