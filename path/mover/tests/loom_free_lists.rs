//! A number has one holder, whichever thread's list it comes from and whichever thread puts it back.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_free_lists`.
//!
//! **Seen to fail**: `FreeLists::push` to the calling thread's list instead of the number's own (a number handed out
//! twice);
//! `FreeList::push` with `Relaxed` instead of `Release` (a thread that takes from another's list misses its last
//! writes).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/inflight/free_list.rs"]
mod free_list;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/inflight/free_lists.rs"]
mod free_lists;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/thread_stripe.rs"]
mod thread_stripe;

use free_lists::FreeLists;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

#[test]
fn a_number_from_any_list_has_one_holder_that_sees_what_the_last_one_did() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        // Two lists of one number each.
        let shared = Arc::new((FreeLists::new(2), [UnsafeCell::new(0_u32), UnsafeCell::new(0_u32)]));
        let threads = [0, 1].map(|thread| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                // From the thread's own list if it has one, then from the other list.
                let both = [shared.0.pop(thread), shared.0.pop(thread)];
                for number in both.into_iter().flatten() {
                    shared.1[number as usize].with_mut(|_slot| ());
                    shared.0.push(number);
                }
                both[0].is_some()
            })
        });
        let had = threads.map(|thread| thread.join().unwrap());
        assert!(had.contains(&true), "the first thread found a number");
        let mut all = [(); 3].map(|()| shared.0.pop(0));
        all.sort_unstable();
        assert_eq!(all, [None, Some(0), Some(1)]);
    });
}
