//! Learns for each operation and size whether a device or the CPU is cheaper.
//!
//! The compared cost is what an operation costs *its caller*: the time a thread spends in the mover for it, from the
//! call to the result, minus the time it did other work meanwhile. A program that waits for each operation therefore
//! compares a device's latency with the CPU's time. A program that keeps many in flight compares the cost of submitting
//! and fetching. Both get their own crossover (guideline G2 of Kuper et al., ASPLOS 2024, §6.1, puts the first near 4
//! KiB and the second near 256 bytes).
//!
//! ```text
//!  size ─► VerdictBits ── settled, no sample due ──────────────────► the cheaper side       a load, a count
//!             │ unsettled, or this thread's turn to sample
//!             ▼
//!          consider ── the cheaper side, or now and then the other ──► timed ──► Row ──► VerdictBits
//! ```
//!
//! **Cost of learning.** For sizes so small that a device would be [`HOPELESS`] times more expensive, the CPU does the
//! operation at once, behind one comparison, and it is never sampled. Samples of larger sizes move that limit. A
//! program without larger sizes is not sampled again.
//! Above the limit, a thread counts its work. It samples one operation in about [`STRIDE`] of work, and fewer while
//! samples find nothing new. Of an operation's time at most one part in [`PROBE_SHARE`] goes into trying the other side
//! again. A side that is far off is tried once, or not at all if it is known to be far off at a neighbouring size. No
//! thread waits, and if two threads learn at once, at most one sample is lost.
//!
//! Not measured: a copy by the CPU leaves the destination in its cache, and evicts other data.

use crate::learn::costs::{Costs, KINDS, Kind, Worker, published};
use crate::learn::estimate::{Estimate, ONE, Row, SETTLED, STEPS, log, scaled, smallest, step};
use crate::learn::verdict_bits::VerdictBits;
use crate::plan::threshold::Threshold;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_os::Random;

/// Whether costs are learned while a mover works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Learning {
    /// The [`Threshold`] decides: the choice depends only on the operation and its size.
    #[default]
    Off,
    /// The measured costs of operations decide. The threshold decides until an operation was measured, and where it
    /// says *never*. Batches use what single operations have taught.
    On,
}

/// Work of one thread between two samples, in nanoseconds. Source: derived; a sample costs about 200 ns (two clock
/// reads and the learning), one part in a hundred of this.
const STRIDE: u64 = 20_000;

/// The same before anything was timed, in bytes: what takes a CPU about as long.
const STRIDE_BYTES: u64 = 128 << 10;

/// How often a stride doubles while samples find nothing new. Source: chosen; 80 µs between two samples make them 0.3 %
/// of the time. If two samples in a row show that a side has become much better or worse, it is sampled in short
/// strides again.
const MAX_DOUBLINGS: u32 = 2;

/// Samples that find nothing new before a stride doubles. After a change at one size, other sizes are sampled soon.
const QUIET_SAMPLES: u32 = 16;

/// Bytes that a call counts as. Source: assumed; 10 ns at 10 GB/s.
const CALL_BYTES: u64 = 100;

/// The part of an operation's time that goes into trying the other side. Source: chosen; 1.6 %.
const PROBE_SHARE: u64 = 64;

/// A factor between device and CPU, as a logarithm, that no use of the device makes up for: 16. Source: published times
/// put a device that is waited for at 0.75 µs and one that is kept busy at 0.1 µs for its caller (see
/// [`crate::learn::costs`]), a factor of 8.
const HOPELESS: i32 = 4 * ONE;

/// Samples between two adjustments of the limit of the hopeless sizes.
const FLOOR_SAMPLES: u64 = 4;

/// Fewest samples between two tries of the other side, if both are equally good.
const FEWEST_SAMPLES: u64 = 4;

/// Device or CPU for an operation, and whether it is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) device: bool,
    pub(crate) timed: bool,
}

impl Choice {
    /// The CPU, not timed.
    pub(crate) const SMALL: Choice = Choice { device: false, timed: false };
}

