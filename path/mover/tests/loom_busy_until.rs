//! Concurrent updates of a queue's busy time are all counted, and the learned wake-up delay stays within the measured
//! ones.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_busy_until`.
//!
//! **Seen to fail**: `add` with a load and a store instead of `fetch_update` (two descriptors expected at the same
//! time);
//! `ended` with a load and a store (the other thread's correction lost); `learn` in two steps, `fetch_sub` and
//! `fetch_add` (a sleeper between the two steps reads less than any measured delay).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unused_imports, unreachable_pub, reason = "the test uses a part of it")]
#[path = "../src/wait/time.rs"]
mod time;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/wait/forecast.rs"]
mod forecast;

use forecast::{BusyUntil, WakeUp};
use loom::sync::Arc;
use std::time::Duration;
use time::Moment;

const fn at(nanos: u64) -> Moment {
    Moment { nanos }
}

const TEN: Duration = Duration::from_nanos(10);

#[test]
fn two_concurrent_descriptors_are_expected_one_behind_the_other() {
    loom::model(|| {
        let busy_until = Arc::new(BusyUntil::new());
        let other = {
            let busy_until = Arc::clone(&busy_until);
            loom::thread::spawn(move || busy_until.add(at(100), TEN))
        };
        let mut both = [busy_until.add(at(100), TEN), other.join().unwrap()];
        both.sort_unstable();
        assert_eq!(both, [(at(110), true), (at(120), false)]);
        assert_eq!(busy_until.add(at(100), TEN), (at(130), false));
    });
}

#[test]
fn an_early_end_moves_a_descriptor_that_is_submitted_meanwhile() {
    loom::model(|| {
        let busy_until = Arc::new(BusyUntil::new());
        let (due, _) = busy_until.add(at(100), TEN);
        let other = {
            let busy_until = Arc::clone(&busy_until);
            loom::thread::spawn(move || busy_until.add(at(106), TEN))
        };
        busy_until.ended(due, at(106));
        let (expected, alone) = other.join().unwrap();
        assert!((expected, alone) == (at(116), true) || (expected, alone) == (at(120), false));
        assert_eq!(busy_until.add(at(106), Duration::ZERO).0, at(116), "whichever was first");
    });
}

#[test]
fn concurrent_sleeps_do_not_teach_more_than_their_delay() {
    loom::model(|| {
        let wake_up = Arc::new(WakeUp::new());
        let (first, late) = (wake_up.get(), Duration::from_micros(60));
        let other = {
            let wake_up = Arc::clone(&wake_up);
            loom::thread::spawn(move || wake_up.learn(late))
        };
        let sleeper = {
            let wake_up = Arc::clone(&wake_up);
            loom::thread::spawn(move || wake_up.get())
        };
        wake_up.learn(late);
        let seen = sleeper.join().unwrap();
        other.join().unwrap();
        // One of the two samples may be lost, not both.
        assert!(first <= seen && seen < late, "{seen:?}");
        assert!(first < wake_up.get() && wake_up.get() < late);
    });
}
