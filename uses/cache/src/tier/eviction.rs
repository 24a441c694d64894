//! A block is evicted when its tier needs the memory for another one.

use super::Tier;
use crate::config::{Eviction, Resident};
use crate::entry::Entry;
use crate::index::Span;
use crate::source::Source;
use crate::stats::Stats;
use crate::sync::Ordering;
use std::cmp::Reverse;
use std::sync::{Arc, Weak};
use telpher_mem::PoolBuffer;

/// An entry, and its last use at the time when it was chosen.
pub(super) type Victim<S> = (u32, Weak<Entry<S>>);

/// The number of victims chosen at once; choosing passes over all entries. Source: derived: at least a sixteenth of the
/// entries makes it sixteen checks per eviction.
const VICTIMS: usize = 64;
const VICTIMS_PART: usize = 16;

/// Entries checked for each unsuccessful search for room. Source: assumed; checking as many takes about a microsecond.
const LOOKS: usize = 256;

impl<S: Source> Tier<S> {
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