/// The learned verdicts of a mover: device or CPU for each kind and size.
#[derive(Debug)]
pub(crate) struct DeviceChooser {
    /// The verdicts: which sizes of a kind go to a device.
    verdicts: Box<[VerdictBits]>,
    /// What a device's operations cost their callers. The CPU's times are in [`Costs`].
    device_cost: Box<[Row]>,
    /// Samples of a kind and step since the more expensive side was last tried.
    samples: Box<[[AtomicU32; STEPS]]>,
    /// For each kind, the size in bytes below which nothing is sampled.
    floors: [AtomicU64; KINDS],
}

impl DeviceChooser {
    /// Starts with the verdicts of the threshold.
    pub(crate) fn new(threshold: &Threshold) -> Self {
        let mut verdicts = [0_u64; KINDS];
        for op in Opcode::ALL.iter().filter(|op| threshold.of(**op) < u64::MAX) {
            for at in (0..STEPS).filter(|&at| smallest(at).max(1) >= threshold.of(*op)) {
                verdicts[Kind::of(*op) as usize] |= 1 << at;
            }
        }
        DeviceChooser {
            verdicts: verdicts.into_iter().map(VerdictBits::new).collect(),
            device_cost: (0..KINDS).map(|_| Row::new()).collect(),
            samples: (0..KINDS).map(|_| std::array::from_fn(|_| AtomicU32::new(0))).collect(),
            floors: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns true if an operation is so small that it is never sampled.
    #[inline(always)]
    fn is_hopeless(&self, op: Opcode, bytes: u64) -> bool {
        // Relaxed: an old limit is as good as a new one.
        bytes < self.floors[Kind::of(op) as usize].load(Ordering::Relaxed)
    }

    /// Chooses for an operation that is not hopeless. It is timed if its verdict is not settled or a sample is `due`.
    #[inline(always)]
    fn decide(&self, costs: &Costs, op: Opcode, bytes: u64, due: bool, doublings: impl FnOnce() -> u32) -> Choice {
        let kind = Kind::of(op);
        let at = step(bytes);
        let verdicts = &self.verdicts[kind as usize];
        if verdicts.is_settled(at) && !due {
            return Choice { device: verdicts.is_device(at), timed: false };
        }
        self.consider(costs, kind, at, bytes, doublings())
    }

    /// Makes the whole choice with the caller's sampler.
    #[cfg(all(test, not(loom)))]
    fn choose(&self, costs: &Costs, op: Opcode, bytes: u64, sampler: &Sampler) -> Choice {
        if self.is_hopeless(op, bytes) {
            return Choice::SMALL;
        }
        self.decide(costs, op, bytes, sampler.is_due(bytes), || sampler.doublings())
    }

    /// Returns the smallest size that goes to a device; `None` if none does.
    pub(crate) fn least(&self, op: Opcode) -> Option<u64> {
        self.verdicts[Kind::of(op) as usize].first().map(smallest)
    }

    /// Chooses for a timed operation: the side of which too little is known, otherwise the cheaper one, and the more
    /// expensive one when it is its turn.
    #[cold]
    #[inline(never)]
    fn consider(&self, costs: &Costs, kind: Kind, at: usize, bytes: u64, doublings: u32) -> Choice {
        let comparison = self.compare(costs, kind, at, bytes);
        self.set_verdict(kind, at, &comparison);
        let device = if comparison.is_known() {
            // Relaxed: a count; two threads that try at once do no harm.
            let samples = u64::from(self.samples[kind as usize][at].fetch_add(1, Ordering::Relaxed));
            if samples % FLOOR_SAMPLES == 0 {
                self.shift_floor(costs, kind);
            }
            let other = samples >= comparison.samples_between(doublings);
            if other {
                // Relaxed: as above.
                self.samples[kind as usize][at].store(0, Ordering::Relaxed);
            }
            comparison.device() != other
        } else {
            match comparison.on_device.samples.cmp(&comparison.on_cpu.samples) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Greater => false,
                std::cmp::Ordering::Equal => comparison.device(),
            }
        };
        Choice { device, timed: true }
    }

    /// Moves the limit of the hopeless sizes by a step, if it is wrong.
    fn shift_floor(&self, costs: &Costs, kind: Kind) {
        let floor = &self.floors[kind as usize];
        // Relaxed (both): as in `choose`; of two threads that move it at once one wins.
        let at = step(floor.load(Ordering::Relaxed));
        // Uses what larger sizes taught, as far as there are any: smaller sizes are not sampled, and their estimates
        // may be outdated.
        let gap = |at: usize| {
            let bytes = smallest(at).max(1);
            let time = |row: Option<&Row>, worker| {
                log(published(kind, bytes, worker)).saturating_add(row.map_or(0, |row| row.correction_from(at)))
            };
            let device_cost = Some(&self.device_cost[kind as usize]);
            time(device_cost, ON_DEVICE).saturating_sub(time(costs.row(kind, Worker::Cpu), Worker::Cpu))
        };
        if at + 1 < STEPS && gap(at + 1) >= HOPELESS {
            floor.store(smallest(at + 1), Ordering::Relaxed);
        } else if at > 0 && gap(at) < HOPELESS - ONE / 2 {
            floor.store(smallest(at - 1), Ordering::Relaxed);
        }
    }

    /// Learns what a timed operation cost its caller.
    pub(crate) fn learn(&self, costs: &Costs, op: Opcode, bytes: u64, device: bool, took: Duration, sampler: &Sampler) {
        let kind = Kind::of(op);
        let at = step(bytes);
        if device {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.device_cost[kind as usize].learn(at, log(nanos) - log(published(kind, bytes, ON_DEVICE)));
        } else {
            costs.learn(op, bytes, Worker::Cpu, took);
        }
        let comparison = self.compare(costs, kind, at, bytes);
        let estimate = if device { comparison.on_device } else { comparison.on_cpu };
        let as_known = comparison.is_known() && comparison.device() == self.verdicts[kind as usize].is_device(at);
        sampler.restart(bytes, took, as_known && estimate.samples >= 2 * SETTLED && !estimate.is_surprised());
        self.set_verdict(kind, at, &comparison);
    }

    /// Loads what a device's operation costs its caller, measured carefully elsewhere.
    pub(crate) fn load(&self, costs: &Costs, op: Opcode, bytes: u64, took: Duration) {
        let (kind, at) = (Kind::of(op), step(bytes));
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.device_cost[kind as usize].at(at).set(log(nanos) - log(published(kind, bytes, ON_DEVICE)));
        let comparison = self.compare(costs, kind, at, bytes);
        self.set_verdict(kind, at, &comparison);
    }

    fn compare(&self, costs: &Costs, kind: Kind, at: usize, bytes: u64) -> Comparison {
        let cpu = costs.row(kind, Worker::Cpu).expect("every table has the CPU's rows");
        let device_cost = &self.device_cost[kind as usize];
        let on_cpu = log(published(kind, bytes, Worker::Cpu)).saturating_add(cpu.correction(at));
        let on_device = log(published(kind, bytes, ON_DEVICE)).saturating_add(device_cost.correction(at));
        Comparison {
            gap: on_device.saturating_sub(on_cpu),
            cheaper: on_device.min(on_cpu),
            on_cpu: cpu.at(at).read(),
            on_device: device_cost.at(at).read(),
        }
    }

    fn set_verdict(&self, kind: Kind, at: usize, comparison: &Comparison) {
        self.verdicts[kind as usize].set(at, comparison.device(), comparison.is_known());
    }
}

/// The callers' cost is kept for all queues together: a caller does not choose the queue.
const ON_DEVICE: Worker = Worker::Device { queue: 0 };

/// The comparison of device and CPU for one kind at one step.
struct Comparison {
    /// The logarithm of the device's cost over the CPU's.
    gap: i32,
    /// The logarithm of the cheaper side's nanoseconds.
    cheaper: i32,
    on_cpu: Estimate,
    on_device: Estimate,
}

impl Comparison {
    fn device(&self) -> bool {
        self.gap < 0
    }

