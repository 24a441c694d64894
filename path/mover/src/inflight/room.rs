//! How long a queue has had no room for the oldest operation of one user.

use crate::stats::{Counts, Work};
use crate::wait::time::{Clock, Moment};

/// Whether a queue had room, and since when it has none.
#[derive(Debug)]
pub(super) struct Room {
    /// The queue refused the last offer.
    refused: bool,
    /// When it first had none.
    full_since: Option<Moment>,
    counts: Counts,
}

impl Room {
    /// Creates the state of a queue that had room. The first call in a process maps memory.
    pub(super) fn new() -> Room {
        Room { refused: false, full_since: None, counts: Counts::of_this_process() }
    }

    /// True if the queue refused the last offer.
    #[inline]
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// The queue has refused.
    #[inline]
    pub(super) fn refused(&mut self, clock: &dyn Clock) {
        self.refused = true;
        self.none(clock);
    }

    /// The queue has no room, as far as this process knows.
    #[inline]
    pub(super) fn none(&mut self, clock: &dyn Clock) {
        self.full_since.get_or_insert_with(|| clock.now());
    }

    /// The queue has taken an operation: counts the time in which it had no room.
    #[inline]
    pub(super) fn taken(&mut self, clock: &dyn Clock) {
        self.refused = false;
        if let Some(since) = self.full_since.take() {
            self.count(since, clock.now());
        }
    }

    #[cold]
    fn count(&self, since: Moment, now: Moment) {
        self.counts.add(Work::AT.waiting, now.nanos.saturating_sub(since.nanos));
    }
}
