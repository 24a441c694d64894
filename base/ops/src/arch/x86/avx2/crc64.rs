//! CRC64 by folding eight lanes of 16 bytes with carry-less multiplies.

use super::super::crc64::{fold, multipliers, remainder};
use crate::arch::portable;
use crate::polynomial::crc64_forward;
use core::arch::x86_64::*;

/// Bytes of a lane, and of the lanes folded in one round.
const LANE: usize = 16;
const ROUND: usize = 8 * LANE;

#[target_feature(enable = "sse2,sse4.1,pclmulqdq")]
pub(in crate::arch) fn feed<const REVERSE: bool>(state: u64, data: &[u8]) -> u64 {
    let (lanes, rest) = data.as_chunks::<LANE>();
    // Bytes that must be reversed, and messages that are too short, are left to the tables.
    if REVERSE || data.len() < 2 * ROUND {
        return portable::crc64::feed::<REVERSE>(state, data);
    }
    // SAFETY: the 16 bytes are those of the chunk; the load may be unaligned.
    let load = |lane: &[u8; LANE]| unsafe { _mm_loadu_si128(lane.as_ptr().cast()) };
    let (first, lanes) = lanes.split_at(8);
    let mut sums: [__m128i; 8] = core::array::from_fn(|i| load(&first[i]));
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi64_si128(state.cast_signed()));
    let by = multipliers(const { crc64_forward(ROUND as u64) });
    let (rounds, left) = lanes.as_chunks::<8>();
    for round in rounds {
        for (sum, lane) in sums.iter_mut().zip(round) {
            *sum = fold(*sum, by, load(lane));
        }
    }
    let by = multipliers(const { crc64_forward(LANE as u64) });
    let mut last = sums[0];
    for sum in &sums[1..] {
        last = fold(last, by, *sum);
    }
    for lane in left {
        last = fold(last, by, load(lane));
    }
    portable::crc64::feed::<false>(remainder(last), rest)
}
