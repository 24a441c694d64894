//! A device that takes a slot sees everything that the last device has counted there, and has the slot alone.
//!
//! Seen to fail: with `Relaxed` in place of the Acquire in `take`, or of the Release in `close`, loom finds a lost
//! count.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included as they are")]

#[path = "../src/in_process/slot_state.rs"]
mod slot_state;
#[path = "../src/sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use slot_state::SlotState;

/// A device: takes the slot, counts without an atomic addition, and is closed. Returns how often it counted.
fn device(slot: &SlotState, count: &AtomicU64) -> u64 {
    if !slot.take() {
        return 0;
    }
    slot.open();
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    slot.close();
    1
}

#[test]
fn devices_that_follow_each_other_in_a_slot_lose_no_count() {
    loom::model(|| {
        let shared = Arc::new((SlotState::default(), AtomicU64::new(0)));
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || device(&shared.0, &shared.1) + device(&shared.0, &shared.1))
        };
        let own = device(&shared.0, &shared.1);
        let counted = own + other.join().unwrap();
        assert_eq!(shared.1.load(Ordering::Relaxed), counted);
        assert!(counted > 0);
    });
}
