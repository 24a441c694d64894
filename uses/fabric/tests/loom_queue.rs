//! Loom: two threads push values, and one of them takes them meanwhile. Property: no value is lost, and each thread's
//! values come in order, however the flag's stores are delayed.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-fabric --test loom_queue`.
//! Seen to fail with the flag set before the lock is taken in `push`, and with it cleared after the lock is released in
//! `take`.
#![cfg(loom)]

#[path = "loom/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/queue.rs"]
mod queue;

use loom::sync::Arc;
use loom::thread;
use queue::Queue;

#[test]
fn no_value_is_lost() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let there = Arc::clone(&queue);
        let pushing = thread::spawn(move || {
            there.push(1);
            there.push(2);
        });
        let mut taken = Vec::new();
        queue.push(10);
        queue.take(&mut taken);
        pushing.join().unwrap();
        // The threads have met, so the flag is up to date.
        queue.take(&mut taken);
        assert_eq!(taken.len(), 3);
        assert_eq!(taken.iter().filter(|value| **value < 10).collect::<Vec<_>>(), [&1, &2]);
        assert_eq!(queue.len(), 0);
    });
}
