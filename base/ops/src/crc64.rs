//! The 64-bit CRC of CRC Generation and Copy with CRC from 2.x on: the one that NVMe uses. Source of the meaning: SPEC
//! §8.3.12, Appendix A.
#![forbid(unsafe_code)]

use crate::crc::CrcMode;
use crate::dispatch::Kernels;
use crate::hint::Hint;

/// Converts the seed to the reflected register that the kernels use in every mode, and back; it is its own inverse.
const fn convert(mode: CrcMode, word: u64) -> u64 {
    if mode.bypass_invert_reflect { word.reverse_bits() } else { !word }
}

/// Returns the CRC64 of `data`, continued from `seed`: 0 to start, or the result of the data before.
///
/// In every mode `crc64(seed, a ‖ b) == crc64(crc64(seed, a), b)`.
///
/// ```
/// use telpher_ops::crc::CrcMode;
/// use telpher_ops::crc64::crc64;
///
/// assert_eq!(crc64(0, b"123456789", CrcMode::default()), 0xae8b_1486_0a79_9888);
/// ```
#[must_use]
#[inline]
pub fn crc64(seed: u64, data: &[u8], mode: CrcMode) -> u64 {
    Kernels::best().crc64(seed, data, mode)
}

/// Copies `src` to `dst` and returns the CRC64 of the bytes, reading them from memory once.
///
/// With [`Hint::Memory`] and at least [`STREAM_BYTES`](crate::STREAM_BYTES) the stores bypass the cache.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_crc64(src: &[u8], dst: &mut [u8], seed: u64, mode: CrcMode, hint: Hint) -> u64 {
    Kernels::best().copy_crc64(src, dst, seed, mode, hint)
}

impl Kernels {
    /// [`crc64`](fn@crc64) with these kernels.
    #[must_use]
    #[inline]
    pub fn crc64(self, seed: u64, data: &[u8], mode: CrcMode) -> u64 {
        let register = convert(mode, seed);
        convert(
            mode,
            if mode.bypass_data_reflect {
                self.crc64_feed::<true>(register, data)
            } else {
                self.crc64_feed::<false>(register, data)
            },
        )
    }

    /// [`copy_crc64`] with these kernels.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_crc64(self, src: &[u8], dst: &mut [u8], mut seed: u64, mode: CrcMode, hint: Hint) -> u64 {
        // The CRC finds each chunk in the first-level cache.
        const CHUNK: usize = 8 << 10;
        assert_eq!(src.len(), dst.len(), "source and destination have the same length");
        let stream = hint.streams(src.len());
        // With streaming stores the first chunk ends at a cache line, so that no later chunk splits a line.
        let lead = if stream { dst.as_ptr().align_offset(64).min(dst.len()) } else { 0 };
        let (first_src, src) = src.split_at(lead);
        let (first_dst, dst) = dst.split_at_mut(lead);
        first_dst.copy_from_slice(first_src);
        seed = self.crc64(seed, first_src, mode);
        for (src, dst) in src.chunks(CHUNK).zip(dst.chunks_mut(CHUNK)) {
            if stream {
                self.stream_copy(src, dst);
            } else {
                dst.copy_from_slice(src);
            }
            seed = self.crc64(seed, src, mode);
        }
        if stream {
            self.fence();
        }
        seed
    }
}
