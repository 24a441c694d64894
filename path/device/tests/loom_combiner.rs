//! Work that was submitted before a combiner's lock was found taken is always done.
//!
//! Seen to fail: without either fence, without the second try, and with the count compared to its value when the holder
//! started (work left before that, for a holder that does only its own), loom finds work that is never done.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included as they are")]

#[path = "../src/runner/combiner.rs"]
mod combiner;
#[path = "../src/sync.rs"]
mod sync;

use combiner::Combiner;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

#[test]
fn work_left_to_the_holder_is_done() {
    work_is_done(0);
}

/// The same if a thread tries once more before it leaves its work.
#[test]
fn work_left_after_a_wait_is_done() {
    work_is_done(1);
}

fn work_is_done(tries: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Arc::new((Combiner::new(()), [AtomicU32::new(0), AtomicU32::new(0)]));
        let bring = move |shared: &(Combiner<()>, [AtomicU32; 2]), own: usize| {
            let (combiner, work) = shared;
            work[own].store(1, Ordering::Relaxed);
            combiner.run(tries, |(), others| {
                // The thread's own work; the others' only if `others` says that there may be some.
                work[own].store(0, Ordering::Relaxed);
                if others {
                    work[1 - own].store(0, Ordering::Relaxed);
                }
                true
            });
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || bring(&shared, 1))
        };
        bring(&shared, 0);
        other.join().unwrap();
        assert!(shared.1.iter().all(|work| work.load(Ordering::Relaxed) == 0), "left undone");
    });
}
