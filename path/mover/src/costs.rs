//! What operations cost on this machine: a line through measured times for each operation, on the CPU and on the devices.
//!
//! One estimate serves three decisions: whether an operation goes to a device, how a copy is shared between CPU and device, and
//! how long a waiting thread may sleep.

use std::time::Duration;
use telpher_abi::Opcode;

/// Who did the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Worker {
    /// The calling thread.
    Cpu,
    /// A device, by way of this lane.
    Device {
        /// Index of the lane.
        lane: usize,
    },
}

/// Estimates for one mover.
#[derive(Debug, Default)]
pub(crate) struct Costs {}

#[allow(dead_code, reason = "scaffolding of this session")]
impl Costs {
    /// How long `bytes` of `op` are expected to take from offer to record (device, alone in its queue) or on the CPU.
    pub(crate) fn predict(&self, op: Opcode, bytes: u64, worker: Worker) -> Duration {
        let _ = (op, worker);
        Duration::from_nanos(1000 + bytes / 8)
    }

    /// One measured time.
    pub(crate) fn learn(&self, op: Opcode, bytes: u64, worker: Worker, took: Duration) {
        let _ = (op, bytes, worker, took);
    }
}
