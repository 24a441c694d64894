//! Keeps all other commands from the blocks of a command that must be alone on them.
//!
//! Such an exclusive command is a fused Compare and Write, or one that writes blocks with tuples to a backend whose
//! other requests could find a part of the write. All other commands hold the lock shared. While there is no exclusive
//! command, a shared one only counts itself: one atomic addition, and one subtraction at its end. A read that the
//! backend executes in one step only asks whether there is an exclusive command. While such a command holds the lock or
//! waits for it, all commands are listed with their blocks, in the order of their arrival:
//!
//! - a shared command waits for the exclusive ones before it that use one of its blocks;
//! - an exclusive command waits for all commands before it that use one of its blocks, and for those that were only
//!   counted.
//!
//! There is no deadlock: each command takes the lock once, for all its blocks, when all its data has arrived, and waits
//! only for commands that came before it.

use crate::engine::{JobId, Segments};
use crate::loops::Loops;
use crate::storage::ByteRange;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The bit of [`RangeLock::counted`] that says that an exclusive command is in the list.
const HAS_EXCLUSIVE: u64 = 1 << 63;

/// A command that holds the lock or waits for it.
#[derive(Debug)]
struct Entry {
    ranges: Vec<ByteRange>,
    is_exclusive: bool,
    is_granted: bool,
    id: JobId,
    loops: Arc<Loops>,
}

impl Entry {
    /// Returns whether one of the two commands must wait for the other.
    fn excludes(&self, other: &Entry) -> bool {
        let overlap = |&(start, len): &ByteRange| {
            other.ranges.iter().any(|&(other, other_len)| start < other + other_len && other < start + len)
        };
        (self.is_exclusive || other.is_exclusive) && self.ranges.iter().any(overlap)
    }
}

#[derive(Debug, Default)]
struct List {
    /// By their order of arrival.
    entries: BTreeMap<u64, Entry>,
    /// How many of them are exclusive.
    exclusive: usize,
    next: u64,
}

/// The lock of a namespace.
#[derive(Debug, Default)]
pub struct RangeLock {
    /// The number of commands that hold the lock and are not listed, and [`HAS_EXCLUSIVE`].
    counted: AtomicU64,
    list: Mutex<List>,
}

/// A command's part of the lock, held or waited for, to be given back with [`RangeLock::leave`]. A guard that gives
/// itself back would cost two more atomic operations, for its reference to the lock.
#[must_use]
#[derive(Debug)]
pub struct Hold {
    /// The entry in the list; `None` if the command was only counted.
    entry: Option<u64>,
}

impl RangeLock {
    /// Takes the lock shared. Returns whether the command may go on. If it may not, `loops` gets an answer
    /// for `id` when it may.
    pub fn shared(&self, id: JobId, loops: &Arc<Loops>, ranges: impl FnOnce() -> Vec<ByteRange>) -> (Hold, bool) {
        // AcqRel: pairs with the other changes of this word. What an exclusive command wrote before it left is seen.
        if self.counted.fetch_add(1, Ordering::AcqRel) & HAS_EXCLUSIVE == 0 {
            return (Hold { entry: None }, true);
        }
        self.uncount();
        let mut list = lock(&self.list);
        if list.exclusive == 0 {
            // The exclusive command has ended. The bit changes only while the list is locked.
            self.counted.fetch_add(1, Ordering::AcqRel);
            return (Hold { entry: None }, true);
        }
        self.enter(&mut list, id, loops, ranges(), false)
    }

    /// Returns whether an exclusive command holds the lock or waits for it. For a read that needs no lock otherwise: it
    /// takes place as a whole before such a command, or after it.
    ///
    /// **Staleness**: other threads take and leave the lock meanwhile.
    pub fn has_exclusive(&self) -> bool {
        // Acquire: what an exclusive command wrote before it left is seen.
        self.counted.load(Ordering::Acquire) & HAS_EXCLUSIVE != 0
    }

