//! Numbers of 8 bits with 64-byte vectors: from them by tables, to them by rounding in 16 bits.

use super::floats::{
    Data, Limits, as_higher_halves, check16, check32, convert_blocks, higher_halves, in_order_of_unpacking,
};
use super::{Vector, load, store};
use crate::arch::portable::any_float::{AnyFloat, flags};
use crate::arch::portable::compute::Again;
use crate::number::Arithmetic;
use crate::number::float::Format;
use core::arch::x86_64::*;
use telpher_abi::{ComputeResult, DataType, Rounding};

/// Converts from and to 8 bits; `None` for other conversions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn convert(arithmetic: &Arithmetic, again: Again<'_>, src: &[u8], dst: &mut [u8]) -> Option<ComputeResult> {
    let data = (again, src, dst);
    macro_rules! rounded {
        ($convert:ident, $dropped:literal) => {
            match arithmetic.rounding {
                Rounding::Down | Rounding::Up => $convert::<$dropped, true>(arithmetic, data),
                Rounding::NearestEven | Rounding::TowardZero => $convert::<$dropped, false>(arithmetic, data),
            }
        };
    }
    Some(match (arithmetic.input, arithmetic.output) {
        (DataType::Fp8E5M2 | DataType::Fp8E4M3, DataType::Fp64) => return None,
        // Below this length the tables cost more than they save.
        (DataType::Fp8E5M2 | DataType::Fp8E4M3, _) if src.len() < 1024 => again(data.1, data.2),
        (DataType::Fp8E5M2 | DataType::Fp8E4M3, output) => {
            let tables = Tables::new(arithmetic);
            match output {
                DataType::Fp8E5M2 | DataType::Fp8E4M3 => tables.to_8(data),
                DataType::Fp32 => tables.to_32(data),
                _ => tables.to_16(data),
            }
        }
        _ if arithmetic.negate1 => return None,
        (DataType::Fp16, DataType::Fp8E5M2) => rounded!(from_16, 8),
        (DataType::Fp16, DataType::Fp8E4M3) => rounded!(from_16, 7),
        (DataType::Bf16, DataType::Fp8E5M2) => rounded!(from_16, 5),
        (DataType::Bf16, DataType::Fp8E4M3) => rounded!(from_16, 4),
        (DataType::Fp32, DataType::Fp8E5M2) => rounded!(from_32, 5),
        (DataType::Fp32, DataType::Fp8E4M3) => rounded!(from_32, 4),
        _ => return None,
    })
}

/// A byte for each number of 8 bits; the negative ones are the second half.
#[derive(Clone, Copy)]
struct Table([__m512i; 4]);

impl Table {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(bytes: &[u8; 256]) -> Table {
        let [a, b, c, d] = bytes.as_chunks().0 else { unreachable!("256 bytes are four vectors") };
        Table([load(a), load(b), load(c), load(d)])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vbmi")]
    fn positive(self, at: __m512i) -> __m512i {
        _mm512_permutex2var_epi8(self.0[0], at, self.0[1])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn any(self, at: __m512i) -> __m512i {
        let negative = _mm512_permutex2var_epi8(self.0[2], at, self.0[3]);
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), self.positive(at), negative)
    }
}

/// The results of all numbers of 8 bits: the highest 16 bits, or all 8 as `low`, and what happened.
struct Tables {
    low: Table,
    high: Table,
    seen: Table,
    /// The sign, if it changes.
    flip: __m512i,
}

impl Tables {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    fn new(arithmetic: &Arithmetic) -> Tables {
        let any = AnyFloat::new(arithmetic);
        let dropped = if arithmetic.output == DataType::Fp32 { 16 } else { 0 };
        let ([mut low, mut high], mut seen) = ([[0; 256]; 2], [0; 256]);
        for (bits, ((low, high), seen)) in (0..).zip(low.iter_mut().zip(&mut high).zip(&mut seen)) {
            let mut one = 0;
            // The mantissa of a number of 8 bits lies in FP32's highest 16.
            let result = any.number(&mut one, bits) >> dropped;
            [*low, *high, ..] = result.to_le_bytes();
            *seen = flags(one).bits();
        }
        let flip = _mm512_set1_epi8(if arithmetic.negate1 { i8::MIN } else { 0 });
        Tables { low: Table::new(&low), high: Table::new(&high), seen: Table::new(&seen), flip }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    fn to_8(&self, (again, src, dst): Data<'_>) -> ComputeResult {
        let (vectors, rest) = src.as_chunks();
        let (results, rest_of_results) = dst.as_chunks_mut();
        let mut seen = _mm512_setzero_si512();
        for (src, dst) in vectors.iter().zip(results) {
            let bits = load(src);
            seen = _mm512_or_si512(seen, self.seen.any(bits));
            store(self.low.any(bits), dst);
        }
        any_byte(seen) | again(rest, rest_of_results)
    }

