//! T10-DIF guards of many blocks by folding with 512-bit carry-less multiplies. Source of folding and of the reduction:
//! Gopal et al., *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.
//!
//! A block is an optional eight bytes, then a multiple of 512 bytes: eight vectors folded over 512 bytes a round. At
//! the end each vector is moved to the end of the block by its own multipliers ([`TO_END`]), which leaves 80 bits. The
//! 80 bits of four blocks fill one vector, so the long chain of the reduction runs once for four blocks. Because blocks
//! are independent, the chain overlaps the next four blocks' multiplies.

use super::fold;
use crate::Variants;
use crate::arch::blocks_fit;
use crate::polynomial::{T10_QUOTIENT, t10_power};
use core::arch::x86_64::*;
use telpher_abi::DifBlock;

/// Bytes of a vector.
const V: usize = 64;
/// Bytes folded in one round.
const ROUND: usize = 8 * V;

/// One vector of multipliers, a low and a high one for each 128-bit lane, aligned for a single load.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Multipliers([[u64; 2]; 4]);

impl Multipliers {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(&self) -> __m512i {
        // SAFETY: the 64 bytes are the ones of `self`, aligned by its type.
        unsafe { _mm512_load_si512(core::ptr::from_ref(self).cast()) }
    }
}

/// The multipliers that move a lane, highest bit first, forward by `bits`: for its low half and for its high half.
const fn forward(bits: u64) -> [u64; 2] {
    [t10_power(bits) as u64, t10_power(bits + 64) as u64]
}

/// Moves every lane by one round.
static BY_ROUND: Multipliers = Multipliers([forward(8 * ROUND as u64); 4]);

/// `TO_END[i]` moves the lanes of vector `i` of the last round to the end of the block and by the 16 bits of the guard.
static TO_END: [Multipliers; 8] = {
    let mut table = [Multipliers([[0; 2]; 4]); 8];
    let mut at = 0;
    while at < 32 {
        table[at / 4].0[at % 4] = forward(16 + 8 * 16 * (31 - at as u64));
        at += 1;
    }
    table
};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,pclmulqdq")]
pub(in crate::arch) fn guards(block: DifBlock, seed: u16, src: &[u8], stride: usize, guards: &mut [u16]) {
    assert!(blocks_fit(block, guards.len(), stride, src.len()), "every block lies in the source");
    // SAFETY: every block lies in `src`, and without `COPY` nothing is written.
    unsafe { run::<false>(block, seed, (src.as_ptr(), stride), (core::ptr::null_mut(), 0), guards) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,pclmulqdq")]
pub(in crate::arch) fn guards_copy(
    block: DifBlock,
    seed: u16,
    (src, stride): (&[u8], usize),
    (dst, dst_stride): (&mut [u8], usize),
    guards: &mut [u16],
) {
    assert!(blocks_fit(block, guards.len(), stride, src.len()), "every block lies in the source");
    assert!(blocks_fit(block, guards.len(), dst_stride, dst.len()), "every block lies in the destination");
    // SAFETY: every block lies in `src` and in `dst`.
    unsafe { run::<true>(block, seed, (src.as_ptr(), stride), (dst.as_mut_ptr(), dst_stride), guards) }
}

/// Computes the guards of all blocks, four at a time.
///
/// # Safety
/// For each index of `guards` a block is readable at that multiple of the source's stride and, with `COPY`, writable at
/// that multiple of the destination's stride.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,pclmulqdq")]
unsafe fn run<const COPY: bool>(
    block: DifBlock,
    seed: u16,
    (src, stride): (*const u8, usize),
    (dst, dst_stride): (*mut u8, usize),
    guards: &mut [u16],
) {
    let prefetch = Variants::current().guard_bytes();
    for (four, guards) in guards.chunks_mut(4).enumerate() {
        let mut sums = [_mm512_setzero_si512(); 4];
        for (i, sum) in sums.iter_mut().enumerate().take(guards.len()) {
            let index = 4 * four + i;
            let (src, dst) = (src.wrapping_add(index * stride), dst.wrapping_add(index * dst_stride));
            // SAFETY: `index` is one of `guards`, for which the contract holds.
            *sum = unsafe { block_sum::<COPY>(block, seed, src, dst, prefetch) };
        }
        let reduced = reduce(sums);
        for (guard, reduced) in guards.iter_mut().zip(reduced) {
            *guard = reduced;
        }
    }
}

/// Returns a vector whose lanes sum up to 80 bits, whose remainder is the block's guard. Prefetches that many bytes
/// ahead.
///
/// # Safety
/// The block is readable at `src` and, with `COPY`, writable at `dst`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,pclmulqdq")]
unsafe fn block_sum<const COPY: bool>(
    block: DifBlock,
    seed: u16,
    src: *const u8,
    dst: *mut u8,
    prefetch: usize,
) -> __m512i {
    let size = block.bytes() as usize;
    let lead = size % ROUND;
    debug_assert!(lead == 0 || lead == 8);
    // The highest bit comes first, so each lane is reversed from its last byte to its first.
    let order = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f));
    // SAFETY: called only with `at + 64` ≤ `size`, the bytes that the contract grants. A prefetch may use any address.
    let vector = |at: usize| unsafe {
        _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + prefetch).cast());
        let vector = _mm512_loadu_si512(src.add(at).cast());
        if COPY {
            _mm512_storeu_si512(dst.add(at).cast(), vector);
        }
        _mm512_shuffle_epi8(vector, order)
    };
    // The seed is added to the first two bytes.
    let mut lead_sum = _mm512_setzero_si512();
    let mut seed_lane = _mm_set_epi64x((u64::from(seed) << 48).cast_signed(), 0);
    if lead == 8 {
        // SAFETY: a block has more than eight bytes; the accesses are unaligned.
        let word = unsafe {
            let word = src.cast::<u64>().read_unaligned();
            if COPY {
                dst.cast::<u64>().write_unaligned(word);
            }
            word.swap_bytes() ^ u64::from(seed) << 48
        };
        let power = if size > 4096 { const { t10_power(16 + 8 * 4096) } } else { const { t10_power(16 + 8 * 512) } };
        let moved =
            _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(word.cast_signed()), _mm_cvtsi64_si128(power.into()));
        lead_sum = _mm512_zextsi128_si512(moved);
        seed_lane = _mm_setzero_si128();
    }
    let mut lanes = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| vector(lead + i * V));
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(seed_lane));
    let by = BY_ROUND.load();
    let mut at = lead + ROUND;
    while at < size {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = fold(*lane, by, vector(at + i * V));
        }
        at += ROUND;
    }
    let mut sum = lead_sum;
    for (lane, by) in lanes.into_iter().zip(&TO_END) {
        sum = fold(lane, by.load(), sum);
    }
    sum
}

