//! The current distance between two cores: the round trip of one cache line between two pinned threads.
//!
//! Virtual processors move between a host's dies, and the distance affects every result with several threads. So it is
//! measured right before such a result and reported with it.

use super::measure::to_ns;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use telpher_os::Distance;

/// Duration of a measurement.
pub const PING_PONG: Duration = Duration::from_millis(20);

/// Round trips from this many nanoseconds on do not measure the distance: other work held a core. Source: assumed; ten
/// times the longest trip between sockets.
const BUSY_NS: f64 = 5_000.0;

/// The round trip between two cores.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct RoundTrip {
    /// First core.
    pub from: usize,
    /// Second core.
    pub to: usize,
    /// There and back, in nanoseconds.
    pub round_trip_ns: f64,
    /// The distance for that time; `None` if the cores did other work meanwhile. JSON has `near`, `far` or `busy`.
    #[serde(rename = "class", serialize_with = "serialize_class")]
    pub distance: Option<Distance>,
}

impl RoundTrip {
    /// Returns `near`, `far` or `busy`.
    pub fn class(&self) -> &'static str {
        self.distance.map_or("busy", Distance::name)
    }
}

fn serialize_class<S: serde::Serializer>(distance: &Option<Distance>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(distance.map_or("busy", Distance::name))
}

/// Returns the distance for a round trip in nanoseconds; `None` for a time that does not measure it.
fn distance_of(round_trip_ns: f64) -> Option<Distance> {
    // Excludes the infinite time that stands for no sample.
    (0.0..BUSY_NS).contains(&round_trip_ns).then(|| Distance::of(Duration::from_secs_f64(round_trip_ns * 1e-9)))
}

impl fmt::Display for RoundTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.distance {
            Some(distance) => write!(f, "{} {:.0} ns", distance.name(), self.round_trip_ns),
            None => f.write_str("cores busy"),
        }
    }
}

/// A value in its own cache line, so that only this line is measured.
#[repr(align(128))]
struct Line(AtomicU64);

/// The last value: a thread that sees it returns.
const STOP: u64 = u64::MAX;

/// Measures for `time`; `None` if the threads cannot be pinned to two different cores.
pub fn measure(from: usize, to: usize, time: Duration) -> Option<RoundTrip> {
    if from == to {
        return None;
    }
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let round_trip_ns = thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = telpher_os::run_on(&[to]).is_ok();
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
            let pinned = telpher_os::run_on(&[from]).is_ok();
            let rally = |ball: u64| {
                ping.0.store(ball, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != ball {
                    std::hint::spin_loop();
                }
            };
            let (start, mut ball, mut samples) = (Instant::now(), 0, Vec::new());
            // A sample is the mean of 16 round trips: short enough that many samples meet no other work.
            while start.elapsed() < time {
                let sample = Instant::now();
                for _ in 0..RALLIES {
                    ball += 1;
                    rally(ball);
                }
                samples.push(to_ns(sample.elapsed()) / f64::from(RALLIES));
            }
            rally(STOP);
            pinned.then(|| undisturbed(&mut samples))
        });
        let trip = server.join().ok().flatten();
        echo.join().ok().filter(|&pinned| pinned).and(trip)
    })?;
    Some(RoundTrip { from, to, round_trip_ns, distance: distance_of(round_trip_ns) })
}

/// Round trips in a sample.
const RALLIES: u32 = 16;

/// Returns the lower quartile, because other work on the cores only increases the time.
fn undisturbed(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples.get(samples.len() / 4).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_have_a_distance_and_one_has_none() {
        let cpus = telpher_os::allowed_cpus().unwrap();
        assert_eq!(measure(cpus[0], cpus[0], PING_PONG), None);
        if let [first, .., last] = cpus[..] {
            let distance = measure(first, last, Duration::from_millis(5)).unwrap();
            assert!(distance.round_trip_ns > 1.0, "{distance:?}");
        } else {
            eprintln!("skipped: only one core");
        }
    }

    #[test]
    fn a_time_that_other_work_has_lengthened_is_no_distance() {
        let near_ns = to_ns(Distance::NEAR_WITHIN);
        assert_eq!([near_ns - 1.0, near_ns + 1.0].map(distance_of), [Some(Distance::Near), Some(Distance::Far)]);
        assert_eq!([BUSY_NS, f64::INFINITY].map(distance_of), [None; 2]);
    }

    #[test]
    fn a_round_trip_is_displayed_as_distance_and_time() {
        let near = RoundTrip { from: 0, to: 1, round_trip_ns: 61.4, distance: Some(Distance::Near) };
        assert_eq!(near.to_string(), "near 61 ns");
        assert_eq!(RoundTrip { distance: None, ..near }.to_string(), "cores busy");
    }

    #[test]
    fn disturbed_samples_do_not_count() {
        assert_eq!(undisturbed(&mut [9e6, 60.0, 61.0, 4e6, 62.0, 63.0]), 61.0);
    }
}
