//! How to wait for a completion record: the policy says what to do between two checks, and a waiter applies it.

use crate::wait::forecast::{Awaited, Slept, WakeUp};
use crate::wait::time::{Moment, Rest};
use std::time::Duration;
use telpher_portal::Watch;

/// How a waiting thread passes the time between two checks of the record.
///
/// | | latency | CPU time | suited for |
/// |---|---|---|---|
/// | `Spin`, `Pause` | lowest | all of it | a thread with a core of its own |
/// | `Monitor`, `Timed` | a microsecond more | all of it, in a light sleep | the same, if the CPU has UMWAIT (guideline G2) |
/// | `Yield` | little more | what other threads leave | all programs: the default |
/// | `Predicted` | a tenth more | a part of it | jobs of 100 µs and more beside other work |
/// | `Sleep` | an interval more | next to none | jobs that are not urgent |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Check again at once: lowest latency, most power, largest cost to a sibling thread.
    Spin,
    /// PAUSE between checks.
    Pause,
    /// PAUSE for the first checks, then let other threads run after each check.
    Yield {
        /// Checks before the first yield.
        pauses: u32,
    },
    /// PAUSE for the first checks, then sleep between checks.
    Sleep {
        /// Checks before the first sleep.
        pauses: u32,
        /// Length of one sleep.
        interval: Duration,
    },
    /// A light sleep of a fixed time between checks (TPAUSE). It is `Pause` if the processor or the queue does not
    /// support it.
    Timed {
        /// Length of one sleep, as far as the system allows it.
        interval: Duration,
    },
    /// A light sleep that the device's write to the record ends (UMONITOR, UMWAIT). It is `Pause` if the processor or
    /// the queue does not support it. Source: Kuper et al., ASPLOS 2024, §3.3 and guideline G2.
    Monitor {
        /// Longest time until the next check, as far as the system allows it.
        at_most: Duration,
    },
    /// Sleep until shortly before the record is expected, and PAUSE for the rest. The expected time follows from
    /// earlier operations of this kind and size on the same queue, and from what was submitted there before. A late
    /// record is checked whenever the time so far has grown by a sixteenth. For batches, and for records expected
    /// within 50 µs, the thread does not sleep at first.
    ///
    /// Kernels give user space no interrupt for a record (*Data movement with DSA* names it as the main obstacle). So a
    /// thread can wait without using a core only if it knows when to wake up.
    Predicted,
}

/// Checks of the default policy before it yields.
/// Source: assumed; about ten microseconds of PAUSE, longer than a small operation takes.
pub const DEFAULT_PAUSES: u32 = 256;

impl Default for Wait {
    fn default() -> Self {
        Wait::Yield { pauses: DEFAULT_PAUSES }
    }
}

impl Wait {
    /// Returns true if the wait must know which record it waits for.
    pub(crate) fn has_a_target(self) -> bool {
        matches!(self, Wait::Timed { .. } | Wait::Monitor { .. } | Wait::Predicted)
    }
}

/// What to do until the next check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// Call the clock's `rest`.
    Rest(Rest),
    /// Call the clock's `watch` on a record.
    Watch(Watch, Duration),
}

/// One wait in progress under a [`Wait`] policy.
#[derive(Debug)]
pub(crate) struct Waiter {
    policy: Wait,
    looks: u32,
    /// The last rest, if it was a sleep.
    slept: Option<Slept>,
    /// When the caller has something else to do.
    end: Option<Moment>,
}

/// The shortest sleep of a prediction. Source: assumed; several times the CPU time of falling asleep and waking up.
const SHORTEST_NAP: Duration = Duration::from_micros(20);

/// A thread wakes up this part of the predicted time before the record is expected, and accepts a record this much
/// late. A sleep for a late record is this part of the time so far. Without wake-up delays, this bounds how late a
/// record is seen. Source: chosen; a sixteenth of 4 MiB is some tens of microseconds.
const PART: u32 = 16;

impl Waiter {
    pub(crate) fn new(policy: Wait) -> Self {
        Waiter { policy, looks: 0, slept: None, end: None }
    }

    /// The same waiter, whose sleeps end at `end` at the latest.
    pub(crate) fn until(self, end: Moment) -> Self {
        Waiter { end: Some(end), ..self }
    }

    /// Returns the last rest if it was a sleep.
    pub(crate) fn slept(&self) -> Option<Slept> {
        self.slept
    }

    /// Returns a sleep, cut short at `end`.
    fn sleep(&self, nap: Duration, now: impl FnOnce() -> Moment) -> Duration {
        self.end.map_or(nap, |end| nap.min(end.since(now())))
    }

    /// Returns what to do after a failed check. `now` is called only if needed. `wake_up` is the wake-up delay, used
    /// for predictions.
    pub(crate) fn pass(&mut self, awaited: Option<&Awaited>, now: impl FnOnce() -> Moment, wake_up: &WakeUp) -> Pass {
        self.looks = self.looks.saturating_add(1);
        self.slept = None;
        match self.policy {
            Wait::Spin => Pass::Rest(Rest::Spin),
            Wait::Timed { interval } => Pass::Watch(Watch::Timed, interval),
            Wait::Monitor { at_most } => Pass::Watch(Watch::Monitor, at_most),
            Wait::Pause => Pass::Rest(Rest::Pause),
            Wait::Yield { pauses } | Wait::Sleep { pauses, .. } if self.looks <= pauses => Pass::Rest(Rest::Pause),
            Wait::Yield { .. } => Pass::Rest(Rest::Yield),
            Wait::Sleep { interval, .. } => Pass::Rest(Rest::Sleep(self.sleep(interval, now))),
            Wait::Predicted => {
                // No prediction: do as the default policy does.
                let Some(awaited) = awaited else {
                    return Pass::Rest(if self.looks <= DEFAULT_PAUSES { Rest::Pause } else { Rest::Yield });
                };
                let now = now();
                let nap = nap(awaited, now, wake_up.get()).map(|nap| self.sleep(nap, || now));
                if self.looks == 1 && nap.is_none() {
                    wake_up.forgo();
                }
                self.slept = nap.map(|nap| Slept { nap, end: now.after(nap) });
                Pass::Rest(nap.map_or(Rest::Pause, Rest::Sleep))
            }
        }
    }

