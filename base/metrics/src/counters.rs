//! The counters of a set without its gauges.

use crate::metric::{Kind, Metric};
use crate::set::{MetricSet, Position, Record};

/// The counters of a set, for a place where nothing keeps its gauges. The set has its counters first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters<S>(pub S);

/// Returns the number of counters.
///
/// # Panics
/// If a counter follows a gauge, when it is compiled.
const fn counters(metrics: &[Metric]) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < metrics.len() {
        if matches!(metrics[at].kind, Kind::Counter) {
            assert!(count == at, "a counter follows a gauge");
            count += 1;
        }
        at += 1;
    }
    count
}

impl<S: MetricSet> Record for Counters<S> {
    const WORDS: usize = counters(S::METRICS);

    fn each(&self, put: &mut (impl FnMut(u64) + ?Sized)) {
        let mut left = Self::WORDS;
        self.0.each(&mut |word| {
            if left > 0 {
                left -= 1;
                put(word);
            }
        });
    }

    fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> Self {
        let mut left = Self::WORDS;
        Counters(S::build(&mut || {
            if left == 0 {
                return 0;
            }
            left -= 1;
            next()
        }))
    }

    fn combine(&self, other: &Self, of: &mut impl FnMut(u64, u64) -> u64) -> Self {
        let mut left = Self::WORDS;
        Counters(self.0.combine(&other.0, &mut |a, b| {
            if left == 0 {
                return a;
            }
            left -= 1;
            of(a, b)
        }))
    }
}

impl<S: MetricSet> MetricSet for Counters<S> {
    const METRICS: &'static [Metric] = S::METRICS.split_at(Self::WORDS).0;
}

impl<S: MetricSet> Position<S> {
    /// Returns the place of a counter among the counters of its set. Those of gauges are beyond the end.
    #[inline]
    #[must_use]
    pub const fn of_counter(self) -> Position<Counters<S>> {
        Position::new(self.index())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    crate::metrics! {
        /// Two counters and a gauge.
        struct Work {
            /// Jobs.
            jobs: u64 = counter "telpher_test_jobs_total",
            /// Bytes.
            sizes: [u64; 2] = counter(Bytes) "telpher_test_copied_bytes_total" by way ["a", "b"],
            /// Present jobs.
            present: u64 = gauge "telpher_test_present_jobs",
        }
    }

    #[test]
    fn gauges_are_neither_described_nor_kept() {
        let work = Work { jobs: 1, sizes: [2, 3], present: 9 };
        let counters = Counters(work);
        assert_eq!((counters.words(), Counters::<Work>::METRICS.len()), (vec![1, 2, 3], 3));
        let mut words = 5..;
        let built = Counters::<Work>::build(&mut || words.next().unwrap());
        assert_eq!(built.0, Work { jobs: 5, sizes: [6, 7], present: 0 });
        assert_eq!(built.plus(&counters).0, Work { jobs: 6, sizes: [8, 10], present: 0 });
        assert_eq!(Work::AT.sizes.of_counter().index(), 1);
    }
}
