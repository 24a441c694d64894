//! Once a halted device is at rest, nothing accesses memory any more: neither the descriptor that was in progress nor
//! those that waited, whatever commands are written meanwhile.
//!
//! Seen to fail, each with two concurrent accesses to the same memory: if `take` reads the state before it takes the
//! lock; if `is_at_rest` does not take the lock; if the Release in `release` is weakened to `Relaxed`; and if a command
//! reads the state and then sets it, as Disable Device once did, so that a halt in between was lost.
#![cfg(loom)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the files are included as they are; each test uses its part"
)]

#[path = "../src/in_progress.rs"]
mod in_progress;
#[path = "../src/state.rs"]
mod state;
#[path = "../src/sync.rs"]
mod sync;

use in_progress::EngineLane;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use state::State;
use sync::{TryLock, Word};
use telpher_abi::registers::DeviceState;

#[derive(Default)]
struct Device {
    state: State,
    lock: TryLock,
    lane: EngineLane,
    waiting: Word,
    memory: UnsafeCell<u32>,
}

// Loom's own cell reports concurrent access; the protocol must prevent it.
#[allow(unsafe_code, reason = "the test checks that the protocol excludes")]
// SAFETY: `memory` is accessed by the thread with a descriptor in progress, and by the thread that found the device at
// rest.
unsafe impl Sync for Device {}

impl Device {
    fn touch(&self) {
        self.memory.with_mut(|memory| {
            #[allow(unsafe_code, reason = "as above")]
            // SAFETY: as above.
            unsafe {
                *memory += 1;
            }
        });
    }

    /// Takes a waiting descriptor and executes it, as an engine does.
    fn step(&self) {
        let taken = self.state.take(&self.lock, || {
            let waits = self.waiting.get() > 0;
            if waits {
                self.waiting.set(self.waiting.get() - 1);
                self.lane.take(0, 0, 0, false);
            }
            waits
        });
        if taken == Some(Some(true)) {
            self.touch();
            self.lane.release();
        }
    }

    /// Disable Device, up to the point where it waits.
    fn disable(&self) {
        self.state.change(&[DeviceState::Enabled], DeviceState::Draining);
    }

    fn halt(&self) {
        assert!(self.state.change(&[DeviceState::Enabled, DeviceState::Draining], DeviceState::Halted));
    }
}

fn check(waiting: u64, others: &'static [fn(&Device)]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let device = Arc::new(Device::default());
        device.waiting.set(waiting);
        assert!(device.state.change(&[DeviceState::Disabled], DeviceState::Enabled));
        let others: Vec<_> = others
            .iter()
            .map(|act| {
                let device = Arc::clone(&device);
                thread::spawn(move || act(&device))
            })
            .collect();
        device.halt();
        if device.state.is_at_rest(&device.lock, || device.lane.holds(0, u64::MAX, None)) {
            device.touch();
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_halt_ends_what_is_in_progress_and_keeps_what_waits() {
    fn engine(device: &Device) {
        device.step();
        device.step();
    }
    check(2, &[engine]);
}

#[test]
fn a_command_does_not_undo_a_halt() {
    check(1, &[Device::step, Device::disable]);
}
