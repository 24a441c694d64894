//! The order in which memory serves the requests of a device's engines.

use crate::machine::DeviceCosts;
use crate::picos::Picos;

/// The memory requests of a device's engines. Memory serves them in order, so a new request waits behind the bytes in
/// flight of other engines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    /// When all requested bytes have arrived at the device's full rate.
    until: Picos,
    /// Picoseconds per KiB.
    kib: u64,
    /// Transfer time of the bytes that may be in flight at once.
    most: Picos,
}

impl Requests {
    pub(super) fn new(costs: &DeviceCosts) -> Self {
        let kib = (1 << 10) * 1_000_000_000_000 / costs.read.max(costs.write).max(1);
        Requests { until: Picos::ZERO, kib, most: Picos(costs.in_flight.saturating_mul(kib) >> 10) }
    }

    /// Requests `bytes`; returns when the first of them arrive.
    #[inline]
    pub(super) fn ask(&mut self, now: Picos, bytes: u64) -> Picos {
        let before = self.until.max(now);
        self.until = before + Picos(bytes.saturating_mul(self.kib) >> 10);
        before.min(now + self.most)
    }
}
