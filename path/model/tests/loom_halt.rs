//! Once a halted device has come to rest, nothing touches memory any more: not the descriptor that was in hand, and none that
//! waited, whatever commands are written meanwhile.
//!
//! Seen to fail, each with two accesses to the same memory at once: with the state looked at before the turn in `take`; without
//! the turn in `is_at_rest`; with the Release of `let_go` weakened to `Relaxed`; and with a command that looks at the state and then
//! sets it, as Disable Device once did, so that a halt between the two was forgotten.
#![cfg(loom)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the files are included as they are; each test uses its part"
)]

#[path = "../src/lane.rs"]
mod lane;
#[path = "../src/state.rs"]
mod state;
#[path = "../src/sync.rs"]
mod sync;

use lane::Lane;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use state::State;
use sync::{Turn, Word};
use telpher_abi::registers::DeviceState;

#[derive(Default)]
struct Device {
    state: State,
    turn: Turn,
    lane: Lane,
    waiting: Word,
    memory: UnsafeCell<u32>,
}

// Loom's own cell reports concurrent access; the protocol is what forbids it.
#[allow(unsafe_code, reason = "the test asks whether the protocol excludes")]
// SAFETY: `memory` is touched by who has a descriptor in hand, and by who found the device at rest.
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

    /// Takes what waits and executes it, as an engine does.
    fn step(&self) {
        let taken = self.state.take(&self.turn, || {
            let waits = self.waiting.get() > 0;
            if waits {
                self.waiting.set(self.waiting.get() - 1);
                self.lane.take(0, 0, 0);
            }
            waits
        });
        if taken == Some(Some(true)) {
            self.touch();
            self.lane.let_go();
        }
    }

    /// Disable Device, up to where it waits.
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
        if device.state.is_at_rest(&device.turn, || device.lane.holds(0, u64::MAX, None)) {
            device.touch();
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn what_was_in_hand_is_over_and_what_waited_stays() {
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
