//! How far apart two cores are right now: the round trip of one cache line between two pinned threads.
//!
//! Virtual processors wander over a host's dies, and the distance changes what every multi-thread result means. So it is
//! measured right before such a result and printed beside it.

use super::measure::{median, to_ns};
use crate::ffi;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a measurement takes.
pub(crate) const PING_PONG: Duration = Duration::from_millis(20);

/// Round trips below this many nanoseconds count as near: two cores under one last-level cache.
/// Source: assumed; cores of one die answer in 40 to 120 ns, cores of two dies or sockets in 200 ns and more.
const NEAR_NS: f64 = 150.0;

/// Median round trip between two cores.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub(crate) struct Distance {
    /// First core.
    pub(crate) from: usize,
    /// Second core.
    pub(crate) to: usize,
    /// There and back, in nanoseconds.
    pub(crate) round_trip_ns: f64,
    /// `near` or `far`.
    pub(crate) class: Class,
}

/// Whether the cores share a last-level cache, as far as time can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Class {
    /// Below 150 ns.
    Near,
    /// 150 ns or more.
    Far,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            Class::Near => "near",
            Class::Far => "far",
        };
        write!(f, "{class} {:.0} ns", self.round_trip_ns)
    }
}

/// A cache line of its own, so that the ping-pong is about nothing else.
#[repr(align(128))]
struct Line(AtomicU64);

/// The last ball: whoever sees it leaves.
const STOP: u64 = u64::MAX;

/// Measures for `time`; `None` if the threads cannot be pinned to two different cores.
pub(crate) fn measure(from: usize, to: usize, time: Duration) -> Option<Distance> {
    if from == to {
        return None;
    }
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let round_trip_ns = thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = ffi::pin(&[to]).is_ok();
            let mut last = 0;
            loop {
                // Acquire and Release pair with the other side's: one line travels per direction.
                let ball = ping.0.load(Ordering::Acquire);
                if ball != last {
                    pong.0.store(ball, Ordering::Release);
                    last = ball;
                }
                if ball == STOP {
                    return pinned;
                }
                std::hint::spin_loop();
            }
        });
        let server = scope.spawn(|| {
            let pinned = ffi::pin(&[from]).is_ok();
            let rally = |ball: u64| {
                ping.0.store(ball, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != ball {
                    std::hint::spin_loop();
                }
            };
            let (start, mut ball, mut samples) = (Instant::now(), 0, Vec::new());
            // Warms up, then a sample is the mean of 64 rallies.
            while start.elapsed() < time {
                let sample = Instant::now();
                for _ in 0..64 {
                    ball += 1;
                    rally(ball);
                }
                samples.push(to_ns(sample.elapsed()) / 64.0);
            }
            rally(STOP);
            pinned.then(|| median(&mut samples))
        });
        let median = server.join().ok().flatten();
        echo.join().ok().filter(|&pinned| pinned).and(median)
    })?;
    let class = if round_trip_ns < NEAR_NS { Class::Near } else { Class::Far };
    Some(Distance { from, to, round_trip_ns, class })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_have_a_distance_and_one_has_none() {
        let cpus = ffi::allowed_cpus().unwrap();
        assert_eq!(measure(cpus[0], cpus[0], PING_PONG), None);
        if let [first, .., last] = cpus[..] {
            let distance = measure(first, last, Duration::from_millis(5)).unwrap();
            assert!(distance.round_trip_ns > 1.0, "{distance:?}");
        } else {
            eprintln!("skipped: only one core");
        }
    }

    #[test]
    fn it_reads_as_class_and_time() {
        let d = Distance { from: 0, to: 1, round_trip_ns: 61.4, class: Class::Near };
        assert_eq!(d.to_string(), "near 61 ns");
    }
}
