//! The costs of operations on this machine: times by size for each operation, on the CPU and on each queue.
//!
//! One table serves three decisions: whether an operation goes to a device, how a copy is shared between CPU and
//! device, and how long a waiting thread may sleep. It starts with published times ([`device_nanos`], [`cpu_nanos`]).
//! Every measured time corrects it at its own size and around that size ([`Row`]). This file reads no clock: the
//! callers of `learn` have measured.

use crate::learn::estimate::{Row, log, scaled, step};
use std::time::Duration;
use telpher_abi::Opcode;

/// The executor of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Worker {
    /// The calling thread.
    Cpu,
    /// A device, through this queue.
    Device {
        /// Index of the queue.
        queue: usize,
    },
}

/// Estimates for one mover. Threads learn and predict concurrently without waiting.
#[derive(Debug)]
pub(crate) struct Costs {
    /// The CPU's times, then each queue's.
    workers: Box<[Box<[Row]>]>,
}

impl Costs {
    /// A table for a mover with this many queues. Six KiB for each queue, and for the CPU.
    pub(crate) fn new(queues: usize) -> Self {
        let rows = || (0..KINDS).map(|_| Row::new()).collect();
        Costs { workers: (0..=queues).map(|_| rows()).collect() }
    }

    pub(crate) fn row(&self, kind: Kind, worker: Worker) -> Option<&Row> {
        let worker = match worker {
            Worker::Cpu => 0,
            Worker::Device { queue } => queue.checked_add(1)?,
        };
        self.workers.get(worker).map(|rows| &rows[kind as usize])
    }

    /// Returns how long `bytes` of `op` are expected to take: on the CPU, or from offer to record if the queue has
    /// nothing else. An operation without a size, or a queue that does not exist, gets the published time of the
    /// cheapest operation.
    pub(crate) fn predict(&self, op: Opcode, bytes: u64, worker: Worker) -> Duration {
        let kind = Kind::of(op);
        let correction = self.row(kind, worker).map_or(0, |row| row.correction(step(bytes)));
        Duration::from_nanos(scaled(published(kind, bytes, worker), correction))
    }

    /// Learns one measured time: from offer to record if the record was seen at once (a device), or of the call (the
    /// CPU).
    pub(crate) fn learn(&self, op: Opcode, bytes: u64, worker: Worker, took: Duration) {
        let kind = Kind::of(op);
        if let Some(row) = self.row(kind, worker) {
            row.learn(step(bytes), sample(kind, bytes, worker, took));
        }
    }

    /// Replaces an estimate by a time that was measured carefully elsewhere (a tuning file).
    pub(crate) fn load(&self, op: Opcode, bytes: u64, worker: Worker, took: Duration) {
        let kind = Kind::of(op);
        if let Some(row) = self.row(kind, worker) {
            row.at(step(bytes)).set(sample(kind, bytes, worker, took));
        }
    }
}

/// The logarithm of a measured time over the published one.
fn sample(kind: Kind, bytes: u64, worker: Worker, took: Duration) -> i32 {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    log(nanos) - log(published(kind, bytes, worker))
}

/// Operations whose times are kept apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Move,
    Fill,
    Compare,
    ComparePattern,
    CreateDelta,
    ApplyDelta,
    Dualcast,
    Crc,
    CopyCrc,
    Dif,
    Flush,
    /// Gather, scatter.
    List,
    /// Convert, reduce.
    Numbers,
    /// All operations without a size.
    Other,
}

/// Number of kinds.
pub(crate) const KINDS: usize = Kind::Other as usize + 1;

impl Kind {
    #[inline(always)]
    pub(crate) fn of(op: Opcode) -> Kind {
        match op {
            Opcode::MemoryMove => Kind::Move,
            Opcode::Fill => Kind::Fill,
            Opcode::Compare => Kind::Compare,
            Opcode::ComparePattern => Kind::ComparePattern,
            Opcode::CreateDelta => Kind::CreateDelta,
            Opcode::ApplyDelta => Kind::ApplyDelta,
            Opcode::Dualcast => Kind::Dualcast,
            Opcode::CrcGeneration => Kind::Crc,
            Opcode::CopyCrc => Kind::CopyCrc,
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate | Opcode::DixGenerate => {
                Kind::Dif
            }
            Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => Kind::List,
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast | Opcode::GatherReduce => Kind::Numbers,
            Opcode::CacheFlush => Kind::Flush,
            _ => Kind::Other,
        }
    }
}

/// The time assumed before anything was measured, in nanoseconds; never 0.
pub(crate) fn published(kind: Kind, bytes: u64, worker: Worker) -> u64 {
    match worker {
        Worker::Cpu => cpu_nanos(kind, bytes),
        Worker::Device { .. } => device_nanos(kind, bytes),
    }
}

/// A device's time from offer to record: a base, an increment for each doubling (from 64 bytes to 4 KiB, then to 256
/// KiB), and the transfer itself.
struct DeviceTime {
    /// Smallest operation, in nanoseconds.
    base: u64,
    /// For each doubling from 64 bytes to 4 KiB, in nanoseconds.
    early: u64,
    /// For each doubling from 4 KiB to 256 KiB, in nanoseconds.
    late: u64,
    /// The transfer, in picoseconds per byte.
    picos: u64,
}

