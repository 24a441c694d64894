//! How to wait for a completion record: a value that says what to do between two looks, and one wait under it.

use crate::forecast::{Awaited, Slept, WakeUp};
use crate::time::{Moment, Rest};
use std::time::Duration;
use telpher_portal::Watch;

/// How a waiting thread passes the time.
///
/// | | latency | CPU time | for whom |
/// |---|---|---|---|
/// | `Spin`, `Pause` | least | all of it | a core of one's own |
/// | `Monitor`, `Timed` | a microsecond more | all of it, in a light sleep | the same, with a processor that has the instructions (guideline G2) |
/// | `Yield` | little more | what others leave | everybody: the default |
/// | `Predicted` | a tenth more | a part of it | jobs of 100 µs and more beside other work |
/// | `Sleep` | an interval more | next to none | jobs nobody is in a hurry for |
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
    /// A light sleep between looks, for a time (TPAUSE). Where the processor or the queue has none it is `Pause`.
    Timed {
        /// Length of one, as far as the system allows so long a one.
        interval: Duration,
    },
    /// A light sleep that the device's write to the record ends (UMONITOR, UMWAIT). Where the processor or the queue has none
    /// it is `Pause`. Source: Kuper et al., ASPLOS 2024, §3.3 and guideline G2.
    Monitor {
        /// Longest before the next look, as far as the system allows so long a one.
        at_most: Duration,
    },
    /// Sleep until shortly before the record is expected, and PAUSE for the rest. When that is says what operations of the kind
    /// and size took before on the same queue, and what was sent there before it; a record that is late is looked for after
    /// each sixteenth more of the time. Batches and what is expected within 50 µs have no sleep to begin with.
    ///
    /// Kernels give user space no interrupt for a record (*Data movement with DSA* names it as the main obstacle), so to wait
    /// without a core is to know when to wake up.
    Predicted,
}

/// Looks of the default policy before it yields.
/// Source: assumed; about ten microseconds of PAUSE, longer than a small operation takes.
pub const DEFAULT_PAUSES: u32 = 256;

impl Default for Wait {
    fn default() -> Self {
        Wait::Yield { pauses: DEFAULT_PAUSES }
    }
}

impl Wait {
    /// True if it must be known what is waited for.
    pub(crate) fn has_a_target(self) -> bool {
        matches!(self, Wait::Timed { .. } | Wait::Monitor { .. } | Wait::Predicted)
    }
}

/// What to do until the next look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// Ask the clock.
    Rest(Rest),
    /// Ask the clock to watch a record.
    Watch(Watch, Duration),
}

/// One wait in progress under a [`Wait`] policy.
#[derive(Debug)]
pub(crate) struct Waiter {
    policy: Wait,
    looks: u32,
    /// The last rest, if it was a sleep.
    slept: Option<Slept>,
    /// When something else is to be done.
    end: Option<Moment>,
}

/// Shortest sleep of a prediction. Source: assumed; several times what going to sleep and waking up costs the CPU.
const SHORTEST_NAP: Duration = Duration::from_micros(20);

/// Of the predicted time, what is left for looking before and after it, and of the time so far, each nap of a late one: so much
/// later than at once is a record seen at most, wake-ups aside. Source: chosen; a sixteenth of 4 MiB is some tens of microseconds.
const PART: u32 = 16;

impl Waiter {
    pub(crate) fn new(policy: Wait) -> Self {
        Waiter { policy, looks: 0, slept: None, end: None }
    }

    /// The same, with no sleep beyond a moment.
    pub(crate) fn until(self, end: Moment) -> Self {
        Waiter { end: Some(end), ..self }
    }

    /// The sleep that the last rest was, if it was one.
    pub(crate) fn slept(&self) -> Option<Slept> {
        self.slept
    }

    /// A sleep, cut short where something else is to be done.
    fn sleep(&self, nap: Duration, now: impl FnOnce() -> Moment) -> Duration {
        self.end.map_or(nap, |end| nap.min(end.since(now())))
    }

    /// What to do after a look that found nothing; `now` is asked, and `wake_up` tells how much later than asked sleeps
    /// end, if there is a prediction.
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
                // Nobody knows when: as the default does.
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

    /// The same for who waits for no record in particular.
    pub(crate) fn rest(&mut self, now: impl FnOnce() -> Moment) -> Rest {
        match self.pass(None, now, &WakeUp::new()) {
            Pass::Rest(rest) => rest,
            Pass::Watch(..) => Rest::Pause,
        }
    }
}

/// The sleep that is worth it now.
fn nap(awaited: &Awaited, now: Moment, wake_up: Duration) -> Option<Duration> {
    let margin = awaited.due.since(awaited.since) / PART;
    let nap = if now <= awaited.due.after(margin) {
        // Early enough that the record is not there yet, wake-up included.
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
        Awaited { lane: 0, slot: 0, op: Opcode::MemoryMove, bytes: 4 << 20, since, due, alone: true }
    }

    fn pass(waiter: &mut Waiter, micros: u64, wake_up: u64) -> Pass {
        waiter.pass(Some(&awaited()), || Moment { nanos: micros * MICRO }, &WakeUp::of(Duration::from_micros(wake_up)))
    }

    #[test]
    fn a_prediction_is_slept_through_but_for_its_last_stretch_and_the_waking_up() {
        let mut waiter = Waiter::new(Wait::Predicted);
        let sleep = |micros| Pass::Rest(Rest::Sleep(Duration::from_micros(micros)));
        // 800 µs are predicted: a sixteenth, 50, is left, and 30 for waking up.
        assert_eq!(pass(&mut waiter, 100, 30), sleep(720));
        assert_eq!(pass(&mut waiter, 500, 30), sleep(320));
        // From 20 µs before that on nothing is worth a sleep …
        assert_eq!(pass(&mut waiter, 800, 30), sleep(20));
        for micros in [801, 820, 900, 950] {
            assert_eq!(pass(&mut waiter, micros, 30), Pass::Rest(Rest::Pause), "{micros}");
        }
        // … and a late record is looked for after each sixteenth more of the time, as far as waking up is worth it.
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
