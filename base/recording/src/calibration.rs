//! What a call costs on the machine with hot, cold and fresh data, and which of the three a timed call had.

use crate::layout::LOGARITHMS;
use crate::operation::{Access, Temperature};
use serde::Serialize;

/// The time of a call of one size, in picoseconds per byte, as measured before the program started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CurvePoint {
    /// Bytes of the call.
    pub len: u64,
    /// Source and destination in the caches.
    pub hot_ps: u32,
    /// Source and destination in memory.
    pub cold_ps: u32,
    /// A destination without pages, which the kernel provides during the call. 0 if it was not measured.
    pub fresh_ps: u32,
}

/// The calibration curves, each by increasing size. The first 24 points of each are kept.
#[derive(Clone, Copy, Default, Debug)]
pub struct Curves<'a> {
    /// Of memcpy, memmove, mempcpy and string copies.
    pub copy: &'a [CurvePoint],
    /// Of memset.
    pub fill: &'a [CurvePoint],
    /// Of memcmp with equal ranges.
    pub compare: &'a [CurvePoint],
}

impl<'a> Curves<'a> {
    pub(crate) fn of(&self, access: Access) -> &'a [CurvePoint] {
        match access {
            Access::Copy => self.copy,
            Access::Fill => self.fill,
            Access::Compare => self.compare,
        }
    }
}

/// Returns the class of a number by its binary logarithm.
pub(crate) fn logarithm(number: u64) -> usize {
    ((number | 1).ilog2() as usize).min(LOGARITHMS - 1)
}

/// Returns the times, in ticks per MiB, from which on a call of 2^`log` bytes is cold, and fresh. They are the
/// geometric means of the curve's values at the largest measured size up to this one, or else at the smallest. `[0, 0]`
/// without a curve.
pub(crate) fn boundaries(curve: &[CurvePoint], log: usize, tsc_hz: u64) -> [u64; 2] {
    let up_to = curve.iter().rev().find(|point| point.len >> log <= 1);
    let Some(point) = up_to.or(curve.first()).filter(|point| point.cold_ps > 0) else { return [0, 0] };
    let between = |low: u32, high: u32| {
        let ps = u128::from((u64::from(low) * u64::from(high)).isqrt());
        // Below 2^32 × 2^64 × 2^20.
        u64::try_from(ps * u128::from(tsc_hz) * (1 << 20) / 1_000_000_000_000).unwrap_or(u64::MAX).max(1)
    };
    let fresh_from = if point.fresh_ps == 0 { u64::MAX } else { between(point.cold_ps, point.fresh_ps) };
    [between(point.hot_ps, point.cold_ps), fresh_from]
}

/// Returns the temperature of a call, or `None` without boundaries.
pub(crate) fn judge([cold_from, fresh_from]: [u64; 2], len: u64, ticks: u64) -> Option<Temperature> {
    // Compares ticks / len with boundary / MiB, without a division.
    let (of_call, len) = (u128::from(ticks) << 20, u128::from(len));
    let reaches = |boundary: u64| of_call >= u128::from(boundary) * len;
    match () {
        () if cold_from == 0 => None,
        () if reaches(fresh_from) => Some(Temperature::Fresh),
        () if reaches(cold_from) => Some(Temperature::Cold),
        () => Some(Temperature::Hot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURVE: [CurvePoint; 2] = [
        CurvePoint { len: 4096, hot_ps: 25, cold_ps: 100, fresh_ps: 400 },
        CurvePoint { len: 1 << 16, hot_ps: 16, cold_ps: 64, fresh_ps: 256 },
    ];

    /// Returns the temperature of a call of this size that takes this time per byte.
    fn judged(curve: &[CurvePoint], len: u64, ps: u64) -> Option<Temperature> {
        let tsc_hz = 2_000_000_000;
        let ticks = u64::try_from(u128::from(len * ps) * u128::from(tsc_hz) / 1_000_000_000_000).unwrap();
        judge(boundaries(curve, logarithm(len), tsc_hz), len, ticks)
    }

    #[test]
    fn a_call_is_judged_by_the_point_at_its_size() {
        use Temperature::{Cold, Fresh, Hot};
        // The boundaries are 50 and 200 at the first point, 32 and 128 at the second.
        for (len, ps, expected) in [
            (2048, 45, Hot),
            (4096, 45, Hot),
            (40_000, 45, Hot),
            (65536, 45, Cold),
            (1 << 30, 31, Hot),
            (1 << 30, 127, Cold),
            (1 << 30, 130, Fresh),
            (8192, 190, Cold),
            (8192, 210, Fresh),
        ] {
            assert_eq!(judged(&CURVE, len, ps), Some(expected), "{len} bytes, {ps} ps per byte");
        }
    }

    #[test]
    fn without_a_measured_value_there_is_no_such_judgement() {
        assert_eq!(judged(&[], 4096, 10), None);
        let no_fresh = [CurvePoint { fresh_ps: 0, ..CURVE[0] }];
        assert_eq!(judged(&no_fresh, 4096, 100_000), Some(Temperature::Cold));
        let most = CurvePoint { len: u64::MAX, hot_ps: u32::MAX, cold_ps: u32::MAX, fresh_ps: u32::MAX };
        assert_eq!(judge(boundaries(&[most], 47, u64::MAX), u64::MAX, u64::MAX), Some(Temperature::Hot));
    }
}
