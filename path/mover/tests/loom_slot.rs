//! A parked buffer is freed once, by one sweeper, after the record, and the slot's next user finds it empty.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_slot`.
//!
//! **Seen to fail**: `park` with `Relaxed` instead of `Release` (causality violation on the buffer); `claim` with a load
//! and a store instead of the exchange (two sweepers in one slot).
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells are opened with raw pointers")]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/slot.rs"]
mod slot;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use slot::SlotState;

struct Slot {
    state: SlotState,
    /// Stands for the completion record: written by the device, once.
    record: AtomicBool,
    /// What lies in the slot; 1 is a buffer.
    buffer: UnsafeCell<u32>,
    /// Buffers freed.
    freed: AtomicU32,
}

impl Slot {
    fn sweep(&self) {
        // Acquire: as `RecordCell::status`.
        if self.state.is_parked() && self.record.load(Ordering::Acquire) && self.state.claim() {
            // SAFETY: loom checks it.
            let taken = self.buffer.with_mut(|buffer| unsafe { std::mem::take(&mut *buffer) });
            self.freed.fetch_add(taken, Ordering::Relaxed);
            self.state.vacate();
        }
    }
}

#[test]
fn a_parked_buffer_is_freed_once_and_after_its_record() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let slot = Arc::new(Slot {
            state: SlotState::new(),
            record: AtomicBool::new(false),
            buffer: UnsafeCell::new(0),
            freed: AtomicU32::new(0),
        });
        slot.state.board();
        let device = {
            let slot = Arc::clone(&slot);
            loom::thread::spawn(move || slot.record.store(true, Ordering::Release))
        };
        let sweeper = {
            let slot = Arc::clone(&slot);
            loom::thread::spawn(move || {
                slot.sweep();
                assert!(slot.freed.load(Ordering::Relaxed) <= 1);
            })
        };
        // The owner is dropped: its buffer goes to the slot.
        // SAFETY: loom checks it.
        slot.buffer.with_mut(|buffer| unsafe { *buffer = 1 });
        slot.state.park();
        slot.sweep();
        device.join().unwrap();
        sweeper.join().unwrap();
        slot.sweep();
        assert_eq!(slot.freed.load(Ordering::Relaxed), 1, "freed once, and not for ever kept");
        slot.state.board();
    });
}
