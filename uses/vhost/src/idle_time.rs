//! How long a DMA queue with copies in flight completes none.

use std::sync::Arc;
use std::time::Duration;
use telpher_mover::{Clock, Moment, Rest};

/// How long a `drop` waits for copies in flight while none completes. Source: as
/// [`CopiesPolicy::linger`](telpher_mover::CopiesPolicy::linger).
const LINGER: Duration = Duration::from_secs(1);
/// The rest between two polls of a `drop`. Source: chosen; what a device has in flight takes about as long.
const LINGER_REST: Duration = Duration::from_micros(50);
/// The most that the time between two polls counts as idle: a suspended process polls nothing.
const MAX_GAP: Duration = Duration::from_millis(250);

/// The time between polls that found nothing completed.
#[derive(Debug)]
pub(crate) struct IdleTime {
    clock: Arc<dyn Clock>,
    /// When the clock was read last.
    last: Option<Moment>,
    total: Duration,
}

impl IdleTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> IdleTime {
        IdleTime { clock, last: None, total: Duration::ZERO }
    }

    /// A new measurement with the same clock.
    pub(crate) fn another(&self) -> IdleTime {
        IdleTime::new(Arc::clone(&self.clock))
    }

    /// A copy completed, or none is in flight.
    pub(crate) fn reset(&mut self) {
        (self.last, self.total) = (None, Duration::ZERO);
    }

    /// Counts the time since the last call, and returns the time since the last [`reset`](IdleTime::reset).
    pub(crate) fn count(&mut self) -> Duration {
        let now = self.clock.now();
        let gap = self.last.replace(now).map_or(0, |last| now.nanos.saturating_sub(last.nanos));
        self.total += Duration::from_nanos(gap).min(MAX_GAP);
        self.total
    }

    /// Rests between two polls of a `drop`. Returns false, without a rest, if it has waited long enough.
    pub(crate) fn linger(&mut self) -> bool {
        let waits = self.count() < LINGER;
        if waits {
            self.clock.rest(Rest::Sleep(LINGER_REST));
        }
        waits
    }
}
