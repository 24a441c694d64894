//! Exact sums of floating-point numbers: the same whatever the order of the rows and the number of threads.
//!
//! ```text
//! number = mantissa × 2^exponent ─► added to two of four limbs of 64 bits, from 2^base upwards; limbs have room for
//!                                   2^63 additions ─► carried and rounded once, at the end
//! ```
//!
//! A number is cut below 2^base, which is 2^-256 of the greatest possible number or the least positive number at all.
//! Source: Neal, *Fast Exact Summation Using Small and Large Superaccumulators* (2015), with fewer limbs because the
//! bounds of the numbers are known.

/// Limbs of a sum.
pub(super) const LIMBS: usize = 4;

/// The exponent of the least positive number.
const LEAST: i32 = -1_074;

/// Bits of all limbs.
const BITS: i32 = 256;

/// Where the limbs of a sum begin, as an exponent of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Base(i32);

impl Base {
    /// Returns the base for numbers whose absolute values are at most this.
    pub(super) fn of(most: f64) -> Self {
        let (_, exponent) = parts(most);
        // A mantissa has 53 bits.
        Base((exponent + 53 - BITS).max(LEAST))
    }

    /// Adds a number.
    #[inline]
    pub(super) fn add(self, limbs: &mut [i128], number: f64) {
        let (mantissa, exponent) = parts(number);
        let place = exponent - self.0;
        // Whole numbers of 64 bits, so that the shifts below lose only what is less than the base.
        let (limb, mantissa) = match usize::try_from(place) {
            Ok(place) => (place / 64, u128::from(mantissa) << (place % 64)),
            Err(_) => (0, u128::from(mantissa) >> place.unsigned_abs().min(127)),
        };
        let sign = if number < 0.0 { -1 } else { 1 };
        // Numbers beyond the bounds come only from wrong copies.
        if let Some(limb) = limbs.get_mut(limb) {
            *limb = limb.wrapping_add(sign * (mantissa & u128::from(u64::MAX)).cast_signed());
        }
        if let Some(limb) = limbs.get_mut(limb + 1) {
            *limb = limb.wrapping_add(sign * (mantissa >> 64).cast_signed());
        }
    }

    /// Returns the sum, rounded once.
    pub(super) fn sum(self, limbs: &[i128]) -> f64 {
        // Carries: each limb keeps 64 bits, and the last one the sign and the rest.
        let mut words = [0_u64; LIMBS + 2];
        let mut carry = 0_i128;
        for (word, limb) in words.iter_mut().zip(limbs.iter().chain([&0, &0])) {
            let value = limb.wrapping_add(carry);
            *word = low(value);
            carry = value >> 64;
        }
        let is_negative = carry < 0;
        if is_negative {
            let mut borrow = true;
            for word in &mut words {
                (*word, borrow) = (!*word).overflowing_add(borrow.into());
            }
        }
        let Some(top) = words.iter().rposition(|&word| word != 0) else { return 0.0 };
        // The highest 64 bits, and a bit for whether any below is set.
        let shift = words[top].leading_zeros();
        let below = if top > 0 { words[top - 1] } else { 0 };
        let high = if shift == 0 { words[top] } else { words[top] << shift | below >> (64 - shift) };
        let rest = below << shift != 0 || words[..top.saturating_sub(1)].iter().any(|&word| word != 0);
        // Cannot overflow: a few hundred bits.
        let exponent = self.0 + i32::try_from(64 * top).unwrap_or(i32::MAX) - shift.cast_signed();
        let number = scaled(high | u64::from(rest), exponent);
        if is_negative { -number } else { number }
    }
}

/// Returns the lower 64 bits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the rest is carried")]
fn low(value: i128) -> u64 {
    value as u64
}

/// Returns the absolute value of a finite number as mantissa and exponent.
#[inline]
fn parts(number: f64) -> (u64, i32) {
    let bits = number.to_bits();
    // 11 bits.
    let exponent = i32::try_from(bits >> 52 & 0x7FF).unwrap_or_default();
    let fraction = bits & ((1 << 52) - 1);
    if exponent == 0 { (fraction, LEAST) } else { (fraction | 1 << 52, exponent - 1_075) }
}

/// Returns `high × 2^exponent`, rounded once: a sum is a multiple of the least positive number, so that the
/// multiplications are exact.
#[allow(clippy::cast_precision_loss, reason = "this rounds")]
fn scaled(high: u64, exponent: i32) -> f64 {
    let power = |exponent: i32| {
        let biased = u64::try_from(exponent + 1_023).unwrap_or(0);
        f64::from_bits(biased.min(2_047) << 52)
    };
    // In two steps, because 2^-1074 is no normal number.
    let half = exponent.clamp(-900, 900);
    high as f64 * power(half) * power(exponent - half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(numbers: &[f64]) -> f64 {
        let base = Base::of(numbers.iter().fold(0.0, |most: f64, number| most.max(number.abs())));
        let mut limbs = [0; LIMBS];
        numbers.iter().for_each(|&number| base.add(&mut limbs, number));
        base.sum(&limbs)
    }

    #[test]
    fn sums_are_exact_where_additions_in_order_are_not() {
        assert_eq!(sum(&[1e16, 1.0, -1e16]), 1.0);
        assert_eq!(sum(&[1e30, 1e-10, -1e30]), 1e-10);
        assert_eq!(sum(&[0.1; 10]), 1.0);
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(sum(&[f64::MAX, -f64::MAX, f64::MIN_POSITIVE]), 0.0, "cut at 2^-256 of the greatest number");
        assert_eq!(sum(&[5e-324, 5e-324, -1e-323, 5e-324]), 5e-324);
        assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
        assert_eq!(sum(&[-f64::MAX]), -f64::MAX);
    }

    proptest! {
        #[test]
        fn a_number_alone_and_sums_of_whole_numbers_are_exact(
            number in any::<f64>(), whole in prop::collection::vec(-(1_i64 << 52)..1_i64 << 52, 0..50),
        ) {
            if number.is_finite() {
                prop_assert_eq!(sum(&[number]), number);
                prop_assert_eq!(sum(&[number, number, -number]), number);
            }
            let exact: i128 = whole.iter().map(|&number| i128::from(number)).sum();
            let numbers: Vec<f64> = whole.iter().map(|&number| number as f64).collect();
            prop_assert_eq!(sum(&numbers), exact as f64);
        }

        #[test]
        fn the_order_does_not_matter(mut numbers in prop::collection::vec(-1e30_f64..1e30, 0..50), by in 0_usize..50) {
            let expected = sum(&numbers);
            let by = by % numbers.len().max(1);
            numbers.rotate_left(by);
            prop_assert_eq!(sum(&numbers), expected);
        }
    }
}
