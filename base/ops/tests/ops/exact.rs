//! The oracle of the compute operations: exact integers of hundreds of bits, and a search for the neighbours of a
//! number among all numbers of the format. Nothing of it is shared with the code under test, and no floating-point
//! instruction is used.
#![allow(unreachable_pub, reason = "a module of each test file")]
#![allow(dead_code, reason = "each test file uses its own part")]

use telpher_abi::{ComputeType, DataType, Rounding};
use telpher_ops::{Arithmetic, E4m3Overflow};

/// A number that is not negative: an integer of `W` words, the highest first, in units of a very small number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Exact<const W: usize>([u64; W]);

/// Words for all formats up to FP32, and for FP64.
pub const SHORT: usize = 7;
pub const LONG: usize = 36;

impl<const W: usize> Exact<W> {
    /// The unit is 2 to the power of −`SCALE`: below half of the distance of any two numbers of the formats.
    const SCALE: i32 = if W == SHORT { 200 } else { 1140 };
    const ZERO: Exact<W> = Exact([0; W]);

    /// `mantissa` × 2 to the power of `exponent`.
    fn new(mantissa: u64, exponent: i32) -> Exact<W> {
        let shift = usize::try_from(exponent + Self::SCALE).expect("no number is smaller than the unit");
        let mut words = [0; W];
        let wide = u128::from(mantissa) << (shift % 64);
        words[W - 1 - shift / 64] = u64::try_from(wide & u128::from(u64::MAX)).unwrap();
        if let Ok(high @ 1..) = u64::try_from(wide >> 64) {
            words[W - 2 - shift / 64] = high;
        }
        Exact(words)
    }

    fn plus(self, other: Exact<W>) -> Exact<W> {
        let mut sum = [0; W];
        let mut carry = false;
        for i in (0..W).rev() {
            let (word, first) = self.0[i].overflowing_add(other.0[i]);
            let (word, second) = word.overflowing_add(carry.into());
            (sum[i], carry) = (word, first || second);
        }
        assert!(!carry, "the words suffice");
        Exact(sum)
    }

    fn minus(self, other: Exact<W>) -> Exact<W> {
        let mut difference = [0; W];
        let mut borrow = false;
        for i in (0..W).rev() {
            let (word, first) = self.0[i].overflowing_sub(other.0[i]);
            let (word, second) = word.overflowing_sub(borrow.into());
            (difference[i], borrow) = (word, first || second);
        }
        assert!(!borrow, "the smaller number is subtracted");
        Exact(difference)
    }
}

/// Exponent bits, mantissa bits, the largest finite magnitude, and infinity, from the table of formats.
fn format(data_type: DataType) -> (u32, u32, u64, Option<u64>) {
    match data_type {
        DataType::Fp8E5M2 => (5, 2, 0x7b, Some(0x7c)),
        DataType::Fp8E4M3 => (4, 3, 0x7e, None),
        DataType::Fp16 => (5, 10, 0x7bff, Some(0x7c00)),
        DataType::Bf16 => (8, 7, 0x7f7f, Some(0x7f80)),
        DataType::Fp32 => (8, 23, 0x7f7f_ffff, Some(0x7f80_0000)),
        DataType::Fp64 => (11, 52, 0x7fef_ffff_ffff_ffff, Some(0x7ff0_0000_0000_0000)),
        _ => panic!("not a floating-point type"),
    }
}

/// Returns the number with a magnitude, as if the format had no infinity and no NaN.
fn number<const W: usize>(data_type: DataType, magnitude: u64) -> Exact<W> {
    let (exponent_bits, mantissa_bits, ..) = format(data_type);
    let bias = (1_i32 << (exponent_bits - 1)) - 1;
    let exponent = i32::try_from(magnitude >> mantissa_bits).unwrap();
    let mantissa = magnitude % (1 << mantissa_bits);
    let lowest = 1 - bias - i32::try_from(mantissa_bits).unwrap();
    match exponent {
        0 => Exact::new(mantissa, lowest),
        _ => Exact::new(mantissa + (1 << mantissa_bits), lowest + exponent - 1),
    }
}

pub const INVALID: u8 = 1;
pub const DENORMAL: u8 = 2;
pub const OVERFLOW: u8 = 4;
pub const UNDERFLOW: u8 = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind<const W: usize> {
    Finite(Exact<W>),
    Infinite,
    /// The mantissa as a fraction of 2⁶⁴.
    Nan(u64),
}

/// A decoded operand: negative, kind.
type Decoded<const W: usize> = (bool, Kind<W>);