    /// Returns true if both sides have enough samples that the gap between them cannot be chance. A wider gap needs
    /// fewer samples: half as many for each factor of two.
    fn is_known(&self) -> bool {
        let doublings = self.gap.unsigned_abs() / ONE.unsigned_abs();
        let needed = SETTLED.checked_shr(doublings).unwrap_or(0);
        self.on_cpu.samples >= needed && self.on_device.samples >= needed
    }

    /// Returns the samples between two tries of the more expensive side, so that its excess is one part in
    /// [`PROBE_SHARE`] of the work between.
    fn samples_between(&self, doublings: u32) -> u64 {
        let gap = i32::try_from(self.gap.unsigned_abs()).unwrap_or(i32::MAX);
        // In 1/256 of the cheaper side's time.
        let excess = scaled(256, gap).saturating_sub(256);
        let operations_per_sample = ((STRIDE << doublings) / scaled(1, self.cheaper).max(1)).max(1);
        (excess.saturating_mul(PROBE_SHARE) / 256 / operations_per_sample).max(FEWEST_SAMPLES)
    }
}

/// One thread's sampling state: how much work it may still do before its next sample.
#[derive(Debug)]
pub(crate) struct Sampler {
    left: Cell<u64>,
    /// Samples in a row that found nothing new; limited to the number that gives the longest stride.
    quiet: Cell<u32>,
    /// Seed of the next stride's length. It makes strides unequal, so that no periodic program hides an operation from
    /// all samples.
    seed: Cell<u64>,
}

impl Sampler {
    pub(crate) const fn new() -> Self {
        Sampler { left: Cell::new(STRIDE_BYTES), quiet: Cell::new(0), seed: Cell::new(1) }
    }

