//! Memory Move: bytes from here to there. Source of the meaning: SPEC §8.3.4.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::hint::Hint;
use std::ops::Range;

/// Copies `src` to `dst`.
///
/// With [`Hint::Cache`] this is the platform's `memcpy`; with [`Hint::Memory`] and at least
/// [`STREAM_BYTES`](crate::STREAM_BYTES) the stores pass by the cache.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy(src: &[u8], dst: &mut [u8], hint: Hint) {
    // Asks for the kernels only where there is one to choose: a small copy costs a compare more than `memcpy`.
    if hint.streams(src.len()) { Kernels::best().copy(src, dst, hint) } else { dst.copy_from_slice(src) }
}

/// Copies the bytes of `src` to the ones from `dst` on in the same buffer, as if through a temporary: the ranges may
/// overlap. This is the platform's `memmove`.
///
/// # Panics
/// If either range does not lie in `buf`.
#[inline]
pub fn copy_within(buf: &mut [u8], src: Range<usize>, dst: usize) {
    buf.copy_within(src, dst);
}

impl Kernels {
    /// [`copy`](fn@copy) with these kernels.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy(self, src: &[u8], dst: &mut [u8], hint: Hint) {
        if hint.streams(src.len()) {
            self.stream_copy(src, dst);
            self.fence();
        } else {
            dst.copy_from_slice(src);
        }
    }
}
