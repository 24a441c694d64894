//! Memory Move: copies bytes. Source of the meaning: SPEC §8.3.4.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::hint::Hint;
use std::ops::Range;

/// Copies `src` to `dst`.
///
/// With [`Hint::Cache`] this is the platform's `memcpy`. With [`Hint::Memory`] and at least
/// [`STREAM_BYTES`](crate::STREAM_BYTES) the stores bypass the cache.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy(src: &[u8], dst: &mut [u8], hint: Hint) {
    // Selects kernels only if there is a choice: a small copy costs one comparison more than `memcpy`.
    if hint.streams(src.len()) { Kernels::best().copy(src, dst, hint) } else { dst.copy_from_slice(src) }
}

/// Copies the bytes of `src` to `dst` in the same buffer, as if through a temporary: the ranges may overlap. This is
/// the platform's `memmove`.
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
