//! Sums, minima and maxima in a wider type: for results of another type than the operands, and for sums that are not
//! rounded to nearest. The conversions are the ones of this level.
//!
//! A sum that becomes narrower is rounded to odd first: toward zero, with the lowest bit set if it is inexact. The
//! second rounding then gives the same result as a single one, because the wider type has at least two bits more.
//! Source: Boldo and Melquiond, *Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd*,
//! IEEE Transactions on Computers 57 (2008).
//!
//! A piece whose conversions report anything, or whose operands or sums are not certainly zero or normal, is computed
//! again element by element.

use super::convert::convert;
use super::{Vector, load, store};
use crate::arch::portable::step::Step;
use crate::number::{Arithmetic, size};
use core::arch::x86_64::*;
use telpher_abi::{ComputeResult, ComputeType, DataType, Rounding};

/// Elements computed together; the three pieces in the wider type stay in the first-level cache.
const PIECE: usize = 512;

/// A piece in the wider type.
type Wide = [Vector; PIECE * 8 / 64];

/// How the sum of two vectors is rounded: as the result is, or to odd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounded {
    Once(Rounding),
    /// True if exact zeros of operands with different signs are negative.
    ToOdd(bool),
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn combine(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    let Arithmetic { input, output, rounding, denormals_are_zero, .. } = *step.arithmetic;
    let is_long = input == DataType::Fp64 || output == DataType::Fp64;
    let wide = if is_long { DataType::Fp64 } else { DataType::Fp32 };
    let (negate_left, negate_right) = step.negated();
    let widen_left = Arithmetic {
        negate1: negate_left,
        // The result of earlier steps keeps its denormal numbers.
        denormals_are_zero: denormals_are_zero && !step.folds,
        ..Arithmetic::new(step.left(), wide)
    };
    let widen_right = Arithmetic { negate1: negate_right, denormals_are_zero, ..Arithmetic::new(input, wide) };
    let narrow = Arithmetic { input: wide, negate1: false, denormals_are_zero: false, ..*step.arithmetic };
    let rounded = if output == wide { Rounded::Once(rounding) } else { Rounded::ToOdd(rounding == Rounding::Down) };
    let [left_size, right_size, result_size] = [step.left(), input, output].map(size);
    let mut pieces: [Wide; 3] = [[[0; 64]; PIECE * 8 / 64]; 3];
    let [a, b, results] = &mut pieces;
    let mut seen = ComputeResult::empty();
    let sources = left.chunks(PIECE * left_size).zip(right.chunks(PIECE * right_size));
    for ((left, right), dst) in sources.zip(dst.chunks_mut(PIECE * result_size)) {
        let bytes = dst.len() / result_size * size(wide);
        let vectors = bytes.div_ceil(64);
        for piece in [&mut *a, &mut *b] {
            // Zeros stand for the elements of the last vector that do not exist.
            piece.as_flattened_mut()[bytes..64 * vectors].fill(0);
        }
        let mut special = convert(&widen_left, left, &mut a.as_flattened_mut()[..bytes]);
        special |= convert(&widen_right, right, &mut b.as_flattened_mut()[..bytes]);
        let (a, b, sums) = (&a[..vectors], &b[..vectors], &mut results[..vectors]);
        let holds = match (step.compute, is_long) {
            (ComputeType::Min, false) => order32::<MIN>(a, b, sums),
            (ComputeType::Min, true) => order64::<MIN>(a, b, sums),
            (ComputeType::Max, false) => order32::<MAX>(a, b, sums),
            (ComputeType::Max, true) => order64::<MAX>(a, b, sums),
            (_, false) => add32(rounded, a, b, sums),
            (_, true) => add64(rounded, a, b, sums),
        };
        let results = &results.as_flattened()[..bytes];
        if output == wide {
            dst.copy_from_slice(results);
        } else {
            special |= convert(&narrow, results, dst);
        }
        if !holds || !special.is_empty() {
            seen |= step.slowly(left, right, dst);
        }
    }
    seen
}

/// The smaller and the larger operand; its sign is kept. Source: Intel SDM, VRANGEPS.
const MIN: i32 = 0b0100;
const MAX: i32 = 0b0101;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