/// Source: a fit to the single-descriptor series of the LightDSA artifact (EuroSys 2026; Sapphire Rapids, shared queue,
/// one engine, polling: copy 0.75 µs at 64 B and 1.14 µs at 4 KB, fill 0.49 µs, compare 0.72 µs, compare-pattern 0.67
/// µs; caps of 31.4, 31.9, 15.9 and 31.7 GB/s), within 2 % on average and 7 % everywhere. Operations without published
/// times take the time of the one that reads and writes as they do: *assumed*.
fn device_time(kind: Kind) -> DeviceTime {
    match kind {
        Kind::Move | Kind::Dualcast | Kind::CopyCrc | Kind::ApplyDelta | Kind::Dif | Kind::List => {
            DeviceTime { base: 748, early: 42, late: 90, picos: 32 }
        }
        Kind::Fill | Kind::Flush | Kind::Other => DeviceTime { base: 488, early: 20, late: 15, picos: 31 },
        Kind::Compare | Kind::CreateDelta | Kind::Numbers => DeviceTime { base: 718, early: 28, late: 35, picos: 63 },
        Kind::ComparePattern | Kind::Crc => DeviceTime { base: 668, early: 34, late: 35, picos: 32 },
    }
}

fn device_nanos(kind: Kind, bytes: u64) -> u64 {
    let DeviceTime { base, early, late, picos } = device_time(kind);
    let doublings = u64::from(bytes.max(64).ilog2() - 6);
    let ramp = early * doublings.min(6) + late * doublings.saturating_sub(6).min(6);
    base.saturating_add(ramp).saturating_add(bytes.saturating_mul(picos) / 1000)
}

/// The CPU's time: a call, and the transfer.
///
/// Source: one core of a Sapphire Rapids copies large buffers at 9.7 GiB/s (LightDSA artifact, EuroSys 2026). The cost
/// of the call, and of other operations relative to a copy, is *assumed* from how many streams they read and write.
fn cpu_nanos(kind: Kind, bytes: u64) -> u64 {
    let (call, picos) = match kind {
        Kind::Move | Kind::ApplyDelta => (30, 96),
        Kind::Fill | Kind::ComparePattern | Kind::Crc | Kind::Flush => (30, 64),
        Kind::Compare | Kind::CreateDelta | Kind::CopyCrc => (30, 96),
        Kind::Dualcast => (30, 144),
        Kind::Dif | Kind::Numbers => (50, 160),
        Kind::List => (50, 120),
        Kind::Other => (10, 0),
    };
    bytes.saturating_mul(picos) / 1000 + call
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DEVICE: Worker = Worker::Device { queue: 0 };

    fn nanos(costs: &Costs, bytes: u64, worker: Worker) -> u64 {
        u64::try_from(costs.predict(Opcode::MemoryMove, bytes, worker).as_nanos()).unwrap()
    }

    #[test]
    fn published_times_are_predicted_before_any_measurement() {
        let costs = Costs::new(1);
        // LightDSA's own points: 0.75 µs at 64 B, 1.14 µs at 4 KB, 29 941 MiB/s at large sizes.
        for (bytes, published) in [(64, 750), (4096, 1140), (64 << 20, 2_137_000)] {
            let predicted = nanos(&costs, bytes, DEVICE);
            assert!(predicted.abs_diff(published) * 100 <= published * 3, "{bytes}: {predicted} for {published}");
        }
    }

    #[test]
    fn a_measured_time_is_predicted_and_carries_over_to_other_sizes() {
        let costs = Costs::new(2);
        let took = 4 * costs.predict(Opcode::MemoryMove, 65_536, DEVICE);
        let others = nanos(&costs, 65_536, Worker::Device { queue: 1 });
        (0..20).for_each(|_| costs.learn(Opcode::MemoryMove, 65_536, DEVICE, took));
        let predicted = costs.predict(Opcode::MemoryMove, 65_536, DEVICE);
        assert!(predicted.abs_diff(took) < took / 50, "{predicted:?} for {took:?}");
        assert!(nanos(&costs, 1 << 20, DEVICE) > 3 * nanos(&Costs::new(1), 1 << 20, DEVICE));
        assert_eq!(nanos(&costs, 65_536, Worker::Device { queue: 1 }), others);
        assert_eq!(nanos(&costs, 65_536, Worker::Cpu), nanos(&Costs::new(1), 65_536, Worker::Cpu));
    }

    #[test]
    fn published_times_never_fall_with_size() {
        let costs = Costs::new(1);
        for op in (0..=0x20).map(Opcode::from_code) {
            for worker in [Worker::Cpu, DEVICE] {
                let times: Vec<_> = (0..40).map(|i| costs.predict(op, 1 << i, worker)).collect();
                assert!(times.is_sorted() && !times[0].is_zero(), "{op:?} {worker:?} {times:?}");
            }
        }
    }

    #[test]
    fn extreme_values_neither_panic_nor_predict_zero() {
        let costs = Costs::new(0);
        let nowhere = Worker::Device { queue: usize::MAX };
        for took in [Duration::ZERO, Duration::MAX] {
            for bytes in [0, u64::MAX] {
                for worker in [Worker::Cpu, DEVICE, nowhere] {
                    costs.learn(Opcode::Fill, bytes, worker, took);
                    assert!(!costs.predict(Opcode::Fill, bytes, worker).is_zero());
                }
            }
        }
    }
}
