//! Whether a copy by the CPU found its data in the caches or in memory.

/// The time of a copy that separates cached data from data in memory. Callers of [`MemoryCalls`](crate::MemoryCalls)
/// learn from it which copies are worth a device.
///
/// ```
/// use telpher_mover::ColdBoundary;
/// // Nanoseconds of copies of `ColdBoundary::BYTES`.
/// let boundary = ColdBoundary::between(1600.0, 6400.0);
/// assert!(!boundary.is_cold(1 << 20, 60_000.0) && boundary.is_cold(1 << 20, 150_000.0));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ColdBoundary {
    /// The time of each byte.
    per_byte: f64,
}

impl ColdBoundary {
    /// Bytes of the two copies that are measured. Source: chosen; they fit into every second-level cache.
    pub const BYTES: usize = 32 << 10;

    /// The boundary between a copy of [`BYTES`](ColdBoundary::BYTES) in the caches and one in memory: the geometric
    /// mean of their times, in any unit.
    #[must_use]
    pub fn between(cached: f64, uncached: f64) -> Self {
        ColdBoundary { per_byte: (cached * uncached).sqrt() / ColdBoundary::BYTES as f64 }
    }

    /// Returns whether a copy of `len` bytes that took this time, in the same unit, found its data in memory.
    #[must_use]
    #[inline]
    pub fn is_cold(&self, len: usize, time: f64) -> bool {
        time > self.per_byte * len as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_lies_between_cached_data_and_data_in_memory() {
        let boundary = ColdBoundary::between(0.05 * 32768.0, 0.2 * 32768.0);
        assert!(!boundary.is_cold(1000, 99.0) && boundary.is_cold(1000, 101.0));
        assert!(!boundary.is_cold(0, 0.0));
    }
}
