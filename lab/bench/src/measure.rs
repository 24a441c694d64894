//! Clocks, windows and percentiles, and the rejection of implausible numbers.
//!
//! Throughput and latency are measured apart. A throughput window runs with no clock inside: operations, wall time and
//! the thread's CPU time are taken around it. A latency window reads the time stamp counter around each operation and
//! keeps a histogram. The reported value is the median over several short windows that alternate with those of the
//! other competitors, so that a slow moment of the machine affects them all.

use crate::ffi;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// The time stamp counter, calibrated.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ns_per_tick: f64,
    /// The cost of one reading in ticks; subtracted from every measured interval.
    overhead: u64,
}

impl Clock {
    /// Compares the counter with the system's clock for 10 ms.
    pub fn calibrate() -> Self {
        let (wall, tick) = (Instant::now(), telpher_os::ticks());
        while wall.elapsed() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        let (elapsed, ticks) = (wall.elapsed(), telpher_os::ticks() - tick);
        let mut gaps: Vec<u64> = (0..1001)
            .map(|_| {
                let t = telpher_os::ticks();
                telpher_os::ticks() - t
            })
            .collect();
        gaps.sort_unstable();
        Clock { ns_per_tick: to_ns(elapsed) / ticks as f64, overhead: gaps[gaps.len() / 2] }
    }

    /// Returns the ticks from `start` to now, without the cost of reading.
    #[inline]
    pub fn since(&self, start: u64) -> u64 {
        telpher_os::ticks().saturating_sub(start).saturating_sub(self.overhead)
    }

    /// Converts ticks to nanoseconds.
    pub fn ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// Returns the shortest interval worth timing alone: twenty readings.
    pub fn shortest(&self) -> u64 {
        20 * self.overhead.max(1)
    }
}

/// Returns a duration in nanoseconds.
pub fn to_ns(d: Duration) -> f64 {
    d.as_secs_f64() * 1e9
}

/// The results of one throughput window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// Operations completed.
    pub ops: u64,
    /// Wall time.
    pub wall: Duration,
    /// CPU time of the submitting threads together.
    pub cpu: Duration,
}

impl Window {
    /// Wall nanoseconds per operation.
    pub fn ns_per_op(&self) -> f64 {
        to_ns(self.wall) / self.ops as f64
    }

    /// CPU nanoseconds of the submitting threads per operation.
    pub fn cpu_ns_per_op(&self) -> f64 {
        to_ns(self.cpu) / self.ops as f64
    }
}

/// Runs `step`, which returns its number of operations, until `time` has passed; reads the clock rarely.
pub fn window<E>(time: Duration, mut step: impl FnMut() -> Result<u64, E>) -> Result<Window, E> {
    let cpu = ffi::thread_cpu();
    let start = Instant::now();
    let (mut ops, mut stride) = (0, 1u32);
    loop {
        for _ in 0..stride {
            ops += step()?;
        }
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(Window { ops, wall: elapsed, cpu: ffi::thread_cpu().saturating_sub(cpu) });
        }
        // The clock is read about a hundred times a window, whatever the size of a step.
        if elapsed * 50 < time && stride < 1 << 16 {
            stride *= 2;
        }
    }
}

/// The longest interval that a histogram distinguishes, in ticks: more than a minute on any processor.
const LONGEST_TICKS: u64 = 1 << 39;

/// Latencies in ticks.
#[derive(Clone, Debug)]
pub struct Latencies {
    ticks: Histogram<u64>,
    /// Operations timed together for one entry, because one alone is too short for the clock.
    pub group: u32,
}

impl Latencies {
    /// Creates an empty histogram for groups of `group` operations.
    pub fn new(group: u32) -> Self {
        let ticks = Histogram::new_with_bounds(1, LONGEST_TICKS, 3).expect("legal bounds and precision");
        Latencies { ticks, group: group.max(1) }
    }

    /// Adds one interval that covered `group` operations.
    #[inline]
    pub fn record(&mut self, ticks: u64) {
        self.ticks.saturating_record(ticks);
    }

    /// Adds the intervals of another thread or window.
    pub fn merge(&mut self, other: &Latencies) {
        self.ticks.add(&other.ticks).expect("all histograms have the same bounds");
    }

    /// Returns the number of recorded intervals.
    pub fn count(&self) -> u64 {
        self.ticks.len()
    }

    /// Like [`quantile`](Self::quantile), but `None` if too few intervals were recorded.
    pub fn percentile(&self, clock: &Clock, q: f64) -> Option<f64> {
        telpher_sim::enough(self.count(), q).then(|| self.quantile(clock, q))
    }

    /// Returns the nanoseconds that the fraction `q` of all operations did not exceed; 0 if nothing was recorded.
    pub fn quantile(&self, clock: &Clock, q: f64) -> f64 {
        clock.ns(self.ticks.value_at_quantile(q)) / f64::from(self.group)
    }
}

/// Returns how many operations to time together when one takes `ns`.
pub fn group_for(clock: &Clock, ns: f64) -> u32 {
    let shortest = clock.ns(clock.shortest());
    if ns >= shortest || ns <= 0.0 {
        return 1;
    }
    (2..256).find(|group| f64::from(*group) * ns >= shortest).unwrap_or(256)
}

