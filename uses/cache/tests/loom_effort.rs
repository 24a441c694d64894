//! Whoever comes furthers the work; one at a time, and all see one result.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-cache --test loom_effort`.
//!
//! **Seen to fail**: the store at the end of a turn relaxed, or the exchange that begins it (two threads have the work at once);
//! the load in `result` relaxed (a result read while it is written).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unreachable_pub, reason = "the test uses a part of it")]
#[path = "../src/effort.rs"]
mod effort;

use effort::{Effort, Turn};
use loom::sync::Arc;
use std::task::Poll;

/// Two steps, then a result that can be told from what was there before.
fn step(work: &mut Box<u32>) -> Poll<Box<u32>> {
    **work += 1;
    if **work < 2 { Poll::Pending } else { Poll::Ready(Box::new(**work + 40)) }
}

fn wait(effort: &Effort<Box<u32>, Box<u32>>) -> u32 {
    loop {
        match effort.turn(step) {
            Turn::Done(result) => return **result,
            Turn::NotYet | Turn::Another => loom::thread::yield_now(),
        }
    }
}

#[test]
fn two_who_wait_see_one_result_and_no_step_is_made_twice() {
    loom::model(|| {
        let effort = Arc::new(Effort::new(Box::new(0)));
        let other = {
            let effort = Arc::clone(&effort);
            loom::thread::spawn(move || wait(&effort))
        };
        assert_eq!((wait(&effort), other.join().unwrap()), (42, 42));
    });
}

#[test]
fn who_began_may_go_away_and_another_ends_it() {
    loom::model(|| {
        let effort = Arc::new(Effort::new(Box::new(0)));
        let other = {
            let effort = Arc::clone(&effort);
            // Submits, so to speak, and is never seen again.
            loom::thread::spawn(move || {
                let _ = effort.turn(step);
            })
        };
        assert_eq!(wait(&effort), 42);
        other.join().unwrap();
        assert_eq!(effort.result().map(|result| **result), Some(42));
    });
}

#[test]
fn who_only_looks_sees_nothing_or_all_of_it() {
    loom::model(|| {
        let effort = Arc::new(Effort::new(Box::new(1)));
        let other = {
            let effort = Arc::clone(&effort);
            loom::thread::spawn(move || wait(&effort))
        };
        assert!(effort.result().is_none_or(|result| **result == 42));
        other.join().unwrap();
    });
}
