//! Completions that are held back: since when, and until what. A small table without locks, since every engine's lane looks
//! at it.

use super::trail::Name;
use crate::sync::{AtomicU64, Ordering};

/// Places: more than the engines and lanes of a replica. Source: chosen.
const PLACES: usize = 512;

/// One completion that is held back; its place belongs to the one lane that has it in hand.
#[derive(Debug, Default)]
struct Place {
    /// The descriptor, as a word; 0 for a free place.
    key: AtomicU64,
    /// When it is due, in nanoseconds.
    due: AtomicU64,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Late {
    places: Box<[Place]>,
    /// The latest submission whose completion was told.
    latest: AtomicU64,
}

impl Default for Late {
    fn default() -> Self {
        Late { places: (0..PLACES).map(|_| Place::default()).collect(), latest: AtomicU64::new(0) }
    }
}

/// A name as a word that is not 0: batches have at most 2^15 members, so the number keeps 47 bits.
fn key(name: Name) -> u64 {
    (name.submission << 16 | u64::from(name.member)) + 1
}

impl Late {
    /// A completion of this submission is told.
    pub(super) fn told(&self, submission: u64) {
        // Relaxed: a number of its own; who waits for it asks again.
        self.latest.fetch_max(submission, Ordering::Relaxed);
    }

    /// True if the completion has waited `wait_ns`, or, if it `reorders`, one of a later submission was told. `first` hears
    /// when the waiting begins.
    pub(super) fn is_due(&self, name: Name, now_ns: u64, wait_ns: u64, reorders: bool, first: impl FnOnce()) -> bool {
        let key = key(name);
        // Relaxed throughout: a place is read and written by the lane that owns it, and claimed by an exchange.
        if let Some(place) = self.places.iter().find(|place| place.key.load(Ordering::Relaxed) == key) {
            let later = reorders && self.latest.load(Ordering::Relaxed) > name.submission;
            let due = later || now_ns >= place.due.load(Ordering::Relaxed);
            if due {
                place.key.store(0, Ordering::Relaxed);
            }
            return due;
        }
        let free = self
            .places
            .iter()
            .find(|place| place.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        match free {
            Some(place) => {
                place.due.store(now_ns.saturating_add(wait_ns), Ordering::Relaxed);
                first();
                false
            }
            // No room to remember it: then it is on time.
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_lets_the_rest_pass() {
        let late = Late::default();
        let ask = |n| late.is_due(Name { submission: n, member: 0 }, 0, 10, false, || ());
        assert!((0..PLACES as u64).all(|n| !ask(n)));
        assert!(ask(PLACES as u64));
        // A place comes free when its completion is due.
        assert!(late.is_due(Name { submission: 0, member: 0 }, 10, 10, false, || ()));
        assert!(!ask(PLACES as u64));
    }
}
