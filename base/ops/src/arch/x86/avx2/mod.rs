//! Kernels with 32-byte vectors, the `crc32` instruction and 128-bit carry-less multiplies.

pub(in crate::arch) mod bytes;
pub(in crate::arch) mod compute;
pub(in crate::arch) mod crc32c;
pub(in crate::arch) mod crc64;
pub(in crate::arch) mod guard;

/// Returns true if this CPU has every feature that the kernels of this level need.
pub(in crate::arch) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("pclmulqdq")
}
