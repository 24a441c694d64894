//! One thread of a process opens its device, whatever its parent did before.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-offload-guest --test loom_opening`.
//!
//! **Seen to fail** with a load and a store instead of the exchange.
#![cfg(loom)]

#[path = "../src/opening.rs"]
mod opening;
#[path = "../src/sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::thread;
use opening::Opening;

#[test]
fn one_of_several_threads_opens_the_device() {
    for opened_before in [false, true] {
        loom::model(move || {
            let opening = Arc::new(Opening::new());
            if opened_before {
                assert!(opening.begin(1), "the parent");
            }
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let opening = Arc::clone(&opening);
                    thread::spawn(move || opening.begin(2))
                })
                .collect();
            let own = opening.begin(2);
            let others = threads.into_iter().map(|thread| thread.join().unwrap());
            assert_eq!(others.chain([own]).filter(|begins| *begins).count(), 1);
            assert!(!opening.begin(2));
        });
    }
}
