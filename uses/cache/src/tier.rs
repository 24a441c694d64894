//! The entries of one kind of memory: looked up by many at once, let go of when memory is needed.

use crate::config::Eviction;
use crate::entry::{Copied, Entry, Resident};
use crate::index::{Index, Span, Spanning};
use crate::schedule::Schedule;
use crate::source::Source;
use crate::stats::{Count, Counters};
use crate::sync::{AtomicU32, Ordering};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use telpher_mem::{Piece, Pool};
use telpher_mover::Mover;

/// What all tiers of a cache have in common.
#[derive(Debug)]
pub(crate) struct Shared<S: Source> {
    pub(crate) mover: Mover,
    pub(crate) counters: Counters,
    pub(crate) schedule: Schedule<S>,
    pub(crate) eviction: Eviction,
}

type Entries<S> = Index<Arc<Entry<S>>>;

#[derive(Debug)]
pub(crate) struct Tier<S: Source> {
    pool: Pool,
    shared: Arc<Shared<S>>,
    /// Readers lock one of several parts, so that they do not meet.
    entries: ShardedLock<Entries<S>>,
    /// Entries that came, wrapping: the clock by which they age.
    came: AtomicU32,
    /// Entries that left the index and that somebody may still use: they can become stale.
    outside: Mutex<Vec<Weak<Entry<S>>>>,
    /// Those to go next, last first, and when each was used when it was chosen.
    victims: Mutex<Vec<(u32, Weak<Entry<S>>)>>,
}

/// Victims chosen at a time: looking for them passes all entries. Source: derived, a sixteenth of them at least makes it sixteen
/// looks for each that goes.
const VICTIMS: usize = 64;
const VICTIMS_PART: usize = 16;

