//! A dedicated queue never holds more descriptors than it has entries, also if some credits never come back.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-dml --test loom_credits`.
//!
//! **Seen to fail**: `begin` without its test of `posting` (the Drain overtakes a descriptor whose credit it forgets,
//! so that the queue gets more entries than it has).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/credits.rs"]
mod credits;

use credits::Credits;
use loom::sync::{Arc, Mutex};

/// What is in the queue, first to last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Descriptor,
    Drain,
}

/// A queue of two entries, one of which is for the Drain. The device executes when the test says so.
struct Queue {
    credits: Credits,
    entries: Mutex<Vec<Entry>>,
}

impl Queue {
    fn put(&self, entry: Entry) {
        let mut entries = self.entries.lock().unwrap();
        entries.push(entry);
        assert!(entries.len() <= 2, "a descriptor is lost");
    }

    /// Submits a descriptor, as the library does. Its credit never comes back.
    fn submit(&self) -> bool {
        let taken = self.credits.take().is_some();
        if taken {
            self.put(Entry::Descriptor);
            self.credits.posted();
        }
        taken
    }

    /// Sends a Drain, lets the device execute up to it, and forgets the credits in front of it.
    fn reclaim(&self) {
        if self.credits.begin().is_some() {
            self.put(Entry::Drain);
            let mut entries = self.entries.lock().unwrap();
            let drain = entries.iter().position(|entry| *entry == Entry::Drain).unwrap();
            entries.drain(..=drain);
            drop(entries);
            self.credits.end();
        }
    }
}

#[test]
fn a_queue_holds_at_most_its_entries_while_lost_credits_are_reclaimed() {
    loom::model(|| {
        let queue = Arc::new(Queue { credits: Credits::new(1), entries: Mutex::new(Vec::new()) });
        let other = Arc::clone(&queue);
        let submitting = loom::thread::spawn(move || {
            other.submit();
            other.submit();
        });
        queue.reclaim();
        queue.submit();
        submitting.join().unwrap();
    });
}
