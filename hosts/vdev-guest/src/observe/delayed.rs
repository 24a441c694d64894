//! Delayed completions: their due time or the completion they wait for. A small table without locks, since every engine
//! slot reads it.

use super::file_log::DescriptorId;
use crate::sync::{AtomicU64, Ordering};

/// Entries: more than the engines and slots of a replica. Source: chosen.
const MAX_DELAYED: usize = 512;

/// One delayed completion; the engine slot that executes the descriptor owns the entry.
#[derive(Debug, Default)]
struct Entry {
    /// The descriptor's number; 0 for a free entry.
    key: AtomicU64,
    /// The time when it is due, in nanoseconds.
    due: AtomicU64,
}

/// All delayed completions.
#[derive(Debug)]
pub(super) struct DelayedCompletions {
    entries: Box<[Entry]>,
    /// The latest submission whose completion was reported.
    latest: AtomicU64,
}

impl Default for DelayedCompletions {
    fn default() -> Self {
        DelayedCompletions { entries: (0..MAX_DELAYED).map(|_| Entry::default()).collect(), latest: AtomicU64::new(0) }
    }
}

/// A descriptor's number as one nonzero word: batches have at most 2^15 members, so the submission has 47 bits.
fn key(id: DescriptorId) -> u64 {
    (id.submission << 16 | u64::from(id.member)) + 1
}

impl DelayedCompletions {
    /// Records that a completion of this submission is reported.
    pub(super) fn record_reported(&self, submission: u64) {
        // Relaxed: publishes nothing; waiters check again.
        self.latest.fetch_max(submission, Ordering::Relaxed);
    }

    /// True if the completion has waited `wait_ns`, or if it `reorders` and a later submission was reported. `first` is
    /// called when the wait starts.
    pub(super) fn is_due(
        &self,
        id: DescriptorId,
        now_ns: u64,
        wait_ns: u64,
        reorders: bool,
        first: impl FnOnce(),
    ) -> bool {
        let key = key(id);
        // Relaxed throughout: an entry is read and written by the engine slot that owns it, and claimed by an exchange.
        if let Some(entry) = self.entries.iter().find(|entry| entry.key.load(Ordering::Relaxed) == key) {
            let later = reorders && self.latest.load(Ordering::Relaxed) > id.submission;
            let due = later || now_ns >= entry.due.load(Ordering::Relaxed);
            if due {
                entry.key.store(0, Ordering::Relaxed);
            }
            return due;
        }
        let free = self
            .entries
            .iter()
            .find(|entry| entry.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        match free {
            Some(entry) => {
                entry.due.store(now_ns.saturating_add(wait_ns), Ordering::Relaxed);
                first();
                false
            }
            // The table is full: the completion is not delayed.
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_delays_no_further_completions() {
        let delayed = DelayedCompletions::default();
        let ask = |n| delayed.is_due(DescriptorId { submission: n, member: 0 }, 0, 10, false, || ());
        assert!((0..MAX_DELAYED as u64).all(|n| !ask(n)));
        assert!(ask(MAX_DELAYED as u64));
        // An entry becomes free when its completion is due.
        assert!(delayed.is_due(DescriptorId { submission: 0, member: 0 }, 10, 10, false, || ()));
        assert!(!ask(MAX_DELAYED as u64));
    }
}
