//! A latency histogram with three significant digits, for any percentile.

use crate::picos::Picos;
use hdrhistogram::Histogram;

/// Latencies of many operations.
#[derive(Clone, PartialEq, Debug)]
pub struct Latencies(Histogram<u32>);

impl Default for Latencies {
    fn default() -> Self {
        // Cannot fail: the number of digits is between 0 and 5.
        Latencies(Histogram::new(3).expect("three digits are possible"))
    }
}

impl Latencies {
    /// Records one latency.
    #[inline]
    pub(crate) fn add(&mut self, latency: Picos) {
        // Cannot fail: the histogram resizes automatically.
        let _ = self.0.record(latency.0);
    }

    /// The number of recorded latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The mean latency, within a thousandth.
    #[must_use]
    pub fn mean(&self) -> Picos {
        Picos::from_nanos_f64(self.0.mean() / 1e3)
    }

    /// The latency at the quantile `part` (0 to 1); zero if nothing was recorded.
    #[must_use]
    pub fn at(&self, part: f64) -> Picos {
        Picos(self.0.value_at_quantile(part))
    }

    /// Like [`at`](Latencies::at), but `None` if there are too few samples for this quantile.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<Picos> {
        enough(self.count(), part).then(|| self.at(part))
    }
}

/// True if `samples` are enough for the quantile `part` (0 to 1): at least one sample lies beyond it. A median needs
/// one sample, the 99th percentile 100, and the 99.9th 1,000.
#[must_use]
pub fn enough(samples: u64, part: f64) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "only compared with small numbers")]
    let samples = samples as f64;
    // `1.0 - 0.999` is slightly less than a thousandth.
    samples > 0.0 && (part <= 0.5 || samples * (1.0 - part) >= 1.0 - 1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth_of_the_samples() {
        let mut latencies = Latencies::default();
        for ns in 1..=10_000 {
            latencies.add(Picos::from_nanos(ns));
        }
        assert_eq!(latencies.count(), 10_000);
        for (part, ns) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0), (1.0, 10_000.0)] {
            let reported = latencies.at(part).as_nanos_f64();
            assert!((reported / ns - 1.0).abs() <= 0.001, "{part}: {reported} for {ns} ns");
        }
    }

    #[test]
    fn an_empty_histogram_has_no_percentiles() {
        assert_eq!(Latencies::default().at(0.99), Picos::ZERO);
        assert_eq!([0.5, 0.99, 0.999].map(|part| Latencies::default().percentile(part)), [None; 3]);
    }

    #[test]
    fn a_percentile_needs_a_sample_beyond_it() {
        for (part, least) in [(0.5, 1), (0.9, 10), (0.99, 100), (0.999, 1000)] {
            assert_eq!((enough(least - 1, part), enough(least, part)), (false, true), "{part}");
        }
    }
}
