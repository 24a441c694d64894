//! How hot pages are: who looks, and what is kept of it.
//!
//! ```text
//! Source ── looks, a step at a time, and tells its cost
//!    │ level of a page, 0 to 255
//! HeatMap ── a few bytes a page, which follow mappings that move
//!    │ Strip
//! Policy ── what moves where
//! ```

mod damon;
pub(crate) mod hints;
mod map;
mod sampled;
mod traps;
mod windows;

pub(crate) use damon::Damon;
pub use damon::DamonError;
pub use hints::Advice;
pub(crate) use map::WHOLE;
pub use map::{HeatMap, NO_TIER, PageHeat, SURE, Strip};
pub(crate) use sampled::Sampled;
pub(crate) use traps::Traps;
pub(crate) use windows::Windows;

use std::fmt::Debug;
use std::io;
use std::time::Duration;

/// Who looks at a heap's pages, some at a time. Whoever drives it does so from one thread.
pub trait Source: Debug + Send {
    /// Which it is.
    fn name(&self) -> &'static str;

    /// What it sees, and what it does not: a sentence for people.
    fn sees(&self) -> &'static str;

    /// One step of its period, at this time since it began; what it finds goes into the map. Returns when it wants the next one.
    ///
    /// # Errors
    /// What the system refuses for good: there is nothing more to be found by this source.
    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration>;

    /// Ends what it has under way. It may be asked for steps again.
    fn rest(&mut self) {}

    /// Time of a core that others have had for it up to now: threads of its own, and the kernel's.
    fn elsewhere(&self) -> Duration {
        Duration::ZERO
    }

    /// Page faults that the program has had for it up to now and that somebody else had to answer, and how long its threads waited for those, together: by
    /// what one was measured to take.
    fn faults(&self) -> (u64, Duration) {
        (0, Duration::ZERO)
    }

    /// What it should have seen and could not keep, as there was too much of it: so many uses up to now.
    fn lost(&self) -> u64 {
        0
    }

    /// Memory that it keeps, in bytes, apart from the map.
    fn bytes(&self) -> u64 {
        0
    }
}

/// What a source has cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Time of a core, of whomever: the manager's thread, others, the kernel's.
    pub cpu: Duration,
    /// Steps.
    pub steps: u64,
    /// Memory, in bytes.
    pub bytes: u64,
    /// Page faults that the program had for it and that somebody else had to answer.
    pub faults: u64,
    /// How long its threads waited for those, together: by what one was measured to take.
    pub waited: Duration,
    /// Uses that it should have seen and could not keep.
    pub lost: u64,
}

/// How hot a page is that was first used so long after one began to look: 255 up to 250 µs, 32 less for each doubling, and 0 beyond 64 ms.
///
/// Source: chosen, so that pages are told from each other between those that are used 4000 times a second and those that are 15 times.
#[must_use]
pub fn level(first_use: Duration) -> u8 {
    /// In nanoseconds.
    const HOTTEST: f64 = 250e3;
    const DOUBLING: f64 = 32.0;
    let doublings = (first_use.as_nanos() as f64 / HOTTEST).log2().max(0.0);
    // At most 255, and no less than 0: the cast saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let level = (255.0 - DOUBLING * doublings).round() as u8;
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_sooner_is_hotter() {
        let micros = Duration::from_micros;
        assert_eq!([0, 250, 500, 1000, 4000].map(|time| level(micros(time))), [255, 255, 223, 191, 127]);
        assert_eq!([64_000, 100_000, u64::MAX / 2].map(|time| level(micros(time))), [0, 0, 0]);
    }
}
