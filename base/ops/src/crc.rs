//! CRC Generation and Copy with CRC. Source of the meaning: SPEC §8.3.12, Appendix A.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::hint::Hint;
use crate::polynomial::crc32c_forward;

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

/// Returns the CRC32C, in the default mode, of bytes whose first part has the CRC `first`, and whose other `len` bytes
/// have the CRC `second`. Source: zlib's `crc32_combine`; the inversions at both ends of a CRC cancel out.
#[must_use]
#[inline]
pub fn crc32c_join(first: u32, second: u32, len: usize) -> u32 {
    Kernels::best().crc32c_join(first, second, len)
}

/// The CRC32C of a message that other code folds: it replaces the message by [`Folding::BYTES`] bytes with the same
/// remainder.
///
/// The message is a whole number of blocks of that many bytes. The folding code adds [`Folding::register`] to its first
/// four bytes. Then it moves each lane of 16 bytes of a block onto the next block: the carry-less products of the
/// lane's low half and `MULTIPLIERS[0]`, and of its high half and `MULTIPLIERS[1]`, are added to the lane there.
/// Source: Gopal et al., *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folding {
    mode: CrcMode,
    register: u32,
}

impl Folding {
    /// Bytes of a block.
    pub const BYTES: usize = 256;
    /// What moves the low and the high half of a lane forward by a block.
    pub const MULTIPLIERS: [u64; 2] = crc32c_forward(Folding::BYTES as u64);

    /// The computation of a message after `seed`; `None` in modes that do not reflect the data.
    #[must_use]
    #[inline]
    pub const fn new(seed: u32, mode: CrcMode) -> Option<Folding> {
        if mode.bypass_data_reflect { None } else { Some(Folding { mode, register: mode.convert(seed) }) }
    }

    /// What is added to the first four bytes of the message, little-endian.
    #[must_use]
    #[inline]
    pub const fn register(self) -> u32 {
        self.register
    }

    /// Returns the CRC32C of the message that was replaced by `block`.
    #[must_use]
    #[inline]
    pub fn finish(self, block: &[u8; Folding::BYTES]) -> u32 {
        self.mode.convert(Kernels::best().crc32c_feed::<false>(0, block))
    }
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

    /// [`crc32c_join`] with these kernels.
    #[must_use]
    #[inline]
    pub fn crc32c_join(self, first: u32, second: u32, len: usize) -> u32 {
        self.crc32c_skip(first, len) ^ second
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies without carries.
    fn product(a: u64, b: u64) -> u128 {
        (0..64).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ u128::from(a) << bit)
    }

    /// Moves a block onto the next one, as the documentation of [`Folding`] says.
    fn moved(block: &[u8; Folding::BYTES], next: &[u8]) -> [u8; Folding::BYTES] {
        let mut sum = [0; Folding::BYTES];
        for at in (0..Folding::BYTES).step_by(16) {
            let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
            let [low, high] = Folding::MULTIPLIERS;
            let lane = product(word(at), low) ^ product(word(at + 8), high);
            let lane = lane ^ u128::from_le_bytes(next[at..at + 16].try_into().unwrap());
            sum[at..at + 16].copy_from_slice(&lane.to_le_bytes());
        }
        sum
    }

    #[test]
    fn joined_parts_have_the_crc_of_the_whole() {
        let data: Vec<u8> = (0..5000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let mode = CrcMode::default();
        for kernels in Kernels::available() {
            for len in (0..70).chain([255, 1000, 4096, 4999, 5000]) {
                let (first, second) = data.split_at(data.len() - len);
                let [a, b] = [first, second].map(|part| crc32c(0, part, mode));
                assert_eq!(kernels.crc32c_join(a, b, len), crc32c(0, &data, mode), "{len} {kernels:?}");
            }
            // Lengths that no test can allocate: moving by two lengths is moving by their sum.
            for len in [1 << 40, (1 << 61) + 12_345, usize::MAX / 2] {
                let twice = kernels.crc32c_join(kernels.crc32c_join(7, 0, len), 0, len);
                assert_eq!(twice, kernels.crc32c_join(7, 0, 2 * len), "{len} {kernels:?}");
                assert_eq!(twice, Kernels::PORTABLE.crc32c_join(7, 0, 2 * len), "{len} {kernels:?}");
            }
        }
    }

    #[test]
    fn a_folded_message_has_the_crc_of_the_message() {
        let data: Vec<u8> = (0..2048_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for mode in CrcMode::ALL {
            for (seed, len) in [(0, 256), (0, 512), (0x1234_5678, 1024), (u32::MAX, 2048)] {
                let Some(folding) = Folding::new(seed, mode) else {
                    assert!(mode.bypass_data_reflect);
                    continue;
                };
                let mut message = data[..len].to_vec();
                for (byte, register) in message.iter_mut().zip(folding.register().to_le_bytes()) {
                    *byte ^= register;
                }
                let (blocks, rest) = message.as_chunks::<{ Folding::BYTES }>();
                assert!(rest.is_empty());
                let folded = blocks[1..].iter().fold(blocks[0], |block, next| moved(&block, next));
                assert_eq!(folding.finish(&folded), crc32c(seed, &data[..len], mode), "{mode:?} {seed:#x} {len}");
            }
        }
    }
}
