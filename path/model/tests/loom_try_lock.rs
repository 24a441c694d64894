//! A group's lock: one holder at a time, and each sees the previous holder's writes.
//!
//! Seen to fail: with the Release of the unlocking store weakened to `Relaxed`, loom finds a lost increment.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the file is included as it is")]

#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::TryLock;

struct Shared {
    lock: TryLock,
    count: UnsafeCell<u32>,
}

// Loom's own cell reports concurrent access; the lock must prevent it.
#[allow(unsafe_code, reason = "the test checks that the lock excludes")]
// SAFETY: `count` is accessed only under the lock; otherwise loom's cell would report it.
unsafe impl Sync for Shared {}

fn increment(shared: &Shared) -> bool {
    shared
        .lock
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
fn a_lock_excludes_and_publishes() {
    loom::model(|| {
        let shared = Arc::new(Shared { lock: TryLock::default(), count: UnsafeCell::new(0) });
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u32::from(increment(&shared)))
        };
        let mine = u32::from(increment(&shared));
        let done = mine + other.join().unwrap();
        assert!(done >= 1, "the first thread gets the lock");
        assert!(increment(&shared), "a released lock is free");
        shared.count.with(|count| {
            #[allow(unsafe_code, reason = "as above")]
            // SAFETY: the other thread has ended.
            let count = unsafe { *count };
            assert_eq!(count, done + 1);
        });
    });
}
