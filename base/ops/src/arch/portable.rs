//! Kernels in safe Rust for any target.
#![forbid(unsafe_code)]

pub(super) mod any_float;
pub(super) mod compute;
mod integers;
pub(super) mod step;

/// Move, fill and compare.
pub(super) mod bytes {
    pub(in crate::arch) fn stream_copy(src: &[u8], dst: &mut [u8]) {
        dst.copy_from_slice(src);
    }

    pub(in crate::arch) fn fill<const STREAM: bool>(dst: &mut [u8], [low, high]: [u64; 2]) {
        let pattern = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        let (whole, rest) = dst.as_chunks_mut();
        whole.fill(pattern);
        rest.copy_from_slice(&pattern[..rest.len()]);
    }

    /// Bytes compared at once by the platform's `memcmp`, before the differing byte is located.
    const STRIDE: usize = 256;

    pub(in crate::arch) fn mismatch(a: &[u8], b: &[u8]) -> Option<usize> {
        let stride = a.chunks(STRIDE).zip(b.chunks(STRIDE)).position(|(a, b)| a != b)?;
        let start = stride * STRIDE;
        a[start..].iter().zip(&b[start..]).position(|(a, b)| a != b).map(|at| start + at)
    }

    pub(in crate::arch) fn mismatch_pattern(a: &[u8], pattern: u64) -> Option<usize> {
        let (words, _) = a.as_chunks();
        let equal = words.iter().take_while(|word| u64::from_le_bytes(**word) == pattern).count() * 8;
        a[equal..].iter().zip(pattern.to_le_bytes()).position(|(a, b)| *a != b).map(|at| equal + at)
    }
}

/// Tables of a reflected CRC: `[k][b]` is the register after byte `b` followed by `k` zero bytes, from an empty
/// register.
macro_rules! slicing_tables {
    ($word:ty, $polynomial:expr) => {{
        let mut tables = [[0; 256]; 8];
        let mut byte = 0;
        while byte < 256 {
            let (mut value, mut bit) = (byte as $word, 0);
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ $polynomial.reverse_bits() } else { value >> 1 };
                bit += 1;
            }
            tables[0][byte] = value;
            byte += 1;
        }
        let mut index = 256;
        while index < 8 * 256 {
            let before = tables[index / 256 - 1][index % 256];
            tables[index / 256][index % 256] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            index += 1;
        }
        tables
    }};
}

/// CRC32C by eight tables. Source: Kounavis & Berry, *A Systematic Approach to Building High Performance Software-based
/// CRC Generators*, ISCC 2005 ("slicing-by-8").
pub(super) mod crc32c {
    use crate::polynomial::{CRC32C, multiply};

    #[allow(clippy::cast_possible_truncation, reason = "the index is below 256")]
    static TABLES: [[u32; 256]; 8] = slicing_tables!(u32, CRC32C);

    /// Returns the word, with the bits of each byte reversed if `REVERSE`.
    #[inline]
    pub(in crate::arch) fn reversed<const REVERSE: bool>(word: u64) -> u64 {
        if REVERSE { word.reverse_bits().swap_bytes() } else { word }
    }

    pub(in crate::arch) fn feed<const REVERSE: bool>(mut state: u32, data: &[u8]) -> u32 {
        let (words, rest) = data.as_chunks();
        for word in words {
            let bytes = (reversed::<REVERSE>(u64::from_le_bytes(*word)) ^ u64::from(state)).to_le_bytes();
            state = (0..8).fold(0, |sum, at| sum ^ TABLES[7 - at][usize::from(bytes[at])]);
        }
        for byte in rest {
            let byte = if REVERSE { byte.reverse_bits() } else { *byte };
            state = state >> 8 ^ TABLES[0][usize::from(state.to_le_bytes()[0] ^ byte)];
        }
        state
    }

    /// x to the power of 8 × 2ⁿ, not reflected: moves a register forward by 2ⁿ bytes.
    const POWERS: [u32; usize::BITS as usize] = {
        let mut powers = [1 << 8; usize::BITS as usize];
        let mut n = 1;
        while n < powers.len() {
            powers[n] = multiply(powers[n - 1], powers[n - 1], CRC32C, 32);
            n += 1;
        }
        powers
    };