    /// Returns the results' 16 bits, which do not depend on the sign but for their own.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    fn halves(&self, seen: &mut __m512i, src: &Vector) -> [__m512i; 2] {
        let bits = in_order_of_unpacking(load(src));
        *seen = _mm512_or_si512(*seen, self.seen.positive(bits));
        let sign = _mm512_set1_epi8(i8::MIN);
        let sign_bits = _mm512_xor_si512(bits, self.flip);
        // The sign comes from `sign_bits`, all other bits from the table.
        let high = _mm512_ternarylogic_epi64::<0xca>(sign, sign_bits, self.high.positive(bits));
        let low = self.low.positive(bits);
        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    fn to_16(&self, (again, src, dst): Data<'_>) -> ComputeResult {
        let (vectors, rest) = src.as_chunks();
        let (results, rest_of_results) = dst.split_at_mut(2 * size_of_val(vectors));
        let mut seen = _mm512_setzero_si512();
        for (src, [low, high]) in vectors.iter().zip(results.as_chunks_mut().0.as_chunks_mut().0) {
            let [first, second] = self.halves(&mut seen, src);
            store(first, low);
            store(second, high);
        }
        any_byte(seen) | again(rest, rest_of_results)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    fn to_32(&self, (again, src, dst): Data<'_>) -> ComputeResult {
        let (vectors, rest) = src.as_chunks();
        let (results, rest_of_results) = dst.split_at_mut(4 * size_of_val(vectors));
        let mut seen = _mm512_setzero_si512();
        for (src, [a, b, c, d]) in vectors.iter().zip(results.as_chunks_mut().0.as_chunks_mut().0) {
            let [first, second] = self.halves(&mut seen, src);
            let ([first, second], [third, fourth]) = (as_higher_halves(first), as_higher_halves(second));
            store(first, a);
            store(second, b);
            store(third, c);
            store(fourth, d);
        }
        any_byte(seen) | again(rest, rest_of_results)
    }
}

/// Returns all bytes in one.
#[inline]
#[target_feature(enable = "avx512f")]
fn any_byte(bytes: __m512i) -> ComputeResult {
    let words = _mm512_reduce_or_epi64(bytes).to_le_bytes();
    ComputeResult::from_bits_retain(words.into_iter().fold(0, |all, byte| all | byte))
}

/// Rounds magnitudes of 15 bits, of which `DROPPED` are not kept, to the bits of a number of 8 bits.
#[derive(Clone, Copy)]
struct To8 {
    plus: __m512i,
    minus: __m512i,
    /// The lowest bit kept, to round to nearest.
    lowest: __m512i,
    /// The difference of the exponents' biases.
    rebias: __m512i,
}

impl To8 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new<const DROPPED: u32>(arithmetic: &Arithmetic) -> To8 {
        let to = Format::of(arithmetic.output);
        // FP32 has the exponent of BF16.
        let from = Format::of(if arithmetic.input == DataType::Fp16 { DataType::Fp16 } else { DataType::Bf16 });
        let all = (1 << DROPPED) - 1;
        let (plus, minus, lowest) = match arithmetic.rounding {
            Rounding::NearestEven => (all >> 1, all >> 1, 1 << DROPPED),
            Rounding::Down => (0, all, 0),
            Rounding::Up => (all, 0, 0),
            Rounding::TowardZero => (0, 0, 0),
        };
        let word = |word: i32| _mm512_set1_epi16(i16::try_from(word).expect("magnitudes have 15 bits"));
        let rebias = (from.bias() - to.bias()) << to.mantissa_bits;
        To8 { plus: word(plus), minus: word(minus), lowest: word(lowest), rebias: word(rebias) }
    }

    /// Returns the magnitudes of the results; `bits` has the signs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn round<const DROPPED: u32, const DIRECTED: bool>(self, magnitude: __m512i, bits: __m512i) -> __m512i {
        let rounded = if DIRECTED {
            let add = _mm512_mask_blend_epi16(_mm512_movepi16_mask(bits), self.plus, self.minus);
            _mm512_add_epi16(magnitude, add)
        } else {
            let odd = _mm512_test_epi16_mask(magnitude, self.lowest);
            let rounded = _mm512_add_epi16(magnitude, self.plus);
            _mm512_mask_sub_epi16(rounded, odd, rounded, _mm512_set1_epi64(-1))
        };
        // Zero stays zero.
        _mm512_subs_epu16(_mm512_srli_epi16::<DROPPED>(rounded), self.rebias)
    }
}

/// Packs results into bytes.
#[derive(Clone, Copy)]
struct Packing {
    /// The positions of the signs' bytes in the order in which the vectors are packed.
    signs: __m512i,
    least: __m512i,
    most: __m512i,
}

