//! Fill: repeats an 8- or 16-byte pattern. Source of the meaning: SPEC §8.3.5.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::hint::Hint;

/// Fills `dst` with `pattern`: its byte 0 (the lowest) is stored at `dst[0]`, and the length need not be a multiple of
/// 8.
///
/// With [`Hint::Memory`] and at least [`STREAM_BYTES`](crate::STREAM_BYTES) the stores bypass the cache.
#[inline]
pub fn fill(dst: &mut [u8], pattern: u64, hint: Hint) {
    // The platform's `memset` is best for a single repeated byte.
    match single_byte(pattern) {
        Some(byte) if !hint.streams(dst.len()) => dst.fill(byte),
        _ => Kernels::best().fill(dst, pattern, hint),
    }
}

/// Returns the byte that the pattern repeats, if all its bytes are equal.
#[inline]
const fn single_byte(pattern: u64) -> Option<u8> {
    let [byte, ..] = pattern.to_le_bytes();
    if pattern.rotate_left(8) == pattern { Some(byte) } else { None }
}

/// Fills `dst` with the 16 bytes of `pattern`, `pattern[0]` first.
///
/// With [`Hint::Memory`] and at least [`STREAM_BYTES`](crate::STREAM_BYTES) the stores bypass the cache.
#[inline]
pub fn fill16(dst: &mut [u8], pattern: [u64; 2], hint: Hint) {
    Kernels::best().fill16(dst, pattern, hint);
}

impl Kernels {
    /// [`fill`](fn@fill) with these kernels.
    #[inline]
    pub fn fill(self, dst: &mut [u8], pattern: u64, hint: Hint) {
        self.fill16(dst, [pattern; 2], hint);
    }

    /// [`fill16`] with these kernels.
    #[inline]
    pub fn fill16(self, dst: &mut [u8], pattern: [u64; 2], hint: Hint) {
        if hint.streams(dst.len()) {
            self.fill_pattern::<true>(dst, pattern);
        } else {
            self.fill_pattern::<false>(dst, pattern);
        }
    }
}
