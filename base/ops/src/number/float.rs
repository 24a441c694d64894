//! Floating point: exact values in 128 bits, then one rounding.
#![forbid(unsafe_code)]
#![allow(clippy::cast_possible_truncation, reason = "bits of the formats are split and moved; each width is stated")]

use super::arithmetic::{Arithmetic, E4m3Overflow, Operand, when};
use std::cmp::Ordering;
use telpher_abi::{ComputeResult, ComputeType, DataType, Rounding};

/// A format. Source: SPEC App. E; IEEE 754.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    /// False for E4M3: its largest exponent holds finite numbers, except for the mantissa of ones, which is NaN.
    pub(crate) infinities: bool,
}

impl Format {
    /// Returns the format of a floating-point type; of an integer type that of FP64, which no caller asks for.
    #[inline]
    pub(crate) const fn of(data_type: DataType) -> Format {
        let (exponent_bits, mantissa_bits) = match data_type {
            DataType::Fp8E5M2 => (5, 2),
            DataType::Fp8E4M3 => (4, 3),
            DataType::Fp16 => (5, 10),
            DataType::Bf16 => (8, 7),
            DataType::Fp32 => (8, 23),
            _ => (11, 52),
        };
        Format { exponent_bits, mantissa_bits, infinities: !matches!(data_type, DataType::Fp8E4M3) }
    }

    /// Returns the bits without the sign.
    #[inline]
    pub(crate) const fn magnitude_bits(self) -> u32 {
        self.exponent_bits + self.mantissa_bits
    }

    #[inline]
    pub(crate) const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// Returns the exponent of the lowest bit of a denormal number.
    const fn quantum(self) -> i32 {
        1 - self.bias() - self.mantissa_bits as i32
    }

    /// Returns the magnitude of the smallest normal number.
    #[inline]
    pub(crate) const fn least_normal(self) -> u64 {
        1 << self.mantissa_bits
    }

