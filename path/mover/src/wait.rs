//! How to wait for a completion record: a value that says what to do between two looks.

use crate::time::Rest;
use std::time::Duration;

/// How a waiting thread passes the time. Waiting with the machine's monitor instructions comes with the real device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Look again at once: least latency, most power, hardest on a sibling thread.
    Spin,
    /// PAUSE between looks.
    Pause,
    /// PAUSE for so many looks, then let other threads run after each look.
    Yield {
        /// Looks before the first yield.
        pauses: u32,
    },
    /// PAUSE for so many looks, then sleep between looks.
    Sleep {
        /// Looks before the first sleep.
        pauses: u32,
        /// Length of one sleep.
        interval: Duration,
    },
}

/// Looks of the default policy before it yields.
/// Source: assumed; about ten microseconds of PAUSE, longer than a small operation takes.
pub const DEFAULT_PAUSES: u32 = 256;

impl Default for Wait {
    fn default() -> Self {
        Wait::Yield { pauses: DEFAULT_PAUSES }
    }
}

/// One wait in progress under a [`Wait`] policy.
#[derive(Debug)]
pub(crate) struct Waiter {
    policy: Wait,
    looks: u32,
}

impl Waiter {
    pub(crate) fn new(policy: Wait) -> Self {
        Waiter { policy, looks: 0 }
    }

    /// What to do after a look that found nothing.
    pub(crate) fn rest(&mut self) -> Rest {
        self.looks = self.looks.saturating_add(1);
        match self.policy {
            Wait::Spin => Rest::Spin,
            Wait::Pause => Rest::Pause,
            Wait::Yield { pauses } | Wait::Sleep { pauses, .. } if self.looks <= pauses => Rest::Pause,
            Wait::Yield { .. } => Rest::Yield,
            Wait::Sleep { interval, .. } => Rest::Sleep(interval),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_rests_in_its_own_way() {
        let nap = Duration::from_micros(50);
        let cases = [
            (Wait::Spin, [Rest::Spin; 3]),
            (Wait::Pause, [Rest::Pause; 3]),
            (Wait::Yield { pauses: 2 }, [Rest::Pause, Rest::Pause, Rest::Yield]),
            (Wait::Sleep { pauses: 1, interval: nap }, [Rest::Pause, Rest::Sleep(nap), Rest::Sleep(nap)]),
        ];
        for (policy, expected) in cases {
            let mut waiter = Waiter::new(policy);
            assert_eq!([0; 3].map(|_| waiter.rest()), expected, "{policy:?}");
        }
    }
}
