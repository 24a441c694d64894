//! When copies begin: at once while few are under way, by priority when more are wanted.

use crate::entry::Entry;
use crate::source::Source;
use crate::sync::{AtomicU32, Ordering};
use crate::tier::Tier;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How urgent a block is that is fetched ahead: the more, the sooner; equals go as they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Priority(pub u8);

/// Before all that is fetched ahead: somebody asked for it.
const DEMANDED: u16 = 256;

/// A copy that is yet to begin.
struct Waiting<S: Source> {
    priority: u16,
    order: u64,
    tier: Arc<Tier<S>>,
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
    waiting: BinaryHeap<Waiting<S>>,
    order: u64,
}

impl<S: Source> Schedule<S> {
    pub(crate) fn new(most: usize) -> Self {
        let queue = Queue { flying: VecDeque::new(), waiting: BinaryHeap::new(), order: 0 };
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
        let alive = |entry: &&Weak<Entry<S>>| entry.upgrade().is_some_and(|entry| entry.copied().is_none());
        let waiting = queue.waiting.iter().map(|waiting| &waiting.entry);
        (queue.flying.iter().filter(alive).count(), waiting.filter(alive).count())
    }

    /// An entry somebody asked for: begun at once, if not too many are under way.
    pub(crate) fn demand(&self, tier: &Arc<Tier<S>>, entry: &Arc<Entry<S>>) {
        let mut queue = self.lock();
        if queue.flying.len() >= self.most {
            queue.sweep();
        }
        if queue.flying.len() >= self.most {
            self.put(&mut queue, DEMANDED, tier, entry);
            return;
        }
        queue.flying.push_back(Arc::downgrade(entry));
        drop(queue);
        entry.turn();
    }

    /// An entry somebody will ask for.
    pub(crate) fn ahead(&self, priority: Priority, tier: &Arc<Tier<S>>, entry: &Arc<Entry<S>>) {
        let mut queue = self.lock();
        self.put(&mut queue, priority.0.into(), tier, entry);
        drop(queue);
        self.drive();
    }

    fn put(&self, queue: &mut Queue<S>, priority: u16, tier: &Arc<Tier<S>>, entry: &Arc<Entry<S>>) {
        queue.order += 1;
        let (order, tier, entry) = (queue.order, Arc::clone(tier), Arc::downgrade(entry));
        queue.waiting.push(Waiting { priority, order, tier, entry });
        self.told(queue);
    }

    fn told(&self, queue: &Queue<S>) {
        // Relaxed: a hint; the queue itself is behind its lock.
        self.waiting.store(u32::try_from(queue.waiting.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Begins what may begin. Costs one load if nothing waits.
    pub(crate) fn drive(&self) {
        while self.waiting.load(Ordering::Relaxed) > 0 {
            let mut queue = self.lock();
            if queue.flying.len() >= self.most {
                queue.sweep();
            }
            if queue.flying.len() >= self.most {
                return;
            }
            let Some(next) = queue.waiting.pop() else { return };
            self.told(&queue);
            let Some(entry) = next.entry.upgrade().filter(|entry| entry.copied().is_none()) else { continue };
            if next.priority == DEMANDED {
                queue.flying.push_back(next.entry);
                drop(queue);
                entry.turn();
                continue;
            }
            let len = usize::try_from(entry.own_span().len).unwrap_or(usize::MAX);
            // What is in use or fetched ahead is not given up for what may be wanted later: it waits.
            let Some(piece) = next.tier.room(len, false) else {
                let hopeless = next.tier.pool().capacity().is_some_and(|capacity| capacity < len);
                if hopeless {
                    drop(queue);
                    // Says that it stays where it is.
                    entry.turn();
                    continue;
                }
                queue.waiting.push(next);
                self.told(&queue);
                return;
            };
            queue.flying.push_back(next.entry);
            drop(queue);
            drop(entry.begin(piece));
        }
    }

    /// Begins what may begin, and returns when no thread is choosing any more.
    pub(crate) fn come_to_rest(&self) {
        self.drive();
        drop(self.lock());
    }

    pub(crate) fn clear(&self) {
        let mut queue = self.lock();
        let gone = (std::mem::take(&mut queue.flying), std::mem::take(&mut queue.waiting));
        self.told(&queue);
        drop(queue);
        drop(gone);
    }
}

impl<S: Source> Queue<S> {
    /// Looks at what is under way, and forgets what has ended.
    fn sweep(&mut self) {
        self.flying.retain(|entry| {
            entry.upgrade().is_some_and(|entry| {
                entry.turn();
                entry.copied().is_none()
            })
        });
    }
}

impl<S: Source> Debug for Schedule<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flying, waiting) = self.counts();
        f.debug_struct("Schedule").field("flying", &flying).field("waiting", &waiting).finish()
    }
}
