//! Sets of slot numbers, kept as runs, so that the best run is found without a scan of the slots.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A set of numbers, as runs that do not touch each other.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The end of each run, by its start.
    ends: BTreeMap<usize, usize>,
    /// The length and start of each run.
    lens: BTreeSet<(usize, usize)>,
}

impl Runs {
    /// Creates a set of one run.
    pub(crate) fn of(run: Range<usize>) -> Runs {
        let mut runs = Runs::default();
        runs.put(run);
        runs
    }

    /// Removes and returns up to `most` contiguous numbers: from the shortest run that has as many, or the whole
    /// longest run.
    pub(crate) fn take(&mut self, most: usize) -> Option<Range<usize>> {
        let (len, start) = *self.lens.range((most, 0)..).next().or_else(|| self.lens.last())?;
        self.remove(start..start + len);
        let end = start + len.min(most);
        if end < start + len {
            self.add(end..start + len);
        }
        Some(start..end)
    }

    /// Adds contiguous numbers that are not in the set.
    pub(crate) fn put(&mut self, run: Range<usize>) {
        if run.is_empty() {
            return;
        }
        let (mut start, mut end) = (run.start, run.end);
        if let Some((&before, &its_end)) = self.ends.range(..run.end).next_back() {
            debug_assert!(its_end <= run.start, "{run:?} is there already, of {before}..{its_end}");
            if its_end == run.start {
                self.remove(before..its_end);
                start = before;
            }
        }
        if let Some(&its_end) = self.ends.get(&run.end) {
            self.remove(run.end..its_end);
            end = its_end;
        }
        self.add(start..end);
    }

    fn add(&mut self, run: Range<usize>) {
        self.ends.insert(run.start, run.end);
        self.lens.insert((run.len(), run.start));
    }

    fn remove(&mut self, run: Range<usize>) {
        self.ends.remove(&run.start);
        self.lens.remove(&(run.len(), run.start));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lens.iter().map(|(len, _)| len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(runs: &Runs) -> Vec<Range<usize>> {
        runs.ends.iter().map(|(&start, &end)| start..end).collect()
    }

    #[test]
    fn the_shortest_run_that_is_long_enough_is_taken() {
        let mut runs = Runs::default();
        for run in [0..10, 20..25, 30..33] {
            runs.put(run);
        }
        assert_eq!((runs.take(4), runs.take(4), runs.take(3)), (Some(20..24), Some(0..4), Some(30..33)));
        assert_eq!(all(&runs), [4..10, 24..25]);
        // No run is this long, so the longest is taken.
        assert_eq!((runs.take(9), runs.take(9), runs.take(9)), (Some(4..10), Some(24..25), None));
    }

    #[test]
    fn runs_that_touch_are_one() {
        let mut runs = Runs::of(0..0);
        assert_eq!(runs.take(1), None);
        for run in [4..6, 0..2, 8..9, 2..4] {
            runs.put(run);
        }
        assert_eq!((all(&runs), runs.len()), (vec![0..6, 8..9], 7));
        runs.put(6..8);
        assert_eq!((runs.lens.len(), runs.take(100)), (1, Some(0..9)));
    }

    #[test]
    #[should_panic(expected = "is there already")]
    fn a_number_in_the_set_is_not_added_again() {
        Runs::of(3..7).put(6..8);
    }

    /// Compares with an array of flags.
    #[test]
    fn the_set_equals_an_array_of_flags() {
        let (mut runs, mut there, mut numbers) = (Runs::of(0..64), [true; 64], telpher_os::Random::new(7));
        for _ in 0..10_000 {
            let random = numbers.next();
            if random.is_multiple_of(2) {
                let most = usize::try_from(random / 2 % 9).unwrap() + 1;
                let Some(run) = runs.take(most) else { continue };
                assert!(!run.is_empty() && run.len() <= most && run.clone().all(|at| std::mem::take(&mut there[at])));
            } else {
                let at = usize::try_from(random / 2 % 64).unwrap();
                let len = there[at..].iter().take_while(|there| !**there).count().min(5);
                there[at..at + len].fill(true);
                runs.put(at..at + len);
            }
            let listed: Vec<usize> = all(&runs).into_iter().flatten().collect();
            assert_eq!(listed, (0..64).filter(|&at| there[at]).collect::<Vec<_>>());
            assert!(all(&runs).windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
