//! When copies begin: at once while few are under way, by priority when more are wanted.

use crate::entry::Entry;
use crate::source::Source;
use crate::sync::{AtomicU32, Ordering};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How urgent a block is that is fetched ahead: the more, the sooner; equals go as they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Priority(pub u8);

/// Before all that is fetched ahead: somebody asked for it.
const DEMANDED: u16 = 256;

/// Waiting entries that are not worth clearing. Source: assumed.
const TIDY: usize = 64;

/// A copy that is yet to begin.
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

/// What is under way and what waits for it. Keeps no entry alive: who is gone is passed over.
pub(crate) struct Schedule<S: Source> {
    most: usize,
    queue: Mutex<Queue<S>>,
    /// As many as wait, for who only wants to know whether any do.
    waiting: AtomicU32,
}

struct Queue<S: Source> {
    flying: VecDeque<Weak<Entry<S>>>,
    /// By tier: one that has no room holds up no other.
    lines: Box<[Line<S>]>,
    order: u64,
}

/// Those who wait for one tier.
struct Line<S: Source> {
    waiting: BinaryHeap<Waiting<S>>,
    /// Cleared of those that are gone when it has as many.
    tidy_at: usize,
}

impl<S: Source> Schedule<S> {
    pub(crate) fn new(most: usize, tiers: usize) -> Self {
        let lines = (0..tiers).map(|_| Line { waiting: BinaryHeap::new(), tidy_at: TIDY }).collect();
        let queue = Queue { flying: VecDeque::new(), lines, order: 0 };
        Schedule { most: most.max(1), queue: Mutex::new(queue), waiting: AtomicU32::new(0) }
    }

    // A panic under it loses at most the mention of an entry, which whoever waits for it begins anyway.
    fn lock(&self) -> MutexGuard<'_, Queue<S>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// (under way, waiting).
    ///
    /// **Staleness**: what has ended is noticed when somebody asks for it.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let queue = self.lock();
        let waiting = queue.lines.iter().flat_map(|line| &line.waiting).map(|waiting| &waiting.entry);
        let all: Vec<_> = queue.flying.iter().chain(waiting).filter_map(Weak::upgrade).collect();
        drop(queue);
        let mut left: Vec<_> = all.iter().filter(|entry| entry.copied().is_none()).collect();
        // One that was asked for more urgently waits in two places.
        left.sort_unstable_by_key(|entry| Arc::as_ptr(entry));
        left.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let flying = left.iter().filter(|entry| entry.has_begun()).count();
        (flying, left.len() - flying)
    }

    /// An entry somebody wants now: begun at once, if not too many are under way.
    pub(crate) fn demand(&self, entry: &Arc<Entry<S>>) {
        let mut queue = self.lock_with_room();
        if queue.flying.len() < self.most {
            queue.flying.push_back(Arc::downgrade(entry));
            drop(queue);
            entry.turn();
        } else {
            queue.put(DEMANDED, entry);
            self.told(&queue);
        }
    }

    /// The queue, after a look at who is under way if that are too many.
    fn lock_with_room(&self) -> MutexGuard<'_, Queue<S>> {
        let queue = self.lock();
        if queue.flying.len() < self.most {
            return queue;
        }
        let all: Vec<_> = queue.flying.iter().filter_map(Weak::upgrade).collect();
        drop(queue);
        all.iter().for_each(|entry| entry.turn_if_begun());
        let mut done: Vec<_> = all.iter().filter(|entry| entry.copied().is_some()).map(Arc::as_ptr).collect();
        done.sort_unstable();
        // Whose last reference it was, before the lock.
        drop(all);
        let mut queue = self.lock();
        // An address that is somebody else's by now is not in the list: weak references keep theirs.
        queue.flying.retain(|entry| entry.strong_count() > 0 && done.binary_search(&entry.as_ptr()).is_err());
        queue
    }

    /// An entry somebody will want.
    pub(crate) fn ahead(&self, priority: Priority, entry: &Arc<Entry<S>>) {
        let mut queue = self.lock();
        queue.put(priority.0.into(), entry);
        self.told(&queue);
        drop(queue);
        self.drive();
    }

    fn told(&self, queue: &Queue<S>) {
        let waiting: usize = queue.lines.iter().map(|line| line.waiting.len()).sum();
        // Relaxed: a hint; the queue itself is behind its lock.
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Begins what may begin. Costs one load if nothing waits.
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
            // What is in use or fetched ahead is not given up for what may be wanted later: it waits.
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
                queue.flying.retain(|flying| !Weak::ptr_eq(flying, &next.entry));
                queue.lines[tier.number()].waiting.push(next);
                self.told(&queue);
            }
        }
    }

    /// The most urgent of those that may begin, which counts as under way from here on.
    fn next(&self, full: &[usize]) -> Option<(Waiting<S>, Arc<Entry<S>>)> {
        // References that may be the last: they go after the lock.
        let mut passed = Vec::new();
        let mut queue = self.lock_with_room();
        while queue.flying.len() < self.most {
            let lines = queue.lines.iter_mut().enumerate();
            let open = lines.filter(|(tier, _)| !full.contains(tier)).map(|(_, line)| &mut line.waiting);
            let next = open.max_by(|a, b| a.peek().cmp(&b.peek())).and_then(BinaryHeap::pop)?;
            self.told(&queue);
            let Some(entry) = next.entry.upgrade() else { continue };
            if !entry.has_begun() {
                queue.flying.push_back(Weak::clone(&next.entry));
                return Some((next, entry));
            }
            // By whoever waits for it, or when it was asked for more urgently.
            if entry.copied().is_none() && !queue.flying.iter().any(|flying| Weak::ptr_eq(flying, &next.entry)) {
                queue.flying.push_back(next.entry);
            }
            passed.push(entry);
        }
        None
    }

    pub(crate) fn clear(&self) {
        let mut queue = self.lock();
        queue.flying.clear();
        queue.lines.iter_mut().for_each(|line| line.waiting.clear());
        self.told(&queue);
    }
}

/// One that counts as under way, and stays where it is if the look for room panics: who says what goes for it may be a user.
struct Chosen<'a, S: Source>(&'a Entry<S>);

impl<S: Source> Drop for Chosen<'_, S> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl<S: Source> Queue<S> {
    fn put(&mut self, priority: u16, entry: &Arc<Entry<S>>) {
        self.order += 1;
        let line = &mut self.lines[entry.tier().number()];
        line.waiting.push(Waiting { priority, order: self.order, entry: Arc::downgrade(entry) });
        if line.waiting.len() >= line.tidy_at {
            line.waiting.retain(|waiting| waiting.entry.strong_count() > 0);
            line.tidy_at = TIDY.max(2 * line.waiting.len());
        }
    }
}

impl<S: Source> Debug for Schedule<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flying, waiting) = self.counts();
        f.debug_struct("Schedule").field("flying", &flying).field("waiting", &waiting).finish()
    }
}
