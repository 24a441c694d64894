//! Loom: three threads take turns at one place, and one of them goes on to a next turn. Properties: at no time do more
//! threads have a place than there are places, and a thread that waits for a place gets one (loom reports a deadlock
//! otherwise).
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-vfio --test loom_turns`.
//! Seen to fail with `leave` not granting the place, and with `next_turn` granting it without giving up its own.
#![cfg(loom)]

#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/turns.rs"]
mod turns;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use turns::{Allowance, EnginePool};

/// Executes: no other thread may at the same time.
fn execute(executing: &AtomicUsize) {
    assert_eq!(executing.fetch_add(1, Ordering::Relaxed), 0);
    executing.fetch_sub(1, Ordering::Relaxed);
}

#[test]
fn one_place_is_never_given_twice_and_never_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let pool = Arc::new(EnginePool::new(1, &[Allowance { weight: 1, bandwidth: None }; 3]));
        let executing = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|member| {
                let (pool, executing) = (Arc::clone(&pool), Arc::clone(&executing));
                thread::spawn(move || {
                    pool.take(member);
                    execute(&executing);
                    if member == 0 {
                        pool.next_turn(member, 10);
                        execute(&executing);
                    }
                    pool.leave(member, 1);
                })
            })
            .collect();
        pool.take(2);
        execute(&executing);
        pool.leave(2, 5);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
