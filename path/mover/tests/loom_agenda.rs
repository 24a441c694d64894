//! What two threads tell a queue's agenda at once is all in it, and what sleeps teach stays within what they took.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_agenda`.
//!
//! **Seen to fail**: `add` with a load and a store instead of `fetch_update` (two descriptors expected at the same time);
//! `ended` with a load and a store (the other one's correction lost); `learn` in two steps, `fetch_sub` and
//! `fetch_add` (a sleeper between them reads less than any sleep was late).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unused_imports, unreachable_pub, reason = "the test uses a part of it")]
#[path = "../src/time.rs"]
mod time;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/forecast.rs"]
mod forecast;

use forecast::{Agenda, WakeUp};
use loom::sync::Arc;
use std::time::Duration;
use time::Moment;

const fn at(nanos: u64) -> Moment {
    Moment { nanos }
}

const TEN: Duration = Duration::from_nanos(10);

#[test]
fn of_two_that_are_sent_at_once_one_is_expected_behind_the_other() {
    loom::model(|| {
        let agenda = Arc::new(Agenda::new());
        let other = {
            let agenda = Arc::clone(&agenda);
            loom::thread::spawn(move || agenda.add(at(100), TEN))
        };
        let mut both = [agenda.add(at(100), TEN), other.join().unwrap()];
        both.sort_unstable();
        assert_eq!(both, [(at(110), true), (at(120), false)]);
        assert_eq!(agenda.add(at(100), TEN), (at(130), false));
    });
}

#[test]
fn what_ends_early_while_another_is_sent_moves_that_one_and_forgets_none() {
    loom::model(|| {
        let agenda = Arc::new(Agenda::new());
        let (due, _) = agenda.add(at(100), TEN);
        let other = {
            let agenda = Arc::clone(&agenda);
            loom::thread::spawn(move || agenda.add(at(106), TEN))
        };
        agenda.ended(due, at(106));
        let (expected, alone) = other.join().unwrap();
        assert!((expected, alone) == (at(116), true) || (expected, alone) == (at(120), false));
        assert_eq!(agenda.add(at(106), Duration::ZERO).0, at(116), "whichever was first");
    });
}

#[test]
fn sleeps_that_end_at_once_teach_no_more_than_they_took() {
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
        // One lesson may be lost, not both.
        assert!(first <= seen && seen < late, "{seen:?}");
        assert!(first < wake_up.get() && wake_up.get() < late);
    });
}