    /// Returns the magnitude with all bits of the exponent and none of the mantissa: infinity, if there is one.
    const fn top(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// Returns the magnitude of the largest finite number.
    #[inline]
    pub(crate) const fn largest(self) -> u64 {
        if self.infinities { self.top() - 1 } else { self.top() + (1 << self.mantissa_bits) - 2 }
    }

    /// Returns the largest magnitude that is not NaN.
    #[inline]
    pub(crate) const fn largest_number(self) -> u64 {
        if self.infinities { self.top() } else { self.largest() }
    }

    /// Returns a quiet NaN with the high bits of a payload, whose highest bit has the weight of the quiet bit.
    const fn nan(self, payload: u64) -> u64 {
        if self.infinities {
            self.top() | 1 << (self.mantissa_bits - 1) | payload >> (64 - self.mantissa_bits)
        } else {
            self.top() | ((1 << self.mantissa_bits) - 1)
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `significand` × 2 to the power of `exponent`; at most 53 bits.
    Finite {
        exponent: i32,
        significand: u128,
    },
    Infinite,
    Nan {
        /// The mantissa at the top of the word.
        payload: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Value {
    negative: bool,
    kind: Kind,
}

/// Returns an operand's exact value, after DAZ and negation.
fn value(arithmetic: &Arithmetic, operand: Operand) -> (Value, ComputeResult) {
    let format = Format::of(operand.data_type);
    let magnitude = operand.bits & ((1 << format.magnitude_bits()) - 1);
    let negative = (operand.bits >> format.magnitude_bits() & 1 == 1) != operand.negate;
    if magnitude > format.largest() {
        if magnitude == format.largest_number() {
            return (Value { negative, kind: Kind::Infinite }, ComputeResult::empty());
        }
        let payload = if format.infinities { magnitude << (64 - format.mantissa_bits) } else { 0 };
        return (Value { negative, kind: Kind::Nan { payload } }, ComputeResult::INVALID);
    }
    let mantissa = magnitude & (format.least_normal() - 1);
    let biased = (magnitude >> format.mantissa_bits) as i32;
    let (kind, seen) = if biased > 0 {
        let significand = u128::from(mantissa | format.least_normal());
        (Kind::Finite { exponent: format.quantum() + biased - 1, significand }, ComputeResult::empty())
    } else {
        let denormal = mantissa != 0 && !operand.intermediate;
        let zero = denormal && arithmetic.denormals_are_zero;
        let significand = if zero { 0 } else { u128::from(mantissa) };
        (Kind::Finite { exponent: format.quantum(), significand }, when(denormal && !zero, ComputeResult::DENORMAL))
    };
    (Value { negative, kind }, seen)
}

/// Returns `significand` divided by 2 to the power of `shift`, rounded. A significand has fewer than 127 bits.
fn rounded(negative: bool, significand: u128, shift: i32, rounding: Rounding) -> u128 {
    if shift <= 0 {
        return significand << -shift;
    }
    // Beyond that everything is below half of the lowest bit.
    let shift = shift.min(127);
    let (kept, lost) = (significand >> shift, significand & ((1 << shift) - 1));
    let half = 1 << (shift - 1);
    let up = match rounding {
        Rounding::NearestEven => lost > half || lost == half && kept & 1 == 1,
        Rounding::Down => negative && lost != 0,
        Rounding::Up => !negative && lost != 0,
        Rounding::TowardZero => false,
    };
    kept + u128::from(up)
}

/// Rounds an exact value to the output type.
fn round(arithmetic: &Arithmetic, value: Value) -> (u64, ComputeResult) {
    let format = Format::of(arithmetic.output);
    let sign = u64::from(value.negative) << format.magnitude_bits();
    let (magnitude, seen) = match value.kind {
        Kind::Nan { payload } => (format.nan(payload), ComputeResult::empty()),
        Kind::Infinite if format.infinities => (format.top(), ComputeResult::empty()),
        Kind::Infinite => (beyond(arithmetic, format), ComputeResult::OVERFLOW),
        Kind::Finite { significand: 0, .. } => (0, ComputeResult::empty()),
        Kind::Finite { exponent, significand } => finite(arithmetic, format, value.negative, exponent, significand),
    };
    (sign | magnitude, seen)
}

/// Returns what stands for a number beyond the largest finite one.
fn beyond(arithmetic: &Arithmetic, format: Format) -> u64 {
    match arithmetic.e4m3_overflow {
        _ if format.infinities => format.top(),
        E4m3Overflow::Nan => format.nan(0),
        E4m3Overflow::Largest => format.largest(),
    }
}

fn finite(
    arithmetic: &Arithmetic,
    format: Format,
    negative: bool,
    exponent: i32,
    significand: u128,
) -> (u64, ComputeResult) {
    let rounding = arithmetic.rounding;
    // The exponent of the lowest bit that a normal number of this size keeps.
    let quantum = exponent + significand.ilog2() as i32 - format.mantissa_bits as i32;
    let kept = rounded(negative, significand, quantum - exponent, rounding) as u64;
    // A carry out of the mantissa raises the exponent, here as in the encoding.
    let biased = i64::from(quantum - format.quantum()) + 1;
    let magnitude = (biased << format.mantissa_bits) + (kept - format.least_normal()).cast_signed();
    if magnitude > format.largest().cast_signed() {
        let stays = match rounding {
            Rounding::NearestEven => false,
            Rounding::Down => !negative,
            Rounding::Up => negative,
            Rounding::TowardZero => true,
        };
        return (if stays { format.largest() } else { beyond(arithmetic, format) }, ComputeResult::OVERFLOW);
    }
    if magnitude >= format.least_normal().cast_signed() {
        return (magnitude.cast_unsigned(), ComputeResult::empty());
    }
    if arithmetic.flush_to_zero {
        return (0, ComputeResult::UNDERFLOW);
    }
    let denormal = rounded(negative, significand, format.quantum() - exponent, rounding) as u64;
    (denormal, ComputeResult::UNDERFLOW)
}

pub(crate) fn convert(arithmetic: &Arithmetic, operand: Operand) -> (u64, ComputeResult) {
    let (value, seen) = value(arithmetic, operand);
    let (bits, more) = round(arithmetic, value);
    (bits, seen | more)
}

pub(crate) fn combine(
    arithmetic: &Arithmetic,
    compute: ComputeType,
    left: Operand,
    right: Operand,
) -> (u64, ComputeResult) {
    let ((a, seen_a), (b, seen_b)) = (value(arithmetic, left), value(arithmetic, right));
    let mut seen = seen_a | seen_b;
    let exact = match (a.kind, b.kind) {
        (Kind::Nan { .. }, _) => a,
        (_, Kind::Nan { .. }) => b,
        _ => match compute {
            ComputeType::Min => {
                if order(a, b) == Ordering::Greater {
                    b
                } else {
                    a
                }
            }
            ComputeType::Max => {
                if order(a, b) == Ordering::Less {
                    b
                } else {
                    a
                }
            }
            _ => match sum(arithmetic.rounding, a, b) {
                Some(sum) => sum,
                None => {
                    seen |= ComputeResult::INVALID;
                    Value { negative: true, kind: Kind::Nan { payload: 0 } }
                }
            },
        },
    };
    let (bits, more) = round(arithmetic, exact);
    (bits, seen | more)
}

/// The position of a normalised significand's highest bit: room for a carry above, and for 67 bits below the 53 of the
/// largest format.
const HIGHEST: u32 = 120;

/// Returns exponent and significand with its highest bit at [`HIGHEST`].
fn normalised(exponent: i32, significand: u128) -> (i32, u128) {
    let shift = HIGHEST - significand.ilog2();
    (exponent - shift as i32, significand << shift)
}

/// Compares two numbers; −0 is smaller than +0.
fn order(a: Value, b: Value) -> Ordering {
    let size = |value: Value| match value.kind {
        Kind::Finite { significand: 0, .. } => (0, (0, 0)),
        Kind::Finite { exponent, significand } => (1, normalised(exponent, significand)),
        _ => (2, (0, 0)),
    };
    match (a.negative, b.negative) {
        (false, false) => size(a).cmp(&size(b)),
        (true, true) => size(b).cmp(&size(a)),
        (negative, _) => {
            if negative {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
    }
}

/// Adds two numbers; `None` for infinities with opposite signs. Bits too low to matter for any rounding are represented
/// by the lowest bit.
fn sum(rounding: Rounding, a: Value, b: Value) -> Option<Value> {
    let (Kind::Finite { exponent: x, significand: m }, Kind::Finite { exponent: y, significand: n }) = (a.kind, b.kind)
    else {
        return match (a.kind, b.kind) {
            (Kind::Infinite, Kind::Infinite) if a.negative != b.negative => None,
            (Kind::Infinite, _) => Some(a),
            _ => Some(b),
        };
    };
    let zero = Value {
        negative: if a.negative == b.negative { a.negative } else { rounding == Rounding::Down },
        kind: Kind::Finite { exponent: 0, significand: 0 },
    };
    match (m, n) {
        (0, 0) => return Some(zero),
        (0, _) => return Some(b),
        (_, 0) => return Some(a),
        _ => {}
    }
    let (mut large, mut small) = (normalised(x, m), normalised(y, n));
    let mut negative = a.negative;
    if small > large {
        (large, small) = (small, large);
        negative = b.negative;
    }
    let distance = large.0.abs_diff(small.0).min(127);
    let lost = small.1 & ((1 << distance) - 1) != 0;
    let aligned = small.1 >> distance | u128::from(lost);
    let significand = if a.negative == b.negative { large.1 + aligned } else { large.1 - aligned };
    if significand == 0 {
        return Some(zero);
    }
    Some(Value { negative, kind: Kind::Finite { exponent: large.0, significand } })
}
