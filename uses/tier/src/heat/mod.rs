//! How hot pages are: the sources that sample accesses, and the heat map.
//!
//! ```text
//! Source ── samples accesses, a step at a time, and reports its cost
//!    │ level of a page, 0 to 255
//! HeatMap ── a few bytes a page, which follow mappings that move
//!    │ Strip
//! Policy ── which pages move where
//! ```

mod damon;
pub(crate) mod hints;
mod map;
mod sampled;
mod traps;
mod windows;

pub use crate::page_map::NO_TIER;
pub(crate) use crate::page_map::WHOLE;
pub(crate) use damon::Damon;
pub use damon::DamonError;
pub use hints::Advice;
pub use map::{HeatMap, PageHeat, PageHeats, SURE};
pub(crate) use sampled::Sampled;
pub(crate) use traps::Traps;
pub(crate) use windows::Windows;

use std::fmt::Debug;
use std::io;
use std::time::Duration;

/// Samples accesses to a heap's pages, a part at a time. It is driven from one thread.
pub trait Source: Debug + Send {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns what it sees and what it does not: a sentence for people.
    fn sees(&self) -> &'static str;

    /// Makes one step at this time since its start, and puts its findings into the map. Returns the time until the next
    /// step.
    ///
    /// # Errors
    /// What the system refuses for good: this source will find nothing more.
    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration>;

    /// Ends what is under way. Further steps may follow.
    fn rest(&mut self) {}

    /// Returns the CPU time used so far outside the calling thread: by its own threads and the kernel's.
    fn elsewhere(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the page faults that it has caused in the program so far and that another thread had to answer, and the
    /// total time for which the program's threads waited for them, estimated from one measured fault.
    fn faults(&self) -> (u64, Duration) {
        (0, Duration::ZERO)
    }

    /// Returns how many uses it has missed so far because there were too many.
    fn lost(&self) -> u64 {
        0
    }

    /// Returns the memory that it uses, in bytes, apart from the map.
    fn bytes(&self) -> u64 {
        0
    }
}

/// The cost of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// CPU time of the manager's thread, other threads and the kernel.
    pub cpu: Duration,
    /// Steps.
    pub steps: u64,
    /// Memory, in bytes.
    pub bytes: u64,
    /// Page faults that it caused in the program and that another thread had to answer.
    pub faults: u64,
    /// The total time that the program's threads waited for those, estimated from one measured fault.
    pub waited: Duration,
    /// Uses that it missed.
    pub lost: u64,
}

/// Returns the heat of a page that was first used this long after sampling began: 255 up to 250 µs, 32 less for each
/// doubling, and 0 beyond 64 ms.
///
/// Source: chosen, to distinguish pages that are used between 15 and 4000 times a second.
#[must_use]
pub fn level(first_use: Duration) -> u8 {
    /// In nanoseconds.
    const HOTTEST: f64 = 250e3;
    const DOUBLING: f64 = 32.0;
    let doublings = (first_use.as_nanos() as f64 / HOTTEST).log2().max(0.0);
    // At most 255; the cast saturates at 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let level = (255.0 - DOUBLING * doublings).round() as u8;
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_first_use_is_hotter() {
        let micros = Duration::from_micros;
        assert_eq!([0, 250, 500, 1000, 4000].map(|time| level(micros(time))), [255, 255, 223, 191, 127]);
        assert_eq!([64_000, 100_000, u64::MAX / 2].map(|time| level(micros(time))), [0, 0, 0]);
    }
}
