//! Caches over memory lent by C, and handles to their entries.

use crate::c_structs::CacheStats;
use crate::failure::Failure;
use crate::raw::{CallerMemory, pointer};
use std::ffi::c_void;
use std::time::Duration;
use telpher_cache::{AccessError, Cache as Inner, Handle, Prefetch as Ahead, Priority, ReadPermit};

/// A cache of C's memory. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Cache(Inner<CallerMemory>);

/// A handle to an entry. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Entry {
    handle: Handle<CallerMemory>,
    /// Of versioned bytes: no writer begins as long as the entry has it.
    permit: Option<ReadPermit>,
}

/// A prefetched block. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Prefetch(Ahead<CallerMemory>);

/// The accessed block, or why it was refused.
type Answer<T> = Result<T, AccessError>;

impl Cache {
    pub(crate) fn new(inner: Inner<CallerMemory>) -> Cache {
        Cache(inner)
    }

    /// The same cache.
    pub(crate) fn share(&self) -> Cache {
        Cache(self.0.clone())
    }

    pub(crate) fn access(&self, block: CallerMemory) -> Answer<Entry> {
        self.0.access(&block, 0..block.size()).map(Entry::of)
    }

    pub(crate) fn access_in(&self, tier: usize, block: CallerMemory) -> Answer<Entry> {
        self.0.access_in(tier, &block, 0..block.size()).map(Entry::of)
    }

    pub(crate) fn peek(&self, block: CallerMemory) -> Answer<Option<Entry>> {
        Ok(self.0.peek(&block, 0..block.size())?.map(Entry::of))
    }

    pub(crate) fn prefetch(&self, block: CallerMemory, priority: Priority) -> Answer<Prefetch> {
        self.0.prefetch(&block, 0..block.size(), priority).map(Prefetch)
    }

    /// Removes entries with any of these bytes, and returns when no copy reads them any more.
    pub(crate) fn withdraw(&self, block: CallerMemory) -> Result<usize, Failure> {
        Ok(self.0.withdraw(&block, 0..block.size())?)
    }

    /// Returns whether a copy would lie on another NUMA node than the block; `None` if unknown.
    pub(crate) fn is_apart(&self, block: CallerMemory) -> Answer<Option<bool>> {
        self.0.is_apart(&block, 0..block.size())
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
            fallbacks: stats.fallbacks(),
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

impl Entry {
    fn of(handle: Handle<CallerMemory>) -> Entry {
        Entry { handle, permit: None }
    }

    /// The same entry, which keeps writers away.
    pub(crate) fn with_permit(self, permit: ReadPermit) -> Entry {
        Entry { permit: Some(permit), ..self }
    }

    /// The current address of the bytes, and whether that is the copy.
    #[inline]
    pub(crate) fn location(&self) -> (*const c_void, bool) {
        // A complete copy stays complete: if it is not complete after the address was read, the address was the
        // source's.
        let address = self.handle.address();
        match self.handle.is_fast() {
            true => (pointer(self.handle.address()), true),
            false => (pointer(address), false),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.handle.len()
    }

    pub(crate) fn copy_has_ended(&self) -> bool {
        self.handle.copy_has_ended()
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.handle.is_stale()
    }

    /// Waits until there is nothing left to wait for, or the time has passed; returns true in the first case.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let Some(at_most) = at_most else {
            self.handle.wait_copy();
            return true;
        };
        self.handle.wait_copy_for(at_most)
    }

    pub(crate) fn share(&self) -> Entry {
        Entry { handle: self.handle.clone(), permit: self.permit.clone() }
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
