//! The current distance between two cores: the round trip of one cache line between two pinned threads.
//!
//! Virtual processors move between a host's dies, and the distance affects every result with several threads. So it is
//! measured right before such a result and reported with it.

use super::measure::to_ns;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Duration of a measurement.
pub const PING_PONG: Duration = Duration::from_millis(20);

/// Round trips from this many nanoseconds on do not measure the distance: other work held a core. Source: assumed; ten
/// times the longest trip between sockets.
const BUSY_NS: f64 = 5_000.0;

/// The round trip between two cores.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Distance {
    /// First core.
    pub from: usize,
    /// Second core.
    pub to: usize,
    /// There and back, in nanoseconds.
    pub round_trip_ns: f64,
    /// `near`, `far` or `busy`.
    pub class: Class,
}

/// Whether the cores share a last-level cache, judged by the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// At most [`NEAR_WITHIN`](telpher_os::Distance::NEAR_WITHIN).
    Near,
    /// More than that.
    Far,
    /// Unknown: the cores did other work meanwhile.
    Busy,
}

impl Class {
    /// Returns the class of a round trip in nanoseconds.
    fn of(round_trip_ns: f64) -> Class {
        // Includes the infinite time that stands for no sample.
        if !(0.0..BUSY_NS).contains(&round_trip_ns) {
            return Class::Busy;
        }
        match telpher_os::Distance::of(Duration::from_secs_f64(round_trip_ns * 1e-9)) {
            telpher_os::Distance::Near => Class::Near,
            telpher_os::Distance::Far => Class::Far,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            Class::Near => "near",
            Class::Far => "far",
            Class::Busy => return f.write_str("cores busy"),
        };
        write!(f, "{class} {:.0} ns", self.round_trip_ns)
    }
}

/// A value in its own cache line, so that only this line is measured.
#[repr(align(128))]
struct Line(AtomicU64);

/// The last value: a thread that sees it returns.
const STOP: u64 = u64::MAX;

/// Measures for `time`; `None` if the threads cannot be pinned to two different cores.
pub fn measure(from: usize, to: usize, time: Duration) -> Option<Distance> {
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
    Some(Distance { from, to, round_trip_ns, class: Class::of(round_trip_ns) })
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
    fn the_classes_share_the_threshold_of_the_system_layer() {
        let near_ns = to_ns(telpher_os::Distance::NEAR_WITHIN);
        assert_eq!([near_ns - 1.0, near_ns + 1.0].map(Class::of), [Class::Near, Class::Far]);
        assert_eq!([BUSY_NS, f64::INFINITY].map(Class::of), [Class::Busy; 2]);
    }

    #[test]
    fn a_distance_is_displayed_as_class_and_time() {
        let d = Distance { from: 0, to: 1, round_trip_ns: 61.4, class: Class::Near };
        assert_eq!(d.to_string(), "near 61 ns");
        assert_eq!(Distance { class: Class::Busy, ..d }.to_string(), "cores busy");
    }

    #[test]
    fn disturbed_samples_do_not_count() {
        assert_eq!(undisturbed(&mut [9e6, 60.0, 61.0, 4e6, 62.0, 63.0]), 61.0);
    }
}
