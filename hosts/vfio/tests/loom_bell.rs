//! Loom: one thread submits work and rings, while the listener looks for work and waits. Properties: the listener sees
//! all work, whenever the bell rings; and it ends when it is told to (loom reports a deadlock otherwise).
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-vfio --test loom_bell`.
//! Seen to fail with `ring` only notifying, and with `wait` that clears the ring before it waits.
#![cfg(loom)]

#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/bell.rs"]
mod bell;

use bell::{Bell, Woken};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

#[test]
fn no_ring_is_lost() {
    loom::model(|| {
        let (bell, submitted) = (Arc::new(Bell::new()), Arc::new(AtomicU32::new(0)));
        let submitter = {
            let (bell, submitted) = (Arc::clone(&bell), Arc::clone(&submitted));
            thread::spawn(move || {
                for _ in 0..2 {
                    // Relaxed: the bell orders it.
                    submitted.fetch_add(1, Ordering::Relaxed);
                    bell.ring();
                }
            })
        };
        let mut seen = 0;
        while seen < 2 {
            assert_eq!(bell.wait(None), Woken::Work);
            seen = submitted.load(Ordering::Relaxed);
        }
        submitter.join().unwrap();
        bell.end();
        while bell.wait(None) != Woken::End {}
        assert!(bell.has_ended());
    });
}
