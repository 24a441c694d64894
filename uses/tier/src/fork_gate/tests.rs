//! Forks concurrent with exchanges.
#![allow(unsafe_code, reason = "forks")]

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;
use telpher_os::Random;

/// Forks; the child starts and ends an exchange.
fn fork() {
    // SAFETY: the child starts and ends an exchange, which needs no other thread, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(NoFork::new());
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(0) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: our own child, and a local variable for its status.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(20) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::yield_now();
    }
    assert_eq!(status, 0, "a child waits forever");
}

#[test]
fn forks_and_exchanges_take_turns_in_parents_and_children() {
    if !crate::stress::is_alone("forks_and_exchanges_take_turns_in_parents_and_children") {
        return;
    }
    hold_forks();
    let (over, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 1..3_u64 {
            let (over, turns) = (&over, &turns);
            let mut random = Random::new(seed);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let no_fork = NoFork::new();
                    turns.fetch_add(1, Ordering::Relaxed);
                    drop(no_fork);
                    // Varies the time, so that exchanges start at any point of a fork.
                    (0..random.below(5000)).for_each(|_| std::hint::spin_loop());
                }
            });
        }
        // Two threads at a time: each child inherits the other's count.
        let forking = [0, 1].map(|_| scope.spawn(|| (0..100).for_each(|_| fork())));
        let forked = forking.map(|thread| thread.join());
        over.store(true, Ordering::Relaxed);
        assert!(forked.iter().all(Result::is_ok));
    });
    assert!(turns.load(Ordering::Relaxed) > 0);
}
