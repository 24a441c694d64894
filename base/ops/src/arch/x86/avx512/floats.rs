//! Ordinary numbers of 16 and 32 bits with 64-byte vectors.
//!
//! A block of elements is computed as if all of them were ordinary. A quick check, mostly of the results, finds
//! blocks that are certainly ordinary; it treats zeros and the ends of the range as special. The other blocks are
//! checked exactly, and those with a special number are computed again, by code for any number. Conversions and
//! sums carry their rounding and raise no exceptions, so they do not depend on the processor's modes: those could only
//! change denormal numbers of 32 bits, and no block with one of them holds.

use super::{Vector, load, store};
use crate::arch::portable::compute::{Again, BLOCK};
use crate::arch::portable::step::Step;
use crate::number::Arithmetic;
use core::arch::x86_64::*;
use telpher_abi::{ComputeResult, ComputeType, DataType, Rounding};

/// The upper limit of magnitudes, and of those above zero the lower one, of a format of 16 or 32 bits; doubled, without
/// the sign.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    most: u32,
    least: u32,
}

impl Limits {
    /// Magnitudes from `least` to `most`.
    pub(super) const fn new(least: u32, most: u32) -> Limits {
        Limits { most: 2 * most, least: 2 * least }
    }

    /// Returns the magnitudes before the smallest and the largest one, of 16 bits.
    #[allow(clippy::cast_possible_truncation, reason = "the limits of a format of 16 bits")]
    const fn words16(self) -> (u16, u16) {
        ((self.least / 2 - 1) as u16, (self.most / 2) as u16)
    }
}

/// BF16 and FP16 from the smallest normal number to infinity.
const BF16: Limits = Limits::new(0x0080, 0x7f80);
const FP16: Limits = Limits::new(0x0400, 0x7c00);

/// The smallest and largest magnitudes seen, doubled; the smallest one without zero, and one less.
#[derive(Clone, Copy)]
struct Span {
    below_least: __m512i,
    most: __m512i,
}

macro_rules! spans {
    ($see:ident, $lies_in:ident, $smallest:ident, $add:ident, $min:ident, $max:ident, $set:ident, $above:ident,
        $below:ident, $word:ty) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $see(&mut self, bits: __m512i) {
            let doubled = $add(bits, bits);
            self.most = $max(self.most, doubled);
            // Zero wraps and is larger than all others.
            self.below_least = $min(self.below_least, $add(doubled, _mm512_set1_epi64(-1)));
        }

        /// Returns true if every magnitude seen is zero or within the limits.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $lies_in(self, limits: Limits) -> bool {
            $above(self.most, $set(limits.most as $word)) == 0 && self.$smallest(limits)
        }

        /// Returns true if every magnitude seen is zero or not below the limit.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $smallest(self, limits: Limits) -> bool {
            $below(self.below_least, $set(limits.least.wrapping_sub(1) as $word)) == 0
        }
    };
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "limits have as many bits as the word")]
impl Span {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn empty() -> Span {
        Span { below_least: _mm512_set1_epi64(-1), most: _mm512_setzero_si512() }
    }

    spans!(
        see16,
        lies_in16,
        none_below16,
        _mm512_add_epi16,
        _mm512_min_epu16,
        _mm512_max_epu16,
        _mm512_set1_epi16,
        _mm512_cmpgt_epu16_mask,
        _mm512_cmplt_epu16_mask,
        i16
    );
    spans!(
        see32,
        lies_in32,
        none_below32,
        _mm512_add_epi32,
        _mm512_min_epu32,
        _mm512_max_epu32,
        _mm512_set1_epi32,
        _mm512_cmpgt_epu32_mask,
        _mm512_cmplt_epu32_mask,
        i32
    );
}

/// The smallest and largest of the words seen, doubled: the sign is shifted out.
#[derive(Clone, Copy)]
pub(super) struct QuickSpan {
    least: __m512i,
    most: __m512i,
}

impl QuickSpan {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn empty() -> QuickSpan {
        QuickSpan { least: _mm512_set1_epi64(-1), most: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn see16(&mut self, bits: __m512i) {
        let doubled = _mm512_add_epi16(bits, bits);
        self.least = _mm512_min_epu16(self.least, doubled);
        self.most = _mm512_max_epu16(self.most, doubled);
    }

    /// Sees two operands.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn see_both16(&mut self, a: __m512i, b: __m512i) {
        let (a, b) = (_mm512_add_epi16(a, a), _mm512_add_epi16(b, b));
        self.least = _mm512_min_epu16(self.least, _mm512_min_epu16(a, b));
        self.most = _mm512_max_epu16(self.most, _mm512_max_epu16(a, b));
    }