    /// Like [`pass`](Waiter::pass), for a caller that does not wait for one particular record.
    pub(crate) fn rest(&mut self, now: impl FnOnce() -> Moment) -> Rest {
        match self.pass(None, now, &WakeUp::new()) {
            Pass::Rest(rest) => rest,
            Pass::Watch(..) => Rest::Pause,
        }
    }
}

/// Returns the sleep that is worth it now.
fn nap(awaited: &Awaited, now: Moment, wake_up: Duration) -> Option<Duration> {
    let margin = awaited.due.since(awaited.since) / PART;
    let nap = if now <= awaited.due.after(margin) {
        // Early enough that the record is not written yet, wake-up delay included.
        awaited.due.since(now).saturating_sub(margin + wake_up)
    } else {
        (now.since(awaited.since) / PART).saturating_sub(wake_up)
    };
    (nap >= SHORTEST_NAP).then_some(nap)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use telpher_abi::Opcode;

    fn passes<const N: usize>(policy: Wait) -> [Pass; N] {
        let mut waiter = Waiter::new(policy);
        [(); N].map(|()| waiter.pass(None, Moment::default, &WakeUp::new()))
    }

    #[test]
    fn each_policy_rests_in_its_own_way() {
        let nap = Duration::from_micros(50);
        let (pause, sleep) = (Pass::Rest(Rest::Pause), Pass::Rest(Rest::Sleep(nap)));
        assert_eq!(passes(Wait::Spin), [Pass::Rest(Rest::Spin); 3]);
        assert_eq!(passes(Wait::Pause), [pause; 3]);
        assert_eq!(passes(Wait::Yield { pauses: 2 }), [pause, pause, Pass::Rest(Rest::Yield)]);
        assert_eq!(passes(Wait::Sleep { pauses: 1, interval: nap }), [pause, sleep, sleep]);
        assert_eq!(passes(Wait::Timed { interval: nap }), [Pass::Watch(Watch::Timed, nap); 2]);
        assert_eq!(passes(Wait::Monitor { at_most: nap }), [Pass::Watch(Watch::Monitor, nap); 2]);
    }

    #[test]
    fn without_a_prediction_it_waits_as_the_default_does() {
        let all: [Pass; 300] = passes(Wait::Predicted);
        assert!(all[..256].iter().all(|pass| *pass == Pass::Rest(Rest::Pause)));
        assert!(all[256..].iter().all(|pass| *pass == Pass::Rest(Rest::Yield)));
    }

    const MICRO: u64 = 1000;

    fn awaited() -> Awaited {
        let (since, due) = (Moment { nanos: 100 * MICRO }, Moment { nanos: 900 * MICRO });
        Awaited { queue: 0, slot: 0, op: Opcode::MemoryMove, bytes: 4 << 20, since, due, alone: true }
    }

    fn pass(waiter: &mut Waiter, micros: u64, wake_up: u64) -> Pass {
        waiter.pass(Some(&awaited()), || Moment { nanos: micros * MICRO }, &WakeUp::of(Duration::from_micros(wake_up)))
    }

    #[test]
    fn a_prediction_sleeps_until_a_margin_and_the_wake_up_delay_are_left() {
        let mut waiter = Waiter::new(Wait::Predicted);
        let sleep = |micros| Pass::Rest(Rest::Sleep(Duration::from_micros(micros)));
        // 800 µs are predicted: a sixteenth, 50, is left, and 30 for waking up.
        assert_eq!(pass(&mut waiter, 100, 30), sleep(720));
        assert_eq!(pass(&mut waiter, 500, 30), sleep(320));
        // Within 20 µs of that point nothing is worth a sleep …
        assert_eq!(pass(&mut waiter, 800, 30), sleep(20));
        for micros in [801, 820, 900, 950] {
            assert_eq!(pass(&mut waiter, micros, 30), Pass::Rest(Rest::Pause), "{micros}");
        }
        // … and a late record is checked after each sixteenth more of the time, as far as waking up is worth it.
        assert_eq!(pass(&mut waiter, 980, 30), sleep(25));
        assert_eq!(pass(&mut waiter, 1700, 30), sleep(70));
        assert_eq!(pass(&mut waiter, 980, 40), Pass::Rest(Rest::Pause));
    }

    #[test]
    fn no_sleep_goes_beyond_the_end() {
        let end = Moment { nanos: 103 * MICRO };
        for policy in [Wait::Predicted, Wait::Sleep { pauses: 0, interval: Duration::from_secs(1) }] {
            let three = Pass::Rest(Rest::Sleep(Duration::from_micros(3)));
            assert_eq!(pass(&mut Waiter::new(policy).until(end), 100, 0), three, "{policy:?}");
        }
    }
}
