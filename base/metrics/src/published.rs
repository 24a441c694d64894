//! Values of one writer that readers see as a whole.

use crate::seqlock;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// Words that one [`Publisher`] writes. A reader sees the words of one publication, and never stops the writer.
#[derive(Debug)]
pub struct Published {
    sequence: AtomicU64,
    words: Box<[AtomicU64]>,
}

/// The only writer of some [`Published`] words. A thread that counts in plain integers publishes them now and then.
#[derive(Debug)]
pub struct Publisher(Arc<Published>);

impl Published {
    /// Creates `words` words, all zero, and returns their writer.
    #[must_use]
    pub fn new(words: usize) -> (Publisher, Arc<Published>) {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        let published = Arc::new(Published { sequence: AtomicU64::new(0), words });
        (Publisher(Arc::clone(&published)), published)
    }

    /// Builds a value from the words of the last publication; `build` may be called several times. Words beyond the
    /// last are zero.
    pub fn read<T>(&self, mut build: impl FnMut(&mut dyn FnMut() -> u64) -> T) -> T {
        // A publication takes some hundred nanoseconds, unless the system stops the writer in the middle of it.
        loop {
            let attempt = || {
                // Relaxed: ordered by the sequence lock.
                let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
                build(&mut || words.next().unwrap_or(0))
            };
            if let (value, true) = seqlock::read(&self.sequence, attempt) {
                return value;
            }
            std::thread::yield_now();
        }
    }
}

impl Publisher {
    /// Publishes the words that `values` passes to its argument. Words beyond the last are ignored.
    #[inline]
    pub fn publish(&mut self, values: impl FnOnce(&mut dyn FnMut(u64))) {
        let Published { sequence, words } = &*self.0;
        seqlock::write(sequence, || {
            let mut words = words.iter();
            values(&mut |value| {
                if let Some(word) = words.next() {
                    // Relaxed: ordered by the sequence lock.
                    word.store(value, Ordering::Relaxed);
                }
            });
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_the_words_of_one_publication() {
        let (mut publisher, published) = Published::new(4);
        let all = |published: &Published| published.read(|next| std::array::from_fn::<_, 5, _>(|_| next()));
        assert_eq!(all(&published), [0; 5]);
        publisher.publish(|put| (1..9).for_each(put));
        assert_eq!(all(&published), [1, 2, 3, 4, 0]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 10..20_000 {
                    publisher.publish(|put| (0..4).for_each(|_| put(round)));
                }
            });
            let mut last = [0; 5];
            while last[0] != 19_999 {
                last = all(&published);
                assert!(last == [1, 2, 3, 4, 0] || last[..4] == [last[0]; 4], "{last:?}");
            }
        });
    }
}
