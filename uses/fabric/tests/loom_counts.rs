//! Loom: one member fills slots and takes results, another reduces them, over several laps of the slots. Properties:
//! the member that reduces sees the bytes and the call of each chunk; the member that takes sees the result; no slot
//! and no result is overwritten while the other member still reads it.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-fabric --test loom_counts`.
//! Seen to fail with the Release of `publish` or the Acquire of `reached` weakened to Relaxed, and with a `before` that
//! gives a slot away one chunk too early.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells")]

#[path = "loom/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/collective/counts.rs"]
mod counts;

use counts::{Counts, MEMBER_WORDS, Stage, before, slot_of};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::ops::Deref;
use sync::AtomicU64;

/// Words that both threads share.
#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// The bytes of a chunk, of which loom notices every race.
struct Bytes(UnsafeCell<u64>);

// SAFETY: loom checks the accesses.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn write(&self, value: u64) {
        // SAFETY: loom's cell objects to every race.
        self.0.with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|cell| unsafe { *cell })
    }
}

fn wait(of: &Counts<Words>, stage: Stage, needed: u64) {
    while !of.reached(stage, needed, u64::MAX).unwrap() {
        thread::yield_now();
    }
}

#[test]
fn bytes_are_seen_whole_and_never_overwritten_early() {
    const CHUNKS: u64 = counts::SLOTS as u64 + 1;
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(2);
    bounded.check(|| {
        let words = || Words(Arc::new((0..MEMBER_WORDS).map(|_| AtomicU64::new(0)).collect()));
        let (first, second) = (Counts::new(words()), Counts::new(words()));
        let cells = || Arc::new((0..counts::SLOTS).map(|_| Bytes(UnsafeCell::new(0))).collect::<Vec<_>>());
        let (slots, results) = (cells(), cells());
        let reducing = thread::spawn({
            let (first, second, slots, results) = (first.clone(), second.clone(), slots.clone(), results.clone());
            move || {
                for chunk in 0..CHUNKS {
                    wait(&first, Stage::Filled, chunk + 1);
                    assert_eq!(first.call(chunk), 7 + chunk);
                    wait(&first, Stage::Taken, before(chunk));
                    results[slot_of(chunk)].write(slots[slot_of(chunk)].read() + 100);
                    second.publish(Stage::Reduced, chunk + 1);
                }
            }
        });
        for step in 0..CHUNKS + 2 {
            if step < CHUNKS {
                wait(&second, Stage::Reduced, before(step));
                slots[slot_of(step)].write(step);
                first.publish_filled(7 + step, step + 1);
            }
            if let Some(chunk) = step.checked_sub(2) {
                wait(&second, Stage::Reduced, chunk + 1);
                assert_eq!(results[slot_of(chunk)].read(), chunk + 100);
                first.publish(Stage::Taken, chunk + 1);
            }
        }
        reducing.join().unwrap();
    });
}
