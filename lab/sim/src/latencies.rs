//! How long things took: a histogram with three significant digits, from which any percentile can be told.

use crate::ps::Ps;
use hdrhistogram::Histogram;

/// Latencies of many operations.
#[derive(Clone, PartialEq, Debug)]
pub struct Latencies(Histogram<u32>);

impl Default for Latencies {
    fn default() -> Self {
        // Cannot fail: between 0 and 5.
        Latencies(Histogram::new(3).expect("three digits are possible"))
    }
}

impl Latencies {
    /// One more.
    #[inline]
    pub(crate) fn add(&mut self, latency: Ps) {
        // Cannot fail: it grows by itself.
        let _ = self.0.record(latency.0);
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// How long one took on average; within a thousandth.
    #[must_use]
    pub fn mean(&self) -> Ps {
        Ps::from_nanos_f64(self.0.mean() / 1e3)
    }

    /// The time that a part of them (0 to 1) did not exceed.
    #[must_use]
    pub fn at(&self, part: f64) -> Ps {
        Ps(self.0.value_at_quantile(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth_of_what_was_added() {
        let mut latencies = Latencies::default();
        for ns in 1..=10_000 {
            latencies.add(Ps::from_nanos(ns));
        }
        assert_eq!(latencies.count(), 10_000);
        for (part, ns) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0), (1.0, 10_000.0)] {
            let told = latencies.at(part).as_nanos_f64();
            assert!((told / ns - 1.0).abs() <= 0.001, "{part}: {told} for {ns} ns");
        }
    }

    #[test]
    fn nothing_has_no_latency() {
        assert_eq!(Latencies::default().at(0.99), Ps::ZERO);
    }
}
