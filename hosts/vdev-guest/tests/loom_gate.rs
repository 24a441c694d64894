//! What is taken out of a gate is used by nobody any more; what is inside has not been taken away.
//!
//! Seen to fail: with either fence left out, and with the Release of who leaves, or of who puts in, relaxed.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included as they are")]

#[path = "../src/gate.rs"]
mod gate;
#[path = "../src/sync.rs"]
mod sync;

use gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Stands for the thing: loom objects to a use while another thread changes it.
type Thing = UnsafeCell<u32>;

fn use_it(gate: &Gate<Thing>, thing: &Thing) {
    if let Some(inside) = gate.enter() {
        assert_eq!(inside.thing(), std::ptr::from_ref(thing));
        thing.with(|_| ());
    }
}

#[test]
fn nobody_is_inside_with_what_was_taken_out() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = Arc::new((Gate::new(), Thing::new(0)));
        shared.0.put_in((&raw const shared.1).cast_mut());
        let users: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || use_it(&shared.0, &shared.1))
            })
            .collect();
        let taken = shared.0.take_out(thread::yield_now);
        assert_eq!(taken.cast_const(), &raw const shared.1);
        // The end of the thing.
        shared.1.with_mut(|_| ());
        for user in users {
            user.join().unwrap();
        }
    });
}

#[test]
fn what_is_put_in_is_seen_whole() {
    loom::model(|| {
        let shared = Arc::new((Gate::new(), Thing::new(0)));
        let user = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || use_it(&shared.0, &shared.1))
        };
        shared.1.with_mut(|_| ());
        shared.0.put_in((&raw const shared.1).cast_mut());
        user.join().unwrap();
    });
}
