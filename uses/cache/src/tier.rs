//! The entries of one tier of memory: searched by many threads at once; `tier/eviction.rs` evicts them.
//!
//! Locks are taken in this order, each only while lists change: the schedule's, then `entries`, then `outside`;
//! `victims` alone. No user code runs under a lock: not the drop of a source, obtaining or returning memory, or a
//! custom policy.

mod eviction;

use crate::config::Eviction;
use crate::entry::Entry;
use crate::index::{Index, Span, Spanning};
use crate::reads::ActiveReads;
use crate::schedule::Schedule;
use crate::source::Source;
use crate::stats::Counters;
use crate::sync::{AtomicU32, Ordering};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use eviction::Victim;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use telpher_mem::Pool;
use telpher_mover::Mover;

/// The data shared by all tiers of a cache.
#[derive(Debug)]
pub(crate) struct Shared<S: Source> {
    pub(crate) mover: Mover,
    pub(crate) counters: Counters,
    pub(crate) schedule: Schedule<S>,
    pub(crate) reads: Arc<ActiveReads<Span>>,
    pub(crate) eviction: Eviction,
}

type Entries<S> = Index<Arc<Entry<S>>>;

#[derive(Debug)]
pub(crate) struct Tier<S: Source> {
    /// The number of this tier in its cache.
    number: usize,
    pool: Pool,
    shared: Arc<Shared<S>>,
    /// Readers lock one of several shards, so that they do not contend.
    entries: ShardedLock<Entries<S>>,
    /// The number of entries added, wrapping: the clock by which entries age.
    insertions: AtomicU32,
    /// Entries that left the index and may still be used: they can become stale.
    outside: Mutex<Outside<S>>,
    /// The next entries to evict, in reverse order.
    victims: Mutex<Vec<Victim<S>>>,
    /// The number of searches for room for a prefetch to skip, since the last search found none ([`Tier::room_ahead`]).
    skipped_searches: AtomicU32,
}

#[derive(Debug)]
struct Outside<S: Source> {
    entries: Vec<Weak<Entry<S>>>,
    /// Dropped entries are removed when the list reaches this length.
    tidy_at: usize,
}

impl<S: Source> Outside<S> {
    fn tidy(&mut self) {
        self.entries.retain(|entry| entry.strong_count() > 0);
        self.entries.shrink_to(2 * self.entries.len());
        self.tidy_at = TIDY.max(2 * self.entries.len());
    }
}

/// The number of outside entries below which cleaning is not worthwhile. Source: assumed.
const TIDY: usize = 64;

impl<S: Source> Tier<S> {
    pub(crate) fn new(number: usize, pool: Pool, shared: &Arc<Shared<S>>) -> Arc<Self> {
        Arc::new(Tier {
            number,
            pool,
            shared: Arc::clone(shared),
            entries: ShardedLock::new(Index::new()),
            insertions: AtomicU32::new(0),
            outside: Mutex::new(Outside { entries: Vec::new(), tidy_at: TIDY }),
            victims: Mutex::new(Vec::new()),
            skipped_searches: AtomicU32::new(0),
        })
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<S>> {
        &self.shared
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    // A panic under these locks leaves the lists consistent: they change by single insertions and removals.
    fn entries(&self) -> ShardedLockReadGuard<'_, Entries<S>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_mut(&self) -> ShardedLockWriteGuard<'_, Entries<S>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn victims(&self) -> MutexGuard<'_, Vec<Victim<S>>> {
        self.victims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entry that contains all of a range, and notes its use.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Option<Arc<Entry<S>>> {
        let entry = Arc::clone(self.entries().find(span)?);
        self.used(&entry);
        Some(entry)
    }

    #[inline]
    fn used(&self, entry: &Entry<S>) {
        if !matches!(self.shared.eviction, Eviction::FirstCome) {
            entry.touch(self.insertions.load(Ordering::Relaxed));
        }
        entry.read();
    }

    /// Returns the entry without noting a use.
    pub(crate) fn look(&self, span: Span) -> Option<Arc<Entry<S>>> {
        self.entries().find(span).cloned()
    }

    /// Adds an entry, unless there is one by now; then returns that one, and notes its use if `uses`.
    pub(crate) fn insert(&self, entry: Arc<Entry<S>>, uses: bool) -> Result<Arc<Entry<S>>, Arc<Entry<S>>> {
        let mut entries = self.entries_mut();
        if let Some(there) = entries.find(entry.own_span()) {
            let there = Arc::clone(there);
            drop(entries);
            if uses {
                self.used(&there);
            }
            return Err(there);
        }
        // The number before its own, so that any use after its arrival is later.
        entry.touch(self.insertions.fetch_add(1, Ordering::Relaxed));
        let before = entries.insert(Arc::clone(&entry));
        self.remember_outside(&before);
        drop(entries);
        Ok(entry)
    }

    /// Remembers entries that leave the index, because they can still become stale or be withdrawn. Must be called
    /// before the lock of the index is released; also for unused entries, because a thread that begins copies may have
    /// found one in between.
    fn remember_outside<'a>(&self, gone: impl IntoIterator<Item = &'a Arc<Entry<S>>>)
    where
        S: 'a,
    {
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        outside.entries.extend(gone.into_iter().map(Arc::downgrade));
        if outside.entries.len() >= outside.tidy_at {
            outside.tidy();
        }
    }

    /// Returns the entries with a byte of a range that have left the index and are still in use.
    pub(crate) fn outside(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = outside.entries.iter().filter_map(Weak::upgrade).collect();
        drop(outside);
        all.retain(|entry| entry.own_span().overlaps(span));
        all
    }

    /// Removes an entry whose bytes stay in the source.
    pub(crate) fn forget(&self, entry: &Entry<S>) {
        let gone = self.entries_mut().remove(entry.own_span(), |there| std::ptr::eq(&raw const **there, entry));
        drop(gone);
    }

    /// Removes and returns all entries with a byte of a range, and marks them stale for their users.
    pub(crate) fn invalidate(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let mut entries = self.entries_mut();
        let gone = entries.overlapping(span);
        for entry in &gone {
            entries.remove(entry.own_span(), |there| Arc::ptr_eq(there, entry));
            entry.make_stale();
        }
        self.remember_outside(&gone);
        let outside = self.outside(span);
        drop(entries);
        outside.iter().for_each(|entry| entry.make_stale());
        gone
    }

    /// Removes the unused entries, or all; returns how many.
    pub(crate) fn clear(&self, used_too: bool) -> usize {
        let mut entries = self.entries_mut();
        let is_unused = |entry: &&Arc<Entry<S>>| used_too || Arc::strong_count(entry) == 1;
        let spans: Vec<Span> = entries.iter().filter(is_unused).map(Spanning::span).collect();
        let gone: Vec<_> = spans.into_iter().filter_map(|span| entries.remove(span, |_| true)).collect();
        self.remember_outside(&gone);
        drop(entries);
        let count = gone.len();
        drop(gone);
        // The unused entries are dropped by now.
        self.outside.lock().unwrap_or_else(PoisonError::into_inner).tidy();
        count
    }
}