    /// Takes the lock exclusively. Returns whether the command may go on; if not, as for [`RangeLock::shared`].
    pub fn exclusive(&self, id: JobId, loops: &Arc<Loops>, ranges: Vec<ByteRange>) -> (Hold, bool) {
        let mut list = lock(&self.list);
        list.exclusive += 1;
        self.counted.fetch_or(HAS_EXCLUSIVE, Ordering::AcqRel);
        self.enter(&mut list, id, loops, ranges, true)
    }

    /// Gives the lock back, or gives up waiting for it.
    pub fn leave(&self, hold: Hold) {
        match hold.entry {
            None => self.uncount(),
            Some(number) => self.remove(number),
        }
    }

    fn enter(
        &self,
        list: &mut List,
        id: JobId,
        loops: &Arc<Loops>,
        ranges: Vec<ByteRange>,
        is_exclusive: bool,
    ) -> (Hold, bool) {
        let number = list.next;
        list.next += 1;
        let entry = Entry { ranges, is_exclusive, is_granted: false, id, loops: Arc::clone(loops) };
        let is_granted = self.may_go_on(list, number, &entry);
        list.entries.insert(number, Entry { is_granted, ..entry });
        (Hold { entry: Some(number) }, is_granted)
    }

    fn may_go_on(&self, list: &List, number: u64, entry: &Entry) -> bool {
        // Acquire: pairs with the subtraction of the last counted command.
        let has_counted = entry.is_exclusive && self.counted.load(Ordering::Acquire) & !HAS_EXCLUSIVE > 0;
        !has_counted && !list.entries.range(..number).any(|(_, earlier)| earlier.excludes(entry))
    }

    /// A command that was counted leaves.
    fn uncount(&self) {
        let before = self.counted.fetch_sub(1, Ordering::AcqRel);
        if before == HAS_EXCLUSIVE | 1 {
            let list = lock(&self.list);
            let waiting = list.entries.iter().filter(|(_, entry)| entry.is_exclusive && !entry.is_granted);
            let candidates = waiting.map(|(&number, _)| number).collect();
            drop(list);
            self.grant(candidates);
        }
    }

    /// A command that was listed leaves.
    fn remove(&self, number: u64) {
        let mut list = lock(&self.list);
        let Some(removed) = list.entries.remove(&number) else { return };
        if removed.is_exclusive {
            list.exclusive -= 1;
            if list.exclusive == 0 {
                self.counted.fetch_and(!HAS_EXCLUSIVE, Ordering::AcqRel);
            }
        }
        let later = list.entries.range(number..).filter(|(_, entry)| !entry.is_granted && removed.excludes(entry));
        let candidates = later.map(|(&number, _)| number).collect();
        drop(list);
        self.grant(candidates);
    }

