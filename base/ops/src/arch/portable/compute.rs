//! Conversions and reductions in loops without branches, which the compiler makes vectors of at each level.
//!
//! A loop handles blocks of [`BLOCK`] elements. It computes each result as for an ordinary number, and notes whether
//! any element of the block is not ordinary: NaN, infinite, denormal, too large or too small for the result. A block
//! with such an element is computed once more: converted by [`any_float`], or otherwise element by element by
//! [`number`]. Integers have no such elements.
//!
//! An ordinary number is rounded by adding to its bits. Sums use the processor's addition, rounded to nearest, of
//! operands in a range in which it can neither overflow nor lose bits to a flush to zero: [`ORDINARY`]. A sum of
//! numbers with at most 11 bits is formed in 32 bits and rounded once more. Both roundings together give the same
//! result as one, because 24 ≥ 2 × 11 + 2. Source: Figueroa, *When is Double Rounding Innocuous?*, SIGNUM 30 (1995).
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::inline_always,
    reason = "moves bits between widths; the vector levels compile these loops with their own instructions"
)]

use super::step::{Step, convert_slowly, store};
use super::{any_float, integers};
use crate::number::float::Format;
use crate::number::{self, Arithmetic, size};
use std::hint::black_box;
use telpher_abi::{ComputeResult, ComputeType, DataType, Rounding};

/// Elements computed before the exceptional ones among them are looked at.
pub(in crate::arch) const BLOCK: usize = 256;

/// The smallest and largest magnitudes of 32-bit operands whose sum is zero or a normal number: exponents at least 24
/// above the smallest and one below the largest.
const ORDINARY: (u32, u32) = (25 << 23, (254 << 23) - 1);
/// The same for 64 bits.
const ORDINARY_64: (u64, u64) = (54 << 52, (2046 << 52) - 1);

/// The smallest and largest magnitudes of a block, without zero: two instructions an element instead of a decision.
#[derive(Clone, Copy)]
struct Span<W> {
    /// One less than the smallest magnitude.
    below_least: W,
    most: W,
}

macro_rules! spans {
    ($($word:ty),*) => {$(
        impl Span<$word> {
            const EMPTY: Span<$word> = Span { below_least: <$word>::MAX, most: 0 };

            #[inline(always)]
            fn see(&mut self, magnitude: $word) {
                // Zero wraps and is larger than all others.
                self.below_least = self.below_least.min(magnitude.wrapping_sub(1));
                self.most = self.most.max(magnitude);
            }

            /// Returns true if every magnitude seen is zero or in a range.
            #[inline(always)]
            fn lies_in(self, least: $word, most: $word) -> bool {
                self.below_least >= least - 1 && self.most <= most
            }
        }
    )*};
}
spans!(u8, u16, u32, u64);

/// Moves one number from a format to another.
trait Move<W>: Copy {
    /// Returns the result; sees the magnitude.
    fn word(self, span: &mut Span<W>, bits: W) -> W;
    /// Returns true if the results of all magnitudes seen hold.
    fn holds(self, span: Span<W>) -> bool;
}

/// Moves numbers between formats. `DIRECTED`: positive and negative numbers are rounded differently. `REBIASED`: the
/// exponents have different biases.
#[derive(Clone, Copy)]
struct Moving<W, const DIRECTED: bool, const REBIASED: bool> {
    /// The sign, if it changes.
    flip: W,
    source_sign: u32,
    result_sign: u32,
    /// The ordinary magnitudes.
    least: W,
    most: W,
    /// What rounding adds to positive and negative numbers, and the weight of the lowest bit kept.
    plus: W,
    minus: W,
    lowest: W,
    /// Bits dropped, or added.
    right: u32,
    left: u32,
    /// The difference of the exponents' biases, added modulo the word.
    rebias: W,
}

