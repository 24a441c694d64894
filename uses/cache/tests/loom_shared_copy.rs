//! Any thread advances the work, one at a time, and all see one result.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-cache --test loom_shared_copy`.
//!
//! **Seen to fail**: with a relaxed store at the end of a turn, or a relaxed exchange at its begin (two threads have
//! the work at once); with a relaxed load in `result` (a result is read while it is written).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses only a part")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unreachable_pub, reason = "the test uses only a part")]
#[path = "../src/shared_copy.rs"]
mod shared_copy;

use loom::sync::Arc;
use shared_copy::{SharedCopy, Turn};
use std::task::Poll;

/// Two steps, then a result that differs from the work before it.
fn step(work: &mut Box<u32>) -> Poll<Box<u32>> {
    **work += 1;
    if **work < 2 { Poll::Pending } else { Poll::Ready(Box::new(**work + 40)) }
}

fn wait(shared_copy: &SharedCopy<Box<u32>, Box<u32>>) -> u32 {
    loop {
        match shared_copy.turn(step) {
            Turn::Done(result) => return **result,
            Turn::NotYet | Turn::Another => loom::thread::yield_now(),
        }
    }
}

#[test]
fn two_waiting_threads_see_one_result_and_no_step_runs_twice() {
    loom::model(|| {
        let shared_copy = Arc::new(SharedCopy::new(Box::new(0)));
        let other = {
            let shared_copy = Arc::clone(&shared_copy);
            loom::thread::spawn(move || wait(&shared_copy))
        };
        assert_eq!((wait(&shared_copy), other.join().unwrap()), (42, 42));
    });
}

#[test]
fn the_thread_that_began_may_leave_and_another_finishes() {
    loom::model(|| {
        let shared_copy = Arc::new(SharedCopy::new(Box::new(0)));
        let other = {
            let shared_copy = Arc::clone(&shared_copy);
            // Takes one step, and never returns.
            loom::thread::spawn(move || {
                let _ = shared_copy.turn(step);
            })
        };
        assert_eq!(wait(&shared_copy), 42);
        other.join().unwrap();
        assert_eq!(shared_copy.result().map(|result| **result), Some(42));
    });
}

#[test]
fn a_reader_sees_no_result_or_the_whole_one() {
    loom::model(|| {
        let shared_copy = Arc::new(SharedCopy::new(Box::new(1)));
        let other = {
            let shared_copy = Arc::clone(&shared_copy);
            loom::thread::spawn(move || wait(&shared_copy))
        };
        assert!(shared_copy.result().is_none_or(|result| **result == 42));
        other.join().unwrap();
    });
}
