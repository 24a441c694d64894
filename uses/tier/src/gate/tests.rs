//! Forks beside exchanges.
#![allow(unsafe_code, reason = "forks")]

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// Forks, and has the child take its turn.
fn fork() {
    // SAFETY: the child takes its turn, for which no other thread is needed, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(NoFork::new());
        // SAFETY: ends the child without anything of the parent's being run.
        unsafe { libc::_exit(0) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: our own child, a place of our own for its status.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(20) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::yield_now();
    }
    assert_eq!(status, 0, "a child waits for ever");
}

#[test]
fn forks_and_exchanges_take_turns_in_parents_and_children() {
    if !crate::stress::is_alone("forks_and_exchanges_take_turns_in_parents_and_children") {
        return;
    }
    hold_forks();
    let (over, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for mut state in 1..3_u64 {
            let (over, turns) = (&over, &turns);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let no_fork = NoFork::new();
                    turns.fetch_add(1, Ordering::Relaxed);
                    drop(no_fork);
                    // So that they come at any time of a fork.
                    (0..crate::stress::next(&mut state) % 5000).for_each(|_| std::hint::spin_loop());
                }
            });
        }
        // Two at a time: each child has the other's count.
        let forking = [0, 1].map(|_| scope.spawn(|| (0..100).for_each(|_| fork())));
        let forked = forking.map(|thread| thread.join());
        over.store(true, Ordering::Relaxed);
        assert!(forked.iter().all(Result::is_ok));
    });
    assert!(turns.load(Ordering::Relaxed) > 0);
}
