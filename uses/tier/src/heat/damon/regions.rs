//! What the kernel samples: its intervals, and the regions that it reports.

use std::ops::Range;
use std::time::Duration;

/// The kernel's sampling intervals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Intervals {
    /// The time between two samples of a page of each region.
    pub(super) sample: Duration,
}

impl Intervals {
    /// Source: chosen, twice the kernel's default.
    pub(super) const FIRST: Intervals = Intervals { sample: Duration::from_millis(10) };
    /// Source: chosen; what is used less often than that is cold anyway.
    pub(super) const SLOWEST: Duration = Duration::from_millis(160);
    /// Samples of an aggregation, which is the highest access count. Source: the kernel's own ratio of the two, 100 ms
    /// to 5 ms.
    pub(super) const SAMPLES: u32 = 20;

    pub(super) fn aggregation(self) -> Duration {
        self.sample * Self::SAMPLES
    }

    pub(super) fn slower(self) -> Option<Intervals> {
        let sample = self.sample * 2;
        (sample <= Self::SLOWEST).then_some(Intervals { sample })
    }
}

/// Contiguous pages with similar use, as found by the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub(super) range: Range<u64>,
    /// The samples of an aggregation that found it used.
    pub(super) accesses: u32,
}

impl Region {
    /// Returns the heat of its pages: 255 if every sample has found them used.
    pub(super) fn level(&self) -> u8 {
        let accesses = self.accesses.min(Intervals::SAMPLES);
        u8::try_from(accesses * 255 / Intervals::SAMPLES).expect("at most 255")
    }
}