fn decode<const W: usize>(a: &Arithmetic, data_type: DataType, bits: u64, negate: bool) -> (Decoded<W>, u8) {
    let (exponent_bits, mantissa_bits, largest, infinity) = format(data_type);
    let sign = 1_u64 << (exponent_bits + mantissa_bits);
    let (negative, magnitude) = ((bits >= sign) != negate, bits % sign);
    if Some(magnitude) == infinity {
        return ((negative, Kind::Infinite), 0);
    }
    if magnitude > largest {
        let payload = if infinity.is_some() { (magnitude % (1 << mantissa_bits)) << (64 - mantissa_bits) } else { 0 };
        return ((negative, Kind::Nan(payload)), INVALID);
    }
    let denormal = magnitude != 0 && magnitude < 1 << mantissa_bits;
    if denormal && a.denormals_are_zero {
        return ((negative, Kind::Finite(Exact::ZERO)), 0);
    }
    ((negative, Kind::Finite(number(data_type, magnitude))), if denormal { DENORMAL } else { 0 })
}

/// Chooses between the neighbours of a number: `None` if it is `low`, else whether it becomes `high`.
fn up<const W: usize>(
    rounding: Rounding,
    negative: bool,
    exact: Exact<W>,
    low: Exact<W>,
    high: Exact<W>,
    low_is_odd: bool,
) -> bool {
    if exact == low {
        return false;
    }
    match rounding {
        Rounding::NearestEven => {
            let (twice, middle) = (exact.plus(exact), low.plus(high));
            twice > middle || twice == middle && low_is_odd
        }
        Rounding::Down => negative,
        Rounding::Up => !negative,
        Rounding::TowardZero => false,
    }
}

fn encode<const W: usize>(a: &Arithmetic, (negative, kind): Decoded<W>) -> (u64, u8) {
    let (exponent_bits, mantissa_bits, largest, infinity) = format(a.output);
    let sign = u64::from(negative) << (exponent_bits + mantissa_bits);
    let too_large = infinity.unwrap_or(match a.e4m3_overflow {
        E4m3Overflow::Nan => 0x7f,
        E4m3Overflow::Largest => 0x7e,
    });
    let (magnitude, seen) = match kind {
        Kind::Nan(payload) => match infinity {
            None => (0x7f, 0),
            Some(infinity) => (infinity | 1 << (mantissa_bits - 1) | payload >> (64 - mantissa_bits), 0),
        },
        Kind::Infinite => (too_large, if infinity.is_some() { 0 } else { OVERFLOW }),
        Kind::Finite(exact) => finite(a, negative, exact, (mantissa_bits, exponent_bits), largest, too_large),
    };
    (sign | magnitude, seen)
}

fn finite<const W: usize>(
    a: &Arithmetic,
    negative: bool,
    exact: Exact<W>,
    (mantissa_bits, exponent_bits): (u32, u32),
    largest: u64,
    too_large: u64,
) -> (u64, u8) {
    let at = |magnitude| number::<W>(a.output, magnitude);
    let beyond = exact >= at(largest + 1);
    // The largest magnitude that is not above the number.
    let (mut low, mut high) = (0, largest + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if at(middle) <= exact { low = middle } else { high = middle }
    }
    if beyond || up(a.rounding, negative, exact, at(low), at(high), low % 2 == 1) {
        low = high;
    }
    if low > largest {
        let toward_zero = match a.rounding {
            Rounding::NearestEven => false,
            Rounding::Down => !negative,
            Rounding::Up => negative,
            Rounding::TowardZero => true,
        };
        return (if toward_zero { largest } else { too_large }, OVERFLOW);
    }
    // Tiny: below the smallest normal number after rounding to as many bits as that has.
    let normal = at(1 << mantissa_bits);
    let emin = 2 - (1 << (exponent_bits - 1));
    let before = normal.minus(Exact::new(1, emin - 1 - i32::try_from(mantissa_bits).unwrap()));
    let tiny = exact != Exact::ZERO
        && exact < normal
        && (exact <= before || !up(a.rounding, negative, exact, before, normal, true));
    match tiny {
        true if a.flush_to_zero => (0, UNDERFLOW),
        true => (low, UNDERFLOW),
        false => (low, 0),
    }
}

/// Converts one floating-point number.
pub fn convert<const W: usize>(a: &Arithmetic, bits: u64) -> (u64, u8) {
    let (decoded, seen) = decode::<W>(a, a.input, bits, a.negate1);
    let (result, more) = encode(a, decoded);
    (result, seen | more)
}

/// Computes with two floating-point numbers.
pub fn reduce<const W: usize>(a: &Arithmetic, compute: ComputeType, x: u64, y: u64) -> (u64, u8) {
    let (left, seen_left) = decode::<W>(a, a.input, x, a.negate1);
    let (right, seen_right) = decode::<W>(a, a.input, y, a.negate2);
    combine(a, compute, left, right, seen_left | seen_right)
}

