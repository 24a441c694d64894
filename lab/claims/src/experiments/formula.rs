//! A formula of three parameters, as a yardstick for the simulator: an operation takes the larger of an overhead, and
//! its bytes at a rate plus a gap.
//!
//! It is fitted to the series that it is compared with, so it knows every point. The simulator knows none of a held-out
//! series.

use super::series::Point;

/// Time of an operation of a size: `max(overhead, size / cap + gap)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Formula {
    /// Nanoseconds that no operation falls below.
    pub overhead: f64,
    /// Bytes a nanosecond.
    pub cap: f64,
    /// Nanoseconds besides the bytes.
    pub gap: f64,
}

/// Bytes of a MiB, for rates in MiB a second.
const MEBIBYTE: f64 = 1_048_576.0;

/// The smallest step of the search, as a share of a parameter. Source: chosen; a tenth of a published digit.
const FINEST: f64 = 1e-4;

/// Published nanoseconds of an operation.
fn published(point: &Point) -> f64 {
    f64::from(point.size) / (point.published * MEBIBYTE) * 1e9
}

impl Formula {
    /// Nanoseconds of an operation.
    #[must_use]
    pub fn nanos(&self, size: u32) -> f64 {
        self.overhead.max(f64::from(size) / self.cap + self.gap)
    }

    /// Mean absolute deviation of its rates from the published ones, as a share.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a few points")]
    pub fn mean(&self, points: &[Point]) -> f64 {
        let off = points.iter().map(|point| (published(point) / self.nanos(point.size) - 1.0).abs());
        off.sum::<f64>() / points.len().max(1) as f64
    }

    /// The formula with the smallest mean deviation that a search from several begins finds.
    #[must_use]
    pub fn fit(points: &[Point]) -> Formula {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Formula { overhead: 0.0, cap: 1.0, gap: 0.0 };
        };
        let (least, cap) = (published(first), f64::from(last.size) / published(last));
        let begins = [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (2.0, 0.0), (0.5, 0.5)];
        let begins = begins.map(|(overhead, gap)| Formula { overhead: least * overhead, cap, gap: least * gap });
        let found = begins.map(|begin| improved(begin, points));
        found.into_iter().min_by(|one, other| one.mean(points).total_cmp(&other.mean(points))).unwrap_or(begins[0])
    }
}

/// Changes one parameter after the other while that helps, by ever smaller steps.
fn improved(mut best: Formula, points: &[Point]) -> Formula {
    let (mut step, mut mean) = (0.3, best.mean(points));
    while step > FINEST {
        let mut helped = false;
        for factor in [1.0 + step, 1.0 / (1.0 + step)] {
            let by = (factor - 1.0) * best.overhead;
            for tried in [
                Formula { overhead: best.overhead * factor, ..best },
                Formula { cap: best.cap * factor, ..best },
                Formula { gap: (best.gap + by).max(0.0), ..best },
                Formula { overhead: best.overhead * factor, gap: (best.gap + by).max(0.0), ..best },
            ] {
                let its = tried.mean(points);
                if its < mean {
                    (best, mean, helped) = (tried, its, true);
                }
            }
        }
        if !helped {
            step /= 2.0;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_finds_its_own_parameters() {
        let known = Formula { overhead: 190.0, cap: 31.4, gap: 14.0 };
        let points = super::super::measure::SIZES.map(|size| {
            let published = f64::from(size) / known.nanos(size) * 1e9 / MEBIBYTE;
            Point { size, published, simulated: 0.0 }
        });
        let found = Formula::fit(&points);
        assert!(found.mean(&points) < 0.002, "{found:?}: {}", found.mean(&points));
        assert!((found.overhead / 190.0 - 1.0).abs() < 0.01 && (found.cap / 31.4 - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn no_points_have_no_deviation() {
        assert_eq!(Formula::fit(&[]).mean(&[]), 0.0);
    }
}
