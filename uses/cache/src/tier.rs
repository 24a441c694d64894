//! The entries of one tier of memory: searched by many threads at once, evicted when memory is needed.
//!
//! Locks are taken in this order, each only while lists change: the schedule's, then `entries`, then `outside`;
//! `victims` alone. No user code runs under a lock: not the drop of a source, obtaining or returning memory, or a
//! custom policy.

use crate::config::Eviction;
use crate::entry::{Entry, Resident};
use crate::index::{Index, Span, Spanning};
use crate::reads::ActiveReads;
use crate::schedule::Schedule;
use crate::source::Source;
use crate::stats::{Counters, Stats};
use crate::sync::{AtomicU32, Ordering};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use telpher_mem::{Pool, PoolBuffer};
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

/// An entry, and its last use at the time when it was chosen.
type Victim<S> = (u32, Weak<Entry<S>>);

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

/// The number of victims chosen at once; choosing passes over all entries. Source: derived: at least a sixteenth of the
/// entries makes it sixteen checks per eviction.
const VICTIMS: usize = 64;
const VICTIMS_PART: usize = 16;

/// Entries checked for each unsuccessful search for room. Source: assumed; checking as many takes about a microsecond.
const LOOKS: usize = 256;

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

    /// Returns memory for a block, evicting unused entries for it.
    pub(crate) fn room(&self, len: usize) -> Option<PoolBuffer> {
        self.room_by(len, true)
    }

    /// Like [`room`](Tier::room) for a prefetch: other prefetched entries that were not used yet are not evicted for
    /// it.
    ///
    /// When all entries were checked and none could be evicted, the next searches are skipped, one for each [`LOOKS`]
    /// entries, so that repeated prefetches do not pay for them.
    pub(crate) fn room_ahead(&self, len: usize) -> Option<PoolBuffer> {
        // Relaxed: the number of searches affects nothing else. Two threads at once must not count below zero.
        if self
            .skipped_searches
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |skipped_searches| skipped_searches.checked_sub(1))
            .is_ok()
        {
            return self.pool.obtain(len);
        }
        let room = self.room_by(len, false);
        if room.is_none() {
            self.skipped_searches.store(u32::try_from(self.len() / LOOKS).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        room
    }

    fn room_by(&self, len: usize, unread_too: bool) -> Option<PoolBuffer> {
        if self.pool.capacity().is_some_and(|capacity| capacity < len) {
            return None;
        }
        if let Some(piece) = self.pool.obtain(len) {
            return Some(piece);
        }
        // Memory of dropped copies comes back when the mover checks them, and only this call makes it do so.
        if self.shared.mover.orphaned() > 0 {
            self.shared.mover.reclaim();
        }
        loop {
            if let Some(piece) = self.pool.obtain(len) {
                return Some(piece);
            }
            let Some(gone) = self.evict(unread_too) else {
                // Other threads may have released memory in between.
                return self.pool.obtain(len);
            };
            drop(gone);
        }
    }

    /// Removes and returns the entry that the policy evicts next.
    fn evict(&self, unread_too: bool) -> Option<Arc<Entry<S>>> {
        let mut chosen_anew = false;
        loop {
            let next = self.victims().pop();
            let next = match next {
                Some(next) => next,
                None if chosen_anew => return None,
                None => {
                    chosen_anew = true;
                    // One is kept here, so that other threads cannot take all that this search found.
                    let mut chosen = self.choose(unread_too);
                    let next = chosen.pop()?;
                    let before = std::mem::replace(&mut *self.victims(), chosen);
                    drop(before);
                    next
                }
            };
            if let Some(gone) = self.evict_if_unused(next, unread_too) {
                return Some(gone);
            }
        }
    }

    /// Removes an entry if it has not been used since it was chosen.
    fn evict_if_unused(&self, (used, entry): Victim<S>, unread_too: bool) -> Option<Arc<Entry<S>>> {
        let entry = entry.upgrade()?;
        // If it was used since, others are older. Unused prefetches are chosen last, so no entry is skipped for good.
        if entry.used() != used || !unread_too && entry.is_unread() {
            return None;
        }
        let mut entries = self.entries_mut();
        // Two references: the index and this one. Another one is created only under this lock or from a handle, which
        // would be the third.
        if Arc::strong_count(&entry) != 2 {
            drop(entries);
            return None;
        }
        let gone = entries.remove(entry.own_span(), |there| Arc::ptr_eq(there, &entry));
        drop(entries);
        gone.inspect(|_| self.shared.counters.one(Stats::AT.evictions))
    }

    /// Returns the next entries to evict, in reverse order.
    fn choose(&self, unread_too: bool) -> Vec<Victim<S>> {
        let now = self.insertions.load(Ordering::Relaxed);
        let is_unused = |entry: &&Arc<Entry<S>>| Arc::strong_count(entry) == 1 && entry.is_fast();
        let unused: Vec<_> =
            self.entries().iter().filter(is_unused).map(|entry| (entry.resident(now), entry.used())).collect();
        // Without a lock, because it may be user code.
        let worth = |resident: &Resident| match &self.shared.eviction {
            Eviction::LeastRecentlyUsed | Eviction::FirstCome => u64::from(!resident.age),
            Eviction::Largest => !resident.len,
            Eviction::Worth(worth) => worth(resident),
        };
        let order = |(resident, used): (Resident, u32)| {
            ((resident.unread, worth(&resident), resident.address, resident.len), used)
        };
        let ahead_of_time = |(resident, _): &(Resident, u32)| unread_too || !resident.unread;
        let mut unused: Vec<_> = unused.into_iter().filter(ahead_of_time).map(order).collect();
        let most = VICTIMS.max(unused.len() / VICTIMS_PART);
        if unused.len() > most {
            unused.select_nth_unstable_by_key(most, |(order, _)| *order);
            unused.truncate(most);
        }
        unused.sort_unstable_by_key(|(order, _)| Reverse(*order));
        let entries = self.entries();
        let victim = |((_, _, start, len), used)| Some((used, Arc::downgrade(entries.get(Span { start, len })?)));
        unused.into_iter().filter_map(victim).collect()
    }
}
