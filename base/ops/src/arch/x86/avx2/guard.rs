//! T10-DIF guards by folding with 128-bit carry-less multiplies. Source of folding and of the reduction: Gopal et al.,
//! *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.
//!
//! As in the 512-bit kernel, with lanes of 16 bytes, eight in flight. The CPU overlaps the end of one block with the
//! start of the next, because blocks are independent.

use crate::polynomial::{T10_DIF, T10_QUOTIENT, t10_power};
use core::arch::x86_64::*;
use telpher_abi::DifBlock;

/// Bytes of a lane.
const V: usize = 16;
/// Bytes folded in one round.
const ROUND: usize = 8 * V;

/// The multipliers that move a lane, highest bit first, forward by `bits`: for its low half and for its high half.
const fn forward(bits: u64) -> [u64; 2] {
    [t10_power(bits) as u64, t10_power(bits + 64) as u64]
}

/// `TO_END[i]` moves lane `i` of the last round to the end of the block and by the 16 bits of the guard.
static TO_END: [[u64; 2]; 8] = {
    let mut table = [[0; 2]; 8];
    let mut at = 0;
    while at < 8 {
        table[at] = forward(16 + 8 * V as u64 * (7 - at as u64));
        at += 1;
    }
    table
};

#[target_feature(enable = "avx2,pclmulqdq")]
pub(in crate::arch) fn guards(block: DifBlock, seed: u16, src: &[u8], stride: usize, guards: &mut [u16]) {
    for (guard, src) in guards.iter_mut().zip(src.chunks(stride)) {
        *guard = one(seed, &src[..block.bytes() as usize]);
    }
}

#[target_feature(enable = "avx2,pclmulqdq")]
pub(in crate::arch) fn guards_copy(
    block: DifBlock,
    seed: u16,
    (src, stride): (&[u8], usize),
    (dst, dst_stride): (&mut [u8], usize),
    guards: &mut [u16],
) {
    let size = block.bytes() as usize;
    for ((guard, src), dst) in guards.iter_mut().zip(src.chunks(stride)).zip(dst.chunks_mut(dst_stride)) {
        *guard = one(seed, &src[..size]);
        dst[..size].copy_from_slice(&src[..size]);
    }
}

/// Computes the guard of one block: an optional eight bytes, then a multiple of 128.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq")]
fn one(seed: u16, block: &[u8]) -> u16 {
    let (lead, body) = block.split_at(block.len() % ROUND);
    let mut rounds = body.as_chunks::<ROUND>().0.iter();
    let Some(first) = rounds.next() else { unreachable!("a block has at least 512 bytes") };
    let mut lanes = load(first);
    let mut sum = _mm_setzero_si128();
    // The seed is added to the first two bytes.
    let seed = u64::from(seed) << 48;
    if let Some(word) = lead.first_chunk() {
        let power =
            if block.len() > 4096 { const { t10_power(16 + 8 * 4096) } } else { const { t10_power(16 + 8 * 512) } };
        let word = (u64::from_be_bytes(*word) ^ seed).cast_signed();
        sum = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(word), _mm_cvtsi64_si128(power.into()));
    } else {
        lanes[0] = _mm_xor_si128(lanes[0], _mm_set_epi64x(seed.cast_signed(), 0));
    }
    let by = multipliers(const { forward(8 * ROUND as u64) });
    for round in rounds {
        for (lane, data) in lanes.iter_mut().zip(load(round)) {
            *lane = fold(*lane, by, data);
        }
    }
    for (lane, by) in lanes.into_iter().zip(TO_END) {
        sum = fold(lane, multipliers(by), sum);
    }
    reduce(sum)
}

#[inline]
#[target_feature(enable = "avx2")]
fn multipliers([low, high]: [u64; 2]) -> __m128i {
    _mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

/// Loads the eight lanes of a round, each reversed from its last byte to its first, because the highest bit comes
/// first.
#[inline]
#[target_feature(enable = "avx2")]
fn load(round: &[u8; ROUND]) -> [__m128i; 8] {
    let order = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| {
        // SAFETY: the round has eight times 16 bytes.
        let lane = unsafe { _mm_loadu_si128(round.as_ptr().add(i * V).cast()) };
        _mm_shuffle_epi8(lane, order)
    })
}

/// Returns `acc` moved by the multipliers `by`, plus `data`.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq")]
fn fold(acc: __m128i, by: __m128i, data: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(acc, by);
    let high = _mm_clmulepi64_si128::<0x11>(acc, by);
    _mm_xor_si128(_mm_xor_si128(low, high), data)
}

/// Returns the remainder of an 80-bit sum.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq")]
#[allow(clippy::cast_possible_truncation, reason = "the remainder is the lowest 16 bits")]
fn reduce(sum: __m128i) -> u16 {
    // Reduces 80 bits to 64: the upper 16 move by x⁶⁴.
    let power = const { t10_power(64) };
    let rest = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(sum, _mm_cvtsi64_si128(power.into())), sum);
    // Barrett: the quotient of `rest` by P is the upper part of ⌊rest / x¹⁶⌋ · ⌊x⁶⁴ / P⌋.
    let quotient = const { T10_QUOTIENT.cast_signed() };
    let product = _mm_clmulepi64_si128::<0x00>(_mm_srli_epi64::<16>(rest), _mm_cvtsi64_si128(quotient));
    // Bits 48 to 95.
    let quotient = _mm_bsrli_si128::<6>(product);
    let multiple = _mm_clmulepi64_si128::<0x00>(quotient, _mm_cvtsi64_si128(T10_DIF.into()));
    // The multiple's x¹⁶ term is omitted from the generator: it cannot reach the lowest 16 bits.
    _mm_cvtsi128_si64(_mm_xor_si128(multiple, rest)).cast_unsigned() as u16
}
