//! Whether two ranges share a byte.

/// True if `[a, a + a_len)` and `[b, b + b_len)` share a byte.
#[must_use]
#[inline]
pub fn overlaps(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a_len != 0 && b_len != 0 && if a <= b { b - a < a_len } else { a - b < b_len }
}
