//! What calls of the C library cost with hot, cold and fresh data, measured before the program starts.

use std::hint::black_box;
use std::time::Instant;
use telpher_mem::{PageSize, Region};
use telpher_offload_wire::RecordedCurves;
use telpher_os::ticks_in_order as ticks;
use telpher_recording::CurvePoint;

/// The measured sizes: powers of two from 2 KiB to 1 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 11..=20;
/// Bytes that the measurements of one size take at least, so that short calls are repeated more often.
const BYTES: usize = 1 << 20;
/// Bytes of pages that do not exist yet, for the measurements of fresh data.
const FRESH: usize = 2 << 20;

/// The costs of calls, and the time stamp counter.
#[derive(Debug)]
pub(crate) struct Calibration {
    pub(crate) curves: RecordedCurves,
    /// Ticks of the counter in a second.
    pub(crate) tsc_hz: u64,
    /// Ticks between two readings in a row.
    pub(crate) timer_ticks: u64,
}

/// An operation on a destination and a source.
type Operation = fn(&mut [u8], &[u8]);

impl Calibration {
    /// Measures for about a fifth of a second.
    pub(crate) fn measure() -> Calibration {
        let (begun, first) = (Instant::now(), ticks());
        let timer_ticks = median(
            (0..1001)
                .map(|_| {
                    let before = ticks();
                    ticks() - before
                })
                .collect(),
        );
        let copy: Operation = |to, from| to.copy_from_slice(from);
        let fill: Operation = |to, _| to.fill(black_box(7));
        let compare: Operation = |to, from| _ = black_box(*to == *from);
        let mut raw = [(copy, true), (fill, true), (compare, false)].map(|(operation, writes)| {
            SIZES.map(|bits| measure(operation, 1 << bits, timer_ticks, writes)).collect::<Vec<_>>()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let tsc_hz = (ticks() - first) as f64 / seconds;
        // At least 1, except where nothing was measured: the recording takes 0 for no value.
        let in_picoseconds =
            |ticks_per_byte: f64| if ticks_per_byte > 0.0 { whole(ticks_per_byte * 1e12 / tsc_hz).max(1) } else { 0 };
        let mut curve = |at: usize| -> Vec<CurvePoint> {
            let points = std::mem::take(&mut raw[at]).into_iter();
            points
                .map(|(len, [hot, cold, fresh])| CurvePoint {
                    len: len as u64,
                    hot_ps: in_picoseconds(hot),
                    cold_ps: in_picoseconds(cold),
                    fresh_ps: in_picoseconds(fresh),
                })
                .collect()
        };
        let curves = RecordedCurves { copy: curve(0), fill: curve(1), compare: curve(2) };
        Calibration { curves, tsc_hz: u64::from(whole(tsc_hz / 1e3)) * 1000, timer_ticks }
    }
}

/// Rounds a small positive number.
fn whole(value: f64) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let whole = value.round() as u32;
    whole
}

/// Returns the ticks for each byte if the data is hot, cold, and fresh; 0 for fresh data if the operation does not
/// write.
fn measure(operation: Operation, len: usize, timer_ticks: u64, writes: bool) -> (usize, [f64; 3]) {
    let (mut to, from) = (vec![1; len], vec![1; len]);
    let repetitions = (BYTES / len).clamp(3, 33);
    let net = |ticks: u64| ticks.saturating_sub(timer_ticks).max(1) as f64 / len as f64;
    let mut once = |is_cold: bool| {
        if is_cold {
            telpher_ops::flush::flush(&to);
            telpher_ops::flush::flush(&from);
        }
        let before = ticks();
        operation(black_box(&mut to), black_box(&from));
        ticks() - before
    };
    once(false);
    let hot = median((0..repetitions).map(|_| once(false)).collect());
    let cold = median((0..repetitions).map(|_| once(true)).collect());
    (len, [net(hot), net(cold), if writes { fresh(operation, len, &from, timer_ticks) } else { 0.0 }])
}

/// Returns the ticks for each byte of destinations without pages; 0 without memory for it. The mean counts: with huge
/// pages, one call in many waits for all.
fn fresh(operation: Operation, len: usize, from: &[u8], timer_ticks: u64) -> f64 {
    let Ok(mut pages) = Region::new(FRESH.max(4 * len), PageSize::Small) else { return 0.0 };
    let (mut total, mut calls) = (0, 0);
    for to in pages.chunks_exact_mut(len) {
        let before = ticks();
        operation(black_box(to), from);
        total += (ticks() - before).saturating_sub(timer_ticks);
        calls += 1;
    }
    total as f64 / (calls * len) as f64
}

/// Returns the median.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_its_costs() {
        let Calibration { curves, tsc_hz, timer_ticks } = Calibration::measure();
        assert!(tsc_hz > 100_000_000 && timer_ticks > 0, "{tsc_hz} Hz, {timer_ticks} ticks");
        for curve in [&curves.copy, &curves.fill, &curves.compare] {
            assert_eq!(
                curve.iter().map(|point| point.len).collect::<Vec<_>>(),
                SIZES.map(|bits| 1 << bits).collect::<Vec<u64>>()
            );
            // Which of them is larger depends on how busy the machine is.
            assert!(curve.iter().all(|point| point.hot_ps > 0 && point.cold_ps > 0), "{curve:?}");
        }
        assert!(
            curves.copy.iter().all(|point| point.fresh_ps > 0)
                && curves.compare.iter().all(|point| point.fresh_ps == 0)
        );
    }
}
