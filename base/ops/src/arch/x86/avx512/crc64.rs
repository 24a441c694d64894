//! CRC64 by folding four vectors of four lanes with 512-bit carry-less multiplies.

use super::super::crc64::{fold as fold_lane, multipliers, remainder};
use super::fold;
use crate::arch::portable;
use crate::polynomial::crc64_forward;
use core::arch::x86_64::*;

/// Bytes of a vector, and of the vectors folded in one round.
const V: usize = 64;
const ROUND: usize = 4 * V;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq,pclmulqdq,gfni,sse4.1")]
pub(in crate::arch) fn feed<const REVERSE: bool>(state: u64, data: &[u8]) -> u64 {
    if data.len() < 2 * ROUND {
        return portable::crc64::feed::<REVERSE>(state, data);
    }
    let (vectors, rest) = data.as_chunks::<V>();
    let load = |bytes: &[u8; V]| {
        // SAFETY: the 64 bytes are those of the chunk; the load may be unaligned.
        let vector = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
        if REVERSE {
            // The matrix that reverses the bits of each byte.
            _mm512_gf2p8affine_epi64_epi8::<0>(vector, _mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed()))
        } else {
            vector
        }
    };
    let (first, vectors) = vectors.split_at(4);
    let mut sums: [__m512i; 4] = core::array::from_fn(|i| load(&first[i]));
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi64_si128(state.cast_signed())));
    let by = _mm512_broadcast_i32x4(multipliers(const { crc64_forward(ROUND as u64) }));
    let (rounds, left) = vectors.as_chunks::<4>();
    for round in rounds {
        for (sum, bytes) in sums.iter_mut().zip(round) {
            *sum = fold(*sum, by, load(bytes));
        }
    }
    let by = _mm512_broadcast_i32x4(multipliers(const { crc64_forward(V as u64) }));
    let mut last = sums[0];
    for sum in &sums[1..] {
        last = fold(last, by, *sum);
    }
    for bytes in left {
        last = fold(last, by, load(bytes));
    }
    let by = multipliers(const { crc64_forward(16) });
    let lane = fold_lane(_mm512_castsi512_si128(last), by, _mm512_extracti32x4_epi32::<1>(last));
    let lane = fold_lane(lane, by, _mm512_extracti32x4_epi32::<2>(last));
    let lane = fold_lane(lane, by, _mm512_extracti32x4_epi32::<3>(last));
    portable::crc64::feed::<REVERSE>(remainder(lane), rest)
}