macro_rules! kernels {
    ($order:ident, $add:ident, $sums:ident, $to_odd:ident, $float:ident, $as_float:ident, $as_int:ident, $range:ident,
        $add_round:ident, $not_equal:ident, $set:ident, $plus:ident, $min:ident, $max:ident, $below:ident,
        $above:ident, $or:ident, $blend:ident, $least:expr, $most:expr) => {
        /// NaN and denormal operands were found by their conversions.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $order<const WHICH: i32>(a: &[Vector], b: &[Vector], results: &mut [Vector]) -> bool {
            for ((a, b), result) in a.iter().zip(b).zip(results) {
                let (a, b) = ($as_float(load(a)), $as_float(load(b)));
                store($as_int($range::<WHICH, _MM_FROUND_NO_EXC>(a, b)), result);
            }
            true
        }

        /// Returns true if all operands and sums are zero or normal, and no sum has the largest magnitude.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $add(rounded: Rounded, a: &[Vector], b: &[Vector], sums: &mut [Vector]) -> bool {
            match rounded {
                Rounded::Once(Rounding::NearestEven) => $sums(a, b, sums, |a, b| $add_round::<NEAREST>(a, b)),
                Rounded::Once(Rounding::Down) => $sums(a, b, sums, |a, b| $add_round::<DOWN>(a, b)),
                Rounded::Once(Rounding::Up) => $sums(a, b, sums, |a, b| $add_round::<UP>(a, b)),
                Rounded::Once(Rounding::TowardZero) => $sums(a, b, sums, |a, b| $add_round::<TOWARD_ZERO>(a, b)),
                Rounded::ToOdd(true) => $sums(a, b, sums, |a, b| $to_odd::<true>(a, b)),
                Rounded::ToOdd(false) => $sums(a, b, sums, |a, b| $to_odd::<false>(a, b)),
            }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $to_odd<const NEGATIVE_ZERO: bool>(a: $float, b: $float) -> $float {
            let (down, up) = ($add_round::<DOWN>(a, b), $add_round::<UP>(a, b));
            let exact = if NEGATIVE_ZERO { down } else { up };
            let toward_zero = $as_int($add_round::<TOWARD_ZERO>(a, b));
            let inexact = $not_equal::<_CMP_NEQ_UQ>(down, up);
            $as_float($blend(inexact, $as_int(exact), $or(toward_zero, $set(1))))
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $sums(a: &[Vector], b: &[Vector], sums: &mut [Vector], add: impl Fn($float, $float) -> $float) -> bool {
            let minus_one = _mm512_set1_epi64(-1);
            let (mut below_least, mut most) = (minus_one, _mm512_setzero_si512());
            for ((a, b), result) in a.iter().zip(b).zip(sums) {
                let (a, b) = (load(a), load(b));
                let sum = $as_int(add($as_float(a), $as_float(b)));
                store(sum, result);
                // Doubled, which drops the sign, and less one, so that zero wraps and is larger than all others.
                let less = |bits| $plus($plus(bits, bits), minus_one);
                below_least = $min(below_least, $min(less(a), less(b)));
                most = $max(most, $max($plus(sum, sum), $max($plus(a, a), $plus(b, b))));
            }
            $below(below_least, $set($least * 2 - 1)) == 0 && $above(most, $set($most.wrapping_mul(2))) == 0
        }
    };
}
// The operands are zero or large enough for sums that are zero or normal: their exponents exceed the mantissa's bits.
kernels!(
    order32,
    add32,
    sums32,
    to_odd32,
    __m512,
    _mm512_castsi512_ps,
    _mm512_castps_si512,
    _mm512_range_round_ps,
    _mm512_add_round_ps,
    _mm512_cmp_ps_mask,
    _mm512_set1_epi32,
    _mm512_add_epi32,
    _mm512_min_epu32,
    _mm512_max_epu32,
    _mm512_cmplt_epu32_mask,
    _mm512_cmpge_epu32_mask,
    _mm512_or_si512,
    _mm512_mask_blend_epi32,
    25 << 23,
    0x7f7f_ffff_u32.cast_signed()
);
kernels!(
    order64,
    add64,
    sums64,
    to_odd64,
    __m512d,
    _mm512_castsi512_pd,
    _mm512_castpd_si512,
    _mm512_range_round_pd,
    _mm512_add_round_pd,
    _mm512_cmp_pd_mask,
    _mm512_set1_epi64,
    _mm512_add_epi64,
    _mm512_min_epu64,
    _mm512_max_epu64,
    _mm512_cmplt_epu64_mask,
    _mm512_cmpge_epu64_mask,
    _mm512_or_si512,
    _mm512_mask_blend_epi64,
    54 << 52,
    0x7fef_ffff_ffff_ffff_u64.cast_signed()
);
