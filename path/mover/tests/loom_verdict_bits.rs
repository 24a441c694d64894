//! Verdicts that two threads set at the same time are both kept.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_verdict_bits`.
//!
//! **Seen to fail**: `put` with a load and a store instead of `fetch_or` (one thread's verdict lost).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/learn/verdict_bits.rs"]
mod verdict_bits;

use loom::sync::Arc;
use verdict_bits::VerdictBits;

#[test]
fn two_threads_that_set_different_steps_lose_no_verdict() {
    loom::model(|| {
        let verdicts = Arc::new(VerdictBits::new(0b10));
        let setter = {
            let verdicts = Arc::clone(&verdicts);
            loom::thread::spawn(move || verdicts.set(0, true, true))
        };
        verdicts.set(1, false, true);
        setter.join().unwrap();
        assert_eq!([0, 1].map(|at| (verdicts.is_device(at), verdicts.is_settled(at))), [(true, true), (false, true)]);
        assert_eq!(verdicts.first(), Some(0));
    });
}