    /// Returns how often the present stride has doubled.
    fn doublings(&self) -> u32 {
        self.quiet.get() / QUIET_SAMPLES
    }

    /// Counts an operation; returns true if it is to be sampled.
    #[inline(always)]
    fn is_due(&self, bytes: u64) -> bool {
        let weight = bytes.saturating_add(CALL_BYTES);
        match self.left.get().checked_sub(weight) {
            Some(left) => {
                self.left.set(left);
                false
            }
            None => true,
        }
    }

    /// Begins a stride after an operation was timed: as many bytes as take a stride's time at this operation's rate. A
    /// stride gets longer the more samples find nothing new.
    fn restart(&self, bytes: u64, took: Duration, as_known: bool) {
        self.quiet.set(if as_known { (self.quiet.get() + 1).min(MAX_DOUBLINGS * QUIET_SAMPLES) } else { 0 });
        let mut random = Random::new(self.seed.get());
        self.seed.set(random.next());
        // Between a half and three halves of a stride; the same in every run.
        let nanos = (STRIDE / 2 + random.below(STRIDE)) << self.doublings();
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.left.set(bytes.saturating_add(CALL_BYTES).saturating_mul(nanos) / took);
    }
}

thread_local! {
    static SAMPLER: Sampler = const { Sampler::new() };
}

/// Chooses device or CPU with this thread's sampler. For a hopeless size there is only one comparison, without the
/// sampler: a count costs 1.5 ns where a copy takes 9 (measured, EPYC of the Zen 4 kind, copies of 64 B to 2 KiB in the
/// cache).
#[inline(always)]
pub(crate) fn choose(chooser: &DeviceChooser, costs: &Costs, op: Opcode, bytes: u64) -> Choice {
    if chooser.is_hopeless(op, bytes) {
        return Choice::SMALL;
    }
    // Only the count is in the closure, so that all of it is inlined.
    let due = SAMPLER.with(|sampler| sampler.is_due(bytes));
    chooser.decide(costs, op, bytes, due, || SAMPLER.with(|sampler| sampler.doublings()))
}

/// Learns what a timed operation cost its caller; this thread samples again after a stride.
pub(crate) fn learn(chooser: &DeviceChooser, costs: &Costs, op: Opcode, bytes: u64, device: bool, took: Duration) {
    SAMPLER.with(|sampler| chooser.learn(costs, op, bytes, device, took, sampler));
}

#[cfg(all(test, not(loom)))]
mod tests;
