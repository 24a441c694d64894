//! Compare and Compare Pattern: finds the first byte that differs. Source of the meaning: SPEC §8.3.6, §8.3.7.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;

/// Returns the offset of the first byte in which `a` and `b` differ, or `None` if they are equal.
///
/// # Panics
/// If the lengths differ.
#[must_use]
#[inline]
pub fn compare(a: &[u8], b: &[u8]) -> Option<usize> {
    Kernels::best().compare(a, b)
}

/// Returns the offset of the first byte in which `a` differs from the repeated `pattern`, whose byte 0 (the lowest) is
/// at `a[0]`.
///
/// The offset is exact, though the architecture promises only one at or before the difference.
#[must_use]
#[inline]
pub fn compare_pattern(a: &[u8], pattern: u64) -> Option<usize> {
    Kernels::best().compare_pattern(a, pattern)
}

impl Kernels {
    /// [`compare`](fn@compare) with these kernels.
    ///
    /// # Panics
    /// If the lengths differ.
    #[must_use]
    #[inline]
    pub fn compare(self, a: &[u8], b: &[u8]) -> Option<usize> {
        self.mismatch(a, b)
    }

    /// [`compare_pattern`] with these kernels.
    #[must_use]
    #[inline]
    pub fn compare_pattern(self, a: &[u8], pattern: u64) -> Option<usize> {
        self.mismatch_pattern(a, pattern)
    }
}