/// Returns the middle value; the mean of the two middle values for an even number of values; `NaN` for none.
pub fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Why a number is implausible; it is rejected instead of printed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Implausible {
    /// There were no operations, or they took no time.
    #[error("{ops} operations in {ns} ns")]
    Empty {
        /// Operations counted.
        ops: u64,
        /// Wall time.
        ns: u128,
    },
    /// More bytes per second than the cores' load and store units can move.
    #[error("{gbps:.0} GB/s on {threads} cores, more than the {limit:.0} GB/s their load and store units can move")]
    TooFast {
        /// The measured rate.
        gbps: f64,
        /// The possible rate.
        limit: f64,
        /// Cores that can have worked on it.
        threads: u32,
    },
    /// More CPU time than the threads can have had.
    #[error("{cpu_ms:.3} ms of CPU time in {wall_ms:.3} ms on {threads} submitting threads")]
    TooBusy {
        /// CPU time by the threads' clocks.
        cpu_ms: f64,
        /// Wall time.
        wall_ms: f64,
        /// Submitting threads.
        threads: u32,
    },
}

/// Upper limit of the bytes that a core can load or store in a second. Source: derived, two 64-byte accesses per cycle
/// (the widest of any x86 core) at 6 GHz.
const CORE_BYTES_PER_SECOND: f64 = 2.0 * 64.0 * 6e9;

/// Rejects a window with implausible numbers; `bytes` is the minimum that one operation reads or writes.
pub fn plausible(window: &Window, bytes: u64, threads: u32, cores: u32) -> Result<(), Implausible> {
    if window.ops == 0 || window.wall.is_zero() {
        return Err(Implausible::Empty { ops: window.ops, ns: window.wall.as_nanos() });
    }
    let rate = window.ops as f64 * bytes as f64 / window.wall.as_secs_f64();
    let limit = CORE_BYTES_PER_SECOND * f64::from(cores);
    if rate > limit {
        return Err(Implausible::TooFast { gbps: rate / 1e9, limit: limit / 1e9, threads: cores });
    }
    // The two clocks can differ by up to a scheduler tick.
    let had = window.wall * threads;
    if window.cpu > had + had / 50 + Duration::from_millis(4) {
        let (cpu_ms, wall_ms) = (window.cpu.as_secs_f64() * 1e3, window.wall.as_secs_f64() * 1e3);
        return Err(Implausible::TooBusy { cpu_ms, wall_ms, threads });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ops: u64, micros: u64, cpu_micros: u64) -> Window {
        Window { ops, wall: Duration::from_micros(micros), cpu: Duration::from_micros(cpu_micros) }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn a_window_counts_every_operation() {
        let mut calls = 0;
        let w = window(Duration::from_millis(2), || -> Result<u64, ()> {
            calls += 1;
            Ok(3)
        })
        .unwrap();
        assert_eq!(w.ops, 3 * calls);
        assert!(w.wall >= Duration::from_millis(2));
    }

    #[test]
    fn a_window_runs_one_step_even_if_it_takes_longer_than_the_window() {
        let w = window(Duration::ZERO, || Ok::<u64, ()>(1)).unwrap();
        assert_eq!(w.ops, 1);
    }

    #[test]
    fn quantiles_are_those_of_the_recorded_values() {
        let clock = Clock { ns_per_tick: 0.5, overhead: 0 };
        let mut all = Latencies::new(2);
        (1..=1000).for_each(|t| all.record(t * 4));
        // 500th of 1000 values is 2000 ticks = 1000 ns for two operations.
        assert!((all.quantile(&clock, 0.5) - 500.0).abs() < 2.0);
        assert!((all.quantile(&clock, 0.99) - 990.0).abs() < 2.0);
        assert_eq!(all.count(), 1000);
    }

    #[test]
    fn an_empty_window_is_refused() {
        assert!(matches!(plausible(&seen(0, 10, 0), 64, 1, 1), Err(Implausible::Empty { .. })));
        assert!(matches!(plausible(&seen(1, 0, 0), 64, 1, 1), Err(Implausible::Empty { .. })));
    }

    #[test]
    fn more_than_the_load_units_can_move_is_refused() {
        // 1 MiB a microsecond is 1049 GB/s.
        assert!(matches!(plausible(&seen(1000, 1000, 0), 1 << 20, 1, 1), Err(Implausible::TooFast { .. })));
        assert!(plausible(&seen(1000, 1000, 0), 1 << 20, 1, 2).is_ok());
        assert!(plausible(&seen(1000, 1000, 0), 64 << 10, 1, 1).is_ok());
    }

    #[test]
    fn more_cpu_time_than_wall_time_is_refused() {
        assert!(matches!(plausible(&seen(1, 10_000, 20_000), 64, 1, 1), Err(Implausible::TooBusy { .. })));
        assert!(plausible(&seen(1, 10_000, 20_000), 64, 2, 2).is_ok());
        assert!(plausible(&seen(1, 10_000, 10_100), 64, 1, 1).is_ok());
    }

    #[test]
    fn short_operations_are_timed_in_groups() {
        let clock = Clock { ns_per_tick: 1.0, overhead: 10 };
        assert_eq!(group_for(&clock, 1000.0), 1);
        assert_eq!(group_for(&clock, 10.0), 20);
    }
}
