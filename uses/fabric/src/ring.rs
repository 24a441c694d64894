//! A ring of entries between one producer and one consumer, which may be different processes.
//!
//! An entry is one cache line of eight words. Its first word contains the entry's sequence number in the low 32 bits,
//! and one store of that word publishes the whole entry. So the consumer polls one word, and a short message moves one
//! cache line. The consumer counts the entries that it has taken in a word of its own, which it writes once for each
//! quarter of the ring.
//!
//! Neither side trusts the other: an entry is copied before it is used, and the count of taken entries is checked
//! against the number of pushed ones.

use crate::sync::{AtomicU64, Ordering};
use std::ops::Deref;

/// Words of an entry. Source: chosen; they fill a cache line.
pub(crate) const ENTRY_WORDS: usize = 8;
/// The bits of an entry's first word that the ring uses.
const SEQUENCE_BITS: u64 = u32::MAX as u64;

/// The words of an entry, copied.
pub(crate) type Entry = [u64; ENTRY_WORDS];

/// The consumer's count of taken entries is impossible: it exceeds that of pushed entries, or is lower than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrongCount;

/// Returns the sequence number of the entry at `position`. An entry of zeros is never valid: the first number is 1.
fn sequence(position: u64) -> u64 {
    position.wrapping_add(1) & SEQUENCE_BITS
}

/// The producer's side of a ring.
#[derive(Debug)]
pub(crate) struct Producer<W> {
    entries: W,
    /// The consumer's count of taken entries: one word.
    taken: W,
    mask: u64,
    pushed: u64,
    /// The count that was last read from `taken`.
    known_taken: u64,
}

impl<W: Deref<Target = [AtomicU64]>> Producer<W> {
    /// Starts a ring. The words of `entries` are zero; their number is a power of two times [`ENTRY_WORDS`].
    pub(crate) fn new(entries: W, taken: W) -> Producer<W> {
        let mask = mask(&entries);
        Producer { entries, taken, mask, pushed: 0, known_taken: 0 }
    }

    /// Returns the index of the next entry.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        index(self.pushed, self.mask)
    }

    /// Returns the index of the entry that is pushed when so many others were.
    #[inline]
    pub(crate) fn index_after(&self, entries: u64) -> usize {
        index(self.pushed + entries, self.mask)
    }

    /// Returns whether there is room for an entry. Reads the consumer's count only if the last known one leaves none.
    #[inline]
    pub(crate) fn has_room(&mut self) -> Result<bool, WrongCount> {
        if self.pushed - self.known_taken <= self.mask {
            return Ok(true);
        }
        self.refresh()?;
        Ok(self.pushed - self.known_taken <= self.mask)
    }

    /// Reads the consumer's count. Returns the index of the last entry that was taken, or `None` if there are no new
    /// ones.
    pub(crate) fn refresh(&mut self) -> Result<Option<usize>, WrongCount> {
        // Acquire: pairs with the Release in `Consumer::publish`; the consumer has read the entries.
        let taken = self.taken[0].load(Ordering::Acquire);
        if taken.wrapping_sub(self.known_taken) > self.pushed - self.known_taken {
            return Err(WrongCount);
        }
        let is_new = taken != self.known_taken;
        self.known_taken = taken;
        Ok(is_new.then(|| index(taken - 1, self.mask)))
    }

    /// Returns the index of the last entry that is known to be taken; `None` before the first.
    pub(crate) fn last_taken(&self) -> Option<usize> {
        self.known_taken.checked_sub(1).map(|last| index(last, self.mask))
    }

    /// Pushes an entry; the low 32 bits of its first word are replaced. The caller has seen that there is room.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Entry) {
        let start = self.index() * ENTRY_WORDS;
        let words = &self.entries[start..start + ENTRY_WORDS];
        // Relaxed: published by the store below.
        words[1..].iter().zip(&entry[1..]).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        let first = (entry[0] & !SEQUENCE_BITS) | sequence(self.pushed);
        // Release: pairs with the Acquire in `peek`; publishes the entry, and the payload that was written before.
        words[0].store(first, Ordering::Release);
        self.pushed += 1;
    }
}

/// The consumer's side of a ring.
#[derive(Debug)]
pub(crate) struct Consumer<W> {
    entries: W,
    /// The count of taken entries, which the producer reads: one word.
    count: W,
    mask: u64,
    taken: u64,
    published: u64,
}

impl<W: Deref<Target = [AtomicU64]>> Consumer<W> {
    /// Starts a ring; see [`Producer::new`].
    pub(crate) fn new(entries: W, count: W) -> Consumer<W> {
        let mask = mask(&entries);
        Consumer { entries, count, mask, taken: 0, published: 0 }
    }

