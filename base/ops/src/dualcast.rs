//! Copy with Dualcast: one source, two destinations. Source of the meaning: SPEC §8.3.10.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::hint::Hint;

/// Bytes copied to the first destination before the same bytes go to the second. They are then still in the
/// second-level cache, so the source is read from memory once.
const CHUNK: usize = 64 << 10;
/// The same for streaming copies, which keep their source out of the second-level cache.
const STREAM_CHUNK: usize = 8 << 10;

/// Copies `src` to `dst1` and to `dst2`.
///
/// With [`Hint::Memory`] and at least [`STREAM_BYTES`](crate::STREAM_BYTES) the stores bypass the cache.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn dualcast(src: &[u8], dst1: &mut [u8], dst2: &mut [u8], hint: Hint) {
    Kernels::best().dualcast(src, dst1, dst2, hint);
}

impl Kernels {
    /// [`dualcast`](fn@dualcast) with these kernels.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dualcast(self, src: &[u8], dst1: &mut [u8], dst2: &mut [u8], hint: Hint) {
        assert_eq!((dst1.len(), dst2.len()), (src.len(), src.len()), "all three slices have the same length");
        let streams = hint.streams(src.len());
        let chunk = if streams { STREAM_CHUNK } else { CHUNK };
        for ((src, dst1), dst2) in src.chunks(chunk).zip(dst1.chunks_mut(chunk)).zip(dst2.chunks_mut(chunk)) {
            if streams {
                self.stream_copy(src, dst1);
                self.stream_copy(src, dst2);
            } else {
                dst1.copy_from_slice(src);
                dst2.copy_from_slice(src);
            }
        }
        if streams {
            self.fence();
        }
    }
}
