//! Time through a facade: the state machines are told what time it is, and who waits asks a [`Clock`] to rest.

use crate::sync::{AtomicU64, Ordering};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// A point in time: nanoseconds since its clock began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Moment {
    /// Nanoseconds since the clock began.
    pub nanos: u64,
}

impl Moment {
    /// The moment `duration` later; the last moment there is if that is too far.
    #[must_use]
    pub fn after(self, duration: Duration) -> Moment {
        Moment { nanos: self.nanos.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)) }
    }
}

/// What a waiting thread does between two looks at a completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing: look again at once.
    Spin,
    /// One PAUSE instruction (or the machine's equivalent).
    Pause,
    /// Let another thread run.
    Yield,
    /// Sleep for this long.
    Sleep(Duration),
}

/// The time and the passing of it. The system's in programs; a test's or a simulator's elsewhere.
pub trait Clock: Send + Sync + Debug {
    /// What time it is; never less than it was before.
    fn now(&self) -> Moment;

    /// Rests the calling thread. A clock that never moves on while it is asked to rest makes waits with a deadline endless.
    fn rest(&self, rest: Rest);
}

/// The system's monotonic clock; [`Rest`] is done by the calling thread.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::default().after(self.start.elapsed())
    }

    fn rest(&self, rest: Rest) {
        match rest {
            Rest::Spin => {}
            Rest::Pause => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep(duration) => std::thread::sleep(duration),
        }
    }
}

/// A clock that moves only when told, or when somebody rests. For tests and simulators.
#[derive(Debug)]
pub struct ManualClock {
    nanos: AtomicU64,
    tick: u64,
}

impl ManualClock {
    /// A clock at moment zero. Every rest that is not a sleep moves it on by `tick`, a sleep by its duration.
    #[must_use]
    pub fn new(tick: Duration) -> Self {
        let tick = u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX);
        ManualClock { nanos: AtomicU64::new(0), tick }
    }

    /// Moves it on.
    pub fn advance(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a number nobody orders other memory by.
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        // Relaxed: see `advance`.
        Moment { nanos: self.nanos.load(Ordering::Relaxed) }
    }

    fn rest(&self, rest: Rest) {
        match rest {
            Rest::Sleep(duration) => self.advance(duration),
            Rest::Spin | Rest::Pause => self.advance(Duration::from_nanos(self.tick)),
            Rest::Yield => {
                self.advance(Duration::from_nanos(self.tick));
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told_or_rested() {
        let clock = ManualClock::new(Duration::from_nanos(3));
        assert_eq!(clock.now().nanos, 0);
        clock.advance(Duration::from_nanos(10));
        clock.rest(Rest::Pause);
        clock.rest(Rest::Sleep(Duration::from_micros(1)));
        assert_eq!(clock.now().nanos, 1013);
    }

    #[test]
    fn a_moment_too_far_is_the_last_one() {
        assert_eq!(Moment { nanos: 5 }.after(Duration::MAX).nanos, u64::MAX);
    }
}
