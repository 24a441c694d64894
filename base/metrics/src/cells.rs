//! The cells of a set of metrics that several threads count in.

use crate::set::{MetricSet, Position};
use crate::sync::{AtomicU64, Ordering};
use std::marker::PhantomData;

/// Words of a line.
const LINE: usize = 16;

/// Cells that share no cache line with those of other writers. 128 bytes: x86 prefetches lines in pairs.
#[repr(align(128))]
#[derive(Debug)]
struct Line([AtomicU64; LINE]);

/// The cells of a set, in lines of their own for each writer.
///
/// Adding is one relaxed atomic addition. Writers that share a number are correct and slower. A snapshot is the sum of
/// all writers: each value is right for some moment during the call, but two values may be of different moments.
#[derive(Debug)]
pub struct Cells<S> {
    lines: Box<[Line]>,
    /// The number of writers minus one; the number is a power of two.
    mask: usize,
    set: PhantomData<fn() -> S>,
}

impl<S: MetricSet> Cells<S> {
    const LINES: usize = S::WORDS.div_ceil(LINE);

    /// Creates cells for `writers`, rounded up to a power of two.
    #[must_use]
    pub fn new(writers: usize) -> Self {
        let writers = writers.max(1).next_power_of_two();
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Cells { lines: (0..writers * Self::LINES).map(line).collect(), mask: writers - 1, set: PhantomData }
    }

    /// Adds to a value. Writers with larger numbers than [`new`](Cells::new) was told share the cells of others.
    #[inline]
    pub fn add(&self, writer: usize, position: Position<S>, more: u64) {
        let at = (writer & self.mask) * Self::LINES;
        // Relaxed: a counter publishes no other data.
        self.cell(at, position.index()).fetch_add(more, Ordering::Relaxed);
    }

    #[inline]
    fn cell(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.lines[line + word / LINE].0[word % LINE]
    }

    /// Returns the sum of all writers' values.
    #[must_use]
    pub fn snapshot(&self) -> S {
        let mut word = 0;
        S::build(&mut || {
            let of = |line| self.cell(line, word).load(Ordering::Relaxed);
            let sum = (0..self.lines.len()).step_by(Self::LINES).map(of).fold(0, u64::wrapping_add);
            word += 1;
            sum
        })
    }
}

/// The cells of one writer.
impl<S: MetricSet> Default for Cells<S> {
    fn default() -> Self {
        Cells::new(1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    crate::metrics! {
        /// More values than a line has.
        struct Wide {
            /// First.
            first: u64 = counter "telpher_test_first_total",
            /// Others.
            others: [u64; 20] = counter "telpher_test_others_total" by at OTHERS,
            /// Last.
            last: u64 = counter "telpher_test_last_total",
        }
    }

    const OTHERS: [&str; 20] =
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"];

    #[test]
    fn every_writer_adds_to_its_own_cells_and_a_snapshot_is_their_sum() {
        let cells = Cells::<Wide>::new(3);
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let cells = &cells;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        cells.add(writer, Wide::AT.first, 1);
                        cells.add(writer, Wide::AT.last, 2);
                    }
                });
            }
        });
        let snapshot = cells.snapshot();
        assert_eq!((snapshot.first, snapshot.last, snapshot.others), (6000, 12_000, [0; 20]));
        assert_eq!(cells.lines.len(), 4 * 2, "three writers are rounded up to four");
        assert!(cells.lines.iter().all(|line| std::ptr::from_ref(line).addr().is_multiple_of(128)));
    }
}
