//! CRC32C by folding with 512-bit carry-less multiplies, fused with the `crc32` instruction. Source of folding: Gopal
//! et al., *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.
//!
//! A message of whole vectors is a sum. Moving a vector to the end of the message multiplies each of its 64-bit halves
//! by a power of x ([`TO_END`]). So up to seven vectors need one multiply each and no chain. Longer messages keep four
//! vectors that move 256 bytes at a time, and end in the same way.
//!
//! If the multiplier is the bottleneck, the `crc32` instruction helps, because it runs on another unit of the core.
//! Long messages are then processed in blocks ([`fused`]). The vectors process the block's first part while three
//! `crc32` streams process the rest. At the end of the block the vectors skip the streams' part: one multiply with a
//! larger power.
//!
//! Bytes that do not fill a vector come first, preceded by zeros, which do not change an empty register.

use super::super::crc::{self, shift};
use super::fold;
use crate::Variants;
use crate::arch::portable::crc32c::reversed;
use crate::polynomial::crc32c_forward;
use core::arch::x86_64::*;

pub(in crate::arch) use super::super::crc::skip;

/// Bytes of a vector.
const V: usize = 64;

/// One vector of multipliers, aligned for a single load.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Multipliers([[u64; 2]; 4]);

impl Multipliers {
    /// Creates multipliers that move all four lanes by the same distance.
    const fn all(bytes: u64) -> Multipliers {
        Multipliers([crc32c_forward(bytes); 4])
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(&self) -> __m512i {
        // SAFETY: the 64 bytes are the ones of `self`, aligned by its type.
        unsafe { _mm512_load_si512(core::ptr::from_ref(self).cast()) }
    }
}

/// `TO_END[d]` moves the lanes of a vector with `d` vectors after it onto the last lane of the message. The last lane
/// itself does not move, so its multipliers are zero and [`sum_to_state`] adds it.
static TO_END: [Multipliers; 8] = {
    let mut table = [Multipliers([[0; 2]; 4]); 8];
    let mut at = 0;
    while at < 4 * table.len() {
        let bytes = 64 * (at / 4) + 16 * (3 - at % 4);
        if bytes > 0 {
            table[at / 4].0[at % 4] = crc32c_forward(bytes as u64);
        }
        at += 1;
    }
    table
};

/// Returns the register after a message whose lanes, all moved to the end, sum up to `sum`; `last` is its last vector.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,sse4.2")]
fn sum_to_state(sum: __m512i, last: __m512i) -> u32 {
    let sum = _mm512_mask_xor_epi64(sum, 0b1100_0000, sum, last);
    let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    let lane = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    let (low, high) = (_mm_cvtsi128_si64(lane).cast_unsigned(), _mm_extract_epi64::<1>(lane).cast_unsigned());
    crc::word(crc::word(0, low), high)
}

/// Source and, in a copy, destination: `left` bytes are readable and writable there during its lifetime.
#[derive(Clone, Copy)]
struct Cursor<const REVERSE: bool, const COPY: bool> {
    src: *const u8,
    /// Not used unless `COPY`.
    dst: *mut u8,
    /// Bytes left.
    left: usize,
}

impl<const REVERSE: bool, const COPY: bool> Cursor<REVERSE, COPY> {
    /// Loads the vector at offset `at`.
    ///
    /// # Safety
    /// `at + 64` ≤ `self.left`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    unsafe fn vector(&self, at: usize) -> __m512i {
        // SAFETY: in bounds by the contract.
        let vector = unsafe { _mm512_loadu_si512(self.src.add(at).cast()) };
        if COPY {
            // SAFETY: in bounds by the contract.
            unsafe { _mm512_storeu_si512(self.dst.add(at).cast(), vector) }
        }
        if REVERSE {
            // The matrix that reverses the bits of each byte.
            _mm512_gf2p8affine_epi64_epi8::<0>(vector, _mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed()))
        } else {
            vector
        }
    }

    /// Copies the vector at offset `at`.
    ///
    /// # Safety
    /// `at + 64` ≤ `self.left`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn copy(&self, at: usize) {
        // SAFETY: in bounds by the contract.
        unsafe { _mm512_storeu_si512(self.dst.add(at).cast(), _mm512_loadu_si512(self.src.add(at).cast())) }
    }

    /// Loads the word at offset `at`, without copying it.
    ///
    /// # Safety
    /// `at + 8` ≤ `self.left`.
    #[inline]
    unsafe fn word(&self, at: usize) -> u64 {
        // SAFETY: in bounds by the contract; the read is an unaligned one.
        let word = unsafe { self.src.add(at).cast::<u64>().read_unaligned() };
        reversed::<REVERSE>(word)
    }

    /// Prefetches the line at offset `at`, which may be anywhere.
    #[inline]
    fn prefetch(&self, at: usize) {
        // SAFETY: a prefetch may use any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.src.wrapping_add(at).cast()) }
    }

    /// Advances by `bytes`.
    ///
    /// # Panics
    /// If fewer are left.
    #[inline]
    fn skip(&mut self, bytes: usize) {
        self.src = self.src.wrapping_add(bytes);
        if COPY {
            self.dst = self.dst.wrapping_add(bytes);
        }
        self.left = self.left.checked_sub(bytes).expect("the cursor stays in its buffers");
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,gfni,sse4.2")]
pub(in crate::arch) fn feed<const REVERSE: bool>(state: u32, data: &[u8]) -> u32 {
    if data.len() < V {
        return crc::short::<REVERSE>(state, data);
    }
    let (src, dst) = (data.as_ptr(), core::ptr::null_mut());
    // SAFETY: `data` has at least 64 bytes, and without `COPY` nothing is written.
    unsafe { run(state, Cursor::<REVERSE, false> { src, dst, left: data.len() }, fuse(data.len())) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,gfni,sse4.2")]
pub(in crate::arch) fn feed_copy<const REVERSE: bool>(state: u32, src: &[u8], dst: &mut [u8]) -> u32 {
    let left = src.len().min(dst.len());
    if left < V {
        dst[..left].copy_from_slice(&src[..left]);
        return crc::short::<REVERSE>(state, &src[..left]);
    }
    // SAFETY: both slices have at least `left` bytes, at least 64.
    unsafe { run(state, Cursor::<REVERSE, true> { src: src.as_ptr(), dst: dst.as_mut_ptr(), left }, fuse(left)) }
}

/// Returns true if the `crc32` instruction should be used beside the multiplies.
#[inline]
fn fuse(len: usize) -> bool {
    // Messages without a whole block do not use the answer.
    len >= 1600 && Variants::current().fuse_crc
}

/// Returns the register after the cursor's bytes; with `fuse` the `crc32` instruction processes a part of long
/// messages.
///
/// # Safety
/// There are at least 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,gfni,sse4.2")]
unsafe fn run<const REVERSE: bool, const COPY: bool>(state: u32, mut at: Cursor<REVERSE, COPY>, fuse: bool) -> u32 {
    // The register's content is added to the first four bytes of the message.
    let register = |state: u32| _mm512_zextsi128_si512(_mm_cvtsi32_si128(state.cast_signed()));
    let lead = at.left % V;
    let first = if lead == 0 {
        register(state)
    } else {
        // SAFETY: there are at least 64 bytes.
        let vector = _mm512_xor_si512(unsafe { at.vector(0) }, register(state));
        let behind_zeros = _mm512_maskz_expand_epi8(u64::MAX << (V - lead), vector);
        at.skip(lead);
        // With a lead of less than four bytes the register extends into the vector after it.
        let rest = if lead < 4 { state >> (8 * lead) } else { 0 };
        fold(behind_zeros, const { Multipliers::all(64) }.load(), register(rest))
    };
    if at.left < 8 * V {
        // SAFETY: there are at least 64 bytes, and the lead leaves whole vectors, at least one.
        unsafe { short_message(first, at) }
    } else {
        // SAFETY: eight vectors are more than four.
        unsafe { long_message(first, at, fuse) }
    }
}

/// Processes one to seven vectors: one multiply each, no chain.
///
/// # Safety
/// There is at least one vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,gfni,sse4.2")]
unsafe fn short_message<const REVERSE: bool, const COPY: bool>(first: __m512i, at: Cursor<REVERSE, COPY>) -> u32 {
    let behind = at.left / V - 1;
    // SAFETY: there is at least one vector.
    let mut last = _mm512_xor_si512(unsafe { at.vector(0) }, first);
    let mut sum = fold(last, TO_END[behind & 7].load(), _mm512_setzero_si512());
    for i in 1..=behind {
        // SAFETY: `behind` vectors follow the first one.
        last = unsafe { at.vector(i * V) };
        sum = fold(last, TO_END[(behind - i) & 7].load(), sum);
    }
    sum_to_state(sum, last)
}

/// Processes eight vectors and more; with `fuse` the `crc32` instruction processes its part.
///
/// # Safety
/// There are at least four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,gfni,sse4.2")]
unsafe fn long_message<const REVERSE: bool, const COPY: bool>(
    first: __m512i,
    mut at: Cursor<REVERSE, COPY>,
    fuse: bool,
) -> u32 {
    // SAFETY: there are at least four vectors.
    let mut lanes = unsafe { [at.vector(0), at.vector(V), at.vector(2 * V), at.vector(3 * V)] };
    lanes[0] = _mm512_xor_si512(lanes[0], first);
    at.skip(4 * V);
    // Reversing words is expensive outside of vectors: those messages use only the multiplier.
    if fuse && !REVERSE {
        // 12 + 4 vectors cost 32 multiplies of two cycles each, three streams of 24 words 72 `crc32` of one cycle each.
        // So both units are nearly always busy, and a block of 1600 bytes stays close together for the prefetchers.
        lanes = fused::<3, 24, REVERSE, COPY>(lanes, &mut at);
    }
    let by = const { Multipliers::all(4 * V as u64) }.load();
    while at.left >= 4 * V {
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: there are at least four vectors.
            *lane = fold(*lane, by, unsafe { at.vector(i * V) });
        }
        at.skip(4 * V);
    }
    // At most three vectors are left, so no index is above 6.
    let left = at.left / V;
    let mut sum = _mm512_setzero_si512();
    for (i, lane) in lanes.into_iter().enumerate() {
        sum = fold(lane, TO_END[(3 - i + left) & 7].load(), sum);
    }
    let mut last = lanes[3];
    for i in 0..left {
        // SAFETY: `left` vectors are left.
        last = unsafe { at.vector(i * V) };
        sum = fold(last, TO_END[(left - 1 - i) & 7].load(), sum);
    }
    sum_to_state(sum, last)
}

/// Processes as many blocks of `ROUNDS` times 256 bytes and three streams of `WORDS` words as there are, with the
/// vectors and the `crc32` instruction side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,gfni,sse4.2")]
fn fused<const ROUNDS: usize, const WORDS: usize, const REVERSE: bool, const COPY: bool>(
    mut lanes: [__m512i; 4],
    at: &mut Cursor<REVERSE, COPY>,
) -> [__m512i; 4] {
    const { assert!(WORDS.is_multiple_of(8), "what follows a block is whole vectors again") };
    let by = const { Multipliers::all(4 * V as u64) }.load();
    let leap = const { Multipliers::all((4 * V + 3 * 8 * WORDS) as u64) }.load();
    let vectors = const { ROUNDS * 4 * V };
    let stream = const { 8 * WORDS };
    let block = const { ROUNDS * 4 * V + 3 * 8 * WORDS + 4 * V };
    let lines = const { (ROUNDS * 4 * V + 3 * 8 * WORDS + 4 * V).div_ceil(V * ROUNDS) };
    while at.left >= block {
        // At most a line or two beyond the end, where a prefetch is useless.
        let ahead = PREFETCH_BYTES.min(at.left - block);
        let mut crc = [0; 3];
        for round in 0..ROUNDS {
            for line in 0..lines {
                at.prefetch(ahead + (round * lines + line) * V);
            }
            for (i, lane) in lanes.iter_mut().enumerate() {
                // SAFETY: the vectors' part is `vectors` = `ROUNDS` times 256 bytes long and lies in the cursor.
                *lane = fold(*lane, by, unsafe { at.vector(round * 4 * V + i * V) });
            }
            for word in 0..WORDS / ROUNDS {
                // SAFETY: `round * (WORDS / ROUNDS) + word` is less than `WORDS`.
                crc = unsafe { streams::<WORDS, REVERSE, COPY>(crc, at, vectors, round * (WORDS / ROUNDS) + word) };
            }
        }
        for word in WORDS / ROUNDS * ROUNDS..WORDS {
            // SAFETY: `word` is less than `WORDS`.
            crc = unsafe { streams::<WORDS, REVERSE, COPY>(crc, at, vectors, word) };
        }
        if COPY {
            for vector in (vectors..vectors + 3 * stream).step_by(V) {
                // SAFETY: the streams are whole vectors, since `WORDS` is a multiple of 8, and lie in the cursor.
                unsafe { at.copy(vector) }
            }
        }
        at.skip(vectors + 3 * stream);
        let sum = const { shift(2 * 8 * WORDS as u64) }.times(crc[0]) ^ const { shift(8 * WORDS as u64) }.times(crc[1]);
        let register = crc::word(0, sum) ^ crc[2];
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: the loop's condition left 256 bytes after the block.
            *lane = fold(*lane, leap, unsafe { at.vector(i * V) });
        }
        lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(register.cast_signed())));
        at.skip(4 * V);
    }
    lanes
}