/// Returns the remainders of four sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq")]
fn reduce([a, b, c, d]: [__m512i; 4]) -> [u16; 4] {
    // Adds up the lanes of each sum, and puts the four sums into the lanes of one vector.
    let pair = |a, b| _mm512_xor_si512(_mm512_shuffle_i64x2::<0x44>(a, b), _mm512_shuffle_i64x2::<0xee>(a, b));
    let (ab, cd) = (pair(a, b), pair(c, d));
    let sums = _mm512_xor_si512(_mm512_shuffle_i64x2::<0x88>(ab, cd), _mm512_shuffle_i64x2::<0xdd>(ab, cd));
    // Reduces 80 bits to 64: the upper 16 move by x⁶⁴.
    let power = const { t10_power(64) };
    let folded = _mm512_clmulepi64_epi128::<0x01>(sums, _mm512_set1_epi64(power.into()));
    let rest = _mm512_xor_si512(folded, sums);
    // Barrett: the quotient of `rest` by P is the upper part of ⌊rest / x¹⁶⌋ · ⌊x⁶⁴ / P⌋.
    let quotient = const { T10_QUOTIENT.cast_signed() };
    let product = _mm512_clmulepi64_epi128::<0x00>(_mm512_srli_epi64::<16>(rest), _mm512_set1_epi64(quotient));
    // Bits 48 to 95 of each lane.
    let quotient = _mm512_bsrli_epi128::<6>(product);
    let multiple = _mm512_clmulepi64_epi128::<0x00>(quotient, _mm512_set1_epi64(i64::from(crate::polynomial::T10_DIF)));
    // The multiple's x¹⁶ term is omitted from the generator: it cannot reach the lowest 16 bits.
    let guards = _mm512_cvtepi64_epi16(_mm512_xor_si512(multiple, rest));
    let [g0, _, g1, _, g2, _, g3, _] = halves(guards);
    [g0, g1, g2, g3]
}

/// Returns the eight 16-bit words of a lane.
#[inline]
#[target_feature(enable = "sse2")]
fn halves(lane: __m128i) -> [u16; 8] {
    // SAFETY: both are 16 bytes for which every bit pattern is valid.
    unsafe { core::mem::transmute(lane) }
}
