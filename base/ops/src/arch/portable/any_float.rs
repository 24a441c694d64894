//! Converts floating-point numbers of up to 32 bits, also NaN, infinite and denormal ones, without a branch.
//! It takes several times as many instructions as an ordinary number, but the compiler makes vectors of them.
//!
//! A number becomes a significand of 24 bits and the exponent it would have in the target. A denormal significand is
//! normalised by a conversion from integer to FP32, which is exact and so depends on no floating-point mode.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::inline_always,
    reason = "moves bits between widths; the vector levels compile these loops with their own instructions"
)]

use crate::number::float::Format;
use crate::number::{Arithmetic, E4m3Overflow, size};
use telpher_abi::{ComputeResult, Rounding};

/// Bits of the significand below its highest one.
const FRACTION: u32 = 23;

/// A conversion between two formats with its options, as the operands of its instructions.
#[derive(Clone, Copy, Debug)]
pub(in crate::arch) struct AnyFloat {
    source: Format,
    target: Format,
    negate: bool,
    denormals_are_zero: bool,
    flush_to_zero: bool,
    rounding: Rounding,
    /// Bits of the significand that the target does not keep, and what rounding adds to them if the number is positive
    /// or negative.
    dropped: u32,
    plus: u32,
    minus: u32,
    /// The result for a number that is too large, positive or negative, and for infinity.
    too_large: [u32; 2],
    infinite: u32,
    /// The flags of an infinite number.
    infinite_seen: u32,
    /// The quiet NaN, and the bits of a payload that it keeps.
    nan: u32,
    payload: u32,
}

impl AnyFloat {
    /// `arithmetic` has floating-point types of up to 32 bits.
    #[inline(always)]
    pub(in crate::arch) fn new(arithmetic: &Arithmetic) -> AnyFloat {
        let (source, target) = (Format::of(arithmetic.input), Format::of(arithmetic.output));
        let dropped = FRACTION - target.mantissa_bits;
        let all = (1 << dropped) - 1;
        let (plus, minus) = match arithmetic.rounding {
            Rounding::NearestEven => (all >> 1, all >> 1),
            Rounding::Down => (0, all),
            Rounding::Up => (all, 0),
            Rounding::TowardZero => (0, 0),
        };
        let ones = (1 << target.mantissa_bits) - 1;
        let nan = if target.infinities { (target.largest() as u32 + 1) | ones ^ (ones >> 1) } else { 0x7f };
        let infinite = match arithmetic.e4m3_overflow {
            _ if target.infinities => target.largest_number() as u32,
            E4m3Overflow::Nan => nan,
            E4m3Overflow::Largest => target.largest() as u32,
        };
        let largest = target.largest() as u32;
        let too_large = match arithmetic.rounding {
            Rounding::NearestEven => [infinite, infinite],
            Rounding::Down => [largest, infinite],
            Rounding::Up => [infinite, largest],
            Rounding::TowardZero => [largest, largest],
        };
        AnyFloat {
            source,
            target,
            negate: arithmetic.negate1,
            denormals_are_zero: arithmetic.denormals_are_zero,
            flush_to_zero: arithmetic.flush_to_zero,
            rounding: arithmetic.rounding,
            dropped,
            plus,
            minus,
            too_large,
            infinite,
            infinite_seen: if target.infinities { 0 } else { ComputeResult::OVERFLOW.bits().into() },
            nan,
            payload: if source.infinities && target.infinities { ones } else { 0 },
        }
    }