macro_rules! moving {
    ($($word:ty),*) => {$(
        impl<const DIRECTED: bool, const REBIASED: bool> Moving<$word, DIRECTED, REBIASED> {
            fn new(from: Format, to: Format, rounding: Rounding, negate: bool) -> Self {
                let right = from.mantissa_bits.saturating_sub(to.mantissa_bits);
                let left = to.mantissa_bits.saturating_sub(from.mantissa_bits);
                let (below_half, all): ($word, $word) = match right {
                    0 => (0, 0),
                    right => ((1 << (right - 1)) - 1, (1 << right) - 1),
                };
                let (plus, minus) = match rounding {
                    Rounding::NearestEven => (below_half, below_half),
                    Rounding::Down => (0, all),
                    Rounding::Up => (all, 0),
                    Rounding::TowardZero => (0, 0),
                };
                let moving = Moving {
                    flip: <$word>::from(negate) << from.magnitude_bits(),
                    source_sign: from.magnitude_bits(),
                    result_sign: to.magnitude_bits(),
                    least: from.least_normal() as $word,
                    most: from.largest() as $word,
                    plus,
                    minus,
                    lowest: (rounding == Rounding::NearestEven && right > 0).into(),
                    right,
                    left,
                    rebias: ((i64::from(to.bias()) - i64::from(from.bias())) << to.mantissa_bits) as $word,
                };
                moving.within(to.least_normal(), to.largest())
            }

            /// Narrows the ordinary magnitudes to those whose results lie in a range.
            fn within(self, least: u64, most: u64) -> Self {
                let rebias = i128::from((self.rebias as i64) << (64 - <$word>::BITS) >> (64 - <$word>::BITS));
                // A magnitude of the target as one of the source, the same number; 0 below the source's range.
                let of_target = |magnitude: u64| {
                    let moved = (i128::from(magnitude) - rebias) << self.right >> self.left;
                    u64::try_from(moved).unwrap_or(0) as $word
                };
                Moving { least: of_target(least).max(self.least), most: of_target(most).min(self.most), ..self }
            }
        }

        impl<const DIRECTED: bool, const REBIASED: bool> Move<$word> for Moving<$word, DIRECTED, REBIASED> {
            #[inline(always)]
            fn word(self, span: &mut Span<$word>, bits: $word) -> $word {
                let bits = bits ^ self.flip;
                let sign = bits >> self.source_sign;
                let magnitude = bits & ((1 << self.source_sign) - 1);
                span.see(magnitude);
                let add = if DIRECTED && sign != 0 { self.minus } else { self.plus };
                let rounded = magnitude.wrapping_add(add).wrapping_add(magnitude >> self.right & self.lowest);
                let mut moved = rounded >> self.right << self.left;
                if REBIASED {
                    moved = if magnitude != 0 { moved.wrapping_add(self.rebias) } else { 0 };
                }
                sign << self.result_sign | moved
            }

            #[inline(always)]
            fn holds(self, span: Span<$word>) -> bool {
                span.lies_in(self.least, self.most)
            }
        }
    )*};
}
moving!(u32, u64);

/// Leaves 32-bit numbers as they are, except for their sign.
#[derive(Clone, Copy)]
struct Staying {
    flip: u32,
}

impl Move<u32> for Staying {
    #[inline(always)]
    fn word(self, span: &mut Span<u32>, bits: u32) -> u32 {
        span.see(bits & (u32::MAX >> 1));
        bits ^ self.flip
    }

    #[inline(always)]
    fn holds(self, span: Span<u32>) -> bool {
        span.lies_in(ORDINARY.0, ORDINARY.1)
    }
}

/// Moves a number that needs no check.
#[derive(Clone, Copy)]
struct Unchanged;

impl Move<u32> for Unchanged {
    #[inline(always)]
    fn word(self, _: &mut Span<u32>, bits: u32) -> u32 {
        bits
    }

    #[inline(always)]
    fn holds(self, _: Span<u32>) -> bool {
        true
    }
}

/// A conversion of elements of `S` bytes to `D` bytes.
trait Convert<const S: usize, const D: usize>: Copy {
    type Seen: Copy;
    const NOTHING: Self::Seen;
    fn element(self, seen: &mut Self::Seen, element: [u8; S]) -> [u8; D];
    /// Returns true if the results hold.
    fn holds(self, seen: Self::Seen) -> bool;
}

/// Converts elements of any kind.
pub(in crate::arch) type Again<'a> = &'a dyn Fn(&[u8], &mut [u8]) -> ComputeResult;

