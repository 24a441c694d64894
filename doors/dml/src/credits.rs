//! Credits of one dedicated queue: never more descriptors in flight than the queue has entries.
//!
//! A descriptor written to a full dedicated queue is lost without an answer (SPEC §3.3), so the count must never be too
//! low. It may be too high: a program may free a job without looking at its result, and then no call returns its
//! credit. So the credits are counted by epochs. [`Credits::begin`] starts a new one, and the queue is given a Drain.
//! When the Drain has completed, everything of the epochs before has completed too, and [`Credits::end`] forgets those
//! credits. A credit that comes back later than that is ignored.

use crate::sync::{AtomicU64, Ordering};

/// The most entries that are counted. Source: 12 bits of the word; no device has as many.
const MOST: u16 = 0xfff;

/// The credits of one queue.
#[derive(Debug)]
pub(crate) struct Credits {
    /// The [`Count`].
    word: AtomicU64,
    /// Entries that descriptors may use.
    entries: u32,
}

/// The epoch in which a credit was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch(pub(crate) u32);

/// The word as a value: 32 bits of epoch, 8 of `posting`, 12 each of `before` and `since`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    epoch: u32,
    /// Threads that took a credit and have not written their descriptor yet. A Drain must not overtake them.
    posting: u8,
    /// Credits of the epoch before, while a Drain is in the queue.
    before: u16,
    /// Credits of this epoch.
    since: u16,
}

impl Count {
    #[allow(clippy::cast_possible_truncation, reason = "each field is masked or shifted to its width")]
    fn of(word: u64) -> Count {
        Count {
            epoch: (word >> 32) as u32,
            posting: (word >> 24) as u8,
            before: (word >> 12) as u16 & MOST,
            since: word as u16 & MOST,
        }
    }

    fn word(self) -> u64 {
        let Count { epoch, posting, before, since } = self;
        u64::from(epoch) << 32 | u64::from(posting) << 24 | u64::from(before) << 12 | u64::from(since)
    }

    fn taken(self) -> u32 {
        u32::from(self.before) + u32::from(self.since)
    }
}

impl Credits {
    pub(crate) fn new(entries: u32) -> Self {
        Credits { word: AtomicU64::new(0), entries: entries.min(MOST.into()) }
    }

    /// Takes a credit, if there is one. The caller writes its descriptor, then calls [`posted`](Credits::posted).
    pub(crate) fn take(&self) -> Option<Epoch> {
        self.change(|count| {
            let posting = count.posting.checked_add(1)?;
            (count.taken() < self.entries)
                .then(|| (Count { since: count.since + 1, posting, ..count }, Epoch(count.epoch)))
        })
    }

    /// The descriptor of a credit just taken is in the queue, or was refused.
    pub(crate) fn posted(&self) {
        let _ = self.change(|count| Some((Count { posting: count.posting.checked_sub(1)?, ..count }, ())));
    }

    /// Gives a credit back after its descriptor's record was seen, or after the queue refused the descriptor.
    pub(crate) fn give(&self, epoch: Epoch) {
        // None: it was forgotten with its epoch.
        let _ = self.change(|count| {
            if epoch.0 == count.epoch {
                Some((Count { since: count.since.checked_sub(1)?, ..count }, ()))
            } else if epoch.0.wrapping_add(1) == count.epoch {
                Some((Count { before: count.before.checked_sub(1)?, ..count }, ()))
            } else {
                None
            }
        });
    }

    /// Starts an epoch. The caller then gives the queue a Drain, and no other thread does meanwhile. `None` while a
    /// thread is writing a descriptor.
    pub(crate) fn begin(&self) -> Option<()> {
        self.change(|count| {
            let next = Count { epoch: count.epoch.wrapping_add(1), before: count.since, since: 0, ..count };
            (count.before == 0 && count.posting == 0).then_some((next, ()))
        })
    }

    /// The Drain has completed: forgets the credits of the epochs before this one.
    pub(crate) fn end(&self) {
        let _ = self.change(|count| Some((Count { before: 0, ..count }, ())));
    }

    fn change<T>(&self, mut next: impl FnMut(Count) -> Option<(Count, T)>) -> Option<T> {
        // Relaxed: only a first guess, the exchange decides.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (count, value) = next(Count::of(word))?;
            // Acquire and Release: pairs with itself. The completion that freed an entry happened before the offer that
            // uses it.
            match self.word.compare_exchange_weak(word, count.word(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(value),
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn post(credits: &Credits) -> Option<Epoch> {
        credits.take().inspect(|_| credits.posted())
    }

    #[test]
    fn credits_that_never_come_back_are_forgotten_after_a_drain() {
        let credits = Credits::new(3);
        let lost: Vec<Epoch> = (0..3).map(|_| post(&credits).unwrap()).collect();
        assert_eq!(post(&credits), None);
        credits.begin().unwrap();
        assert_eq!((post(&credits), credits.begin()), (None, None), "the Drain is still in the queue");
        credits.give(lost[0]);
        let new = post(&credits).unwrap();
        assert_eq!(post(&credits), None);
        credits.end();
        assert!(post(&credits).is_some() && post(&credits).is_some());
        assert_eq!(post(&credits), None, "the new one still counts");
        credits.begin().unwrap();
        credits.end();
        for late in [lost[1], lost[2], new] {
            credits.give(late);
        }
        assert_eq!((0..4).filter(|_| post(&credits).is_some()).count(), 3, "credits that come late do not count");
    }

    #[test]
    fn no_drain_overtakes_a_descriptor() {
        let credits = Credits::new(2);
        let _writing = credits.take().unwrap();
        assert_eq!(credits.begin(), None);
        credits.posted();
        assert_eq!(credits.begin(), Some(()));
    }
}
