//! Threads that claim at the same time get different entries; a site has one index; a trace slot has one whole entry.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-recording --test loom_claims`.
//!
//! **Seen to fail**: a load and a store in place of the addition in `claim`, or of the exchange in `find_or_claim`; a
//! failed exchange there, after which the thread does not look at the address that it found; `publish` without the
//! exchange, without a look at the mark or at the number, with a relaxed exchange, or with a relaxed last store.
#![cfg(loom)]

#[allow(dead_code, reason = "the test uses only a part")]
#[path = "../src/claim.rs"]
mod claim;
#[allow(dead_code, reason = "the test uses only a part")]
#[path = "../src/site_directory.rs"]
mod site_directory;
#[allow(dead_code, reason = "the test uses only a part")]
#[path = "../src/sync.rs"]
mod sync;
#[allow(dead_code, reason = "the test uses only a part")]
#[path = "../src/trace_slot.rs"]
mod trace_slot;

use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU64, Ordering};
use trace_slot::{SlotContent, TraceSlot, decode};

#[test]
fn two_threads_claim_different_entries_and_the_third_gets_none() {
    loom::model(|| {
        let claimed = Arc::new(AtomicU64::new(0));
        let other = {
            let claimed = Arc::clone(&claimed);
            thread::spawn(move || claim::claim(&claimed, 2))
        };
        let ours = claim::claim(&claimed, 2);
        let theirs = other.join().unwrap();
        assert!(ours.is_some() && theirs.is_some() && ours != theirs, "{ours:?} {theirs:?}");
        assert_eq!(claim::claim(&claimed, 2), None);
    });
}

struct Directory {
    words: [AtomicU64; 2],
    claimed: AtomicU64,
}

impl Directory {
    fn index(&self, address: u64) -> Option<u16> {
        site_directory::find_or_claim(&self.words, &self.claimed, 2, address)
    }
}

/// Two threads look for these addresses at the same time; returns their indices.
fn look_up(addresses: [u64; 2], check: fn([Option<u16>; 2], &Directory)) {
    loom::model(move || {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let directory = Arc::new(Directory { words, claimed: AtomicU64::new(0) });
        let other = {
            let directory = Arc::clone(&directory);
            thread::spawn(move || directory.index(addresses[1]))
        };
        let ours = directory.index(addresses[0]);
        check([ours, other.join().unwrap()], &directory);
    });
}

#[test]
fn a_site_that_two_threads_bring_at_once_has_one_index() {
    look_up([0x1234, 0x1234], |[ours, theirs], directory| {
        assert!(ours.is_some() && ours == theirs, "{ours:?} {theirs:?}");
        let used = directory.words.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count();
        assert_eq!(used, 1);
    });
}

#[test]
fn two_sites_have_different_indices_also_when_they_want_the_same_word() {
    // Their hashes differ by a multiple of the directory's two words, or do not; either way both find a place.
    for other in [0x1235, 0x1236, 0x1237] {
        look_up([0x1234, other], |[ours, theirs], _| {
            assert!(ours.is_some() && theirs.is_some() && ours != theirs, "{ours:?} {theirs:?}");
        });
    }
}

/// The words of an entry, all different from those of other numbers.
fn words(number: u64) -> [u64; 3] {
    [1, 2, 3].map(|at| number * 16 + at)
}

fn slot() -> Arc<TraceSlot> {
    Arc::new(TraceSlot::empty())
}

#[test]
fn an_entry_without_the_mark_is_whole_at_every_instant() {
    loom::model(|| {
        let slot = slot();
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || assert!(slot.publish(4, words(4))))
        };
        // What a file holds if the process is killed at this instant.
        let [stamp, found @ ..] = slot.read();
        if stamp != 0 && stamp & 1 == 0 {
            assert_eq!(found, words(4));
            assert_eq!(decode(slot.read()), SlotContent::Entry(4, words(4)));
        }
        writer.join().unwrap();
        assert_eq!(decode(slot.read()), SlotContent::Entry(4, words(4)));
    });
}

#[test]
fn two_entries_for_one_slot_do_not_mix_and_the_older_one_does_not_replace_the_newer() {
    // Loom does not try every order in which both succeed, so each number is once that of the first thread.
    for [first, second] in [[4, 9], [9, 4]] {
        loom::model(move || {
            let slot = slot();
            let other = {
                let slot = Arc::clone(&slot);
                thread::spawn(move || slot.publish(second, words(second)))
            };
            let published = [(first, slot.publish(first, words(first))), (second, other.join().unwrap())];
            let newest = published.iter().filter(|(_, published)| *published).map(|(number, _)| *number).max();
            let newest = newest.expect("one of two entries");
            // The words are compared here, because the check in the stamp would also find a mixture.
            let [_, found @ ..] = slot.read();
            assert_eq!(found, words(newest));
            assert_eq!(decode(slot.read()), SlotContent::Entry(newest, words(newest)));
        });
    }
}