/// Converts blocks, and those with other than ordinary elements again.
#[inline(always)]
fn convert_blocks<const S: usize, const D: usize, K: Convert<S, D>>(
    kernel: K,
    again: Again<'_>,
    src: &[u8],
    dst: &mut [u8],
) -> ComputeResult {
    let mut result = ComputeResult::empty();
    let (blocks, rest) = src.as_chunks::<S>().0.as_chunks::<BLOCK>();
    let (results, rest_of_results) = dst.as_chunks_mut::<D>().0.as_chunks_mut::<BLOCK>();
    for (src, dst) in blocks.iter().zip(results) {
        let mut seen = K::NOTHING;
        for (src, dst) in src.iter().zip(dst.iter_mut()) {
            *dst = kernel.element(&mut seen, *src);
        }
        if !kernel.holds(seen) {
            result |= again(src.as_flattened(), dst.as_flattened_mut());
        }
    }
    result | again(rest.as_flattened(), rest_of_results.as_flattened_mut())
}

/// Elements as unsigned integers of a word.
macro_rules! move_elements {
    ($($word:ty: $from:ty => $to:ty;)*) => {$(
        impl<const DIRECTED: bool, const REBIASED: bool> Convert<{ size_of::<$from>() }, { size_of::<$to>() }>
            for Moving<$word, DIRECTED, REBIASED>
        {
            type Seen = Span<$word>;
            const NOTHING: Span<$word> = Span::<$word>::EMPTY;

            #[inline(always)]
            fn element(self, seen: &mut Span<$word>, element: [u8; size_of::<$from>()]) -> [u8; size_of::<$to>()] {
                (self.word(seen, <$from>::from_le_bytes(element).into()) as $to).to_le_bytes()
            }

            #[inline(always)]
            fn holds(self, seen: Span<$word>) -> bool {
                Move::holds(self, seen)
            }
        }
    )*};
}
move_elements! {
    u32: u16 => u8;
    u32: u32 => u8;
    u32: u16 => u16;
    u32: u32 => u16;
    u32: u16 => u32;
    u32: u32 => u32;
    u64: u32 => u64;
    u64: u64 => u32;
    u64: u64 => u64;
}

/// The results of all 8-bit numbers, for 8-bit sources: a table is faster than blocks with denormal numbers.
fn convert_by_table<const D: usize>(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    let (mut results, mut seen) = ([[0; D]; 256], [ComputeResult::empty(); 256]);
    for (byte, (result, seen)) in (0..).zip(results.iter_mut().zip(&mut seen)) {
        let (bits, exceptions) = number::convert(arithmetic, byte);
        store(bits, result);
        *seen = exceptions;
    }
    let mut all = ComputeResult::empty();
    for (src, dst) in src.iter().zip(dst.as_chunks_mut::<D>().0) {
        *dst = results[usize::from(*src)];
        all |= seen[usize::from(*src)];
    }
    all
}

/// Converts floating-point elements with the loop for the rounding and the formats.
macro_rules! moved {
    ($word:ty, $arithmetic:ident, $again:ident, $src:ident, $dst:ident, $s:literal => $d:literal) => {{
        let (from, to) = (Format::of($arithmetic.input), Format::of($arithmetic.output));
        let (rounding, negate) = ($arithmetic.rounding, $arithmetic.negate1);
        match (matches!(rounding, Rounding::Down | Rounding::Up), from.bias() != to.bias()) {
            (false, false) => {
                let kernel = Moving::<$word, false, false>::new(from, to, rounding, negate);
                convert_blocks::<$s, $d, _>(kernel, $again, $src, $dst)
            }
            (false, true) => {
                let kernel = Moving::<$word, false, true>::new(from, to, rounding, negate);
                convert_blocks::<$s, $d, _>(kernel, $again, $src, $dst)
            }
            (true, _) => {
                let kernel = Moving::<$word, true, true>::new(from, to, rounding, negate);
                convert_blocks::<$s, $d, _>(kernel, $again, $src, $dst)
            }
        }
    }};
}

/// Converts floating-point elements of any kind, with vectors up to 32 bits.
#[inline(always)]
pub(in crate::arch) fn convert_any(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    if arithmetic.input == DataType::Fp64 || arithmetic.output == DataType::Fp64 {
        return convert_slowly(arithmetic, src, dst);
    }
    any_float::convert(arithmetic, src, dst)
}