    /// Lets those of these commands go on that may.
    fn grant(&self, candidates: Vec<u64>) {
        let mut granted = Vec::new();
        let mut list = lock(&self.list);
        for number in candidates {
            let waits = |entry: &&Entry| !entry.is_granted && self.may_go_on(&list, number, entry);
            if list.entries.get(&number).filter(waits).is_none() {
                continue;
            }
            if let Some(entry) = list.entries.get_mut(&number) {
                entry.is_granted = true;
                granted.push((entry.id, Arc::clone(&entry.loops)));
            }
        }
        drop(list);
        for (id, loops) in granted {
            loops.answer(id, Ok(Segments::new()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::LoopInbox;
    use crate::storage::StorageResult;
    use std::sync::mpsc::{Sender, channel};
    use telpher_os::Random;

    /// Takes answers out of a channel.
    #[derive(Debug)]
    struct Answers(Mutex<Sender<JobId>>);

    impl LoopInbox for Answers {
        fn answer(&self, id: JobId, _result: StorageResult) {
            lock(&self.0).send(id).unwrap();
        }

        fn target_changed(&self) {}
    }

    fn id(slot: u32) -> JobId {
        JobId { connection: 1, slot, generation: 0, part: 0 }
    }

    fn shared(lock: &RangeLock, loops: &Arc<Loops>, slot: u32, range: ByteRange) -> (Hold, bool) {
        lock.shared(id(slot), loops, || vec![range])
    }

    #[test]
    fn commands_wait_only_for_earlier_ones_that_use_their_blocks() {
        let (sender, answers) = channel();
        let (loops, lock) = (Arc::new(Loops::default()), RangeLock::default());
        loops.register(1, Arc::new(Answers(Mutex::new(sender))));
        let granted = || answers.try_iter().map(|id| id.slot).collect::<Vec<_>>();
        let (counted, goes) = shared(&lock, &loops, 0, (0, 512));
        assert!(goes);
        // The pair waits for the counted command, although that uses other blocks.
        let (pair, goes) = lock.exclusive(id(1), &loops, vec![(4096, 1024)]);
        assert!(!goes);
        let (beside, goes) = shared(&lock, &loops, 2, (5120, 512));
        assert!(goes);
        let (behind, goes) = shared(&lock, &loops, 3, (4608, 512));
        assert!(!goes);
        let (second, goes) = lock.exclusive(id(4), &loops, vec![(5000, 512)]);
        assert!(!goes);
        lock.leave(counted);
        assert_eq!(granted(), [1]);
        lock.leave(beside);
        assert!(granted().is_empty());
        lock.leave(pair);
        assert_eq!(granted(), [3]);
        lock.leave(behind);
        assert_eq!(granted(), [4]);
        let (waiting, goes) = shared(&lock, &loops, 5, (5504, 512));
        assert!(!goes);
        // A command that gives up does not get the lock.
        lock.leave(waiting);
        lock.leave(second);
        assert!(granted().is_empty());
        let (_counted, goes) = shared(&lock, &loops, 6, (4096, 4096));
        assert!(goes && lock.counted.load(Ordering::Relaxed) == 1);
    }

    /// Threads change bytes under the lock; each byte is changed by one pair at a time, and never during a plain
    /// command that uses it.
    #[test]
    fn a_pair_is_alone_on_its_blocks() {
        const THREADS: u64 = 4;
        const BYTES: usize = 8;
        let (loops, range_lock) = (Arc::new(Loops::default()), Arc::new(RangeLock::default()));
        // Above 0: plain commands; below 0: a pair.
        let users: Arc<[Mutex<i32>; BYTES]> = Arc::default();
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (loops, range_lock, users) = (Arc::clone(&loops), Arc::clone(&range_lock), Arc::clone(&users));
                std::thread::spawn(move || {
                    let (sender, answers) = channel();
                    loops.register(number, Arc::new(Answers(Mutex::new(sender))));
                    let mut random = Random::new(number);
                    for round in 0..5000 {
                        let id = JobId { connection: number, slot: round, generation: 0, part: 0 };
                        let start = random.below(BYTES as u64);
                        let range = (start, 1 + random.below(BYTES as u64 - start));
                        let is_pair = random.below(3) == 0;
                        let (hold, goes) = if is_pair {
                            range_lock.exclusive(id, &loops, vec![range])
                        } else {
                            range_lock.shared(id, &loops, || vec![range])
                        };
                        if !goes {
                            assert_eq!(answers.recv().unwrap(), id);
                        }
                        let bytes = usize::try_from(range.0).unwrap()..usize::try_from(range.0 + range.1).unwrap();
                        for user in &users[bytes.clone()] {
                            let mut user = lock(user);
                            assert!(if is_pair { *user == 0 } else { *user >= 0 }, "{user:?}");
                            *user += if is_pair { -1 } else { 1 };
                        }
                        std::thread::yield_now();
                        for user in &users[bytes] {
                            *lock(user) -= if is_pair { -1 } else { 1 };
                        }
                        range_lock.leave(hold);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(lock(&range_lock.list).entries.is_empty());
        assert_eq!(range_lock.counted.load(Ordering::Relaxed), 0);
    }
}