    /// Returns true if every magnitude seen lies strictly between two others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[allow(clippy::cast_possible_wrap, reason = "compared without signs")]
    fn lies_between16(self, least: u16, most: u16) -> bool {
        _mm512_cmple_epu16_mask(self.least, _mm512_set1_epi16((2 * least) as i16)) == 0
            && _mm512_cmpge_epu16_mask(self.most, _mm512_set1_epi16((2 * most) as i16)) == 0
    }
}

/// Rounds words to their higher half.
#[derive(Clone, Copy)]
struct ToBf16 {
    plus: __m512i,
    minus: __m512i,
    /// The lowest bit kept, to round to nearest.
    lowest: __m512i,
}

impl ToBf16 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(rounding: Rounding) -> ToBf16 {
        let (plus, minus, lowest) = match rounding {
            Rounding::NearestEven => (0x7fff, 0x7fff, 0x1_0000),
            Rounding::Down => (0, 0xffff, 0),
            Rounding::Up => (0xffff, 0, 0),
            Rounding::TowardZero => (0, 0, 0),
        };
        ToBf16 { plus: _mm512_set1_epi32(plus), minus: _mm512_set1_epi32(minus), lowest: _mm512_set1_epi32(lowest) }
    }

    /// Returns the rounded words; their lower halves mean nothing.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn round<const DIRECTED: bool>(self, bits: __m512i) -> __m512i {
        if DIRECTED {
            let add = _mm512_mask_blend_epi32(_mm512_movepi32_mask(bits), self.plus, self.minus);
            return _mm512_add_epi32(bits, add);
        }
        let odd = _mm512_test_epi32_mask(bits, self.lowest);
        let rounded = _mm512_add_epi32(bits, self.plus);
        _mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1))
    }
}

/// Runs a block's code over all blocks. If it finds a block's numbers not certainly ordinary, `check` looks at them:
/// it returns what happened if the results hold. Otherwise `again` converts the block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn convert_blocks<const S: usize, const D: usize>(
    (again, src, dst): Data<'_>,
    check: impl Fn(&[Vector]) -> Option<ComputeResult>,
    block: impl Fn(&[Vector], &mut [Vector]) -> bool,
) -> ComputeResult {
    let mut seen = ComputeResult::empty();
    let (blocks, rest) = src.as_chunks::<S>().0.as_chunks::<BLOCK>();
    let (results, rest_of_results) = dst.as_chunks_mut::<D>().0.as_chunks_mut::<BLOCK>();
    for (src, dst) in blocks.iter().zip(results) {
        let (src, dst) = (src.as_flattened(), dst.as_flattened_mut());
        if !block(src.as_chunks().0, dst.as_chunks_mut().0) {
            seen |= check(src.as_chunks().0).unwrap_or_else(|| again(src, dst));
        }
    }
    seen | again(rest.as_flattened(), rest_of_results.as_flattened_mut())
}

/// What converts any number, the source, and the results.
pub(super) type Data<'a> = (Again<'a>, &'a [u8], &'a mut [u8]);

/// Returns that nothing happened, if all magnitudes of 16 bits are zero or within the limits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn check16(src: &[Vector], limits: Limits) -> Option<ComputeResult> {
    let mut span = Span::empty();
    for src in src {
        span.see16(load(src));
    }
    span.lies_in16(limits).then_some(ComputeResult::empty())
}

/// The same for 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn check32(src: &[Vector], limits: Limits) -> Option<ComputeResult> {
    let mut span = Span::empty();
    for src in src {
        span.see32(load(src));
    }
    span.lies_in32(limits).then_some(ComputeResult::empty())
}

