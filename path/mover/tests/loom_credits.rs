//! No more credits are taken than the queue has entries, and a credit's holder sees what its last holder did.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_credits`.
//!
//! **Seen to fail**: `give` with `Relaxed` instead of `Release` (causality violation on the entry); `take` with a load
//! and a store instead of the exchange (two holders of one entry).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/plan/credit.rs"]
mod credit;

use credit::Credits;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

#[test]
fn one_entry_has_one_holder_at_a_time() {
    loom::model(|| {
        // The queue's only entry; the holder of the credit may use it.
        let shared = Arc::new((Credits::new(1), UnsafeCell::new(0_u32)));
        let threads = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(credit) = shared.0.take() {
                        shared.1.with_mut(|_entry| ());
                        shared.0.give(credit);
                    }
                    loom::thread::yield_now();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (a, b) = (shared.0.take(), shared.0.take());
        assert!(a.is_some() && b.is_none(), "the credit is back, once");
    });
}
