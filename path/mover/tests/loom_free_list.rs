//! A number from the free list has one holder, and that holder sees what the last one did.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_free_list`.
//!
//! **Seen to fail**: `push` with `Relaxed` instead of `Release` (causality violation on the slot); a head whose counter
//! does not count (a number lost, by ABA).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/inflight/free_list.rs"]
mod free_list;

use free_list::FreeList;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn a_number_has_one_holder_that_sees_what_the_last_one_did() {
    model(|| {
        let shared = Arc::new((FreeList::new(2), [UnsafeCell::new(0_u32), UnsafeCell::new(0_u32)]));
        let threads = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                // Pops both and pushes them in the other order, as ABA requires.
                let (a, b) = (shared.0.pop(), shared.0.pop());
                for index in [a, b].into_iter().flatten() {
                    shared.1[index as usize].with_mut(|_slot| ());
                    shared.0.push(index);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let all = [shared.0.pop(), shared.0.pop(), shared.0.pop()];
        assert!(all[0].is_some() && all[1].is_some() && all[0] != all[1] && all[2].is_none(), "{all:?}");
    });
}
