//! Time behind an interface: the caller passes the time to the state machines, and a waiting thread calls a [`Clock`]
//! to rest.

use crate::sync::{AtomicU64, Ordering};
use std::fmt::Debug;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use telpher_portal::{Portal, RecordCell, Watch};

/// A point in time: nanoseconds since its clock began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Moment {
    /// Nanoseconds since the clock began.
    pub nanos: u64,
}

impl Moment {
    /// Returns the moment `duration` later; saturates at the last moment.
    #[must_use]
    pub fn after(self, duration: Duration) -> Moment {
        Moment { nanos: self.nanos.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)) }
    }
}

impl Moment {
    /// Returns the time from an earlier moment to this one; zero if it is not earlier.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

/// What a waiting thread does between two checks of a completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing: check again at once.
    Spin,
    /// One PAUSE instruction (or the machine's equivalent).
    Pause,
    /// Let another thread run.
    Yield,
    /// Sleep for this long; [`SystemClock`] does so without the timer slack of ordinary sleeps.
    Sleep(Duration),
}

/// The time, and rests. Programs use the system's clock; tests and simulators provide their own.
pub trait Clock: Send + Sync + Debug {
    /// Returns the time; never less than before.
    fn now(&self) -> Moment;

    /// Rests the calling thread. If a clock never advances during rests, waits with a deadline do not end.
    fn rest(&self, rest: Rest);

    /// Rests the calling thread until `record`, which the queue behind `portal` writes, may have been written or
    /// `at_most` has passed. An early return proves nothing. The default is one PAUSE.
    fn watch(&self, portal: &dyn Portal, record: &RecordCell, how: Watch, at_most: Duration) {
        let _ = (portal, record, how, at_most);
        self.rest(Rest::Pause);
    }
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
            Rest::Sleep(duration) => sleep_exactly(duration),
        }
    }

    fn watch(&self, portal: &dyn Portal, record: &RecordCell, how: Watch, at_most: Duration) {
        portal.watch(record, how, at_most);
    }
}

/// Sleeps without the slack that the kernel gives a thread's timers (50 µs by default), and restores the slack.
fn sleep_exactly(duration: Duration) {
    let usual = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
    // An error only makes the sleep some microseconds longer.
    let set = |slack| {
        let _ = rustix::thread::set_current_timer_slack(slack);
    };
    if usual.is_some() {
        set(Some(NonZeroU64::MIN));
    }
    std::thread::sleep(duration);
    if usual.is_some() {
        set(usual);
    }
}

/// A clock that moves only by calls: `advance` and rests. For tests and simulators.
#[derive(Debug)]
pub struct ManualClock {
    nanos: AtomicU64,
    tick: u64,
}

impl ManualClock {
    /// A clock at moment zero. Every rest that is not a sleep advances it by `tick`, a sleep by its duration.
    #[must_use]
    pub fn new(tick: Duration) -> Self {
        let tick = u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX);
        ManualClock { nanos: AtomicU64::new(0), tick }
    }

    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: no other memory depends on the number.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_advances_only_by_calls() {
        let clock = ManualClock::new(Duration::from_nanos(3));
        assert_eq!(clock.now().nanos, 0);
        clock.advance(Duration::from_nanos(10));
        clock.rest(Rest::Pause);
        clock.rest(Rest::Sleep(Duration::from_micros(1)));
        assert_eq!(clock.now().nanos, 1013);
    }

    #[test]
    fn a_sleep_leaves_the_thread_s_timer_slack_as_it_was() {
        let slack = || rustix::thread::current_timer_slack().unwrap();
        let before = slack();
        let start = Instant::now();
        SystemClock::default().rest(Rest::Sleep(Duration::from_millis(1)));
        assert!(start.elapsed() >= Duration::from_millis(1));
        assert_eq!(slack(), before);
    }

    #[test]
    fn a_moment_that_overflows_is_the_last_one() {
        assert_eq!(Moment { nanos: 5 }.after(Duration::MAX).nanos, u64::MAX);
    }
}
