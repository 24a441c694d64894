//! A worker that goes to sleep and a submitter that brings work never miss each other.
//!
//! Seen to fail: without either fence (or with sequentially consistent accesses in their place, which loom does not
//! order), loom reports a deadlock.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included as they are")]

#[path = "../src/runner/sleeper.rs"]
mod sleeper;
#[path = "../src/sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sleeper::Sleeper;

#[test]
fn work_submitted_while_falling_asleep_is_found() {
    loom::model(|| {
        let shared = Arc::new((Sleeper::new(), AtomicU32::new(0)));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleeper, work) = &*shared;
                while work.load(Ordering::Relaxed) == 0 {
                    sleeper.sleep(|| work.load(Ordering::Relaxed) != 0, thread::park);
                }
            })
        };
        let (sleeper, work) = &*shared;
        work.store(1, Ordering::Relaxed);
        sleeper.wake(|| worker.thread().unpark());
        worker.join().unwrap();
    });
}
