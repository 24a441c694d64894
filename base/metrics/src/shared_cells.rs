//! Cells of a set in shared memory, where other processes read them.

use crate::region::{Region, RegionError, RegionSet};
use crate::set::{MetricSet, Position};
use crate::sync::AtomicU64;

/// Like [`Cells`](crate::Cells), in a [`Region`]: each writer has a set, and the value is their sum.
///
/// A process has one for each set of metrics, for all objects that count in it; so totals never shrink while it lives.
#[derive(Debug)]
pub struct SharedCells<S> {
    sets: Box<[RegionSet<'static, S>]>,
    /// The number of writers minus one; the number is a power of two.
    mask: usize,
}

impl<S: MetricSet> SharedCells<S> {
    /// Returns the words that cells for this many writers need.
    #[must_use]
    pub fn words(writers: usize) -> usize {
        Region::<S>::words(writers.max(1).next_power_of_two())
    }

    /// Creates the cells in these words, which are zero and which no other code uses.
    ///
    /// # Errors
    /// If there are fewer words than [`words`](Self::words) says, or the labels are too long.
    pub fn create(words: &'static [AtomicU64], writers: usize, labels: &str) -> Result<Self, RegionError> {
        let writers = writers.max(1).next_power_of_two();
        let region = Region::create(words, writers)?;
        let sets: Result<_, _> = (0..writers).map(|_| region.claim(labels)).collect();
        Ok(SharedCells { sets: sets?, mask: writers - 1 })
    }

    /// Claims sets of a region for this many writers.
    pub(crate) fn of_region(region: &Region<'static, S>, writers: usize) -> Result<Self, RegionError> {
        let writers = writers.max(1).next_power_of_two();
        let sets = region.claim_many("", writers)?;
        Ok(SharedCells { sets: sets.into(), mask: writers - 1 })
    }

    /// Adds all values to a set of the same region, and frees the sets. Those that cannot be freed keep their values.
    pub(crate) fn merge_into(self, other: &RegionSet<'static, S>) {
        for set in self.sets {
            // An error: a forked child was killed while it claimed a set.
            let _ = set.merge_into(other);
        }
    }

    /// Adds to a value. Writers with larger numbers than [`create`](Self::create) was told share the cells of others.
    #[inline]
    pub fn add(&self, writer: usize, position: Position<S>, more: u64) {
        self.sets[writer & self.mask].add(position, more);
    }

    /// Subtracts from a gauge. Another writer may have added: only the sum over the writers is a number of things.
    #[inline]
    pub fn subtract(&self, writer: usize, position: Position<S>, less: u64) {
        self.add(writer, position, less.wrapping_neg());
    }

    /// Replaces the values of a writer. For a thread that counts elsewhere, or sums up now and then.
    pub fn store(&self, writer: usize, values: &S) {
        self.sets[writer & self.mask].store(values);
    }

    /// Returns the sum of all writers' values.
    #[must_use]
    pub fn snapshot(&self) -> S {
        let mut word = 0;
        S::build(&mut || {
            let sum = self.sets.iter().map(|set| set.word(word)).fold(0, u64::wrapping_add);
            word += 1;
            sum
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::RegionReader;

    crate::metrics! {
        /// A counter and a gauge.
        struct Work {
            /// Jobs.
            jobs: u64 = counter "telpher_test_jobs_total",
            /// Present jobs.
            present: u64 = gauge "telpher_test_present_jobs",
        }
    }

    #[test]
    fn a_reader_sees_the_sum_of_the_writers() {
        let words: &'static [AtomicU64] =
            Box::leak((0..SharedCells::<Work>::words(3)).map(|_| AtomicU64::new(0)).collect());
        let cells = SharedCells::<Work>::create(words, 3, "").unwrap();
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let cells = &cells;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        cells.add(writer, Work::AT.jobs, 2);
                        cells.add(writer, Work::AT.present, 1);
                        cells.subtract(writer + 1, Work::AT.present, 1);
                    }
                    cells.add(writer, Work::AT.present, 1);
                });
            }
        });
        assert_eq!(cells.snapshot(), Work { jobs: 12_000, present: 6 });
        let sets = RegionReader::open(words).unwrap().snapshot().sets;
        let sum = |at: usize| sets.iter().map(|set| set.values[at]).fold(0, u64::wrapping_add);
        assert_eq!((sets.len(), sum(0), sum(1)), (4, 12_000, 6));
        cells.store(0, &Work { jobs: 1, present: 0 });
        cells.store(1, &Work::default());
        assert_eq!(cells.snapshot().jobs, 4001);
        assert!(matches!(SharedCells::<Work>::create(&words[..20], 3, ""), Err(RegionError::Short { .. })));
    }
}
