//! After `take_out` returns, no thread uses the object; an object in use has not been taken out.
//!
//! Seen to fail: with either fence removed, and with the Release in `drop` or in `put_in` relaxed.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included unchanged")]

#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/user_count.rs"]
mod user_count;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use user_count::Gate;

/// Stands for the object: loom reports a use while another thread changes it.
type Object = UnsafeCell<u32>;

fn use_it(gate: &Gate<Object>, object: &Object) {
    if let Some(inside) = gate.enter() {
        assert_eq!(inside.object(), std::ptr::from_ref(object));
        object.with(|_| ());
    }
}

#[test]
fn no_thread_uses_an_object_that_was_taken_out() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = Arc::new((Gate::new(), Object::new(0)));
        shared.0.put_in((&raw const shared.1).cast_mut());
        let users: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || use_it(&shared.0, &shared.1))
            })
            .collect();
        let taken = shared.0.take_out(thread::yield_now);
        assert_eq!(taken.cast_const(), &raw const shared.1);
        // The object is destroyed here.
        shared.1.with_mut(|_| ());
        for user in users {
            user.join().unwrap();
        }
    });
}

#[test]
fn an_object_that_is_put_in_is_completely_visible() {
    loom::model(|| {
        let shared = Arc::new((Gate::new(), Object::new(0)));
        let user = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || use_it(&shared.0, &shared.1))
        };
        shared.1.with_mut(|_| ());
        shared.0.put_in((&raw const shared.1).cast_mut());
        user.join().unwrap();
    });
}
