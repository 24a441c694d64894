//! The `crc32` instruction of SSE4.2, and moving its register forward over later bytes.

use crate::arch::portable::crc32c::reversed;
use crate::polynomial::{CRC32C_ORDER, crc32c_power};
use core::arch::x86_64::*;

/// Adds eight bytes to the register.
#[inline]
#[target_feature(enable = "sse4.2")]
#[allow(clippy::cast_possible_truncation, reason = "the instruction leaves the upper half zero")]
pub(super) fn word(state: u32, word: u64) -> u32 {
    _mm_crc32_u64(u64::from(state), word) as u32
}

/// Adds a few bytes, one word after the other.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn short<const REVERSE: bool>(mut state: u32, data: &[u8]) -> u32 {
    let (words, rest) = data.as_chunks();
    for bytes in words {
        state = word(state, reversed::<REVERSE>(u64::from_le_bytes(*bytes)));
    }
    let (half, rest) = rest.as_chunks();
    for bytes in half {
        let bytes = if REVERSE { bytes.map(u8::reverse_bits) } else { *bytes };
        state = _mm_crc32_u32(state, u32::from_le_bytes(bytes));
    }
    for byte in rest {
        state = _mm_crc32_u8(state, if REVERSE { byte.reverse_bits() } else { *byte });
    }
    state
}

/// A power of x that moves a register forward.
#[derive(Clone, Copy)]
pub(super) struct Shift(u32);

/// Moves by `bytes`, at least 5: the product of two reflected words is one power of x too low, and feeding it to the
/// `crc32` instruction multiplies by x³², which leaves x to the 8·`bytes` − 33.
pub(super) const fn shift(bytes: u64) -> Shift {
    Shift(crc32c_power(8 * bytes - 33))
}

impl Shift {
    /// Returns the moved register, as a word still to be added to an empty register. A sum of such words is added only
    /// once.
    #[inline]
    #[target_feature(enable = "sse2,pclmulqdq")]
    pub(super) fn times(self, state: u32) -> u64 {
        let [state, by] = [state, self.0].map(|half| _mm_cvtsi32_si128(half.cast_signed()));
        _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0x00>(state, by)).cast_unsigned()
    }
}

/// `FORWARD[n]` moves a register forward by 2ⁿ bytes; the first three are too short for a [`Shift`].
static FORWARD: [Shift; usize::BITS as usize] = {
    let mut shifts = [Shift(0); usize::BITS as usize];
    let mut n = 3;
    // x to the power of 8 × 2ⁿ, as an exponent modulo the order of x.
    let mut exponent = 64;
    while n < shifts.len() {
        shifts[n] = Shift(crc32c_power((exponent + CRC32C_ORDER - 33) % CRC32C_ORDER));
        exponent = 2 * exponent % CRC32C_ORDER;
        n += 1;
    }
    shifts
};

/// Moves a register forward over `len` zero bytes.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(in crate::arch) fn skip(mut state: u32, len: usize) -> u32 {
    for _ in 0..len % 8 {
        state = _mm_crc32_u8(state, 0);
    }
    let mut rest = len & !7;
    while rest > 0 {
        state = word(0, FORWARD[rest.trailing_zeros() as usize].times(state));
        rest &= rest - 1;
    }
    state
}