/// Converts floating-point elements; `again` is [`convert_any`] with the level's instructions.
#[inline(always)]
fn convert_floats(arithmetic: &Arithmetic, again: Again<'_>, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    match (size(arithmetic.input), size(arithmetic.output)) {
        // Below this length the table costs more than it saves.
        (1, 1..=4) if src.len() < 1024 => again(src, dst),
        (1, 1) => convert_by_table::<1>(arithmetic, src, dst),
        (1, 2) => convert_by_table::<2>(arithmetic, src, dst),
        (1, 4) => convert_by_table::<4>(arithmetic, src, dst),
        (2, 1) => moved!(u32, arithmetic, again, src, dst, 2 => 1),
        (4, 1) => moved!(u32, arithmetic, again, src, dst, 4 => 1),
        (2, 2) => moved!(u32, arithmetic, again, src, dst, 2 => 2),
        (4, 2) => moved!(u32, arithmetic, again, src, dst, 4 => 2),
        (2, 4) => moved!(u32, arithmetic, again, src, dst, 2 => 4),
        (4, 4) => moved!(u32, arithmetic, again, src, dst, 4 => 4),
        (4, 8) => moved!(u64, arithmetic, again, src, dst, 4 => 8),
        (8, 4) => moved!(u64, arithmetic, again, src, dst, 8 => 4),
        (8, 8) => moved!(u64, arithmetic, again, src, dst, 8 => 8),
        _ => again(src, dst),
    }
}

/// Converts whole elements; both slices have the same number of them.
pub(in crate::arch) fn convert(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    convert_with(arithmetic, &|src, dst| convert_any(arithmetic, src, dst), src, dst)
}

/// [`convert`] with the instructions of the function that calls it; `again` is [`convert_any`] with the same ones.
#[inline(always)]
pub(in crate::arch) fn convert_with(
    arithmetic: &Arithmetic,
    again: Again<'_>,
    src: &[u8],
    dst: &mut [u8],
) -> ComputeResult {
    if arithmetic.input.is_float() {
        return convert_floats(arithmetic, again, src, dst);
    }
    integers::convert(arithmetic, src, dst)
}

/// A computation on elements of `L` and `R` bytes, with results of `D` bytes.
trait Combine<const L: usize, const R: usize, const D: usize>: Copy {
    type Seen: Copy;
    const NOTHING: Self::Seen;
    fn element(self, seen: &mut Self::Seen, left: [u8; L], right: [u8; R]) -> [u8; D];
    /// Returns true if the results hold.
    fn holds(self, seen: Self::Seen) -> bool;
}

/// Computes blocks, and those with other than ordinary elements again.
#[inline(always)]
fn combine_blocks<const L: usize, const R: usize, const D: usize, K: Combine<L, R, D>>(
    kernel: K,
    step: &Step<'_>,
    left: &[u8],
    right: &[u8],
    dst: &mut [u8],
) -> ComputeResult {
    let mut result = ComputeResult::empty();
    let (lefts, rest_of_left) = left.as_chunks::<L>().0.as_chunks::<BLOCK>();
    let (rights, rest_of_right) = right.as_chunks::<R>().0.as_chunks::<BLOCK>();
    let (results, rest_of_results) = dst.as_chunks_mut::<D>().0.as_chunks_mut::<BLOCK>();
    for ((left, right), dst) in lefts.iter().zip(rights).zip(results) {
        let mut seen = K::NOTHING;
        for ((left, right), dst) in left.iter().zip(right).zip(dst.iter_mut()) {
            *dst = kernel.element(&mut seen, *left, *right);
        }
        if !kernel.holds(seen) {
            result |= step.slowly(left.as_flattened(), right.as_flattened(), dst.as_flattened_mut());
        }
    }
    result | step.slowly(rest_of_left.as_flattened(), rest_of_right.as_flattened(), rest_of_results.as_flattened_mut())
}

/// Adds as 32-bit numbers: moves both operands to FP32, and the sum to the result.
#[derive(Clone, Copy)]
struct Sum<A, B, C>(A, B, C);