/// The prefetch distance for later blocks, line after line. The hardware's own prefetchers are confused by four
/// positions that each advance a few lines and then jump. Source: measured together with the size of a block (AMD EPYC
/// of family 26, 4 KiB to 64 MiB, warm and cold).
const PREFETCH_BYTES: usize = 4096;

/// Adds word number `word` of each of the three streams, which begin at offset `start`.
///
/// # Safety
/// `word` is less than `WORDS`, and `start` and the three streams of `WORDS` words lie in the cursor.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn streams<const WORDS: usize, const REVERSE: bool, const COPY: bool>(
    [a, b, c]: [u32; 3],
    at: &Cursor<REVERSE, COPY>,
    start: usize,
    word: usize,
) -> [u32; 3] {
    // SAFETY: in bounds by the contract.
    let words = unsafe { [0, 1, 2].map(|i| at.word(start + 8 * (i * WORDS + word))) };
    [crc::word(a, words[0]), crc::word(b, words[1]), crc::word(c, words[2])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_for_long_messages_equal_the_portable_kernel() {
        if !super::super::is_available() {
            return eprintln!("skipped: no AVX-512");
        }
        let data: Vec<u8> = (0..20_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let mut copy = vec![0; data.len()];
        for len in (64..2600).chain((2600..data.len()).step_by(97)) {
            let expected = crate::arch::portable::crc32c::feed::<false>(7, &data[..len]);
            for fuse in [false, true] {
                let cursor = Cursor::<false, true> { src: data.as_ptr(), dst: copy.as_mut_ptr(), left: len };
                // SAFETY: the CPU has the features, and both buffers have `len` bytes, at least 64.
                assert_eq!(unsafe { run(7, cursor, fuse) }, expected, "{len} bytes, fuse {fuse}");
                assert_eq!(copy[..len], data[..len]);
                copy[..len].fill(0);
            }
        }
    }
}