/// Converts between FP32, BF16 and FP16, without negation; `None` for other conversions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn convert(arithmetic: &Arithmetic, again: Again<'_>, src: &[u8], dst: &mut [u8]) -> Option<ComputeResult> {
    let data = (again, src, dst);
    if arithmetic.negate1 {
        return None;
    }
    Some(match (arithmetic.input, arithmetic.output) {
        (DataType::Fp32, DataType::Bf16) => match arithmetic.rounding {
            Rounding::Down | Rounding::Up => to_bf16::<true>(arithmetic, data),
            Rounding::NearestEven | Rounding::TowardZero => to_bf16::<false>(arithmetic, data),
        },
        (DataType::Bf16, DataType::Fp32) => from_bf16(data),
        (DataType::Fp32, DataType::Fp16) => match arithmetic.rounding {
            Rounding::NearestEven => to_fp16::<NEAREST>(arithmetic, data),
            Rounding::Down => to_fp16::<DOWN>(arithmetic, data),
            Rounding::Up => to_fp16::<UP>(arithmetic, data),
            Rounding::TowardZero => to_fp16::<TOWARD_ZERO>(arithmetic, data),
        },
        (DataType::Fp16, DataType::Fp32) => from_fp16(data),
        (DataType::Bf16, DataType::Fp16) => match arithmetic.rounding {
            Rounding::NearestEven => bf16_to_fp16::<NEAREST>(data),
            Rounding::Down => bf16_to_fp16::<DOWN>(data),
            Rounding::Up => bf16_to_fp16::<UP>(data),
            Rounding::TowardZero => bf16_to_fp16::<TOWARD_ZERO>(data),
        },
        (DataType::Fp16, DataType::Bf16) => match arithmetic.rounding {
            Rounding::Down | Rounding::Up => fp16_to_bf16::<true>(arithmetic, data),
            Rounding::NearestEven | Rounding::TowardZero => fp16_to_bf16::<false>(arithmetic, data),
        },
        _ => return None,
    })
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn to_bf16<const DIRECTED: bool>(arithmetic: &Arithmetic, data: Data<'_>) -> ComputeResult {
    let to = ToBf16::new(arithmetic.rounding);
    let higher_halves = higher_halves();
    // The largest number that no rounding makes infinite.
    let ordinary = Limits::new(0x0080_0000, 0x7f7f_0000);
    let check = |src: &[Vector]| check32(src, ordinary);
    convert_blocks::<4, 2>(data, check, |src, dst| {
        let mut span = QuickSpan::empty();
        for ([a, b], dst) in src.as_chunks().0.iter().zip(dst) {
            let (a, b) = (to.round::<DIRECTED>(load(a)), to.round::<DIRECTED>(load(b)));
            let result = _mm512_permutex2var_epi16(a, higher_halves, b);
            span.see16(result);
            store(result, dst);
        }
        span.lies_between16(0x0080, 0x7f7f)
    })
}

/// The positions of the higher halves of two vectors' 32-bit words.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn higher_halves() -> __m512i {
    // Each position takes two bytes, of which the second is 0.
    load(&std::array::from_fn(|at| if at % 2 == 0 { u8::try_from(at + 1).expect("64 words") } else { 0 }))
}

/// Places the vectors of 32 words so that the unpacking of low and high words yields them in their order.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn in_order_of_unpacking(bits: __m512i) -> __m512i {
    _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bits)
}

