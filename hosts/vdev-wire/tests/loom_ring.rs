//! The host removes each entry that a thread of the guest appended exactly once, complete, in the order of the numbers.
//!
//! Seen to fail: with the stamp's Release or Acquire relaxed, entries are empty. The first version reported a full ring
//! after reading a stale count of reserved entries and then a newer count of removed ones. Not shown by loom: `taken`'s
//! Release and Acquire, since loom never lets a load read a later store.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included unchanged")]

#[path = "../src/ring.rs"]
mod ring;
#[path = "../src/sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use ring::{TRACE_ENTRIES, TraceEntry, TraceRing};
use zerocopy::FromZeros;

/// An entry whose first and last words are equal.
fn entry(number: u64) -> TraceEntry {
    TraceEntry { time_ns: number, other: number, ..TraceEntry::new_zeroed() }
}

fn number(entry: &TraceEntry) -> u64 {
    assert_eq!(entry.time_ns, entry.other, "a torn entry");
    entry.time_ns
}

#[test]
fn entries_of_two_threads_are_neither_lost_nor_mixed() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let ring = Arc::new(TraceRing::default());
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || assert!(ring.append(&entry(1))))
        };
        assert!(ring.append(&entry(2)));
        let (lost, mut seen) = (AtomicU64::new(0), Vec::new());
        seen.extend(ring.take(false, &lost).map(|entry| number(&entry)));
        other.join().unwrap();
        while let Some(entry) = ring.take(false, &lost) {
            seen.push(number(&entry));
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
    });
}

#[test]
fn a_slot_is_not_overwritten_before_the_host_has_read_it() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let ring = Arc::new(TraceRing::default());
        for number in 0..TRACE_ENTRIES as u64 {
            assert!(ring.append(&entry(number)));
        }
        let guest = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.append(&entry(100)))
        };
        let lost = AtomicU64::new(0);
        let mut seen: Vec<u64> = ring.take(false, &lost).map(|entry| number(&entry)).into_iter().collect();
        let found_room = guest.join().unwrap();
        while let Some(entry) = ring.take(false, &lost) {
            seen.push(number(&entry));
        }
        let mut expected: Vec<u64> = (0..TRACE_ENTRIES as u64).collect();
        expected.extend(found_room.then_some(100));
        assert_eq!(seen, expected);
    });
}
