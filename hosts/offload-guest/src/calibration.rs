//! How long the CPU takes for cached data and for data in memory, measured at the start.

use telpher_os::ticks;

/// Bytes of the measured copies. Source: chosen; they fit into every second-level cache.
const BYTES: usize = 32 << 10;

/// The time of a copy that separates cached data from data in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Calibration {
    /// Ticks for each byte.
    boundary: f64,
}

impl Calibration {
    /// Measures copies of cached data and of data in memory. Takes some 50 µs.
    pub(crate) fn measure() -> Calibration {
        let (from, mut to) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
        let mut copy = |is_cold: bool| {
            let mut best = u64::MAX;
            for _ in 0..4 {
                if is_cold {
                    telpher_ops::flush::flush(&from);
                    telpher_ops::flush::flush(&to);
                }
                let start = ticks();
                to.copy_from_slice(&from);
                best = best.min(ticks().wrapping_sub(start));
                std::hint::black_box(&to);
            }
            best.max(1) as f64 / BYTES as f64
        };
        copy(false);
        let (hot, cold) = (copy(false), copy(true));
        Calibration::between(hot, cold)
    }

    /// The boundary between two times for each byte: their geometric mean.
    fn between(hot: f64, cold: f64) -> Calibration {
        Calibration { boundary: (hot * cold).sqrt() }
    }

    /// Returns whether a copy that took so many ticks found its data in memory.
    #[inline]
    pub(crate) fn is_cold(&self, len: usize, ticks: u64) -> bool {
        ticks as f64 > self.boundary * len as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_lies_between_cached_data_and_data_in_memory() {
        let boundary = Calibration::between(0.05, 0.2);
        assert!(!boundary.is_cold(1000, 60) && boundary.is_cold(1000, 150));
    }
}
