//! A group's turn: one holder at a time, and each sees what the one before wrote.
//!
//! Seen to fail: with the Release of the store that ends a turn weakened to `Relaxed`, loom finds a lost increment.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the file is included as it is")]

#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::Turn;

struct Shared {
    turn: Turn,
    count: UnsafeCell<u32>,
}

// Loom's own cell reports concurrent access; the turn is what forbids it.
#[allow(unsafe_code, reason = "the test asks whether the turn excludes")]
// SAFETY: `count` is only touched under the turn; if that did not exclude, loom's cell would report it.
unsafe impl Sync for Shared {}

fn increment(shared: &Shared) -> bool {
    shared
        .turn
        .try_with(|| {
            shared.count.with_mut(|count| {
                #[allow(unsafe_code, reason = "as above")]
                // SAFETY: as above.
                unsafe {
                    *count += 1;
                }
            });
        })
        .is_some()
}

#[test]
fn a_turn_excludes_and_publishes() {
    loom::model(|| {
        let shared = Arc::new(Shared { turn: Turn::default(), count: UnsafeCell::new(0) });
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u32::from(increment(&shared)))
        };
        let mine = u32::from(increment(&shared));
        let done = mine + other.join().unwrap();
        assert!(done >= 1, "the first to ask gets the turn");
        assert!(increment(&shared), "a turn that ended is free");
        shared.count.with(|count| {
            #[allow(unsafe_code, reason = "as above")]
            // SAFETY: the other thread has ended.
            let count = unsafe { *count };
            assert_eq!(count, done + 1);
        });
    });
}
