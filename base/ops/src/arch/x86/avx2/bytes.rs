//! Move, fill and compare with 32-byte vectors.

use crate::arch::portable::bytes as portable;
use crate::arch::x86::rotated;
use core::arch::x86_64::*;

/// Bytes of a vector.
const V: usize = 32;

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn stream_copy(src: &[u8], dst: &mut [u8]) {
    let len = src.len().min(dst.len());
    let lead = dst.as_ptr().align_offset(V).min(len);
    let (head, body) = dst[..len].split_at_mut(lead);
    head.copy_from_slice(&src[..lead]);
    let (body, tail) = body.split_at_mut(body.len() / (4 * V) * (4 * V));
    let (from, to) = (src[lead..len].as_ptr(), body.as_mut_ptr());
    for at in (0..body.len()).step_by(4 * V) {
        // SAFETY: `body` is a multiple of 128 bytes long and no longer than the rest of `src` after `lead`.
        let v = unsafe { [0, 1, 2, 3].map(|i| _mm256_loadu_si256(from.add(at + i * V).cast())) };
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: the same bound holds in `body`, whose start is 32-byte aligned because of `lead`.
            unsafe { _mm256_stream_si256(to.add(at + i * V).cast(), v) }
        }
    }
    tail.copy_from_slice(&src[len - tail.len()..len]);
}

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn fill<const STREAM: bool>(dst: &mut [u8], pattern: [u64; 2]) {
    let len = dst.len();
    if len < 2 * V {
        return portable::fill::<STREAM>(dst, pattern);
    }
    let broadcast = |offset: usize| {
        let (high, low) = rotated(pattern, offset);
        _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low))
    };
    let to = dst.as_mut_ptr();
    let (first, last) = (broadcast(0), broadcast(len));
    // SAFETY: `len` ≥ 64 bounds the first and last 32 bytes.
    unsafe {
        _mm256_storeu_si256(to.cast(), first);
        _mm256_storeu_si256(to.add(len - V).cast(), last);
    }
    // Whole aligned vectors between them, which never straddle two lines.
    let mut at = V - to.addr() % V;
    let middle = broadcast(at);
    while at + V < len {
        // SAFETY: `at + 32` < `len`; `to + at` is 32-byte aligned by the choice of the first `at`.
        unsafe {
            let to = to.add(at).cast();
            if STREAM { _mm256_stream_si256(to, middle) } else { _mm256_store_si256(to, middle) }
        }
        at += V;
    }
    if STREAM {
        super::super::store_fence();
    }
}

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn mismatch(a: &[u8], b: &[u8]) -> Option<usize> {
    let len = a.len().min(b.len());
    if len < V {
        return portable::mismatch(a, b);
    }
    let (left, right) = (a.as_ptr(), b.as_ptr());
    // SAFETY: called only with `at + 32` ≤ `len`, which bounds both loads.
    let equals = |at: usize| unsafe {
        _mm256_cmpeq_epi8(_mm256_loadu_si256(left.add(at).cast()), _mm256_loadu_si256(right.add(at).cast()))
    };
    let mut at = 0;
    while at + 4 * V <= len {
        let all = _mm256_and_si256(
            _mm256_and_si256(equals(at), equals(at + V)),
            _mm256_and_si256(equals(at + 2 * V), equals(at + 3 * V)),
        );
        if _mm256_movemask_epi8(all) != -1 {
            break;
        }
        at += 4 * V;
    }
    while at + V <= len {
        if let found @ Some(_) = first_clear(equals(at), at) {
            return found;
        }
        at += V;
    }
    // The last vector overlaps bytes already known to be equal.
    first_clear(equals(len - V), len - V)
}

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn mismatch_pattern(a: &[u8], pattern: u64) -> Option<usize> {
    let expected = _mm256_set1_epi64x(pattern.cast_signed());
    let (vectors, rest) = a.as_chunks::<V>();
    for (index, vector) in vectors.iter().enumerate() {
        // SAFETY: a chunk has 32 bytes.
        let equal = unsafe { _mm256_cmpeq_epi8(_mm256_loadu_si256(vector.as_ptr().cast()), expected) };
        if let found @ Some(_) = first_clear(equal, index * V) {
            return found;
        }
    }
    // The loop advanced by a multiple of 32 bytes, so the pattern is in phase.
    portable::mismatch_pattern(rest, pattern).map(|at| a.len() - rest.len() + at)
}

/// Returns the offset of the first unequal byte in the vector at `at`.
#[inline]
#[target_feature(enable = "avx2")]
fn first_clear(equal: __m256i, at: usize) -> Option<usize> {
    let differs = !_mm256_movemask_epi8(equal);
    (differs != 0).then(|| at + differs.trailing_zeros() as usize)
}
