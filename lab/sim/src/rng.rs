//! Seeded pseudorandom numbers, in integers: the same on every computer.

use crate::picos::Picos;
use telpher_os::Random;

/// A pseudorandom generator with streams.
#[derive(Clone, Debug)]
pub(crate) struct Rng(Random);

/// ln 2 in 1/2^32.
const LN_2: u64 = 2_977_044_472;

impl Rng {
    /// A generator of a seed and a stream number: different streams give different numbers.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let first = Random::new(seed).next();
        Rng(Random::new(first ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The next number.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end`, which must not be 0.
    #[inline]
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// The time to the next of independent events with a mean interval of `mean`: exponentially distributed, so the
    /// events form a Poisson process.
    pub(crate) fn exponential(&mut self, mean: Picos) -> Picos {
        // The logarithm of a number between 0 and 1.
        let log = (u128::from(minus_log2(self.next().max(1))) * u128::from(LN_2)) >> 32;
        Picos(u64::try_from((u128::from(mean.0) * log) >> 32).unwrap_or(u64::MAX))
    }
}

/// Minus the binary logarithm of `number` / 2^64, in 1/2^32. The fraction is computed bit by bit, by squaring.
fn minus_log2(number: u64) -> u64 {
    let zeros = number.leading_zeros();
    let mut mantissa = number << zeros;
    let mut fraction = 0_u64;
    for bit in (8..32).rev() {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let carry = square >> 127 != 0;
        // Cannot lose bits: the upper half, shifted so that its first bit is set.
        #[allow(clippy::cast_possible_truncation, reason = "the upper half")]
        {
            mantissa = if carry { (square >> 64) as u64 } else { (square >> 63) as u64 };
        }
        fraction |= u64::from(carry) << bit;
    }
    (u64::from(zeros + 1) << 32) - fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_matches_floating_point() {
        for number in [1 << 63, 1, 3 << 61, 12345, u64::MAX] {
            let computed = minus_log2(number) as f64 / 2_f64.powi(32);
            let log = 64.0 - (number as f64).log2();
            assert!((computed - log).abs() < 1e-6, "{number}: {computed} for {log}");
        }
    }

    #[test]
    fn exponential_times_have_their_mean_and_spread() {
        let (mut rng, mean) = (Rng::new(7, 0), Picos::from_nanos(1000));
        let times: Vec<f64> = (0..100_000).map(|_| rng.exponential(mean).as_nanos_f64()).collect();
        let average = times.iter().sum::<f64>() / 1e5;
        let beyond = times.iter().filter(|time| **time > 2000.0).count() as f64 / 1e5;
        assert!((average - 1000.0).abs() < 10.0, "{average}");
        assert!((beyond - (-2.0_f64).exp()).abs() < 0.005, "{beyond}");
    }

    #[test]
    fn streams_differ_and_are_reproducible() {
        let three = |stream| {
            let mut rng = Rng::new(1, stream);
            [rng.next(), rng.next(), rng.below(10)]
        };
        assert_ne!(three(0), three(1));
        assert_eq!(three(1), three(1));
        assert!(three(2)[2] < 10);
    }
}
