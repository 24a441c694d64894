//! When copies begin: at once while few are in flight, by priority when more are requested.

use crate::entry::Entry;
use crate::source::Source;
use crate::sync::{AtomicU32, Ordering};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The urgency of a prefetch: higher values begin sooner; equal ones in their order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Priority(pub u8);

/// Before all prefetches: requested by an access.
const DEMANDED: u16 = 256;

/// The number of waiting entries below which cleaning is not worthwhile. Source: assumed.
const TIDY: usize = 64;

/// A copy that has not begun.
struct Waiting<S: Source> {
    priority: u16,
    order: u64,
    entry: Weak<Entry<S>>,
}

impl<S: Source> Waiting<S> {
    fn rank(&self) -> (u16, Reverse<u64>) {
        (self.priority, Reverse(self.order))
    }
}

impl<S: Source> PartialEq for Waiting<S> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}
impl<S: Source> Eq for Waiting<S> {}
impl<S: Source> PartialOrd for Waiting<S> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<S: Source> Ord for Waiting<S> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// The copies in flight and the waiting ones. Keeps no entry alive: dropped entries are skipped.
pub(crate) struct Schedule<S: Source> {
    most: usize,
    queue: Mutex<Queue<S>>,
    /// The number of waiting entries, for threads that only check whether there are any.
    waiting: AtomicU32,
}

struct Queue<S: Source> {
    in_flight: VecDeque<Weak<Entry<S>>>,
    /// By tier, so that a tier without room delays no other.
    tier_queues: Box<[TierQueue<S>]>,
    order: u64,
}

/// The entries that wait for one tier.
struct TierQueue<S: Source> {
    waiting: BinaryHeap<Waiting<S>>,
    /// Dropped entries are removed when the queue reaches this length.
    tidy_at: usize,
}

impl<S: Source> Schedule<S> {
    pub(crate) fn new(most: usize, tiers: usize) -> Self {
        let tier_queues = (0..tiers).map(|_| TierQueue { waiting: BinaryHeap::new(), tidy_at: TIDY }).collect();
        let queue = Queue { in_flight: VecDeque::new(), tier_queues, order: 0 };
        Schedule { most: most.max(1), queue: Mutex::new(queue), waiting: AtomicU32::new(0) }
    }

