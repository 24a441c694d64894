//! A fault at every byte of a two-page move, of either operand, in both directions: not a byte is lost or done twice.

use crate::common::device::TestDevice;
use crate::common::{Chance, mover, policy};
use std::ops::Range;
use std::sync::Arc;
use telpher_mover::{OnFault, Outcome, Policy, StableBuf, Via};

/// Two pages.
const LEN: usize = 8192;

/// Distance of an overlapping move.
const APART: usize = 1000;

/// Faults once at each offset of `faulting` in a move of `LEN` bytes within one buffer. With `backward` the device runs
/// backward where it may.
fn every_offset(from: usize, to: usize, faulting: Range<usize>, backward: bool, on_fault: OnFault) {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().backward = backward;
    let mover = mover(&device, Policy { on_fault, ..policy() });
    let before = Chance::new(5).bytes(from.max(to) + LEN);
    let mut expected = before.clone();
    expected.copy_within(from..from + LEN, to);
    let mut buffer = before.clone();
    for offset in 0..LEN {
        buffer.copy_from_slice(&before);
        device.fault_at(buffer.address() + (faulting.start + offset) as u64, 1);
        let done = mover.copy_within(buffer, from..from + LEN, to).wait();
        assert_eq!(done.result, Ok(Outcome::Done), "{offset}");
        buffer = done.buffers.0;
        assert!(buffer == expected, "from {from} to {to}, fault at {offset}, {on_fault:?}");
        let mut state = device.state();
        assert_eq!(state.faulted, offset + 1, "the device reached the byte");
        let first = if backward { faulting.end - 1 } else { faulting.start };
        let via = match on_fault {
            // It had not done a byte.
            OnFault::FinishOnCpu if faulting.start + offset == first => Via::Cpu,
            OnFault::FinishOnCpu => Via::Both,
            _ => Via::Device,
        };
        assert_eq!(done.via, via, "{offset}");
        state.taken.clear();
    }
}

/// Runs `every_offset` with faults in the source and in the destination, under each fault policy.
fn both_operands(from: usize, to: usize, backward: bool) {
    for on_fault in [OnFault::FinishOnCpu, OnFault::TouchAndResubmit { limit: 4 }] {
        every_offset(from, to, from..from + LEN, backward, on_fault);
        every_offset(from, to, to..to + LEN, backward, on_fault);
    }
}

#[test]
fn a_move_to_elsewhere_forward() {
    both_operands(0, LEN, false);
}

#[test]
fn a_move_to_elsewhere_backward() {
    both_operands(LEN, 0, true);
}

#[test]
fn an_overlapping_move_towards_the_end() {
    // The device must run backward; a byte of the overlap belongs to both operands.
    overlapping(0, APART);
}

#[test]
fn an_overlapping_move_towards_the_start() {
    overlapping(APART, 0);
}

/// Runs an overlapping move with a fault at each byte of the whole buffer, at its first access.
fn overlapping(from: usize, to: usize) {
    for on_fault in [OnFault::FinishOnCpu, OnFault::TouchAndResubmit { limit: 4 }] {
        let device = Arc::new(TestDevice::with(|_| {}));
        let mover = mover(&device, Policy { on_fault, ..policy() });
        let before = Chance::new(6).bytes(LEN + APART);
        let mut expected = before.clone();
        expected.copy_within(from..from + LEN, to);
        let mut buffer = before.clone();
        for offset in 0..LEN + APART {
            buffer.copy_from_slice(&before);
            device.fault_at(buffer.address() + offset as u64, 1);
            let done = mover.copy_within(buffer, from..from + LEN, to).wait();
            assert_eq!(done.result, Ok(Outcome::Done), "{offset}");
            buffer = done.buffers.0;
            assert!(buffer == expected, "from {from} to {to}, fault at {offset}, {on_fault:?}");
            assert_eq!(device.state().faulted, offset + 1, "the device reached the byte");
            device.state().taken.clear();
        }
    }
}
