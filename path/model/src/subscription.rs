//! Whether a reader wants the times of descriptors. One word: the moment until which they are recorded, in nanoseconds
//! of the monotonic clock, or 0.
//!
//! Readers write a new moment before the old one has passed. So a reader that was killed leaves nothing on for longer
//! than [`LONGEST_NS`]: the engine that finds the moment in the past clears the word, unless a reader has written a new
//! one meanwhile.

use crate::sync::Word;

/// The longest time for which a reader may subscribe at once, in nanoseconds. A later moment counts as damage, and is
/// cleared. Source: chosen; some updates of a reader that updates once a second.
pub const LONGEST_NS: u64 = 10_000_000_000;

/// The word of a subscription.
#[derive(Clone, Copy, Debug)]
pub struct Subscription<'a>(pub(crate) &'a Word);

impl Subscription<'_> {
    /// True if the word is set, whether the moment has passed or not. For the hot path: one load.
    #[must_use]
    #[inline]
    pub fn is_set(self) -> bool {
        self.0.get() != 0
    }

    /// True while times are recorded. Clears the word if its moment has passed.
    #[must_use]
    pub fn is_on(self, now_ns: u64) -> bool {
        let until = self.0.get();
        if until == 0 {
            return false;
        }
        if until > now_ns && until - now_ns <= LONGEST_NS {
            return true;
        }
        // In one step, so that a moment that a reader writes meanwhile stays.
        self.0.update(|word| (word == until).then_some(0));
        false
    }

    /// Subscribes until a moment, at most [`LONGEST_NS`] from now. Other readers' subscriptions last at least as long
    /// as before.
    pub fn renew(self, until_ns: u64, now_ns: u64) {
        let valid = |word: u64| word <= now_ns.saturating_add(LONGEST_NS);
        self.0.update(|word| (word < until_ns || !valid(word)).then_some(until_ns));
    }
}