impl<S: Source> Tier<S> {
    pub(crate) fn new(pool: Pool, shared: &Arc<Shared<S>>) -> Arc<Self> {
        Arc::new(Tier {
            pool,
            shared: Arc::clone(shared),
            entries: ShardedLock::new(Index::new()),
            came: AtomicU32::new(0),
            outside: Mutex::new(Vec::new()),
            victims: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<S>> {
        &self.shared
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }

    // A panic under these locks leaves an index that is whole: it changes by single insertions and removals.
    fn read(&self) -> ShardedLockReadGuard<'_, Entries<S>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> ShardedLockWriteGuard<'_, Entries<S>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry that has all of a range, which is used by this.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Option<Arc<Entry<S>>> {
        let entry = Arc::clone(self.read().find(span)?);
        if !matches!(self.shared.eviction, Eviction::FirstCome) {
            entry.touch(self.came.load(Ordering::Relaxed));
        }
        Some(entry)
    }

    /// Has an entry kept, unless there is one meanwhile; then that one, used by this if it `uses` it.
    pub(crate) fn insert(&self, entry: Arc<Entry<S>>, uses: bool) -> Result<Arc<Entry<S>>, Arc<Entry<S>>> {
        let mut entries = self.write();
        if let Some(there) = entries.find(entry.span()) {
            let there = Arc::clone(there);
            drop(entries);
            if uses {
                there.touch(self.came.load(Ordering::Relaxed));
            }
            return Err(there);
        }
        // The number before its own, so that whoever is used after it came is later.
        entry.stamp(self.came.fetch_add(1, Ordering::Relaxed));
        let before = entries.insert(Arc::clone(&entry));
        if before.is_some() {
            self.keep_in_mind(before.iter());
        }
        drop(entries);
        Ok(entry)
    }

    /// Forgets an entry whose bytes stayed where they were.
    pub(crate) fn forget(&self, entry: &Entry<S>) {
        let gone = self.write().remove(entry.own_span(), |there| std::ptr::eq(&raw const **there, entry));
        drop(gone);
    }

    /// Those that leave the index unmarked can still become stale. To be called before the lock of the index is given back.
    fn keep_in_mind<'a>(&self, gone: impl Iterator<Item = &'a Arc<Entry<S>>>)
    where
        S: 'a,
    {
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        outside.retain(|entry| entry.strong_count() > 0);
        outside.extend(gone.map(Arc::downgrade));
    }

    /// Those with a byte of a range that have left the index and that somebody still uses.
    pub(crate) fn outside(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        outside.iter().filter_map(Weak::upgrade).filter(|entry| entry.span().overlaps(span)).collect()
    }

    /// Forgets all that have a byte of a range, and marks them stale for those who use them; these are they.
    pub(crate) fn invalidate(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let mut entries = self.write();
        let gone: Vec<Arc<Entry<S>>> = entries.overlapping(span).cloned().collect();
        for entry in &gone {
            entries.remove(entry.span(), |_| true);
            entry.make_stale();
        }
        let outside = self.outside(span);
        drop(entries);
        outside.iter().for_each(|entry| entry.make_stale());
        gone
    }

    /// Forgets the entries that nobody uses, or all; how many.
    pub(crate) fn clear(&self, used_too: bool) -> usize {
        let mut entries = self.write();
        let is_unused = |entry: &&Arc<Entry<S>>| used_too || Arc::strong_count(entry) == 1;
        let spans: Vec<Span> = entries.iter().filter(is_unused).map(Spanning::span).collect();
        let gone: Vec<_> = spans.into_iter().filter_map(|span| entries.remove(span, |_| true)).collect();
        // The unused ones, too: who begins copies may have come upon one in between.
        self.keep_in_mind(gone.iter());
        drop(entries);
        let count = gone.len();
        drop(gone);
        // Those that nobody had are gone by now.
        self.keep_in_mind(std::iter::empty());
        count
    }

    /// Memory for a block; unused entries go for it, those that were fetched ahead and not used yet only if `unread_too`.
    pub(crate) fn room(&self, len: usize, unread_too: bool) -> Option<Piece> {
        if self.pool.capacity().is_some_and(|capacity| capacity < len) {
            return None;
        }
        loop {
            if let Some(piece) = self.pool.obtain(len) {
                return Some(piece);
            }
            if !self.evict(unread_too) {
                // What was let go of by others in between.
                return self.pool.obtain(len);
            }
        }
    }

    /// Lets go of the one entry that the policy says.
    fn evict(&self, unread_too: bool) -> bool {
        let mut victims = self.victims.lock().unwrap_or_else(PoisonError::into_inner);
        for chosen_anew in [false, true] {
            if chosen_anew {
                *victims = self.choose(unread_too);
            }
            while let Some((used, entry)) = victims.pop() {
                let Some(entry) = entry.upgrade() else { continue };
                // Used since: then others are older. Unread ones are chosen last, so nobody is passed over for good.
                if entry.used() != used || !unread_too && entry.resident(0).unread {
                    continue;
                }
                let mut entries = self.write();
                // Two: the index and this. Nobody gets another without this lock or a handle, which would be the third.
                if Arc::strong_count(&entry) != 2 {
                    continue;
                }
                let gone = entries.remove(entry.span(), |there| Arc::ptr_eq(there, &entry));
                drop(entries);
                if gone.is_some() {
                    self.shared.counters.one(Count::Evictions);
                    return true;
                }
            }
        }
        false
    }

    /// Those to go next, last first.
    fn choose(&self, unread_too: bool) -> Vec<(u32, Weak<Entry<S>>)> {
        let now = self.came.load(Ordering::Relaxed);
        let entries = self.read();
        let worth = |resident: &Resident| match &self.shared.eviction {
            Eviction::LeastRecentlyUsed | Eviction::FirstCome => u64::from(!resident.age),
            Eviction::Largest => !resident.len,
            Eviction::Worth(worth) => worth(resident),
        };
        let mut unused: Vec<_> = entries
            .iter()
            .filter(|entry| Arc::strong_count(entry) == 1 && matches!(entry.copied(), Some(Copied::Fast(_))))
            .filter_map(|entry| {
                let resident = entry.resident(now);
                (unread_too || !resident.unread).then(|| ((resident.unread, worth(&resident), resident.address), entry))
            })
            .collect();
        let most = VICTIMS.max(unused.len() / VICTIMS_PART);
        if unused.len() > most {
            unused.select_nth_unstable_by_key(most, |(order, _)| *order);
            unused.truncate(most);
        }
        unused.sort_unstable_by_key(|(order, _)| Reverse(*order));
        unused.into_iter().map(|(_, entry)| (entry.used(), Arc::downgrade(entry))).collect()
    }
}
