//! Kernels with 64-byte vectors.

pub(in crate::arch) mod bytes;
pub(in crate::arch) mod crc32c;
pub(in crate::arch) mod guard;

/// Whether this CPU has every feature that a kernel of this level names.
pub(in crate::arch) fn is_available() -> bool {
    super::avx2::is_available()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("gfni")
}
