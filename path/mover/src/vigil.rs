//! Noticing that a record is late, without a look at the clock for each look at the record.

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
    /// When it is late, from the first look at the clock on.
    late: Option<Moment>,
}

impl Vigil {
    /// One more look in vain; true if `patience` has passed since the first ones, or since this was last true.
    #[inline]
    pub(crate) fn is_late(&mut self, patience: Duration, now: impl FnOnce() -> Moment) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(LOOKS) && self.look_at_the_clock(patience, now())
    }

    #[cold]
    fn look_at_the_clock(&mut self, patience: Duration, now: Moment) -> bool {
        let late = *self.late.get_or_insert_with(|| now.after(patience));
        if now < late {
            return false;
        }
        self.late = Some(now.after(patience));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_late_once_in_each_patience() {
        let (mut vigil, mut late) = (Vigil::default(), Vec::new());
        for look in 0..1000_u64 {
            // A look each nanosecond; the clock is first looked at with the 64th.
            if vigil.is_late(Duration::from_nanos(200), || Moment { nanos: look }) {
                late.push(look);
            }
        }
        // 63 + 200 is not at a look at the clock, the next one is at 319; and so on.
        assert_eq!(late, [319, 575, 831]);
    }
}
