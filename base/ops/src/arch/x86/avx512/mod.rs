//! Kernels with 64-byte vectors.

pub(in crate::arch) mod bytes;
pub(in crate::arch) mod compute;
mod convert;
pub(in crate::arch) mod crc32c;
pub(in crate::arch) mod crc64;
mod float8;
mod floats;
pub(in crate::arch) mod guard;
mod wider;

use core::arch::x86_64::{
    __m512i, _mm512_clmulepi64_epi128, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64,
};

/// Returns true if this CPU has every feature that the kernels of this level need.
pub(in crate::arch) fn is_available() -> bool {
    super::avx2::is_available()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("gfni")
}

/// Returns `acc` moved by the multipliers `by`, plus `data`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(acc: __m512i, by: __m512i, data: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(acc, by);
    let high = _mm512_clmulepi64_epi128::<0x11>(acc, by);
    _mm512_ternarylogic_epi64::<0x96>(low, high, data)
}

/// The bytes of a vector.
type Vector = [u8; 64];

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &Vector) -> __m512i {
    // SAFETY: the 64 bytes are the ones of `from`; the load needs no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(vector: __m512i, to: &mut Vector) {
    // SAFETY: the 64 bytes are the ones of `to`; the store needs no alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), vector) }
}