    /// Returns the result, and adds what happened to `seen`.
    #[inline(always)]
    pub(in crate::arch) fn number(self, seen: &mut u32, bits: u32) -> u32 {
        let AnyFloat { source, target, .. } = self;
        let negative = (bits >> source.magnitude_bits() & 1 != 0) != self.negate;
        let magnitude = bits & ((1_u64 << source.magnitude_bits()) - 1) as u32;
        let mantissa = magnitude & (source.least_normal() as u32 - 1);
        let biased = magnitude >> source.mantissa_bits;
        let not_a_number = magnitude > source.largest_number() as u32;
        let infinite = !not_a_number && magnitude > source.largest() as u32;
        let denormal = (biased == 0) & (mantissa != 0);
        let zero = (magnitude == 0) | (denormal & self.denormals_are_zero);

        // The significand with its highest bit at `FRACTION`, and the target's biased exponent.
        let normalised = (mantissa as i32 as f32).to_bits();
        let rebias = target.bias() - source.bias();
        let (significand, exponent) = if biased == 0 {
            let exponent = (normalised >> FRACTION) as i32 - 127 + 1 - source.mantissa_bits as i32;
            (normalised & ((1 << FRACTION) - 1) | 1 << FRACTION, exponent + rebias)
        } else {
            (mantissa << (FRACTION - source.mantissa_bits) | 1 << FRACTION, biased as i32 + rebias)
        };

        // As a normal number; a carry out of the mantissa raises the exponent.
        let nearest = self.rounding == Rounding::NearestEven;
        let add = if negative { self.minus } else { self.plus };
        let odd = significand >> self.dropped & u32::from(nearest && self.dropped > 0);
        let kept = (significand + add + odd) >> self.dropped;
        let normal = ((exponent - 1) << target.mantissa_bits).wrapping_add(kept as i32);
        let tiny = normal < target.least_normal() as i32;
        let too_large = normal > target.largest() as i32;

        // As a denormal number. Beyond 30 bits everything is below half of the lowest bit.
        let dropped = (self.dropped as i32 + 1 - exponent).clamp(1, 30) as u32;
        let all = (1_u32 << dropped) - 1;
        let away = (self.rounding == Rounding::Up) & !negative | (self.rounding == Rounding::Down) & negative;
        let to_nearest = (all >> 1) + (significand >> dropped & 1);
        let add = if nearest {
            to_nearest
        } else if away {
            all
        } else {
            0
        };
        let below = if self.flush_to_zero { 0 } else { (significand + add) >> dropped };

        let (mut result, mut flags) = (normal as u32, 0);
        if too_large {
            result = if negative { self.too_large[1] } else { self.too_large[0] };
            flags = ComputeResult::OVERFLOW.bits().into();
        }
        if tiny {
            result = below;
            flags = ComputeResult::UNDERFLOW.bits().into();
        }
        if denormal {
            flags |= u32::from(ComputeResult::DENORMAL.bits());
        }
        if zero {
            result = 0;
            flags = 0;
        }
        if infinite {
            result = self.infinite;
            flags = self.infinite_seen;
        }
        if not_a_number {
            // The payload's highest bits.
            let payload = mantissa << (31 - source.mantissa_bits) >> (31 - target.mantissa_bits);
            result = self.nan | payload & self.payload;
            flags = ComputeResult::INVALID.bits().into();
        }
        *seen |= flags;
        u32::from(negative) << target.magnitude_bits() | result
    }
}

/// Returns the flags that [`AnyFloat::number`] has added.
#[inline(always)]
pub(in crate::arch) fn flags(seen: u32) -> ComputeResult {
    ComputeResult::from_bits_retain(seen as u8)
}

/// Converts whole elements of up to 32 bits.
#[inline(always)]
pub(in crate::arch) fn convert(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    let any = AnyFloat::new(arithmetic);
    let mut seen = 0;
    macro_rules! elements {
        ($from:ty => $to:ty) => {
            for (src, dst) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
                *dst = (any.number(&mut seen, <$from>::from_le_bytes(*src).into()) as $to).to_le_bytes();
            }
        };
    }
    match (size(arithmetic.input), size(arithmetic.output)) {
        (1, 1) => elements!(u8 => u8),
        (1, 2) => elements!(u8 => u16),
        (1, _) => elements!(u8 => u32),
        (2, 1) => elements!(u16 => u8),
        (2, 2) => elements!(u16 => u16),
        (2, _) => elements!(u16 => u32),
        (_, 1) => elements!(u32 => u8),
        (_, 2) => elements!(u32 => u16),
        (_, _) => elements!(u32 => u32),
    }
    flags(seen)
}
