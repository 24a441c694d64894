//! Where a host differs from another one by more than the noise.

use super::host::{HostResult, Quantity};

/// The least difference that counts where a host has several rounds, as a part of the number. Source: chosen; quiet
/// rounds of most rows differ by less.
const LEAST_NOISE: f64 = 0.05;

/// The same where one of the hosts has a single round, so that its noise is not known. Source: chosen.
const UNKNOWN_NOISE: f64 = 0.15;

/// A number that differs.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference<'a> {
    /// The other host's result.
    pub other: &'a HostResult,
    /// The quantity here.
    pub here: &'a Quantity,
    /// The same quantity there.
    pub there: &'a Quantity,
    /// The number here over that of the other host.
    pub ratio: f64,
    /// What counts as noise, as a part of the number.
    pub noise: f64,
}

/// Returns the quantities that differ from those of another host, the largest difference first.
#[must_use]
pub fn differences<'a>(here: &'a HostResult, other: &'a HostResult) -> Vec<Difference<'a>> {
    let mut all: Vec<Difference<'a>> = here
        .quantities
        .iter()
        .filter_map(|here| {
            let there = other.quantities.iter().find(|there| there.is_same(here))?;
            let noise = noise(here).max(noise(there));
            let ratio = here.median() / there.median();
            let [lowest, highest] = here.range();
            let [other_lowest, other_highest] = there.range();
            let apart = lowest > other_highest || highest < other_lowest;
            let differs = apart && ratio.is_finite() && ratio > 0.0 && ratio.ln().abs() > noise.ln_1p();
            differs.then_some(Difference { other, here, there, ratio, noise })
        })
        .collect();
    all.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
    all
}

/// Returns what counts as noise: half the range of the rounds, as a part of the median.
fn noise(quantity: &Quantity) -> f64 {
    if quantity.values.len() < 2 {
        return UNKNOWN_NOISE;
    }
    let [lowest, highest] = quantity.range();
    ((highest - lowest) / 2.0 / quantity.median().abs()).max(LEAST_NOISE)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::goal::Goal;

    #[test]
    fn only_differences_beyond_the_noise_of_both_hosts_count() {
        let of = |values: &[f64]| sample("A", "", "crc", Goal::AtLeast(1.0), values);
        let differ = |here: &[f64], there: &[f64]| differences(&of(here), &of(there)).len();
        assert_eq!(differ(&[1.0, 1.01, 1.02], &[1.2, 1.21, 1.22]), 1);
        assert_eq!(differ(&[1.0, 1.01, 1.02], &[1.04, 1.05, 1.06]), 0, "below 5 %");
        assert_eq!(differ(&[0.8, 1.0, 1.2], &[1.1, 1.3, 1.5]), 0, "the ranges meet");
        assert_eq!(differ(&[1.0], &[1.1]), 0, "a single round each");
        assert_eq!(differ(&[1.0], &[1.3]), 1);
        assert_eq!(differ(&[], &[1.3]), 0);
        let other = sample("B", "", "compare", Goal::AtLeast(1.0), &[3.0]);
        assert!(differences(&of(&[1.0]), &other).is_empty());
    }

    #[test]
    fn the_largest_difference_comes_first() {
        let mut here = sample("A", "", "crc", Goal::AtLeast(1.0), &[2.0, 2.0]);
        here.add(sample("A", "", "compare", Goal::AtLeast(1.0), &[0.2, 0.2]).quantities);
        let mut there = sample("B", "", "crc", Goal::AtLeast(1.0), &[1.0, 1.0]);
        there.add(sample("B", "", "compare", Goal::AtLeast(1.0), &[1.0, 1.0]).quantities);
        let found: Vec<(String, f64)> =
            differences(&here, &there).into_iter().map(|it| (it.here.what.clone(), it.ratio)).collect();
        assert_eq!(found, [("compare".to_owned(), 0.2), ("crc".to_owned(), 2.0)]);
    }
}