    /// Copies the next entry, if the producer has pushed it. One load if not.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Entry> {
        let start = index(self.taken, self.mask) * ENTRY_WORDS;
        let words = &self.entries[start..start + ENTRY_WORDS];
        // Acquire: pairs with the Release in `push`.
        let first = words[0].load(Ordering::Acquire);
        if first & SEQUENCE_BITS != sequence(self.taken) {
            return None;
        }
        // Relaxed: written before the first word.
        Some(std::array::from_fn(|word| if word == 0 { first } else { words[word].load(Ordering::Relaxed) }))
    }

    /// Returns the index of the entry that is taken when so many others were.
    #[inline]
    pub(crate) fn index_after(&self, entries: u64) -> usize {
        index(self.taken + entries, self.mask)
    }

    /// Releases the entry that `peek` has returned. The producer learns of it at the next quarter of the ring.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.taken += 1;
        if self.taken - self.published > self.mask / 4 {
            self.publish();
        }
    }

    /// Tells the producer now how many entries were taken.
    pub(crate) fn publish(&mut self) {
        self.published = self.taken;
        // Release: pairs with the Acquire in `Producer::refresh`; the entries and their payload were read before.
        self.count[0].store(self.taken, Ordering::Release);
    }
}

fn mask(entries: &[AtomicU64]) -> u64 {
    let count = entries.len() / ENTRY_WORDS;
    debug_assert!(count.is_power_of_two() && entries.len() == count * ENTRY_WORDS);
    count as u64 - 1
}

#[inline]
fn index(position: u64, mask: u64) -> usize {
    // Below the length of a slice.
    #[allow(clippy::cast_possible_truncation, reason = "x86-64: a usize has 64 bits")]
    {
        (position & mask) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The words of a ring and the count of its consumer, in this process.
    struct Shared(Vec<AtomicU64>, Vec<AtomicU64>);

    impl Shared {
        fn new(entries: usize) -> Shared {
            let zeros = |count| std::iter::repeat_with(|| AtomicU64::new(0)).take(count).collect();
            Shared(zeros(entries * ENTRY_WORDS), zeros(1))
        }

        fn ends(&self) -> (Producer<&[AtomicU64]>, Consumer<&[AtomicU64]>) {
            (Producer::new(&self.0, &self.1), Consumer::new(&self.0, &self.1))
        }
    }

    #[test]
    fn entries_arrive_in_order_over_many_laps() {
        let shared = Shared::new(8);
        let (mut producer, mut consumer) = shared.ends();
        let (mut pushed, mut taken) = (0_u64, 0_u64);
        for burst in (1..=8).cycle().take(1000) {
            for _ in 0..burst {
                if producer.has_room().unwrap() {
                    producer.push(&[pushed << 32, pushed, 2, 3, 4, 5, 6, pushed * 7]);
                    pushed += 1;
                }
            }
            for _ in 0..burst {
                let Some(entry) = consumer.peek() else { break };
                assert_eq!((entry[0] >> 32, entry[1], entry[7]), (taken, taken, taken * 7));
                consumer.release();
                taken += 1;
            }
        }
        assert!(pushed > 1000 && pushed - taken <= 8, "{pushed} pushed, {taken} taken");
    }

    #[test]
    fn a_full_ring_has_no_room_until_a_quarter_was_taken() {
        let shared = Shared::new(8);
        let (mut producer, mut consumer) = shared.ends();
        while producer.has_room().unwrap() {
            producer.push(&[0; ENTRY_WORDS]);
        }
        assert_eq!(consumer.taken, 0);
        consumer.peek().unwrap();
        consumer.release();
        assert_eq!(producer.has_room(), Ok(false));
        consumer.peek().unwrap();
        consumer.release();
        assert_eq!(producer.has_room(), Ok(true));
        assert_eq!((producer.last_taken(), producer.index()), (Some(1), 0));
    }

    #[test]
    fn sequence_numbers_wrap() {
        let shared = Shared::new(8);
        let (mut producer, mut consumer) = shared.ends();
        // The first lap ends before the numbers wrap, as its zeros would otherwise be valid.
        let start = (1 << 32) - 12;
        (producer.pushed, producer.known_taken, consumer.taken, consumer.published) = (start, start, start, start);
        shared.1[0].store(start, Ordering::Relaxed);
        for number in 0..20 {
            assert!(consumer.peek().is_none() && producer.has_room().unwrap());
            producer.push(&[0, number, 0, 0, 0, 0, 0, 0]);
            assert_eq!(consumer.peek().unwrap()[1], number);
            consumer.release();
        }
    }

    #[test]
    fn a_count_that_cannot_be_is_refused() {
        for claimed in [4, u64::MAX, 1 << 63, 0] {
            let shared = Shared::new(8);
            let (mut producer, mut consumer) = shared.ends();
            for _ in 0..3 {
                producer.push(&[0; ENTRY_WORDS]);
            }
            for _ in 0..2 {
                consumer.peek().unwrap();
                consumer.release();
            }
            assert_eq!(producer.refresh(), Ok(Some(1)));
            shared.1[0].store(claimed, Ordering::Relaxed);
            assert_eq!(producer.refresh(), Err(WrongCount), "{claimed}");
        }
    }

    #[test]
    fn a_consumer_ignores_words_that_are_no_next_entry() {
        let shared = Shared::new(8);
        let (_, consumer) = shared.ends();
        for first in [0, 2, 9, u64::MAX, 1 << 32, 1 << 63] {
            shared.0[0].store(first, Ordering::Relaxed);
            assert_eq!(consumer.peek(), None, "{first:#x}");
        }
    }
}
