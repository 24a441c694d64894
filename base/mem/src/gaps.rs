//! The free ranges of a mapping, found by their length.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges. The unit is the user's: bytes of a pool, or blocks.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// Length of each gap by its start. No two gaps touch.
    by_start: BTreeMap<usize, usize>,
    /// The same gaps as (length, start).
    by_len: BTreeSet<(usize, usize)>,
    /// The sum of all lengths.
    free: usize,
}

impl Gaps {
    /// Creates a single gap of `len` units from 0.
    pub(crate) fn of(len: usize) -> Gaps {
        let mut gaps = Gaps::default();
        if len > 0 {
            gaps.give_back(0, len);
        }
        gaps
    }

    /// The number of free units.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// The length of the longest gap; 0 if there is none.
    pub(crate) fn longest(&self) -> usize {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    fn insert(&mut self, start: usize, len: usize) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Takes `len` units from the smallest gap that is long enough, the first of equals.
    pub(crate) fn take(&mut self, len: usize) -> Option<usize> {
        let &(gap, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, gap);
        if gap > len {
            self.insert(start + len, gap - len);
        }
        self.free -= len;
        Some(start)
    }

    /// Takes the longest gap, as start and length, if it has at least `least` units.
    pub(crate) fn take_longest(&mut self, least: usize) -> Option<(usize, usize)> {
        let &(len, start) = self.by_len.last().filter(|&&(len, _)| len >= least)?;
        self.remove(start, len);
        self.free -= len;
        Some((start, len))
    }

    /// Returns a range, which is merged with the gaps that it touches. `len` is not 0.
    pub(crate) fn give_back(&mut self, mut start: usize, mut len: usize) {
        self.free += len;
        if let Some((&before, &gap)) = self.by_start.range(..start).next_back()
            && before + gap == start
        {
            self.remove(before, gap);
            (start, len) = (before, len + gap);
        }
        if let Some(&gap) = self.by_start.get(&(start + len)) {
            self.remove(start + len, gap);
            len += gap;
        }
        self.insert(start, len);
    }
}
