//! Noticing that a record is late, or later than anybody waits, without a look at the clock for each look at the record.

use crate::time::Moment;
use std::time::Duration;

/// Looks in vain between two looks at the clock: a read of the clock (about 25 ns) is 1 % of so many PAUSEs (about 40 ns
/// each). Who rests longer between looks notices later by as many rests. Source: both assumed.
const LOOKS: u32 = 64;

/// One record, or one ring of them, being waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vigil {
    /// Looks in vain.
    looks: u32,
    /// When it is late next, and when it is given up, from the first look at the clock on.
    until: Option<(Moment, Moment)>,
}

/// How long somebody waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Until the queue is asked, again and again.
    pub(crate) patience: Duration,
    /// Until the queue is given up.
    pub(crate) limit: Duration,
}

/// What to do after a look in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Late {
    /// Look again.
    No,
    /// Ask the queue whether it works.
    Ask,
    /// Give the queue up.
    GiveUp,
}

impl Vigil {
    /// One more look in vain: late whenever another `patience` has passed, given up once `limit` has.
    #[inline]
    pub(crate) fn look(&mut self, bounds: Bounds, now: impl FnOnce() -> Moment) -> Late {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) { self.look_at_the_clock(bounds, now()) } else { Late::No }
    }

    #[cold]
    fn look_at_the_clock(&mut self, bounds: Bounds, now: Moment) -> Late {
        let (late, end) = self.until.get_or_insert_with(|| (now.after(bounds.patience), now.after(bounds.limit)));
        if now >= *end {
            return Late::GiveUp;
        }
        if now < *late {
            return Late::No;
        }
        *late = now.after(bounds.patience);
        Late::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_late_once_in_each_patience_and_given_up_at_the_limit() {
        let bounds = Bounds { patience: Duration::from_nanos(200), limit: Duration::from_nanos(800) };
        let (mut vigil, mut late) = (Vigil::default(), Vec::new());
        for look in 0..1000_u64 {
            // A look each nanosecond; the clock is first looked at with the 64th.
            match vigil.look(bounds, || Moment { nanos: look }) {
                Late::No => {}
                other => late.push((look, other)),
            }
        }
        // 63 + 200 is not at a look at the clock, the next one is at 319; and so on. 63 + 800 is 863, the next look 895.
        let (ask, end) = (Late::Ask, Late::GiveUp);
        assert_eq!(late, [(319, ask), (575, ask), (831, ask), (895, end), (959, end)]);
    }
}