    pub(in crate::arch) fn skip(state: u32, len: usize) -> u32 {
        let set = (0..POWERS.len()).filter(|bit| len >> bit & 1 == 1);
        set.fold(state.reverse_bits(), |moved, bit| multiply(POWERS[bit], moved, CRC32C, 32)).reverse_bits()
    }

    pub(in crate::arch) fn feed_copy<const REVERSE: bool>(mut state: u32, src: &[u8], dst: &mut [u8]) -> u32 {
        // A chunk stays in the first-level cache between its copy and its CRC.
        for (src, dst) in src.chunks(8 << 10).zip(dst.chunks_mut(8 << 10)) {
            dst.copy_from_slice(src);
            state = feed::<REVERSE>(state, src);
        }
        state
    }
}

/// CRC64 by eight tables (slicing-by-8, as above).
pub(super) mod crc64 {
    use super::crc32c::reversed;
    use crate::polynomial::CRC64;

    #[allow(clippy::cast_possible_truncation, reason = "the index is below 256")]
    static TABLES: [[u64; 256]; 8] = slicing_tables!(u64, CRC64);

    pub(in crate::arch) fn feed<const REVERSE: bool>(mut state: u64, data: &[u8]) -> u64 {
        let (words, rest) = data.as_chunks();
        for word in words {
            let bytes = (reversed::<REVERSE>(u64::from_le_bytes(*word)) ^ state).to_le_bytes();
            state = (0..8).fold(0, |sum, at| sum ^ TABLES[7 - at][usize::from(bytes[at])]);
        }
        for byte in rest {
            let byte = if REVERSE { byte.reverse_bits() } else { *byte };
            state = state >> 8 ^ TABLES[0][usize::from(state.to_le_bytes()[0] ^ byte)];
        }
        state
    }
}

/// The T10-DIF guard by eight tables (slicing-by-8, as above, highest bit first).
pub(super) mod guard {
    use crate::polynomial::T10_DIF;
    use telpher_abi::DifBlock;

    /// `TABLES[k][b]`: the register after byte `b` followed by `k` zero bytes, from an empty register.
    #[allow(clippy::cast_possible_truncation, reason = "the index is below 256")]
    static TABLES: [[u16; 256]; 8] = {
        let mut tables = [[0; 256]; 8];
        let mut byte = 0;
        while byte < 256 {
            let (mut value, mut bit) = ((byte as u16) << 8, 0);
            while bit < 8 {
                value = if value >> 15 == 1 { value << 1 ^ T10_DIF } else { value << 1 };
                bit += 1;
            }
            tables[0][byte] = value;
            byte += 1;
        }
        let mut index = 256;
        while index < 8 * 256 {
            let before = tables[index / 256 - 1][index % 256];
            tables[index / 256][index % 256] = before << 8 ^ tables[0][(before >> 8) as usize];
            index += 1;
        }
        tables
    };

    /// Adds `data` of any length to the guard's register.
    pub(crate) fn feed(mut state: u16, data: &[u8]) -> u16 {
        let (words, rest) = data.as_chunks();
        for word in words {
            let bytes = (u64::from_be_bytes(*word) ^ u64::from(state) << 48).to_be_bytes();
            state = (0..8).fold(0, |sum, at| sum ^ TABLES[7 - at][usize::from(bytes[at])]);
        }
        for byte in rest {
            let [high, _] = state.to_be_bytes();
            state = state << 8 ^ TABLES[0][usize::from(high ^ byte)];
        }
        state
    }

    pub(in crate::arch) fn guards(block: DifBlock, seed: u16, src: &[u8], stride: usize, guards: &mut [u16]) {
        for (guard, src) in guards.iter_mut().zip(src.chunks(stride)) {
            *guard = feed(seed, &src[..block.bytes() as usize]);
        }
    }

    pub(in crate::arch) fn guards_copy(
        block: DifBlock,
        seed: u16,
        (src, stride): (&[u8], usize),
        (dst, dst_stride): (&mut [u8], usize),
        guards: &mut [u16],
    ) {
        let size = block.bytes() as usize;
        for ((guard, src), dst) in guards.iter_mut().zip(src.chunks(stride)).zip(dst.chunks_mut(dst_stride)) {
            dst[..size].copy_from_slice(&src[..size]);
            *guard = feed(seed, &src[..size]);
        }
    }
}