impl Packing {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Packing {
        let signs = std::array::from_fn(|at| {
            let (lane, byte) = (at / 16, at % 16);
            // The low half of each lane comes from the first vector, whose positions are below 64.
            u8::try_from(lane * 16 + byte % 8 * 2 + 1 + byte / 8 * 64).expect("128 positions")
        });
        Packing { signs: load(&signs), least: _mm512_set1_epi64(-1), most: _mm512_setzero_si512() }
    }

    /// Packs two vectors of magnitudes with the signs of two others, and sees the magnitudes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn pack(&mut self, (a, b): (__m512i, __m512i), (sign_a, sign_b): (__m512i, __m512i)) -> __m512i {
        // What is too large becomes the largest byte.
        let magnitudes = _mm512_packus_epi16(a, b);
        self.least = _mm512_min_epu8(self.least, magnitudes);
        self.most = _mm512_max_epu8(self.most, magnitudes);
        let signs = _mm512_permutex2var_epi8(sign_a, self.signs, sign_b);
        let packed = _mm512_ternarylogic_epi64::<0xca>(_mm512_set1_epi8(i8::MIN), signs, magnitudes);
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed)
    }

    /// Returns true if every result is a normal number above the smallest and below the largest one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn is_ordinary(self, format: Format) -> bool {
        let byte = |magnitude: u64| _mm512_set1_epi8(i8::try_from(magnitude).expect("magnitudes have 7 bits"));
        _mm512_cmple_epu8_mask(self.least, byte(format.least_normal())) == 0
            && _mm512_cmpge_epu8_mask(self.most, byte(format.largest())) == 0
    }
}

/// The magnitudes of a format that are normal numbers of a format of 8 bits, however they are rounded.
fn limits(from: Format, to: Format) -> Limits {
    let rebias = u64::try_from(from.bias() - to.bias()).expect("8 bits have the smaller bias") << to.mantissa_bits;
    let magnitude = |magnitude: u64| {
        u32::try_from((magnitude + rebias) << (from.mantissa_bits - to.mantissa_bits)).expect("at most 31 bits")
    };
    Limits::new(magnitude(to.least_normal()), magnitude(to.largest()))
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn from_16<const DROPPED: u32, const DIRECTED: bool>(arithmetic: &Arithmetic, data: Data<'_>) -> ComputeResult {
    let (from, format) = (Format::of(arithmetic.input), Format::of(arithmetic.output));
    let (to, packing, limits) = (To8::new::<DROPPED>(arithmetic), Packing::new(), limits(from, format));
    let positive = _mm512_set1_epi16(i16::MAX);
    convert_blocks::<2, 1>(
        data,
        |src| check16(src, limits),
        |src, dst| {
            let mut packing = packing;
            for ([a, b], dst) in src.as_chunks().0.iter().zip(dst) {
                let (a, b) = (load(a), load(b));
                let first = to.round::<DROPPED, DIRECTED>(_mm512_and_si512(a, positive), a);
                let second = to.round::<DROPPED, DIRECTED>(_mm512_and_si512(b, positive), b);
                store(packing.pack((first, second), (a, b)), dst);
            }
            packing.is_ordinary(format)
        },
    )
}

/// The lower halves of FP32 become the lowest bit of the higher ones, which is below all bits that decide a rounding.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn from_32<const DROPPED: u32, const DIRECTED: bool>(arithmetic: &Arithmetic, data: Data<'_>) -> ComputeResult {
    let format = Format::of(arithmetic.output);
    let limits = limits(Format::of(arithmetic.input), format);
    let (to, packing) = (To8::new::<DROPPED>(arithmetic), Packing::new());
    let (one, positive) = (_mm512_set1_epi16(1), _mm512_set1_epi16(i16::MAX));
    let higher = higher_halves();
    let lower = _mm512_sub_epi16(higher, one);
    let halves = |a: &Vector, b: &Vector| {
        let (a, b) = (load(a), load(b));
        let bits = _mm512_permutex2var_epi16(a, higher, b);
        let lost = _mm512_min_epu16(_mm512_permutex2var_epi16(a, lower, b), one);
        // The higher half or what was lost, without the sign.
        let magnitude = _mm512_ternarylogic_epi64::<0xe0>(positive, bits, lost);
        (to.round::<DROPPED, DIRECTED>(magnitude, bits), bits)
    };
    convert_blocks::<4, 1>(
        data,
        |src| check32(src, limits),
        |src, dst| {
            let mut packing = packing;
            for ([a, b, c, d], dst) in src.as_chunks().0.iter().zip(dst) {
                let ((first, first_bits), (second, second_bits)) = (halves(a, b), halves(c, d));
                store(packing.pack((first, second), (first_bits, second_bits)), dst);
            }
            packing.is_ordinary(format)
        },
    )
}
