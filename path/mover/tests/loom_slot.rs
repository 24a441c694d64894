//! A parked buffer is freed once, by one sweeper, after the record, and the slot's next user finds it empty.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mover --test loom_slot`.
//!
//! **Seen to fail**: `park` with `Relaxed` instead of `Release` (causality violation on the buffer); `claim_if` with a
//! load and a store instead of the exchange (two sweepers in one slot);
//! `claim_if` without its second check (the second job's buffer freed without a record).
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells are opened with raw pointers")]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/inflight/slot.rs"]
mod slot;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use slot::SlotState;

struct Slot {
    state: SlotState,
    /// Stands for the completion record: written by the device, once.
    record: AtomicBool,
    /// The buffer in the slot; 0 is none.
    buffer: UnsafeCell<u32>,
    /// Sum of the buffers freed.
    freed: AtomicU32,
}

impl Slot {
    fn new() -> Arc<Self> {
        Arc::new(Slot {
            state: SlotState::new(),
            record: AtomicBool::new(false),
            buffer: UnsafeCell::new(0),
            freed: AtomicU32::new(0),
        })
    }

    /// Puts a job into the slot whose owner drops it in flight.
    fn acquire_and_park(&self, buffer: u32) {
        self.state.acquire();
        // Relaxed: as `RecordCell::clear`.
        self.record.store(false, Ordering::Relaxed);
        self.park(buffer);
    }

    fn park(&self, buffer: u32) {
        // SAFETY: loom checks it.
        self.buffer.with_mut(|slot| unsafe { *slot = buffer });
        self.state.park();
    }

    /// Does what `Table::sweep_one` does; returns true if it freed the slot.
    fn sweep(&self) -> bool {
        // Acquire: as `RecordCell::status`.
        if !self.state.claim_if(|| self.record.load(Ordering::Acquire)) {
            return false;
        }
        // SAFETY: loom checks it.
        let taken = self.buffer.with_mut(|buffer| unsafe { std::mem::take(&mut *buffer) });
        self.freed.fetch_add(taken, Ordering::Relaxed);
        self.state.vacate();
        true
    }
}

#[test]
fn a_parked_buffer_is_freed_once_and_after_its_record() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let slot = Slot::new();
        slot.state.acquire();
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
        slot.park(1);
        slot.sweep();
        device.join().unwrap();
        sweeper.join().unwrap();
        slot.sweep();
        assert_eq!(slot.freed.load(Ordering::Relaxed), 1, "freed once, and not kept for ever");
        slot.state.acquire();
    });
}

#[test]
fn a_slot_used_again_is_not_freed_by_the_record_of_its_last_user() {
    loom::model(|| {
        let slot = Slot::new();
        slot.acquire_and_park(1);
        slot.record.store(true, Ordering::Release);
        let sweeper = {
            let slot = Arc::clone(&slot);
            loom::thread::spawn(move || slot.sweep())
        };
        // The thread that freed the slot uses it again: a second job, dropped in flight, whose record is still to come.
        let again = slot.sweep();
        if again {
            slot.acquire_and_park(16);
        }
        assert_ne!(sweeper.join().unwrap(), again, "one of them freed the first job, and none the second");
        assert_eq!(slot.freed.load(Ordering::Relaxed), 1);
        if again {
            slot.record.store(true, Ordering::Release);
            assert!(slot.sweep(), "left parked for its own record");
            assert_eq!(slot.freed.load(Ordering::Relaxed), 17);
        }
    });
}
