//! Loom: one thread pushes entries with payload, another takes them, over several laps of a small ring. Properties: the
//! consumer sees each entry whole and in order, and its payload; the producer never overwrites the payload of an entry
//! that the consumer still reads; a full ring has room again.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-fabric --test loom_ring`.
//! Seen to fail with the Release of `push` weakened to Relaxed, with the Acquire of `peek` weakened to Relaxed, and
//! (the full ring) with the Release of `publish` or the Acquire of `refresh` weakened to Relaxed.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells")]

#[path = "loom/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/ring.rs"]
mod ring;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use ring::{Consumer, ENTRY_WORDS, Producer};
use std::ops::Deref;
use sync::AtomicU64;

/// Words that both threads share.
#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl Words {
    fn zeros(count: usize) -> Words {
        Words(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// The payload of an entry.
struct Payload(UnsafeCell<u64>);
// SAFETY: loom's cell objects to every race.
unsafe impl Sync for Payload {}
// SAFETY: as above.
unsafe impl Send for Payload {}

/// Pushes `count` entries through a ring of `entries`.
fn exchange(entries: usize, count: u64) {
    let (words, taken) = (Words::zeros(entries * ENTRY_WORDS), Words::zeros(1));
    let payload: Arc<Vec<Payload>> = Arc::new((0..entries).map(|_| Payload(UnsafeCell::new(0))).collect());
    let mut producer = Producer::new(words.clone(), taken.clone());
    let mut consumer = Consumer::new(words, taken);
    let there = Arc::clone(&payload);
    let pushing = thread::spawn(move || {
        for number in 0..count {
            while !producer.has_room().unwrap() {
                thread::yield_now();
            }
            // SAFETY: loom's cell objects to every race.
            there[producer.index()].0.with_mut(|cell| unsafe { *cell = number + 100 });
            producer.push(&[number << 32, number, 0, 0, 0, 0, 0, number + 200]);
        }
    });
    for number in 0..count {
        let entry = loop {
            match consumer.peek() {
                Some(entry) => break entry,
                None => thread::yield_now(),
            }
        };
        assert_eq!((entry[0] >> 32, entry[1], entry[7]), (number, number, number + 200));
        let index = usize::try_from(number).unwrap() % entries;
        // SAFETY: as above.
        let found = payload[index].0.with(|cell| unsafe { *cell });
        assert_eq!(found, number + 100);
        consumer.release();
    }
    pushing.join().unwrap();
}

#[test]
fn an_entry_is_seen_whole_with_its_payload() {
    loom::model(|| exchange(2, 2));
}

#[test]
fn a_full_ring_wraps_and_overwrites_nothing_that_is_read() {
    loom::model(|| exchange(1, 2));
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| exchange(2, 4));
}
