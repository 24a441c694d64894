//! CRC Generation and Copy with CRC. Source of the meaning: SPEC §8.3.12, Appendix A.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::hint::Hint;

/// The steps that the operation omits. The default omits none: the CRC32C of RFC 3720 (iSCSI), with seed 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct CrcMode {
    /// Neither invert nor reflect the seed and the result (descriptor flag 17).
    pub bypass_invert_reflect: bool,
    /// Do not reflect the data bytes (descriptor flag 18).
    pub bypass_data_reflect: bool,
}

impl CrcMode {
    /// All four modes.
    pub const ALL: [CrcMode; 4] = [
        CrcMode { bypass_invert_reflect: false, bypass_data_reflect: false },
        CrcMode { bypass_invert_reflect: true, bypass_data_reflect: false },
        CrcMode { bypass_invert_reflect: false, bypass_data_reflect: true },
        CrcMode { bypass_invert_reflect: true, bypass_data_reflect: true },
    ];

    /// Converts the seed to the reflected register that the kernels use in every mode, and back; it is its own inverse.
    const fn convert(self, word: u32) -> u32 {
        if self.bypass_invert_reflect { word.reverse_bits() } else { !word }
    }
}

/// Returns the CRC32C of `data`, continued from `seed`: 0 to start, or the result of the data before.
///
/// In every mode `crc32c(seed, a ‖ b) == crc32c(crc32c(seed, a), b)`.
#[must_use]
#[inline]
pub fn crc32c(seed: u32, data: &[u8], mode: CrcMode) -> u32 {
    Kernels::best().crc32c(seed, data, mode)
}

/// Copies `src` to `dst` and returns the CRC32C of the bytes, reading them from memory once.
///
/// With [`Hint::Memory`] and at least [`STREAM_BYTES`](crate::STREAM_BYTES) the stores bypass the cache.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_crc32c(src: &[u8], dst: &mut [u8], seed: u32, mode: CrcMode, hint: Hint) -> u32 {
    Kernels::best().copy_crc32c(src, dst, seed, mode, hint)
}

impl Kernels {
    /// [`crc32c`] with these kernels.
    #[must_use]
    #[inline]
    pub fn crc32c(self, seed: u32, data: &[u8], mode: CrcMode) -> u32 {
        let register = mode.convert(seed);
        // The kernels add reflected bytes to a reflected register, so bytes that the mode does not reflect are reversed
        // once more.
        mode.convert(if mode.bypass_data_reflect {
            self.crc32c_feed::<true>(register, data)
        } else {
            self.crc32c_feed::<false>(register, data)
        })
    }

    /// [`copy_crc32c`] with these kernels.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_crc32c(self, src: &[u8], dst: &mut [u8], seed: u32, mode: CrcMode, hint: Hint) -> u32 {
        if hint.streams(src.len()) {
            return self.stream_crc32c(src, dst, seed, mode);
        }
        let register = mode.convert(seed);
        mode.convert(if mode.bypass_data_reflect {
            self.crc32c_feed_copy::<true>(register, src, dst)
        } else {
            self.crc32c_feed_copy::<false>(register, src, dst)
        })
    }

    /// Copies past the cache in chunks; the CRC then finds each chunk in the first-level cache.
    fn stream_crc32c(self, src: &[u8], dst: &mut [u8], mut crc: u32, mode: CrcMode) -> u32 {
        const CHUNK: usize = 8 << 10;
        assert_eq!(src.len(), dst.len(), "source and destination have the same length");
        // The first chunk ends at a cache line of the destination, so that no later chunk splits a line.
        let lead = dst.as_ptr().align_offset(64).min(dst.len());
        let (first_src, src) = src.split_at(lead);
        let (first_dst, dst) = dst.split_at_mut(lead);
        first_dst.copy_from_slice(first_src);
        crc = self.crc32c(crc, first_src, mode);
        for (src, dst) in src.chunks(CHUNK).zip(dst.chunks_mut(CHUNK)) {
            self.stream_copy(src, dst);
            crc = self.crc32c(crc, src, mode);
        }
        self.fence();
        crc
    }
}
