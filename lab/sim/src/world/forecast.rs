//! Sleeping until a record is expected, by the mover's own forecast.

use super::World;
use super::cycles::Cycles;
use crate::machine::WaitCosts;
use crate::picos::Picos;
use crate::workload::{MoverSettings, QueueId};
use std::time::Duration;
use telpher_abi::{Descriptor, Opcode};
use telpher_mover::{DryRun, Expected, Moment, Route, Split};

/// Longest time between two polls between sleeps. Source: chosen; a real mover polls continuously.
pub(super) const SLICE: Picos = Picos::from_nanos(1000);

/// Converts a point in time to the mover's type.
pub(super) fn moment(at: Picos) -> Moment {
    Moment { nanos: at.0 / 1000 }
}

/// Converts a mover's duration to simulated time.
pub(super) fn stretch(time: Duration) -> Picos {
    Picos::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Converts simulated time to a mover's duration.
pub(super) fn duration(time: Picos) -> Duration {
    Duration::from_nanos(time.0 / 1000)
}

/// The forecasts of one thread for its queue.
#[derive(Debug)]
pub(super) struct Forecast {
    counsel: DryRun,
    /// By slot.
    expected: Vec<Option<Expected>>,
}

impl World {
    /// A forecast for a thread with `slots` slots before one queue.
    pub(super) fn forecast(&self, queue: QueueId, slots: u32) -> Forecast {
        let moves = MoverSettings { threshold: 0, route: Route::First, split: Split::NONE };
        let mover = self.mover_of(&moves, &[queue]);
        Forecast { counsel: mover.counsel, expected: vec![None; slots as usize] }
    }
}

impl Forecast {
    /// A descriptor was sent at time `at`.
    pub(super) fn sent(&mut self, slot: u32, descriptor: &Descriptor, at: Picos) {
        // A batch's size counts its members.
        let bytes = if descriptor.opcode() == Opcode::Batch { 0 } else { u64::from(descriptor.size()) };
        self.expected[slot as usize] = self.counsel.expect(0, descriptor.opcode(), bytes, moment(at));
    }

    /// Adds a wait from `since` for the record of a slot, which is written at `written`. Returns when the thread sees
    /// the record.
    pub(super) fn sleep(
        &mut self,
        cycles: &mut Cycles,
        costs: &WaitCosts,
        slot: u32,
        since: Picos,
        written: Picos,
    ) -> Picos {
        let Some(expected) = self.expected[slot as usize] else {
            return cycles.wait(costs, crate::workload::Wait::Poll, since, written);
        };
        let (mut now, mut waiting) = (since, self.counsel.wait());
        while now < written {
            match self.counsel.nap(&mut waiting, &expected, moment(now)) {
                Some(nap) => {
                    let asleep = stretch(nap) + costs.wake_up;
                    self.counsel.woke(duration(costs.wake_up));
                    cycles.idle += asleep;
                    now += asleep;
                }
                None => {
                    let look = (now + SLICE).min(written);
                    cycles.polling += look.since(now);
                    now = look;
                }
            }
        }
        cycles.polling += costs.poll;
        self.counsel.arrived(&waiting, &expected, moment(now + costs.poll));
        now + costs.poll
    }
}
