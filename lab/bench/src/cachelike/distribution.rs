//! Which values a pool has, how often each key is used, and the parts of the operations.

use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;
use telpher_os::Random;

/// The values and operations of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// Sizes of values.
    pub sizes: ValueSizes,
    /// How often each key is used.
    pub popularity: Popularity,
    /// The parts of the operations.
    pub operations: Operations,
}

/// The parts of the operations; they sum to 1.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operations {
    /// Gets.
    pub gets: f64,
    /// Sets, without those that follow a get.
    pub sets: f64,
    /// Deletions.
    pub deletions: f64,
}

/// Sizes of values in bytes. A key's values always have the same size, as in CacheBench.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ValueSizes {
    /// Each size with its probability.
    Discrete(Vec<(f64, f64)>),
    /// Ranges of sizes with their probabilities; within a range all sizes are equally frequent.
    Ranges(Vec<((f64, f64), f64)>),
}

/// How often keys are used.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Popularity {
    /// A normal distribution over the keys in their order: its mean is the middle, its deviation a quarter of them.
    /// Source: CacheBench's default, `WorkloadDistribution::getPopDist`.
    Normal,
    /// Ranges of the keys, from 0 to 1, each with the probability that an operation uses one of its keys.
    Buckets(Vec<((f64, f64), f64)>),
}

/// Smallest value in bytes: it has its key and its generation. Source: chosen; CacheBench has such a minimum, too.
pub(super) const LEAST_VALUE: usize = 16;

/// Returns the whole part of a number of bytes, keys or operations; 0 of a negative one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "that is the function's purpose")]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}

/// Returns the entry that has the probability `at` of a list, and the position within it, 0 to 1.
pub(super) fn pick<T: Copy>(list: &[(T, f64)], mut at: f64) -> (T, f64) {
    for (entry, probability) in list {
        if at < *probability {
            return (*entry, at / probability);
        }
        at -= probability;
    }
    // Rounding left a rest; no list is empty.
    (list[list.len() - 1].0, 0.5)
}

/// Returns the bytes of a value for which a configuration has this size.
fn bytes(size: f64) -> usize {
    usize::try_from(whole(size)).unwrap_or(usize::MAX).max(LEAST_VALUE)
}

impl ValueSizes {
    /// Returns the mean of a function of the size.
    pub(super) fn mean(&self, of: impl Fn(f64) -> f64) -> f64 {
        match self {
            ValueSizes::Discrete(sizes) => sizes.iter().map(|(size, part)| of(*size) * part).sum(),
            ValueSizes::Ranges(ranges) => {
                ranges.iter().map(|((from, to), part)| of(f64::midpoint(*from, *to)) * part).sum()
            }
        }
    }

    /// Returns the size of a key's values.
    pub(super) fn of_key(&self, key: u64) -> usize {
        // Independent of the key's popularity, which follows from its number.
        let at = unit(Random::new(key).next());
        let size = match self {
            ValueSizes::Discrete(sizes) => pick(sizes, at).0,
            ValueSizes::Ranges(ranges) => {
                let ((from, to), within) = pick(ranges, at);
                from + (to - from) * within
            }
        };
        bytes(size)
    }

    /// Returns the largest size.
    pub(super) fn most(&self) -> usize {
        let sizes: Vec<f64> = match self {
            ValueSizes::Discrete(sizes) => sizes.iter().map(|(size, _)| *size).collect(),
            ValueSizes::Ranges(ranges) => ranges.iter().map(|((_, to), _)| *to).collect(),
        };
        bytes(sizes.into_iter().fold(0.0, f64::max))
    }
}

/// Returns a number from 0 to 1, without 1.
pub(super) fn unit(word: u64) -> f64 {
    // 53 bits are the precision of a double.
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

impl Popularity {
    /// Draws a key of a pool with this many keys.
    pub(super) fn draw(&self, keys: u64, random: &mut Random) -> u64 {
        let position = match self {
            Popularity::Normal => loop {
                // Box and Muller, *A Note on the Generation of Random Normal Deviates* (1958).
                let radius = (-2.0 * (1.0 - unit(random.next())).ln()).sqrt();
                let position = 0.5 + 0.25 * radius * (TAU * unit(random.next())).cos();
                if (0.0..1.0).contains(&position) {
                    break position;
                }
            },
            Popularity::Buckets(buckets) => {
                let ((from, to), within) = pick(buckets, unit(random.next()));
                from + (to - from) * within
            }
        };
        whole(position * keys as f64).min(keys - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_buckets_the_keys_in_the_middle_are_the_popular_ones() {
        let mut random = Random::new(3);
        let near = (0..10_000).filter(|_| (250..750).contains(&Popularity::Normal.draw(1000, &mut random))).count();
        // One deviation to both sides, of all within two.
        let expected = 10_000.0 * 0.6827 / 0.9545;
        assert!((near as f64 - expected).abs() < 200.0, "{near}");
    }

    #[test]
    fn a_key_has_one_size_and_ranges_are_filled() {
        let sizes = ValueSizes::Ranges(vec![((100.0, 200.0), 0.5), ((1000.0, 3000.0), 0.5)]);
        let all: Vec<usize> = (0..10_000).map(|key| sizes.of_key(key)).collect();
        assert!(all.iter().all(|size| (100..200).contains(size) || (1000..3000).contains(size)));
        let long = all.iter().filter(|size| **size >= 1000).count();
        assert!((4800..5200).contains(&long) && all.contains(&150), "{long}");
        assert_eq!(sizes.of_key(42), sizes.of_key(42));
        assert_eq!((sizes.mean(|size| size), sizes.most()), (0.5 * 150.0 + 0.5 * 2000.0, 3000));
    }
}
