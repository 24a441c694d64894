//! The entries of one kind of memory: looked up by many at once, let go of when memory is needed.
//!
//! Locks are taken in this order, each only as long as lists change: the schedule's, then `entries`, then `outside`; `victims` alone.
//! Nothing that could be a user's (a source that goes, memory that is obtained or given back, the policy's own function) happens under
//! any of them.

use crate::config::Eviction;
use crate::entry::{Entry, Resident};
use crate::index::{Index, Span, Spanning};
use crate::reads::Reads;
use crate::schedule::Schedule;
use crate::source::Source;
use crate::stats::{Count, Counters};
use crate::sync::{AtomicU32, Ordering};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use telpher_mem::{Piece, Pool};
use telpher_mover::Mover;

/// What all tiers of a cache have in common.
#[derive(Debug)]
pub(crate) struct Shared<S: Source> {
    pub(crate) mover: Mover,
    pub(crate) counters: Counters,
    pub(crate) schedule: Schedule<S>,
    pub(crate) reads: Arc<Reads<Span>>,
    pub(crate) eviction: Eviction,
}

type Entries<S> = Index<Arc<Entry<S>>>;

/// An entry, and when it was used when it was chosen.
type Victim<S> = (u32, Weak<Entry<S>>);

#[derive(Debug)]
pub(crate) struct Tier<S: Source> {
    /// Which of its cache's tiers it is.
    number: usize,
    pool: Pool,
    shared: Arc<Shared<S>>,
    /// Readers lock one of several parts, so that they do not meet.
    entries: ShardedLock<Entries<S>>,
    /// Entries that came, wrapping: the clock by which they age.
    came: AtomicU32,
    /// Entries that left the index and that somebody may still use: they can become stale.
    outside: Mutex<Outside<S>>,
    /// Those to go next, last first.
    victims: Mutex<Vec<Victim<S>>>,
    /// Looks for room for what is fetched ahead that are left out, since the last found none ([`Tier::room_ahead`]).
    rests: AtomicU32,
}

#[derive(Debug)]
struct Outside<S: Source> {
    entries: Vec<Weak<Entry<S>>>,
    /// Cleared of those that are gone when it has as many.
    tidy_at: usize,
}

impl<S: Source> Outside<S> {
    fn tidy(&mut self) {
        self.entries.retain(|entry| entry.strong_count() > 0);
        self.entries.shrink_to(2 * self.entries.len());
        self.tidy_at = TIDY.max(2 * self.entries.len());
    }
}

/// Victims chosen at a time: looking for them passes all entries. Source: derived, a sixteenth of them at least makes it sixteen
/// looks for each that goes.
const VICTIMS: usize = 64;
const VICTIMS_PART: usize = 16;

/// Entries that are looked at for each look for room that finds none. Source: assumed; as many take about a microsecond.
const LOOKS: usize = 256;

/// Entries outside that are not worth clearing. Source: assumed.
const TIDY: usize = 64;

