//! Cells in shared memory for objects that come and go, such as the caches of a program.

use crate::region::{Region, RegionError, RegionSet};
use crate::set::MetricSet;
use crate::shared_cells::SharedCells;
use crate::sync::AtomicU64;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects for which the first region has room. Each further region has room for twice as many. Source: chosen; most
/// programs have one or two.
const FIRST: usize = 4;
/// The most objects of a region, so that readers, which read a part of a KiB for each writer, read it whole. Source:
/// chosen.
const MOST: usize = 32;

/// The cells of all objects of one kind in this process. Other processes read their sum, which keeps the counts of
/// objects that have ended.
#[derive(Debug)]
pub struct ObjectCells<S: 'static> {
    words: fn(usize) -> &'static [AtomicU64],
    regions: Mutex<Vec<Shared<S>>>,
}

/// A region, and the set with the sum of ended objects.
#[derive(Debug)]
struct Shared<S: 'static> {
    region: Region<'static, S>,
    ended: RegionSet<'static, S>,
}

/// The cells of one object, to be ended with [`end`](CellsOfObject::end). Dropping them leaves the counts in the
/// region, where they cannot be used again: a forked child must not end the cells of its parent.
#[derive(Debug)]
pub struct CellsOfObject<S: 'static> {
    cells: SharedCells<S>,
    all: &'static ObjectCells<S>,
    region: usize,
}

impl<S: MetricSet> ObjectCells<S> {
    /// Creates an empty collection. `words` returns at least so many words, all zero, which nothing else uses.
    #[must_use]
    pub const fn new(words: fn(usize) -> &'static [AtomicU64]) -> Self {
        ObjectCells { words, regions: Mutex::new(Vec::new()) }
    }

    // A panic under the lock leaves a list of whole regions.
    fn lock(&self) -> MutexGuard<'_, Vec<Shared<S>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns cells for a new object with this many writers, rounded up to a power of two. All objects of a collection
    /// have the same number.
    ///
    /// # Panics
    /// If `words` returned too few words.
    pub fn claim(&'static self, writers: usize) -> CellsOfObject<S> {
        let mut regions = self.lock();
        for (region, shared) in regions.iter().enumerate() {
            // An error: the region is full, or a forked child was killed while it claimed a set.
            if let Ok(cells) = SharedCells::of_region(&shared.region, writers) {
                return CellsOfObject { cells, all: self, region };
            }
        }
        let sets = writers.max(1).next_power_of_two() * (FIRST << regions.len().min(8)).min(MOST) + 1;
        let shared = self.create(sets).expect("words for a region");
        let cells = SharedCells::of_region(&shared.region, writers).expect("a new region has free sets");
        regions.push(shared);
        CellsOfObject { cells, all: self, region: regions.len() - 1 }
    }

    fn create(&self, sets: usize) -> Result<Shared<S>, RegionError> {
        let region = Region::create((self.words)(Region::<S>::words(sets)), sets)?;
        let ended = region.claim("")?;
        Ok(Shared { region, ended })
    }
}

impl<S: MetricSet> CellsOfObject<S> {
    /// Adds the counts to those of ended objects, and frees the cells. Gauges count as they are.
    pub fn end(self) {
        let regions = self.all.lock();
        if let Some(shared) = regions.get(self.region) {
            self.cells.merge_into(&shared.ended);
        }
    }
}

impl<S> Deref for CellsOfObject<S> {
    type Target = SharedCells<S>;

    #[inline]
    fn deref(&self) -> &SharedCells<S> {
        &self.cells
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::RegionReader;
    use std::sync::Mutex;

    crate::metrics! {
        /// A counter.
        struct Work {
            /// Jobs.
            jobs: u64 = counter "telpher_test_jobs_total",
        }
    }

    /// The words of all regions of the test.
    static REGIONS: Mutex<Vec<&'static [AtomicU64]>> = Mutex::new(Vec::new());

    fn words(words: usize) -> &'static [AtomicU64] {
        let words: &'static [AtomicU64] = Box::leak((0..words).map(|_| AtomicU64::new(0)).collect());
        REGIONS.lock().unwrap().push(words);
        words
    }

    static ALL: ObjectCells<Work> = ObjectCells::new(words);

    /// What a reader sees: the sum, and the sets in use.
    fn seen() -> (u64, usize) {
        let regions = REGIONS.lock().unwrap();
        let sets = |words: &&'static [AtomicU64]| RegionReader::open(words).unwrap().snapshot().sets;
        let all: Vec<_> = regions.iter().flat_map(sets).collect();
        (all.iter().map(|set| set.values[0]).sum(), all.len())
    }

    #[test]
    fn counts_of_ended_objects_stay_and_their_cells_are_used_again() {
        for round in 0..3 {
            let objects: Vec<_> = (0..10).map(|_| ALL.claim(2)).collect();
            for (number, object) in (0..).zip(&objects) {
                object.add(0, Work::AT.jobs, 1);
                object.add(1, Work::AT.jobs, number);
                assert_eq!(object.snapshot().jobs, 1 + number, "an object begins with nothing");
            }
            let all = 10 + 45;
            // Room for 4, 8: two sets of ended objects, and two for each object.
            assert_eq!(seen(), ((round + 1) * all, 22));
            objects.into_iter().for_each(CellsOfObject::end);
            assert_eq!((seen(), REGIONS.lock().unwrap().len()), (((round + 1) * all, 2), 2));
        }
    }
}