macro_rules! sum_elements {
    ($($left:ty, $right:ty => $to:ty;)*) => {$(
        impl<A: Move<u32>, B: Move<u32>, C: Move<u32>>
            Combine<{ size_of::<$left>() }, { size_of::<$right>() }, { size_of::<$to>() }> for Sum<A, B, C>
        {
            type Seen = [Span<u32>; 3];
            const NOTHING: [Span<u32>; 3] = [Span::<u32>::EMPTY; 3];

            #[inline(always)]
            fn element(
                self,
                seen: &mut [Span<u32>; 3],
                left: [u8; size_of::<$left>()],
                right: [u8; size_of::<$right>()],
            ) -> [u8; size_of::<$to>()] {
                let [left_seen, right_seen, sum_seen] = seen;
                let a = self.0.word(left_seen, <$left>::from_le_bytes(left).into());
                let b = self.1.word(right_seen, <$right>::from_le_bytes(right).into());
                let sum = (f32::from_bits(a) + f32::from_bits(b)).to_bits();
                (self.2.word(sum_seen, sum) as $to).to_le_bytes()
            }

            #[inline(always)]
            fn holds(self, [left, right, sum]: [Span<u32>; 3]) -> bool {
                self.0.holds(left) && self.1.holds(right) && self.2.holds(sum)
            }
        }
    )*};
}
sum_elements! {
    u32, u32 => u32;
    u16, u16 => u16;
    u16, u16 => u32;
    u32, u16 => u32;
    u8, u8 => u8;
    u8, u8 => u32;
    u32, u8 => u32;
}

/// Adds 64-bit numbers; the signs that change.
#[derive(Clone, Copy)]
struct Sum64(u64, u64);

impl Combine<8, 8, 8> for Sum64 {
    type Seen = Span<u64>;
    const NOTHING: Span<u64> = Span::<u64>::EMPTY;

    #[inline(always)]
    fn element(self, seen: &mut Span<u64>, left: [u8; 8], right: [u8; 8]) -> [u8; 8] {
        let (a, b) = (u64::from_le_bytes(left) ^ self.0, u64::from_le_bytes(right) ^ self.1);
        seen.see(a & (u64::MAX >> 1));
        seen.see(b & (u64::MAX >> 1));
        (f64::from_bits(a) + f64::from_bits(b)).to_bits().to_le_bytes()
    }

    #[inline(always)]
    fn holds(self, seen: Span<u64>) -> bool {
        seen.lies_in(ORDINARY_64.0, ORDINARY_64.1)
    }
}

/// Chooses the smaller or larger of two floating-point numbers of the same format by comparing them as integers. Every
/// format fills its word.
#[derive(Clone, Copy)]
struct Order<W> {
    largest: bool,
    /// The signs that change.
    flips: (W, W),
    /// The ordinary magnitudes.
    least: W,
    most: W,
}

macro_rules! orders {
    ($($word:ty, $signed:ty;)*) => {$(
        impl Order<$word> {
            fn new(format: Format, largest: bool, (left, right): (bool, bool)) -> Self {
                let flip = |negate| <$word>::from(negate) << (<$word>::BITS - 1);
                Order {
                    largest,
                    flips: (flip(left), flip(right)),
                    least: format.least_normal() as $word,
                    most: format.largest_number() as $word,
                }
            }
        }

        impl Combine<{ size_of::<$word>() }, { size_of::<$word>() }, { size_of::<$word>() }> for Order<$word> {
            type Seen = Span<$word>;
            const NOTHING: Span<$word> = Span::<$word>::EMPTY;

            #[inline(always)]
            fn element(
                self,
                seen: &mut Span<$word>,
                left: [u8; size_of::<$word>()],
                right: [u8; size_of::<$word>()],
            ) -> [u8; size_of::<$word>()] {
                // Two's complement in place of sign and magnitude; −0 comes before +0.
                let key = |bits: $word| {
                    let signed = bits as $signed;
                    signed ^ ((signed >> (<$word>::BITS - 1)) as $word >> 1) as $signed
                };
                let a = <$word>::from_le_bytes(left) ^ self.flips.0;
                let b = <$word>::from_le_bytes(right) ^ self.flips.1;
                seen.see(a & (<$word>::MAX >> 1));
                seen.see(b & (<$word>::MAX >> 1));
                let (a, b) = (key(a), key(b));
                // The key is its own inverse.
                (key((if self.largest { a.max(b) } else { a.min(b) }) as $word) as $word).to_le_bytes()
            }

            #[inline(always)]
            fn holds(self, seen: Span<$word>) -> bool {
                seen.lies_in(self.least, self.most)
            }
        }
    )*};
}
orders! {
    u8, i8;
    u16, i16;
    u32, i32;
    u64, i64;
}