impl<S: Source> Tier<S> {
    pub(crate) fn new(number: usize, pool: Pool, shared: &Arc<Shared<S>>) -> Arc<Self> {
        Arc::new(Tier {
            number,
            pool,
            shared: Arc::clone(shared),
            entries: ShardedLock::new(Index::new()),
            came: AtomicU32::new(0),
            outside: Mutex::new(Outside { entries: Vec::new(), tidy_at: TIDY }),
            victims: Mutex::new(Vec::new()),
            rests: AtomicU32::new(0),
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

    // A panic under these locks leaves lists that are whole: they change by single insertions and removals.
    fn entries(&self) -> ShardedLockReadGuard<'_, Entries<S>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_mut(&self) -> ShardedLockWriteGuard<'_, Entries<S>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn victims(&self) -> MutexGuard<'_, Vec<Victim<S>>> {
        self.victims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry that has all of a range, which is used by this.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Option<Arc<Entry<S>>> {
        let entry = Arc::clone(self.entries().find(span)?);
        self.used(&entry);
        Some(entry)
    }

    #[inline]
    fn used(&self, entry: &Entry<S>) {
        if !matches!(self.shared.eviction, Eviction::FirstCome) {
            entry.touch(self.came.load(Ordering::Relaxed));
        }
        entry.read();
    }

    /// The same without a use.
    pub(crate) fn look(&self, span: Span) -> Option<Arc<Entry<S>>> {
        self.entries().find(span).cloned()
    }

    /// Has an entry kept, unless there is one meanwhile; then that one, used by this if it `uses` it.
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
        // The number before its own, so that whoever is used after it came is later.
        entry.touch(self.came.fetch_add(1, Ordering::Relaxed));
        let before = entries.insert(Arc::clone(&entry));
        self.keep_in_mind(&before);
        drop(entries);
        Ok(entry)
    }

    /// Those that leave the index can still become stale, or be withdrawn. To be called before the lock of the index is given back; also for
    /// those that nobody has, because who begins copies may have come upon one in between.
    fn keep_in_mind<'a>(&self, gone: impl IntoIterator<Item = &'a Arc<Entry<S>>>)
    where
        S: 'a,
    {
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        outside.entries.extend(gone.into_iter().map(Arc::downgrade));
        if outside.entries.len() >= outside.tidy_at {
            outside.tidy();
        }
    }

    /// Those with a byte of a range that have left the index and that somebody still uses.
    pub(crate) fn outside(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = outside.entries.iter().filter_map(Weak::upgrade).collect();
        drop(outside);
        all.retain(|entry| entry.own_span().overlaps(span));
        all
    }

    /// Forgets an entry whose bytes stayed where they were.
    pub(crate) fn forget(&self, entry: &Entry<S>) {
        let gone = self.entries_mut().remove(entry.own_span(), |there| std::ptr::eq(&raw const **there, entry));
        drop(gone);
    }

    /// Forgets all that have a byte of a range, and marks them stale for those who use them; these are they.
    pub(crate) fn invalidate(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let mut entries = self.entries_mut();
        let gone = entries.overlapping(span);
        for entry in &gone {
            entries.remove(entry.own_span(), |there| Arc::ptr_eq(there, entry));
            entry.make_stale();
        }
        self.keep_in_mind(&gone);
        let outside = self.outside(span);
        drop(entries);
        outside.iter().for_each(|entry| entry.make_stale());
        gone
    }

    /// Forgets the entries that nobody uses, or all; how many.
    pub(crate) fn clear(&self, used_too: bool) -> usize {
        let mut entries = self.entries_mut();
        let is_unused = |entry: &&Arc<Entry<S>>| used_too || Arc::strong_count(entry) == 1;
        let spans: Vec<Span> = entries.iter().filter(is_unused).map(Spanning::span).collect();
        let gone: Vec<_> = spans.into_iter().filter_map(|span| entries.remove(span, |_| true)).collect();
        self.keep_in_mind(&gone);
        drop(entries);
        let count = gone.len();
        drop(gone);
        // Those that nobody had are gone by now.
        self.outside.lock().unwrap_or_else(PoisonError::into_inner).tidy();
        count
    }

    /// Memory for a block, for which unused entries go.
    pub(crate) fn room(&self, len: usize) -> Option<Piece> {
        self.room_by(len, true)
    }

    /// The same for one that is fetched ahead: others of that kind, which nobody has used yet, do not go for it.
    ///
    /// When all entries were looked at and none could go, the next looks are left out, one for each [`LOOKS`] entries, so that who asks again
    /// and again does not pay for it.
    pub(crate) fn room_ahead(&self, len: usize) -> Option<Piece> {
        // Relaxed: how often is looked is nobody's business. Two who come at once must not count below zero.
        if self.rests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rests| rests.checked_sub(1)).is_ok() {
            return self.pool.obtain(len);
        }
        let room = self.room_by(len, false);
        if room.is_none() {
            self.rests.store(u32::try_from(self.len() / LOOKS).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        room
    }

    fn room_by(&self, len: usize, unread_too: bool) -> Option<Piece> {
        if self.pool.capacity().is_some_and(|capacity| capacity < len) {
            return None;
        }
        if let Some(piece) = self.pool.obtain(len) {
            return Some(piece);
        }
        // Memory of copies that nobody wanted to the end comes back when the mover looks at them, which nobody else may have it do.
        if self.shared.mover.orphaned() > 0 {
            self.shared.mover.reclaim();
        }
        loop {
            if let Some(piece) = self.pool.obtain(len) {
                return Some(piece);
            }
            let Some(gone) = self.evict(unread_too) else {
                // What was let go of by others in between.
                return self.pool.obtain(len);
            };
            drop(gone);
        }
    }

    /// The one entry that the policy says, which is forgotten.
    fn evict(&self, unread_too: bool) -> Option<Arc<Entry<S>>> {
        let mut chosen_anew = false;
        loop {
            let next = self.victims().pop();
            let next = match next {
                Some(next) => next,
                None if chosen_anew => return None,
                None => {
                    chosen_anew = true;
                    // One is kept, so that others do not leave nothing of what was looked for here.
                    let mut chosen = self.choose(unread_too);
                    let next = chosen.pop()?;
                    let before = std::mem::replace(&mut *self.victims(), chosen);
                    drop(before);
                    next
                }
            };
            if let Some(gone) = self.let_go(next, unread_too) {
                return Some(gone);
            }
        }
    }

    /// Forgets an entry if nobody has used it since it was chosen.
    fn let_go(&self, (used, entry): Victim<S>, unread_too: bool) -> Option<Arc<Entry<S>>> {
        let entry = entry.upgrade()?;
        // Used since: then others are older. Unread ones are chosen last, so nobody is passed over for good.
        if entry.used() != used || !unread_too && entry.is_unread() {
            return None;
        }
        let mut entries = self.entries_mut();
        // Two: the index and this. Nobody gets another without this lock or a handle, which would be the third.
        if Arc::strong_count(&entry) != 2 {
            drop(entries);
            return None;
        }
        let gone = entries.remove(entry.own_span(), |there| Arc::ptr_eq(there, &entry));
        drop(entries);
        gone.inspect(|_| self.shared.counters.one(Count::Evictions))
    }

    /// Those to go next, last first.
    fn choose(&self, unread_too: bool) -> Vec<Victim<S>> {
        let now = self.came.load(Ordering::Relaxed);
        let is_unused = |entry: &&Arc<Entry<S>>| Arc::strong_count(entry) == 1 && entry.is_fast();
        let unused: Vec<_> =
            self.entries().iter().filter(is_unused).map(|entry| (entry.resident(now), entry.used())).collect();
        // Without a lock: it may be the function of a user.
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
