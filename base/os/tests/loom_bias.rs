//! Loom: the favored thread and others take a value at the same time, until no thread is favored any more. Properties:
//! no two threads have the value at once, each sees what the other has written, and none waits for ever.
//!
//! Loom has no barrier that one thread executes for another. Here each half of the barrier is a fence that its own
//! thread executes (`fence_favored`, `fence_all`), so loom checks the protocol with symmetric fences. That the favored
//! thread needs no fence of its own rests on what membarrier(2) documents for MEMBARRIER_CMD_PRIVATE_EXPEDITED: when
//! the call returns, every running thread of the process has executed a full barrier; and on the compiler fence in
//! `sync.rs`, which keeps the two accesses of the favored thread in order. `no_change_is_lost` in `biased_mutex.rs`
//! runs the real barrier.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-os --test loom_bias`. Seen to fail without the
//! fence of either side, without the wait in `take_turn`, with the Release of `leave` or the Acquire of that wait
//! weakened to Relaxed, with the Release of `leave_turn` or the Acquire of `is_wanted` in `try_enter` weakened to
//! Relaxed, with `is_wanted` unset after the favor has ended, and with a turn for a refused thread.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cell")]
#![allow(dead_code, unreachable_pub, reason = "the file is included as it is")]

#[path = "../src/thread/bias.rs"]
mod bias;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;

    std::thread_local! {
        /// True while the system refuses the barrier. All threads of loom run in one thread of the system.
        pub(super) static REFUSES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    pub(super) fn fence_favored() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(super) fn fence_all() -> bool {
        if REFUSES.get() {
            return false;
        }
        loom::sync::atomic::fence(Ordering::SeqCst);
        true
    }

    pub(super) fn pause(_looks: u32) {
        loom::thread::yield_now();
    }
}

use bias::{Bias, MOST_BY_OTHERS};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Numbers of threads.
const FAVORED: usize = 2;
const OTHER: usize = 4;
const THIRD: usize = 6;

/// The flags, and a value of which loom notices every race.
struct Guarded {
    bias: Bias,
    value: UnsafeCell<u32>,
}

// SAFETY: loom checks the accesses.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded { bias: Bias::new(true), value: UnsafeCell::new(0) })
    }

    fn add(&self) {
        // SAFETY: loom's cell objects to every race.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn value(&self) -> u32 {
        // SAFETY: as above.
        self.value.with(|value| unsafe { *value })
    }

    /// Locks as a thread, adds 1, and unlocks. False if the system refuses.
    fn add_as(&self, this: usize, counts: bool) -> bool {
        if counts && self.bias.try_enter(this) {
            self.add();
            self.bias.leave();
            return true;
        }
        let Ok(turn) = self.bias.take_turn(this, counts) else { return false };
        self.add();
        self.bias.leave_turn(turn);
        true
    }
}

fn check(threads: &'static [(usize, bool, u32)], favored_adds: u32) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(move || {
        let guarded = Guarded::new();
        assert!(guarded.add_as(FAVORED, true));
        let others: Vec<_> = threads
            .iter()
            .map(|&(this, counts, adds)| {
                let there = Arc::clone(&guarded);
                thread::spawn(move || (0..adds).for_each(|_| assert!(there.add_as(this, counts))))
            })
            .collect();
        (0..favored_adds).for_each(|_| assert!(guarded.add_as(FAVORED, true)));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(guarded.value(), 1 + favored_adds + threads.iter().map(|(.., adds)| adds).sum::<u32>());
    });
}

#[test]
fn a_guest_and_the_favored_thread_exclude_each_other() {
    check(&[(OTHER, false, 2)], 2);
}

#[test]
fn threads_exclude_each_other_while_the_favor_ends() {
    // The last turn of the other thread comes after the favor.
    check(&[(OTHER, true, MOST_BY_OTHERS + 1)], 2);
}

#[test]
fn two_others_and_the_favored_thread_exclude_each_other() {
    check(&[(OTHER, true, 1), (THIRD, true, 1)], 1);
}

/// The first turn makes its thread the favored one, while others take turns.
#[test]
fn the_first_thread_becomes_favored_while_a_guest_has_turns() {
    loom::model(|| {
        let guarded = Guarded::new();
        let there = Arc::clone(&guarded);
        let guest = thread::spawn(move || assert!(there.add_as(OTHER, false)));
        (0..2).for_each(|_| assert!(guarded.add_as(FAVORED, true)));
        guest.join().unwrap();
        assert_eq!(guarded.value(), 3);
    });
}

#[test]
fn a_refused_thread_does_not_enter_and_the_favored_one_goes_on() {
    loom::model(|| {
        sync::REFUSES.set(true);
        let guarded = Guarded::new();
        assert!(guarded.add_as(FAVORED, true));
        let there = Arc::clone(&guarded);
        let refused = thread::spawn(move || assert!(!there.add_as(OTHER, true)));
        (0..2).for_each(|_| assert!(guarded.add_as(FAVORED, true)));
        refused.join().unwrap();
        assert!(guarded.bias.try_enter(FAVORED), "the favor is as before");
        guarded.bias.leave();
        assert_eq!(guarded.value(), 3);
    });
}