/// Returns true if the processor's additions round to nearest. A program may have set that otherwise.
fn rounds_to_nearest() -> bool {
    let (little, one) = (black_box(f32::EPSILON / 4.0), black_box(1.0_f32));
    // Each other rounding changes one of these: up the first, down the second, toward zero the third.
    black_box(one + little).to_bits() == one.to_bits()
        && black_box(-one - little).to_bits() == (-one).to_bits()
        && black_box(one + 3.0 * little).to_bits() == (one + 4.0 * little).to_bits()
}

/// Computes on floating-point elements.
#[inline(always)]
fn combine_floats(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    let Arithmetic { input, output, rounding, .. } = *step.arithmetic;
    let (negate_left, negate_right) = step.negated();
    let format = Format::of(output);
    let single = Format::of(DataType::Fp32);
    if !step.has_loop() {
        return step.slowly(left, right, dst);
    }
    match step.compute {
        ComputeType::Min | ComputeType::Max => {
            macro_rules! order {
                ($word:ty, $size:literal) => {{
                    let order = Order::<$word>::new(format, step.compute == ComputeType::Max, step.negated());
                    combine_blocks::<$size, $size, $size, _>(order, step, left, right, dst)
                }};
            }
            match size(output) {
                1 => order!(u8, 1),
                2 => order!(u16, 2),
                4 => order!(u32, 4),
                _ => order!(u64, 8),
            }
        }
        ComputeType::Add if rounds_to_nearest() => {
            if input == DataType::Fp64 {
                let flip = |negate| u64::from(negate) << 63;
                let sum = Sum64(flip(negate_left), flip(negate_right));
                return combine_blocks::<8, 8, 8, _>(sum, step, left, right, dst);
            }
            let staying = |negate| Staying { flip: u32::from(negate) << 31 };
            macro_rules! sum {
                ($rebiased:literal, $small:literal) => {{
                    let widening = |negate| {
                        let moving = Moving::<u32, false, $rebiased>::new(Format::of(input), single, rounding, negate);
                        moving.within(ORDINARY.0.into(), ORDINARY.1.into())
                    };
                    let right_operand = widening(negate_right);
                    match (step.folds, output == DataType::Fp32) {
                        (_, false) => {
                            let result = Moving::<u32, false, $rebiased>::new(single, format, rounding, false);
                            let sum = Sum(widening(negate_left), right_operand, result);
                            combine_blocks::<$small, $small, $small, _>(sum, step, left, right, dst)
                        }
                        (false, true) => {
                            let sum = Sum(widening(negate_left), right_operand, Unchanged);
                            combine_blocks::<$small, $small, 4, _>(sum, step, left, right, dst)
                        }
                        (true, true) => {
                            let sum = Sum(staying(negate_left), right_operand, Unchanged);
                            combine_blocks::<4, $small, 4, _>(sum, step, left, right, dst)
                        }
                    }
                }};
            }
            match input {
                DataType::Fp32 => {
                    let sum = Sum(staying(negate_left), staying(negate_right), Unchanged);
                    combine_blocks::<4, 4, 4, _>(sum, step, left, right, dst)
                }
                DataType::Bf16 => sum!(false, 2),
                DataType::Fp16 => sum!(true, 2),
                _ => sum!(true, 1),
            }
        }
        _ => step.slowly(left, right, dst),
    }
}

/// Computes whole elements; all slices have the same number of them.
#[inline(always)]
pub(in crate::arch) fn combine(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    if step.arithmetic.input.is_float() {
        combine_floats(step, left, right, dst)
    } else {
        integers::combine(step, left, right, dst)
    }
}
