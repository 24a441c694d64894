//! A thread that sees a dead queue sees every record the queue wrote, so a record that is empty then stays empty.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_queue_health`.
//!
//! **Seen to fail**: `stop` with `Relaxed` instead of `Release` (a record that was written counts as lost, and its work
//! would be done twice); `is_dead` with `Relaxed` instead of `Acquire` (the same).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/plan/queue_health.rs"]
mod queue_health;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use queue_health::QueueHealth;

#[test]
fn a_record_written_before_the_queue_stopped_is_never_lost() {
    loom::model(|| {
        let queue = Arc::new((QueueHealth::new(), AtomicBool::new(false), AtomicBool::new(false)));
        // The device writes a record, then stops.
        let device = {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || {
                queue.1.store(true, Ordering::Release);
                queue.2.store(true, Ordering::Release);
            })
        };
        // A thread whose own record is late checks the queue's health.
        let checker = {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || {
                if queue.2.load(Ordering::Acquire) {
                    queue.0.stop("it is disabled".to_owned());
                }
            })
        };
        // The record's owner: the queue's health first, then the record.
        if queue.0.is_dead() {
            assert!(queue.1.load(Ordering::Relaxed), "the record was written, and this thread does not see it");
        }
        device.join().unwrap();
        checker.join().unwrap();
    });
}
