//! The sample set of the cache experiments: a cache and a source of blocks for it.

use crate::BenchError;
use crate::buffers::fill_known;
use crate::questions::Experiment;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use telpher_cache::{Cache, Config, Handle};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::Mover;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// A source of blocks, and a cache with room for some or all of them.
pub(super) struct SampleSet {
    pub(super) cache: Cache<Arc<[u8]>>,
    pub(super) source: Arc<[u8]>,
    pub(super) block: usize,
}

impl SampleSet {
    /// Creates a source of `blocks` blocks and an empty cache with room for `room` of them.
    pub(super) fn empty(mover: Mover, block: usize, blocks: usize, room: usize) -> Result<Self, BenchError> {
        let mut source = vec![0; blocks * block];
        fill_known(&mut source, blocks as u64);
        let pool = Pool::new(PoolOptions::new(room * block))?;
        Ok(SampleSet { cache: Cache::new(mover, Config::new([pool]))?, source: source.into(), block })
    }

    /// Creates a source and a cache that holds all `blocks` blocks; compares every copy with the source.
    pub(super) fn full(contest: &Experiment, blocks: usize) -> Result<Self, BenchError> {
        let shelf = SampleSet::empty(Mover::cpu(), BLOCK, blocks, blocks)?;
        for number in 0..blocks {
            shelf.access(number)?.wait_copy();
        }
        assert_eq!(shelf.check(contest)?, blocks, "the pool has room for all blocks");
        Ok(shelf)
    }

    /// Returns the number of blocks in the source.
    pub(super) fn blocks(&self) -> usize {
        self.source.len() / self.block
    }

    /// Returns the range of a block in the source.
    #[inline]
    pub(super) fn range(&self, number: usize) -> Range<usize> {
        number * self.block..(number + 1) * self.block
    }

    #[inline]
    pub(super) fn access(&self, number: usize) -> Result<Handle<Arc<[u8]>>, BenchError> {
        Ok(self.cache.access(&self.source, self.range(number))?)
    }

    /// Compares the blocks in the cache with the source, and returns how many blocks are present.
    pub(super) fn check(&self, contest: &Experiment) -> Result<usize, BenchError> {
        let mut present = 0;
        for number in 0..self.blocks() {
            let Some(handle) = self.cache.peek(&self.source, self.range(number))? else { continue };
            present += usize::from(handle.is_fast());
            contest.arrived(&self.source[self.range(number)], &handle.location())?;
        }
        Ok(present)
    }
}

/// A thread that accesses the blocks of a part of a shelf in a pseudo-random order.
pub(super) struct Reader<'a> {
    shelf: &'a SampleSet,
    /// The number of its first block.
    first: usize,
    /// The number of its blocks minus one; the number of its blocks is a power of two.
    mask: usize,
    last: usize,
}

/// Accesses in a step.
pub(super) const STEP: u64 = 64;

impl<'a> Reader<'a> {
    /// Creates a reader of `blocks` blocks from `first` on; `blocks` must be a power of two.
    pub(super) fn new(shelf: &'a SampleSet, first: usize, blocks: usize) -> Self {
        assert!(blocks.is_power_of_two() && first + blocks <= shelf.blocks());
        Reader { shelf, first, mask: blocks - 1, last: 0 }
    }

    /// Returns the next block. Each block comes once per period, in an order without a stride.
    #[inline]
    fn next(&mut self) -> usize {
        // The period is full for every power of two (Hull and Dobell, 1962): the addend is odd, and the factor is one
        // more than a multiple of four.
        self.last = self.last.wrapping_mul(0x5_DEEC_E66D).wrapping_add(11) & self.mask;
        self.first + self.last
    }

    /// Accesses [`STEP`] blocks and reads the location of each copy.
    #[inline]
    pub(super) fn access(&mut self) -> Result<u64, BenchError> {
        for _ in 0..STEP {
            let handle = self.shelf.access(self.next())?;
            black_box(handle.location().bytes().as_ptr());
        }
        Ok(STEP)
    }

    /// Like [`access`](Self::access), for 64 bytes in the middle of each block.
    #[inline]
    pub(super) fn part(&mut self) -> Result<u64, BenchError> {
        for _ in 0..STEP {
            let middle = self.shelf.range(self.next()).start + BLOCK / 2;
            let handle = self.shelf.cache.access(&self.shelf.source, middle..middle + 64)?;
            black_box(handle.location().bytes().as_ptr());
        }
        Ok(STEP)
    }

    /// Like [`access`](Self::access), but with `peek`, which never starts a copy.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<u64, BenchError> {
        for _ in 0..STEP {
            let range = self.shelf.range(self.next());
            let handle = self.shelf.cache.peek(&self.shelf.source, range)?;
            black_box(handle.map(|handle| handle.location().bytes().as_ptr()));
        }
        Ok(STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hits::EXPERIMENT;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_reader_visits_each_of_its_blocks_once_and_no_other() {
        let shelf = SampleSet::full(&EXPERIMENT, 64).unwrap();
        for (first, blocks) in [(0, 64), (32, 32), (63, 1), (0, 2)] {
            let mut reader = Reader::new(&shelf, first, blocks);
            let seen: BTreeSet<usize> = (0..blocks).map(|_| reader.next()).collect();
            assert_eq!(seen, (first..first + blocks).collect());
        }
    }

    #[test]
    fn check_counts_the_blocks_in_the_cache() {
        let shelf = SampleSet::empty(Mover::cpu(), BLOCK, 8, 2).unwrap();
        assert_eq!(shelf.check(&EXPERIMENT).unwrap(), 0);
        shelf.access(5).unwrap().wait_copy();
        assert_eq!(shelf.check(&EXPERIMENT).unwrap(), 1);
        for number in 0..8 {
            shelf.access(number).unwrap().wait_copy();
        }
        assert_eq!(shelf.check(&EXPERIMENT).unwrap(), 2);
    }
}