/// Returns words with the given halves as their higher ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn as_higher_halves(halves: __m512i) -> [__m512i; 2] {
    let (zero, halves) = (_mm512_setzero_si512(), in_order_of_unpacking(halves));
    [_mm512_unpacklo_epi16(zero, halves), _mm512_unpackhi_epi16(zero, halves)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn from_bf16(data: Data<'_>) -> ComputeResult {
    convert_blocks::<2, 4>(
        data,
        |src| check16(src, BF16),
        |src, dst| {
            let mut span = QuickSpan::empty();
            for (src, [low, high]) in src.iter().zip(dst.as_chunks_mut().0) {
                let bits = load(src);
                span.see16(bits);
                let [first, second] = as_higher_halves(bits);
                store(first, low);
                store(second, high);
            }
            span.lies_between16(0x0080, 0x7f80)
        },
    )
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn from_fp16(data: Data<'_>) -> ComputeResult {
    convert_blocks::<2, 4>(
        data,
        |src| check16(src, FP16),
        |src, dst| {
            let mut span = QuickSpan::empty();
            for (src, [low, high]) in src.iter().zip(dst.as_chunks_mut().0) {
                let bits = load(src);
                span.see16(bits);
                let [first, second] = fp16_as_fp32(bits);
                store(_mm512_castps_si512(first), low);
                store(_mm512_castps_si512(second), high);
            }
            span.lies_between16(0x0400, 0x7c00)
        },
    )
}

#[inline]
#[target_feature(enable = "avx512f")]
fn fp16_as_fp32(halves: __m512i) -> [__m512; 2] {
    let (low, high) = (_mm512_castsi512_si256(halves), _mm512_extracti64x4_epi64::<1>(halves));
    [_mm512_cvt_roundph_ps::<_MM_FROUND_NO_EXC>(low), _mm512_cvt_roundph_ps::<_MM_FROUND_NO_EXC>(high)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn fp32_as_fp16<const ROUNDING: i32>(first: __m512, second: __m512) -> __m512i {
    let low = _mm512_cvt_roundps_ph::<ROUNDING>(first);
    let high = _mm512_cvt_roundps_ph::<ROUNDING>(second);
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn to_fp16<const ROUNDING: i32>(arithmetic: &Arithmetic, data: Data<'_>) -> ComputeResult {
    // FP16's normal range; normal numbers of FP32, which no mode of the processor changes; those that are not certainly
    // below FP16's normal range, however they are rounded.
    let normal = Limits::new(0x3880_0000, 0x477f_e000);
    let exact = Limits::new(0x0080_0000, 0x477f_e000);
    let below = Limits::new(0x387f_e001, 0x477f_e000);
    let check = |src: &[Vector]| {
        let mut span = Span::empty();
        for src in src {
            span.see32(load(src));
        }
        if span.lies_in32(normal) {
            return Some(ComputeResult::empty());
        }
        // Results below the normal range are right, if the smallest one certainly is.
        let underflows = span.lies_in32(exact) && !span.none_below32(below) && !arithmetic.flush_to_zero;
        underflows.then_some(ComputeResult::UNDERFLOW)
    };
    convert_blocks::<4, 2>(data, check, |src, dst| {
        let mut span = QuickSpan::empty();
        for ([a, b], dst) in src.as_chunks().0.iter().zip(dst) {
            let (a, b) = (_mm512_castsi512_ps(load(a)), _mm512_castsi512_ps(load(b)));
            let result = fp32_as_fp16::<ROUNDING>(a, b);
            span.see16(result);
            store(result, dst);
        }
        span.lies_between16(0x0400, 0x7bff)
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn bf16_to_fp16<const ROUNDING: i32>(data: Data<'_>) -> ComputeResult {
    // FP16's normal range in BF16.
    let normal = Limits::new(0x3880, 0x477f);
    convert_blocks::<2, 2>(
        data,
        |src| check16(src, normal),
        |src, dst| {
            let mut span = QuickSpan::empty();
            for (src, dst) in src.iter().zip(dst) {
                let [first, second] = as_higher_halves(load(src));
                let result = fp32_as_fp16::<ROUNDING>(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second));
                span.see16(result);
                store(result, dst);
            }
            span.lies_between16(0x0400, 0x7bff)
        },
    )
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn fp16_to_bf16<const DIRECTED: bool>(arithmetic: &Arithmetic, data: Data<'_>) -> ComputeResult {
    let (to, higher_halves) = (ToBf16::new(arithmetic.rounding), higher_halves());
    convert_blocks::<2, 2>(
        data,
        |src| check16(src, FP16),
        |src, dst| {
            let mut span = QuickSpan::empty();
            for (src, dst) in src.iter().zip(dst) {
                let bits = load(src);
                span.see16(bits);
                let [first, second] = fp16_as_fp32(bits);
                let first = to.round::<DIRECTED>(_mm512_castps_si512(first));
                let second = to.round::<DIRECTED>(_mm512_castps_si512(second));
                store(_mm512_permutex2var_epi16(first, higher_halves, second), dst);
            }
            span.lies_between16(0x0400, 0x7c00)
        },
    )
}

/// Runs a block's code over all blocks. If it finds a block's numbers not certainly ordinary, `check` looks at them and
/// the results; if those do not hold, the step computes them one by one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn combine_blocks<const L: usize, const R: usize, const D: usize>(
    (step, left, right, dst): Combined<'_>,
    check: impl Fn(&[Vector], &[Vector], &[Vector]) -> bool,
    block: impl Fn(&[Vector], &[Vector], &mut [Vector]) -> bool,
) -> ComputeResult {
    let mut seen = ComputeResult::empty();
    let (lefts, rest_of_left) = left.as_chunks::<L>().0.as_chunks::<BLOCK>();
    let (rights, rest_of_right) = right.as_chunks::<R>().0.as_chunks::<BLOCK>();
    let (results, rest_of_results) = dst.as_chunks_mut::<D>().0.as_chunks_mut::<BLOCK>();
    for ((left, right), dst) in lefts.iter().zip(rights).zip(results) {
        let (left, right, dst) = (left.as_flattened(), right.as_flattened(), dst.as_flattened_mut());
        let (a, b) = (left.as_chunks().0, right.as_chunks().0);
        if !block(a, b, dst.as_chunks_mut().0) && !check(a, b, dst.as_chunks().0) {
            seen |= step.slowly(left, right, dst);
        }
    }
    seen | step.slowly(rest_of_left.as_flattened(), rest_of_right.as_flattened(), rest_of_results.as_flattened_mut())
}

type Combined<'a> = (&'a Step<'a>, &'a [u8], &'a [u8], &'a mut [u8]);

/// Minima, maxima and sums of FP32, BF16 and FP16, and sums of the latter two in FP32; `None` for other computations.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn combine(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> Option<ComputeResult> {
    let Arithmetic { input, output, rounding, .. } = *step.arithmetic;
    let data = (step, left, right, dst);
    macro_rules! rounded {
        ($kernel:ident $(, $generic:tt)*) => {
            match rounding {
                Rounding::NearestEven => $kernel::<NEAREST $(, $generic)*>(data),
                Rounding::Down => $kernel::<DOWN $(, $generic)*>(data),
                Rounding::Up => $kernel::<UP $(, $generic)*>(data),
                Rounding::TowardZero => $kernel::<TOWARD_ZERO $(, $generic)*>(data),
            }
        };
    }
    Some(match (input, output, step.compute, step.folds) {
        (DataType::Fp32, DataType::Fp32, ComputeType::Min, _) => order32::<MIN>(data),
        (DataType::Fp32, DataType::Fp32, ComputeType::Max, _) => order32::<MAX>(data),
        (DataType::Bf16, DataType::Bf16, ComputeType::Min, _) => order16::<false>(BF16, data),
        (DataType::Bf16, DataType::Bf16, ComputeType::Max, _) => order16::<true>(BF16, data),
        (DataType::Fp16, DataType::Fp16, ComputeType::Min, _) => order16::<false>(FP16, data),
        (DataType::Fp16, DataType::Fp16, ComputeType::Max, _) => order16::<true>(FP16, data),
        (DataType::Fp32, DataType::Fp32, ComputeType::Add, _) => rounded!(add_fp32),
        (DataType::Bf16, DataType::Bf16, ComputeType::Add, _) => rounded!(add_bf16),
        (DataType::Fp16, DataType::Fp16, ComputeType::Add, _) => rounded!(add_fp16),
        (DataType::Bf16, DataType::Fp32, ComputeType::Add, false) => rounded!(add_as_fp32, true),
        (DataType::Fp16, DataType::Fp32, ComputeType::Add, false) => rounded!(add_as_fp32, false),
        (DataType::Bf16, DataType::Fp32, ComputeType::Add, true) => rounded!(add_to_fp32, true),
        (DataType::Fp16, DataType::Fp32, ComputeType::Add, true) => rounded!(add_to_fp32, false),
        _ => return None,
    })
}

/// The signs of both operands that change, of words of 16 and of 32 bits.
#[derive(Clone, Copy)]
struct Flips {
    left: __m512i,
    right: __m512i,
}

impl Flips {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn of_16(step: &Step<'_>) -> Flips {
        let (left, right) = step.negated();
        let flip = |negate: bool| _mm512_set1_epi16(if negate { i16::MIN } else { 0 });
        Flips { left: flip(left), right: flip(right) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of_32(step: &Step<'_>) -> Flips {
        let (left, right) = step.negated();
        let flip = |negate: bool| _mm512_set1_epi32(if negate { i32::MIN } else { 0 });
        Flips { left: flip(left), right: flip(right) }
    }

    /// Loads an operand from each side.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(self, left: &Vector, right: &Vector) -> (__m512i, __m512i) {
        (_mm512_xor_si512(load(left), self.left), _mm512_xor_si512(load(right), self.right))
    }
}

/// The smaller and the larger operand; its sign is kept. Source: Intel SDM, VRANGEPS.
const MIN: i32 = 0b0100;
const MAX: i32 = 0b0101;
/// FP32 from the smallest normal number to infinity.
const FP32: Limits = Limits::new(0x0080_0000, 0x7f80_0000);

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn order32<const WHICH: i32>(data: Combined<'_>) -> ComputeResult {
    let (higher_halves, flips) = (higher_halves(), Flips::of_32(data.0));
    let check = |left: &[Vector], right: &[Vector], _: &[Vector]| {
        check32(left, FP32).is_some() && check32(right, FP32).is_some()
    };
    combine_blocks::<4, 4, 4>(data, check, |left, right, dst| {
        let mut span = QuickSpan::empty();
        for ((left, right), dst) in left.iter().zip(right).zip(dst) {
            let (a, b) = flips.load(left, right);
            span.see16(_mm512_permutex2var_epi16(a, higher_halves, b));
            let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            store(_mm512_castps_si512(_mm512_range_round_ps::<WHICH, _MM_FROUND_NO_EXC>(a, b)), dst);
        }
        span.lies_between16(0x007f, 0x7f80)
    })
}

/// As unsigned words, two positive numbers have the order of their values, and all others the opposite one.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn order16<const LARGEST: bool>(limits: Limits, data: Combined<'_>) -> ComputeResult {
    let check = |left: &[Vector], right: &[Vector], _: &[Vector]| {
        check16(left, limits).is_some() && check16(right, limits).is_some()
    };
    let ((least, most), flips) = (limits.words16(), Flips::of_16(data.0));
    combine_blocks::<2, 2, 2>(data, check, |left, right, dst| {
        let mut span = QuickSpan::empty();
        for ((left, right), dst) in left.iter().zip(right).zip(dst) {
            let (a, b) = flips.load(left, right);
            span.see_both16(a, b);
            let (low, high) = (_mm512_min_epu16(a, b), _mm512_max_epu16(a, b));
            let negative = _mm512_movepi16_mask(_mm512_or_si512(a, b));
            let (positive, other) = if LARGEST { (high, low) } else { (low, high) };
            store(_mm512_mask_blend_epi16(negative, positive, other), dst);
        }
        span.lies_between16(least, most)
    })
}

/// Operands whose sum is zero, or neither denormal nor lost to a flush to zero: exponents above the smallest by more
/// than the mantissa's bits.
const SUMMANDS16: Limits = Limits::new(25 << 7, 0x7f7f);
const SUMMANDS32: Limits = Limits::new(25 << 23, 0x7f7f_ffff);
/// Finite normal FP16.
const FINITE_FP16: Limits = Limits::new(0x0400, 0x7bff);

/// Returns the smallest magnitude of a sum that may stand for a larger one: infinity, or the largest finite number
/// where numbers beyond it are rounded to that.
const fn beyond<const ROUNDING: i32>(infinity: u32) -> u32 {
    if ROUNDING == NEAREST { infinity } else { infinity - 1 }
}

/// Sees the magnitudes of sums of 32 bits, doubled.
#[inline]
#[target_feature(enable = "avx512f")]
fn larger32(most: __m512i, sum: __m512i) -> __m512i {
    _mm512_max_epu32(most, _mm512_add_epi32(sum, sum))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sum32<const ROUNDING: i32>(a: __m512i, b: __m512i) -> __m512i {
    _mm512_castps_si512(_mm512_add_round_ps::<ROUNDING>(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn all_below32(most: __m512i, limit: u32) -> bool {
    _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32((2 * limit).cast_signed())) == 0
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn none_below16(least: __m512i, limit: i16) -> bool {
    _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(2 * limit)) == 0
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_fp32<const ROUNDING: i32>(data: Combined<'_>) -> ComputeResult {
    let (higher_halves, flips) = (higher_halves(), Flips::of_32(data.0));
    let limit = beyond::<ROUNDING>(0x7f80_0000);
    let finite = Limits::new(1, limit - 1);
    let check = |left: &[Vector], right: &[Vector], sums: &[Vector]| {
        [left, right].into_iter().all(|side| check32(side, SUMMANDS32).is_some()) && check32(sums, finite).is_some()
    };
    combine_blocks::<4, 4, 4>(data, check, |left, right, dst| {
        let (mut least, mut most) = (_mm512_set1_epi64(-1), _mm512_setzero_si512());
        for ((left, right), dst) in left.iter().zip(right).zip(dst) {
            let (a, b) = flips.load(left, right);
            let exponents = _mm512_permutex2var_epi16(a, higher_halves, b);
            least = _mm512_min_epu16(least, _mm512_add_epi16(exponents, exponents));
            let sum = sum32::<ROUNDING>(a, b);
            most = larger32(most, sum);
            store(sum, dst);
        }
        // An infinite operand or NaN makes the sum one of these.
        none_below16(least, 25 << 7) && all_below32(most, limit)
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_bf16<const ROUNDING: i32>(data: Combined<'_>) -> ComputeResult {
    let (to, flips) = (ToBf16::new(data.0.arithmetic.rounding), Flips::of_16(data.0));
    let higher = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let add = |a: __m512i, b: __m512i| {
        let sum = sum32::<ROUNDING>(a, b);
        if ROUNDING == DOWN || ROUNDING == UP { to.round::<true>(sum) } else { to.round::<false>(sum) }
    };
    let limit = beyond::<ROUNDING>(0x7f80);
    let finite = Limits::new(1, limit - 1);
    let check = |left: &[Vector], right: &[Vector], sums: &[Vector]| {
        [left, right].into_iter().all(|side| check16(side, SUMMANDS16).is_some()) && check16(sums, finite).is_some()
    };
    combine_blocks::<2, 2, 2>(data, check, |left, right, dst| {
        let mut span = QuickSpan::empty();
        for ((left, right), dst) in left.iter().zip(right).zip(dst) {
            let (a, b) = flips.load(left, right);
            let smaller = _mm512_min_epu16(_mm512_add_epi16(a, a), _mm512_add_epi16(b, b));
            span.least = _mm512_min_epu16(span.least, smaller);
            let even = add(_mm512_slli_epi32::<16>(a), _mm512_slli_epi32::<16>(b));
            let odd = add(_mm512_and_si512(a, higher), _mm512_and_si512(b, higher));
            let sums = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd);
            span.most = _mm512_max_epu16(span.most, _mm512_add_epi16(sums, sums));
            store(sums, dst);
        }
        // An infinite operand or NaN makes the sum one of these.
        span.lies_between16((25 << 7) - 1, u16::try_from(limit).expect("a magnitude has 15 bits"))
    })
}

/// Sums of FP16 in FP32, rounded once more: see the portable loops; both roundings in the same direction are one. A sum
/// below the normal range is exact, but noticed.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_fp16<const ROUNDING: i32>(data: Combined<'_>) -> ComputeResult {
    let flips = Flips::of_16(data.0);
    let limit = beyond::<ROUNDING>(0x7c00);
    let finite = Limits::new(0x0400, limit - 1);
    let check = |left: &[Vector], right: &[Vector], sums: &[Vector]| {
        [left, right].into_iter().all(|side| check16(side, FINITE_FP16).is_some()) && check16(sums, finite).is_some()
    };
    combine_blocks::<2, 2, 2>(data, check, |left, right, dst| {
        let mut span = QuickSpan::empty();
        for ((left, right), dst) in left.iter().zip(right).zip(dst) {
            let (a, b) = flips.load(left, right);
            let smaller = _mm512_min_epu16(_mm512_add_epi16(a, a), _mm512_add_epi16(b, b));
            span.least = _mm512_min_epu16(span.least, smaller);
            let ([a, c], [b, d]) = (fp16_as_fp32(a), fp16_as_fp32(b));
            let (first, second) = (_mm512_add_round_ps::<ROUNDING>(a, b), _mm512_add_round_ps::<ROUNDING>(c, d));
            let sums = fp32_as_fp16::<ROUNDING>(first, second);
            span.see16(sums);
            store(sums, dst);
        }
        span.lies_between16(0x03ff, u16::try_from(limit).expect("a magnitude has 15 bits"))
    })
}

/// The 16-bit operands of sums in FP32: `BF16`, or FP16.
#[inline]
const fn summands<const BF16: bool>() -> Limits {
    if BF16 { SUMMANDS16 } else { FINITE_FP16 }
}

/// Returns 32 numbers of 16 bits as FP32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn widened<const BF16: bool>(bits: __m512i) -> [__m512i; 2] {
    if BF16 {
        return as_higher_halves(bits);
    }
    let [first, second] = fp16_as_fp32(bits);
    [_mm512_castps_si512(first), _mm512_castps_si512(second)]
}

/// Sums of 16-bit numbers in FP32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_as_fp32<const ROUNDING: i32, const BF16: bool>(data: Combined<'_>) -> ComputeResult {
    let (flips, operands) = (Flips::of_16(data.0), const { summands::<BF16>() });
    let (limit, (before_least, most_operand)) = (beyond::<ROUNDING>(0x7f80_0000), operands.words16());
    let finite = Limits::new(1, limit - 1);
    let check = |left: &[Vector], right: &[Vector], sums: &[Vector]| {
        [left, right].into_iter().all(|side| check16(side, operands).is_some()) && check32(sums, finite).is_some()
    };
    combine_blocks::<2, 2, 4>(data, check, |left, right, dst| {
        let (mut span, mut most) = (QuickSpan::empty(), _mm512_setzero_si512());
        for ((left, right), [low, high]) in left.iter().zip(right).zip(dst.as_chunks_mut().0) {
            let (a, b) = flips.load(left, right);
            span.see_both16(a, b);
            let ([a, c], [b, d]) = (widened::<BF16>(a), widened::<BF16>(b));
            let (first, second) = (sum32::<ROUNDING>(a, b), sum32::<ROUNDING>(c, d));
            most = larger32(larger32(most, first), second);
            store(first, low);
            store(second, high);
        }
        span.lies_between16(before_least, most_operand + 1) && all_below32(most, limit)
    })
}

/// Adds 16-bit numbers to sums in FP32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_to_fp32<const ROUNDING: i32, const BF16: bool>(data: Combined<'_>) -> ComputeResult {
    let (flips, operands) = (Flips::of_16(data.0), const { summands::<BF16>() });
    let (limit, (before_least, most_operand)) = (beyond::<ROUNDING>(0x7f80_0000), operands.words16());
    let (finite, higher_halves) = (Limits::new(1, limit - 1), higher_halves());
    let check = |left: &[Vector], right: &[Vector], sums: &[Vector]| {
        check32(left, SUMMANDS32).is_some() && check16(right, operands).is_some() && check32(sums, finite).is_some()
    };
    combine_blocks::<4, 2, 4>(data, check, |left, right, dst| {
        let (mut span, mut most, mut least) = (QuickSpan::empty(), _mm512_setzero_si512(), _mm512_set1_epi64(-1));
        let lefts = left.as_chunks().0.iter();
        for (([a, c], right), [low, high]) in lefts.zip(right).zip(dst.as_chunks_mut().0) {
            let (a, c, right) = (load(a), load(c), _mm512_xor_si512(load(right), flips.right));
            span.see16(right);
            let exponents = _mm512_permutex2var_epi16(a, higher_halves, c);
            least = _mm512_min_epu16(least, _mm512_add_epi16(exponents, exponents));
            let [b, d] = widened::<BF16>(right);
            let (first, second) = (sum32::<ROUNDING>(a, b), sum32::<ROUNDING>(c, d));
            most = larger32(larger32(most, first), second);
            store(first, low);
            store(second, high);
        }
        span.lies_between16(before_least, most_operand + 1) && none_below16(least, 25 << 7) && all_below32(most, limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_normal_sums_are_ordinary_and_infinite_ones_are_not() {
        if !super::super::is_available() {
            return eprintln!("skipped: no AVX-512");
        }
        let limits = Limits::new(1, 0x7f7f_ffff);
        for (number, ordinary) in [(0.0_f32, true), (-0.0, true), (1.5, true), (1e-40, true), (f32::INFINITY, false)] {
            let mut block: Vector = [0; 64];
            block[4..8].copy_from_slice(&number.to_le_bytes());
            block[8..12].copy_from_slice(&1.0_f32.to_le_bytes());
            // SAFETY: the CPU has the features.
            assert_eq!(unsafe { check32(&[block], limits) }.is_some(), ordinary, "{number}");
        }
    }
}