/// Computes with the result of earlier steps, of the output type, and one more number.
pub fn fold<const W: usize>(a: &Arithmetic, compute: ComputeType, earlier: u64, y: u64) -> (u64, u8) {
    let as_it_is = Arithmetic { denormals_are_zero: false, ..*a };
    let (left, seen) = decode::<W>(&as_it_is, a.output, earlier, false);
    let (right, seen_right) = decode::<W>(a, a.input, y, a.negate1);
    combine(a, compute, left, right, seen & INVALID | seen_right)
}

fn combine<const W: usize>(
    a: &Arithmetic,
    compute: ComputeType,
    left: Decoded<W>,
    right: Decoded<W>,
    mut seen: u8,
) -> (u64, u8) {
    let result = match (left, right) {
        ((_, Kind::Nan(_)), _) => left,
        (_, (_, Kind::Nan(_))) => right,
        _ if compute == ComputeType::Min => {
            if less(right, left) {
                right
            } else {
                left
            }
        }
        _ if compute == ComputeType::Max => {
            if less(left, right) {
                right
            } else {
                left
            }
        }
        ((false, Kind::Infinite), (true, Kind::Infinite)) | ((true, Kind::Infinite), (false, Kind::Infinite)) => {
            seen |= INVALID;
            (true, Kind::Nan(0))
        }
        ((_, Kind::Infinite), _) => left,
        (_, (_, Kind::Infinite)) => right,
        ((sign_x, Kind::Finite(x)), (sign_y, Kind::Finite(y))) => {
            if sign_x == sign_y {
                (sign_x, Kind::Finite(x.plus(y)))
            } else if x == y {
                (a.rounding == Rounding::Down, Kind::Finite(Exact::ZERO))
            } else if x > y {
                (sign_x, Kind::Finite(x.minus(y)))
            } else {
                (sign_y, Kind::Finite(y.minus(x)))
            }
        }
    };
    let (bits, more) = encode(a, result);
    (bits, seen | more)
}

/// −∞ < numbers, −0 < +0 < ∞.
fn less<const W: usize>(a: Decoded<W>, b: Decoded<W>) -> bool {
    let magnitude_less = |a: Decoded<W>, b: Decoded<W>| match (a.1, b.1) {
        (Kind::Finite(a), Kind::Finite(b)) => a < b,
        (Kind::Finite(_), _) => true,
        _ => false,
    };
    match (a.0, b.0) {
        (true, false) => true,
        (false, true) => false,
        (false, false) => magnitude_less(a, b),
        (true, true) => magnitude_less(b, a),
    }
}

/// Reads an integer's value digit by digit, the highest bit's weight negative if it is signed.
fn integer(data_type: DataType, signed: bool, bits: u64) -> i128 {
    let width = 8 * data_type.bytes();
    (0..width).filter(|bit| bits >> bit & 1 == 1).fold(0, |sum, bit| {
        let weight = 1_i128 << bit;
        if signed && bit == width - 1 { sum - weight } else { sum + weight }
    })
}

fn limited(a: &Arithmetic, value: i128) -> (u64, u8) {
    let count = 1_i128 << (8 * a.output.bytes());
    let (least, most) = if a.signed { (-count / 2, count / 2 - 1) } else { (0, count - 1) };
    let kept = match value {
        _ if !a.saturate => value,
        _ if value < least => least,
        _ if value > most => most,
        _ => value,
    };
    let outside = value < least || value > most;
    (u64::try_from(kept.rem_euclid(count)).unwrap(), if outside { OVERFLOW } else { 0 })
}

/// Converts one integer.
pub fn convert_integer(a: &Arithmetic, bits: u64) -> (u64, u8) {
    let value = integer(a.input, a.signed, bits);
    limited(a, if a.negate1 { -value } else { value })
}

/// Computes with two integers.
pub fn reduce_integers(a: &Arithmetic, compute: ComputeType, x: u64, y: u64) -> (u64, u8) {
    let [x, y] = [(x, a.negate1), (y, a.negate2)].map(|(bits, negate)| {
        let value = integer(a.input, a.signed, bits);
        match negate {
            false => value,
            true if !compute.is_arithmetic() && !a.signed => (-value).rem_euclid(1 << (8 * a.output.bytes())),
            true => -value,
        }
    });
    let bitwise = |f: fn(u128, u128) -> u128| f(x.cast_unsigned(), y.cast_unsigned()).cast_signed();
    let value = match compute {
        ComputeType::Add => x + y,
        ComputeType::And => bitwise(|x, y| x & y),
        ComputeType::Or => bitwise(|x, y| x | y),
        ComputeType::Xor => bitwise(|x, y| x ^ y),
        ComputeType::Min => {
            if x < y {
                x
            } else {
                y
            }
        }
        ComputeType::Max => {
            if x < y {
                y
            } else {
                x
            }
        }
    };
    limited(a, value)
}
