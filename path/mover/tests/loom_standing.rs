//! Who sees a queue out sees every record it wrote, so a record that is empty then stays empty.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_standing`.
//!
//! **Seen to fail**: `stop` with `Relaxed` instead of `Release` (a record that was written counts as lost, and its work would be
//! done twice); `is_out` with `Relaxed` instead of `Acquire` (the same).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/standing.rs"]
mod standing;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use standing::Standing;

#[test]
fn a_record_written_before_the_queue_stopped_is_never_taken_for_lost() {
    loom::model(|| {
        let queue = Arc::new((Standing::new(), AtomicBool::new(false), AtomicBool::new(false)));
        // The device writes a record, then stops.
        let device = {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || {
                queue.1.store(true, Ordering::Release);
                queue.2.store(true, Ordering::Release);
            })
        };
        // Somebody whose own record is late asks how the queue does.
        let asker = {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || {
                if queue.2.load(Ordering::Acquire) {
                    queue.0.stop("it is disabled".to_owned());
                }
            })
        };
        // The record's owner: out first, then the record.
        if queue.0.is_out() {
            assert!(queue.1.load(Ordering::Relaxed), "it was written, and this side does not see it");
        }
        device.join().unwrap();
        asker.join().unwrap();
    });
}
