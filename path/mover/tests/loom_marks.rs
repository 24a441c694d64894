//! Verdicts that two threads set at once both stand.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_marks`.
//!
//! **Seen to fail**: `put` with a load and a store instead of `fetch_or` (one thread's verdict lost).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/marks.rs"]
mod marks;

use loom::sync::Arc;
use marks::Marks;

#[test]
fn two_threads_that_set_different_steps_lose_neither() {
    loom::model(|| {
        let marks = Arc::new(Marks::new(0b10));
        let setter = {
            let marks = Arc::clone(&marks);
            loom::thread::spawn(move || marks.set(0, true, true))
        };
        marks.set(1, false, true);
        setter.join().unwrap();
        assert_eq!([0, 1].map(|at| (marks.is_device(at), marks.is_settled(at))), [(true, true), (false, true)]);
        assert_eq!(marks.first(), Some(0));
    });
}
