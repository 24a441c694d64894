//! How long the CPU takes for cached data and for data in memory, measured at the start.

use telpher_mover::ColdBoundary;
use telpher_os::ticks;

/// Measures copies of cached data and of data in memory, in ticks. Takes some 50 µs.
pub(crate) fn cold_boundary() -> ColdBoundary {
    let (from, mut to) = (vec![1_u8; ColdBoundary::BYTES], vec![0_u8; ColdBoundary::BYTES]);
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
        best.max(1) as f64
    };
    copy(false);
    let (hot, cold) = (copy(false), copy(true));
    ColdBoundary::between(hot, cold)
}
