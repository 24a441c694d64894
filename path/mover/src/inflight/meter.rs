//! Measures what one timed operation costs its caller: the time spent in its steps, and in waits for it.

use super::shared::Shared;
use crate::wait::time::Moment;
use std::time::Duration;
use telpher_abi::Opcode;

/// A timed operation in flight.
#[derive(Debug)]
pub(crate) struct Meter {
    op: Opcode,
    bytes: u64,
    spent: Duration,
    /// Since when a thread waits, and for how many operations at once.
    waiting: Option<(Moment, u32)>,
}

impl Meter {
    /// An operation whose submission began at `begun` and has just ended.
    pub(crate) fn new(shared: &Shared, op: Opcode, bytes: u64, begun: Moment) -> Self {
        Meter { op, bytes, spent: since(shared, begun), waiting: None }
    }

    /// Records that a thread waits from now on for `among` operations, of which this is one; 0 means that it no longer
    /// waits.
    pub(super) fn set_waited_for(&mut self, shared: &Shared, among: u32) {
        self.settle(shared);
        self.waiting = (among > 0).then(|| (shared.clock.now(), among));
    }

    fn settle(&mut self, shared: &Shared) {
        if let Some((begun, among)) = self.waiting.take() {
            self.spent += since(shared, begun) / among.max(1);
        }
    }

    /// Returns when a step began, unless its time already counts as waiting.
    pub(super) fn step(&self, shared: &Shared) -> Option<Moment> {
        self.waiting.is_none().then(|| shared.clock.now())
    }

    /// Records the end of the step.
    pub(super) fn stepped(&mut self, shared: &Shared, begun: Option<Moment>) {
        if let Some(begun) = begun {
            self.spent += since(shared, begun);
        }
    }

    /// Ends the operation and learns its cost.
    pub(crate) fn ended(mut self, shared: &Shared) {
        self.settle(shared);
        shared.learn(self.op, self.bytes, true, self.spent);
    }
}

fn since(shared: &Shared, begun: Moment) -> Duration {
    Duration::from_nanos(shared.clock.now().nanos.saturating_sub(begun.nanos))
}