    // A panic under the lock loses at most a waiting entry, which a thread that waits for it begins anyway.
    fn lock(&self) -> MutexGuard<'_, Queue<S>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the numbers of copies in flight and waiting.
    ///
    /// **Staleness**: an ended copy is noticed when a thread checks it.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let queue = self.lock();
        let waiting = queue.tier_queues.iter().flat_map(|tier_queue| &tier_queue.waiting).map(|waiting| &waiting.entry);
        let all: Vec<_> = queue.in_flight.iter().chain(waiting).filter_map(Weak::upgrade).collect();
        drop(queue);
        let mut left: Vec<_> = all.iter().filter(|entry| entry.copied().is_none()).collect();
        // An entry whose priority was raised is queued twice.
        left.sort_unstable_by_key(|entry| Arc::as_ptr(entry));
        left.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let in_flight = left.iter().filter(|entry| entry.has_begun()).count();
        (in_flight, left.len() - in_flight)
    }

    /// Requests an entry that is needed now: begun at once, if not too many copies are in flight.
    pub(crate) fn demand(&self, entry: &Arc<Entry<S>>) {
        let mut queue = self.lock_with_room();
        if queue.in_flight.len() < self.most {
            queue.in_flight.push_back(Arc::downgrade(entry));
            drop(queue);
            entry.turn();
        } else {
            queue.put(DEMANDED, entry);
            self.update_waiting(&queue);
        }
    }

    /// Locks the queue, after removing ended copies if too many are in flight.
    fn lock_with_room(&self) -> MutexGuard<'_, Queue<S>> {
        let queue = self.lock();
        if queue.in_flight.len() < self.most {
            return queue;
        }
        let all: Vec<_> = queue.in_flight.iter().filter_map(Weak::upgrade).collect();
        drop(queue);
        all.iter().for_each(|entry| entry.turn_if_begun());
        let mut done: Vec<_> = all.iter().filter(|entry| entry.copied().is_some()).map(Arc::as_ptr).collect();
        done.sort_unstable();
        // May drop the last reference, so it happens before locking.
        drop(all);
        let mut queue = self.lock();
        // An address that is reused by now is not in the list, because weak references keep theirs.
        queue.in_flight.retain(|entry| entry.strong_count() > 0 && done.binary_search(&entry.as_ptr()).is_err());
        queue
    }

    /// Requests a prefetch.
    pub(crate) fn ahead(&self, priority: Priority, entry: &Arc<Entry<S>>) {
        let mut queue = self.lock();
        queue.put(priority.0.into(), entry);
        self.update_waiting(&queue);
        drop(queue);
        self.drive();
    }

    fn update_waiting(&self, queue: &Queue<S>) {
        let waiting: usize = queue.tier_queues.iter().map(|tier_queue| tier_queue.waiting.len()).sum();
        // Relaxed: a hint; the queue itself is behind its lock.
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Begins the copies that may begin. Costs one load if none waits.
    pub(crate) fn drive(&self) {
        // Tiers without room.
        let mut full = Vec::new();
        while self.waiting.load(Ordering::Relaxed) > 0 {
            let Some((next, entry)) = self.next(&full) else { return };
            if next.priority == DEMANDED {
                entry.turn();
                continue;
            }
            let (tier, len) = (entry.tier(), usize::try_from(entry.own_span().len).unwrap_or(usize::MAX));
            // Entries that are in use or prefetched are not evicted for a prefetch, which waits instead.
            let chosen = Chosen(&entry);
            let room = tier.room_ahead(len);
            std::mem::forget(chosen);
            if let Some(piece) = room {
                drop(entry.begin(piece));
            } else if tier.pool().is_too_small_for(len) {
                entry.give_up();
            } else {
                full.push(tier.number());
                let mut queue = self.lock();
                queue.in_flight.retain(|in_flight| !Weak::ptr_eq(in_flight, &next.entry));
                queue.tier_queues[tier.number()].waiting.push(next);
                self.update_waiting(&queue);
            }
        }
    }

    /// Removes and returns the most urgent entry that may begin, which counts as in flight from now on.
    fn next(&self, full: &[usize]) -> Option<(Waiting<S>, Arc<Entry<S>>)> {
        // References that may be the last ones; they are dropped after the lock is released.
        let mut passed = Vec::new();
        let mut queue = self.lock_with_room();
        while queue.in_flight.len() < self.most {
            let tier_queues = queue.tier_queues.iter_mut().enumerate();
            let open =
                tier_queues.filter(|(tier, _)| !full.contains(tier)).map(|(_, tier_queue)| &mut tier_queue.waiting);
            let next = open.max_by(|a, b| a.peek().cmp(&b.peek())).and_then(BinaryHeap::pop)?;
            self.update_waiting(&queue);
            let Some(entry) = next.entry.upgrade() else { continue };
            if !entry.has_begun() {
                queue.in_flight.push_back(Weak::clone(&next.entry));
                return Some((next, entry));
            }
            // Begun by a waiting thread, or because its priority was raised.
            if entry.copied().is_none() && !queue.in_flight.iter().any(|in_flight| Weak::ptr_eq(in_flight, &next.entry))
            {
                queue.in_flight.push_back(next.entry);
            }
            passed.push(entry);
        }
        None
    }

    pub(crate) fn clear(&self) {
        let mut queue = self.lock();
        queue.in_flight.clear();
        queue.tier_queues.iter_mut().for_each(|tier_queue| tier_queue.waiting.clear());
        self.update_waiting(&queue);
    }
}

/// An entry that counts as in flight. It stays in its source if making room panics, because the eviction policy may be
/// user code.
struct Chosen<'a, S: Source>(&'a Entry<S>);

impl<S: Source> Drop for Chosen<'_, S> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl<S: Source> Queue<S> {
    fn put(&mut self, priority: u16, entry: &Arc<Entry<S>>) {
        self.order += 1;
        let tier_queue = &mut self.tier_queues[entry.tier().number()];
        tier_queue.waiting.push(Waiting { priority, order: self.order, entry: Arc::downgrade(entry) });
        if tier_queue.waiting.len() >= tier_queue.tidy_at {
            tier_queue.waiting.retain(|waiting| waiting.entry.strong_count() > 0);
            tier_queue.tidy_at = TIDY.max(2 * tier_queue.waiting.len());
        }
    }
}

impl<S: Source> Debug for Schedule<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (in_flight, waiting) = self.counts();
        f.debug_struct("Schedule").field("in_flight", &in_flight).field("waiting", &waiting).finish()
    }
}
