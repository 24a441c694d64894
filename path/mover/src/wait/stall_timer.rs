//! A timer that notices a late record without a clock read for each check of the record.

use crate::wait::time::Moment;
use std::time::Duration;

/// Failed checks between two clock reads: a clock read (about 25 ns) is 1 % of that many PAUSEs (about 40 ns each). A
/// thread that rests longer between checks notices later by that many rests. Source: both assumed.
const LOOKS: u32 = 64;

/// The time without a record: of one descriptor, or of a ring of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallTimer {
    /// Failed checks.
    looks: u32,
    /// The next health check and the give-up time; set at the first clock read.
    until: Option<(Moment, Moment)>,
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Until the queue is asked, again and again.
    pub(crate) patience: Duration,
    /// Until the queue is given up.
    pub(crate) limit: Duration,
}

/// What to do after a failed check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StallAction {
    /// Check the record again.
    LookAgain,
    /// Ask the queue whether it works.
    CheckHealth,
    /// Give the queue up.
    GiveUp,
}

impl StallTimer {
    /// Counts one more failed check. The result is `CheckHealth` whenever another `patience` has passed, and `GiveUp`
    /// once
    /// `limit` has.
    #[inline]
    pub(crate) fn look(&mut self, bounds: Bounds, now: impl FnOnce() -> Moment) -> StallAction {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) { self.read_clock(bounds, now()) } else { StallAction::LookAgain }
    }

    #[cold]
    fn read_clock(&mut self, bounds: Bounds, now: Moment) -> StallAction {
        let (late, end) = self.until.get_or_insert_with(|| (now.after(bounds.patience), now.after(bounds.limit)));
        if now >= *end {
            return StallAction::GiveUp;
        }
        if now < *late {
            return StallAction::LookAgain;
        }
        *late = now.after(bounds.patience);
        StallAction::CheckHealth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_record_asks_once_per_patience_and_gives_up_at_the_limit() {
        let bounds = Bounds { patience: Duration::from_nanos(200), limit: Duration::from_nanos(800) };
        let (mut stall_timer, mut late) = (StallTimer::default(), Vec::new());
        for look in 0..1000_u64 {
            // One check each nanosecond; the clock is first read at the 64th.
            match stall_timer.look(bounds, || Moment { nanos: look }) {
                StallAction::LookAgain => {}
                other => late.push((look, other)),
            }
        }
        // 63 + 200 is not at a clock read, the next one is at 319; and so on. 63 + 800 is 863, the next one 895.
        let (check, end) = (StallAction::CheckHealth, StallAction::GiveUp);
        assert_eq!(late, [(319, check), (575, check), (831, check), (895, end), (959, end)]);
    }
}
