//! CRC64: a lane of 16 bytes moved forward, and the remainder of the last lane. Source of folding: Gopal et al., *Fast
//! CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.

use crate::arch::portable::crc64::feed;
use core::arch::x86_64::*;

/// Returns the low and the high multiplier as a lane.
#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn multipliers([low, high]: [u64; 2]) -> __m128i {
    _mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

/// Returns `lane` moved by the multipliers `by`, plus `data`.
#[inline]
#[target_feature(enable = "sse2,pclmulqdq")]
pub(super) fn fold(lane: __m128i, by: __m128i, data: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(lane, by);
    let high = _mm_clmulepi64_si128::<0x11>(lane, by);
    _mm_xor_si128(_mm_xor_si128(low, high), data)
}

/// Returns the register after a message whose lanes were all moved onto its last one.
#[inline]
#[target_feature(enable = "sse4.1")]
pub(super) fn remainder(lane: __m128i) -> u64 {
    let (low, high) = (_mm_cvtsi128_si64(lane).cast_unsigned(), _mm_extract_epi64::<1>(lane).cast_unsigned());
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&high.to_le_bytes());
    // The lanes hold reflected bits, reversed before if that was necessary.
    feed::<false>(0, &bytes)
}
