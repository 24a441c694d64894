//! Which pages of a block were written since its last sync, and the steps of a sync.

use std::ops::Range;
use telpher_mover::{JobError, Outcome};

/// Bytes that are compared and copied back together. Source: a page, the size from which devices are faster than a core
/// ([`Threshold`](telpher_mover::Threshold)'s default).
const GRAIN: usize = 4096;

/// How to find the bytes to copy back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Find {
    /// The bytes borrowed for writing since the last sync.
    #[default]
    Written,
    /// Of these, the bytes that differ from the home: reads both, and writes less. For memory that is slow to write, or
    /// wears out.
    Differing,
    /// All bytes that differ, also where other code has changed the home since.
    Anywhere,
}

/// What a sync did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Synced {
    /// Bytes that were compared.
    pub compared: usize,
    /// Bytes that were copied back.
    pub copied: usize,
}

/// What a sync does with the bytes of a block and of its home.
pub trait SyncHome {
    /// Returns for each range, in their order, whether its bytes differ between the two.
    ///
    /// # Errors
    /// [`JobError`] of the first range that could not be compared.
    fn differing(&mut self, ranges: &[Range<usize>]) -> Result<Vec<bool>, JobError>;

    /// Copies the ranges, which ascend and do not overlap, from the block to its home, all at once. Returns the result
    /// of each, in their order, when all have ended.
    fn copy(&mut self, ranges: &[Range<usize>]) -> Vec<Result<Outcome, JobError>>;
}

/// The pages of a block that were written since its last sync. For blocks whose homes are no slices;
/// [`WriteBack`](crate::WriteBack) has one.
#[derive(Debug)]
pub struct WrittenPages {
    /// Bytes of the block.
    len: usize,
    /// A bit for each grain that was borrowed for writing since the last sync.
    written: Vec<u64>,
}

impl WrittenPages {
    /// No page of a block of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> WrittenPages {
        WrittenPages { len, written: vec![0; len.div_ceil(GRAIN).div_ceil(64)] }
    }

    /// Notes that these bytes may be written.
    ///
    /// # Panics
    /// If the range is not inside the block.
    pub fn mark(&mut self, range: &Range<usize>) {
        let len = self.len;
        assert!(range.start <= range.end && range.end <= len, "{range:?} lies in a block of {len} bytes");
        mark(&mut self.written, range);
    }

    /// Returns the bytes that a sync has to check, in whole pages except the last.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        (0..self.grains()).filter(|&grain| self.is_written(grain)).map(|grain| self.range(grain).len()).sum()
    }

    /// Updates the home, with all pages that need it at once.
    ///
    /// # Errors
    /// [`JobError`] of the first page that failed. Copied pages are not undone; the others are tried again at the next
    /// sync.
    ///
    /// # Panics
    /// If `home` returns fewer or more results than it got ranges.
    pub fn sync(&mut self, find: Find, home: &mut impl SyncHome) -> Result<Synced, JobError> {
        let mut pages: Vec<Range<usize>> = (0..self.grains())
            .filter(|&grain| find == Find::Anywhere || self.is_written(grain))
            .map(|grain| self.range(grain))
            .collect();
        let mut synced = Synced::default();
        if find != Find::Written {
            synced.compared = pages.iter().map(ExactSizeIterator::len).sum();
            let differing = home.differing(&pages)?;
            assert_eq!(differing.len(), pages.len(), "a result for each range");
            let mut differing = differing.into_iter();
            pages.retain(|_| differing.next() == Some(true));
        }
        // Contiguous pages are one copy.
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(last) if last.end == page.start => last.end = page.end,
                _ => runs.push(page),
            }
        }
        let results = home.copy(&runs);
        assert_eq!(results.len(), runs.len(), "a result for each range");
        let mut failed = None;
        let mut stays = vec![0; self.written.len()];
        for (run, result) in runs.into_iter().zip(results) {
            match result {
                Ok(_) => synced.copied += run.len(),
                Err(error) => {
                    failed.get_or_insert(error);
                    mark(&mut stays, &run);
                }
            }
        }
        self.written = stays;
        failed.map_or(Ok(synced), Err)
    }

    fn grains(&self) -> usize {
        self.len.div_ceil(GRAIN)
    }

    fn range(&self, grain: usize) -> Range<usize> {
        grain * GRAIN..((grain + 1) * GRAIN).min(self.len)
    }

    fn is_written(&self, grain: usize) -> bool {
        self.written[grain / 64] & 1 << (grain % 64) != 0
    }
}

fn mark(written: &mut [u64], range: &Range<usize>) {
    for grain in range.start / GRAIN..range.end.div_ceil(GRAIN) {
        written[grain / 64] |= 1 << (grain % 64);
    }
}
