//! Whether, learned: for each operation and size, whoever was found to be cheaper does it.
//!
//! What is compared is what an operation costs *its caller*: the time a thread spends in the mover for it, from the call to
//! the result less what it did elsewhere meanwhile. A program that waits for each operation so compares a device's latency
//! with the CPU's, one that keeps many in flight compares what submitting and fetching cost, and both get the crossover that is
//! theirs (guideline G2 of Kuper et al., ASPLOS 2024, §6.1, puts the one near 4 KiB and the other near 256 bytes).
//!
//! ```text
//!  size ─► Marks ── settled, no turn ──────────────────────────► the cheaper one        a load, a count
//!             │ young, or this thread's turn to look
//!             ▼
//!          consider ── the cheaper one, or now and then the other ──► timed ──► Row ──► Marks
//! ```
//!
//! **Cost of learning.** Sizes so small that a device would be [`HOPELESS`] times dearer are done at once, behind one compare, and
//! are not looked at: what is learned of larger ones moves that limit. A program that has no larger ones is not looked at again.
//! Above it, a thread counts, looks once in about [`STRIDE`] of work, less often while it finds nothing new, and of the time an
//! operation takes at most one part in [`EFFORT`] goes into trying the other way again; a way that is far off is tried once, or
//! not at all where it is known to be far off at a neighbouring size. Nothing waits, and nothing is lost if two threads learn at
//! once but a sample.
//!
//! Not seen here: that a copy by the CPU leaves the destination in its cache, and that it pushes other things out.

use crate::costs::{Costs, KINDS, Kind, Worker, published};
use crate::estimate::{Estimate, ONE, Row, SETTLED, STEPS, log, scaled, smallest, step};
use crate::marks::Marks;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::threshold::Threshold;
use std::cell::Cell;
use std::time::Duration;
use telpher_abi::Opcode;

/// Whether costs are learned while a mover works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Learning {
    /// The [`Threshold`] decides, so that who does an operation depends on nothing but the operation and its size.
    #[default]
    Off,
    /// What operations were measured to cost their callers decides; the threshold does until something was measured, and where
    /// it says *never*. Batches follow what single operations taught.
    On,
}

/// Work of one thread between two looks, in nanoseconds. Source: derived; a look costs about 200 ns (two readings of the clock
/// and the learning), one part in a hundred of this.
const STRIDE: u64 = 20_000;

/// The same before anything was timed, in bytes: what takes a CPU about as long.
const STRIDE_BYTES: u64 = 128 << 10;

/// Doublings of a stride while looks find nothing new. Source: chosen; 80 µs between two looks make them 0.3 % of the time, and a way that
/// has become so much better or worse that two samples in a row show it is looked at in short strides again.
const CALM: u32 = 2;

/// Looks that find nothing new before a stride doubles: who has found something new at one size soon looks at the others.
const QUIET: u32 = 16;

/// Bytes that a call counts as. Source: assumed; 10 ns at 10 GB/s.
const CALL_BYTES: u64 = 100;

/// The part of an operation's time that goes into trying the other way. Source: chosen; 1.6 %.
const EFFORT: u64 = 64;

/// A factor between device and CPU, as a logarithm, that no way of working makes good: 16. Source: published times put a device
/// that is waited for at 0.75 µs and one that is kept busy at 0.1 µs for its caller (see [`crate::costs`]), a factor of 8.
const HOPELESS: i32 = 4 * ONE;

/// Looks between two at the limit of the hopeless sizes.
const FLOOR_LOOKS: u64 = 4;

/// Fewest looks between two tries of the other way, if both are equally good.
const FEWEST_LOOKS: u64 = 4;

/// Who is to do an operation, and whether it is to be timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) device: bool,
    pub(crate) timed: bool,
}

impl Choice {
    /// The CPU, and nobody looks.
    pub(crate) const SMALL: Choice = Choice { device: false, timed: false };
}

/// What a mover has learned about whether.
#[derive(Debug)]
pub(crate) struct Judge {
    /// The verdicts: which sizes of a kind go to a device.
    marks: Box<[Marks]>,
    /// What a device's operations cost their callers. The CPU's times are in [`Costs`].
    expense: Box<[Row]>,
    /// Looks at a kind and step since the dearer way was last tried.
    looks: Box<[[AtomicU32; STEPS]]>,
    /// For each kind, the size in bytes under which nobody looks.
    floors: [AtomicU64; KINDS],
}

impl Judge {
    /// Begins with what the threshold says.
    pub(crate) fn new(threshold: &Threshold) -> Self {
        let mut verdicts = [0_u64; KINDS];
        for op in Opcode::ALL.iter().filter(|op| threshold.of(**op) < u64::MAX) {
            for at in (0..STEPS).filter(|&at| smallest(at).max(1) >= threshold.of(*op)) {
                verdicts[Kind::of(*op) as usize] |= 1 << at;
            }
        }
        Judge {
            marks: verdicts.into_iter().map(Marks::new).collect(),
            expense: (0..KINDS).map(|_| Row::new()).collect(),
            looks: (0..KINDS).map(|_| std::array::from_fn(|_| AtomicU32::new(0))).collect(),
            floors: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// True if an operation is so small that nobody looks at it.
    #[inline(always)]
    fn is_hopeless(&self, op: Opcode, bytes: u64) -> bool {
        // Relaxed: a limit of a moment ago is as good as one of now.
        bytes < self.floors[Kind::of(op) as usize].load(Ordering::Relaxed)
    }

    /// Who does an operation that is not hopeless, and is looked at if too little is known of it or a look is `due`.
    #[inline(always)]
    fn decide(&self, costs: &Costs, op: Opcode, bytes: u64, due: bool, calm: impl FnOnce() -> u32) -> Choice {
        let kind = Kind::of(op);
        let at = step(bytes);
        let marks = &self.marks[kind as usize];
        if marks.is_settled(at) && !due {
            return Choice { device: marks.is_device(at), timed: false };
        }
        self.consider(costs, kind, at, bytes, calm())
    }

    /// Both, with a watch of one's own.
    #[cfg(all(test, not(loom)))]
    fn choose(&self, costs: &Costs, op: Opcode, bytes: u64, watch: &Watch) -> Choice {
        if self.is_hopeless(op, bytes) {
            return Choice::SMALL;
        }
        self.decide(costs, op, bytes, watch.is_due(bytes), || watch.calm())
    }

    /// The smallest size that goes to a device; nothing if none does.
    pub(crate) fn least(&self, op: Opcode) -> Option<u64> {
        self.marks[Kind::of(op) as usize].first().map(smallest)
    }

    /// A timed operation's choice: the way of which too little is known, else the cheaper one, and the dearer one when it is
    /// its turn.
    #[cold]
    #[inline(never)]
    fn consider(&self, costs: &Costs, kind: Kind, at: usize, bytes: u64, calm: u32) -> Choice {
        let view = self.weigh(costs, kind, at, bytes);
        self.mark(kind, at, &view);
        let device = if view.is_known() {
            // Relaxed: a count; two threads that try at once do no harm.
            let looks = u64::from(self.looks[kind as usize][at].fetch_add(1, Ordering::Relaxed));
            if looks % FLOOR_LOOKS == 0 {
                self.shift_floor(costs, kind);
            }
            let other = looks >= view.looks_between(calm);
            if other {
                // Relaxed: as above.
                self.looks[kind as usize][at].store(0, Ordering::Relaxed);
            }
            view.device() != other
        } else {
            match view.on_device.samples.cmp(&view.on_cpu.samples) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Greater => false,
                std::cmp::Ordering::Equal => view.device(),
            }
        };
        Choice { device, timed: true }
    }

    /// Moves the limit of the hopeless sizes by a step, if it lies wrong.
    fn shift_floor(&self, costs: &Costs, kind: Kind) {
        let floor = &self.floors[kind as usize];
        // Relaxed (both): as in `choose`; of two threads that move it at once one wins.
        let at = step(floor.load(Ordering::Relaxed));
        // By what larger sizes taught, as far as there are any: smaller ones are not looked at, and what they taught may be of
        // another time.
        let gap = |at: usize| {
            let bytes = smallest(at).max(1);
            let time = |row: Option<&Row>, worker| {
                log(published(kind, bytes, worker)).saturating_add(row.map_or(0, |row| row.correction_from(at)))
            };
            let expense = Some(&self.expense[kind as usize]);
            time(expense, ON_DEVICE).saturating_sub(time(costs.row(kind, Worker::Cpu), Worker::Cpu))
        };
        if at + 1 < STEPS && gap(at + 1) >= HOPELESS {
            floor.store(smallest(at + 1), Ordering::Relaxed);
        } else if at > 0 && gap(at) < HOPELESS - ONE / 2 {
            floor.store(smallest(at - 1), Ordering::Relaxed);
        }
    }

    /// What a timed operation cost its caller.
    pub(crate) fn learn(&self, costs: &Costs, op: Opcode, bytes: u64, device: bool, took: Duration, watch: &Watch) {
        let kind = Kind::of(op);
        let at = step(bytes);
        if device {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.expense[kind as usize].learn(at, log(nanos) - log(published(kind, bytes, ON_DEVICE)));
        } else {
            costs.learn(op, bytes, Worker::Cpu, took);
        }
        let view = self.weigh(costs, kind, at, bytes);
        let estimate = if device { view.on_device } else { view.on_cpu };
        let as_known = view.is_known() && view.device() == self.marks[kind as usize].is_device(at);
        watch.wind(bytes, took, as_known && estimate.samples >= 2 * SETTLED && !estimate.is_surprised());
        self.mark(kind, at, &view);
    }

    /// What a device's operation costs its caller, measured with care elsewhere.
    pub(crate) fn teach(&self, costs: &Costs, op: Opcode, bytes: u64, took: Duration) {
        let (kind, at) = (Kind::of(op), step(bytes));
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.expense[kind as usize].at(at).set(log(nanos) - log(published(kind, bytes, ON_DEVICE)));
        let view = self.weigh(costs, kind, at, bytes);
        self.mark(kind, at, &view);
    }

    fn weigh(&self, costs: &Costs, kind: Kind, at: usize, bytes: u64) -> View {
        let cpu = costs.row(kind, Worker::Cpu).expect("every table has the CPU's rows");
        let expense = &self.expense[kind as usize];
        let on_cpu = log(published(kind, bytes, Worker::Cpu)).saturating_add(cpu.correction(at));
        let on_device = log(published(kind, bytes, ON_DEVICE)).saturating_add(expense.correction(at));
        View {
            gap: on_device.saturating_sub(on_cpu),
            cheaper: on_device.min(on_cpu),
            on_cpu: cpu.at(at).read(),
            on_device: expense.at(at).read(),
        }
    }

    fn mark(&self, kind: Kind, at: usize, view: &View) {
        self.marks[kind as usize].set(at, view.device(), view.is_known());
    }
}

/// Expense is kept for all lanes together: who calls does not choose one.
const ON_DEVICE: Worker = Worker::Device { lane: 0 };

/// What is known of one kind at one step.
struct View {
    /// The logarithm of the device's expense over the CPU's.
    gap: i32,
    /// The logarithm of the cheaper way's nanoseconds.
    cheaper: i32,
    on_cpu: Estimate,
    on_device: Estimate,
}

impl View {
    fn device(&self) -> bool {
        self.gap < 0
    }

    /// True if so much is known of both ways that the gap between them cannot be chance. The wider it is, the less is needed:
    /// half as many samples for each factor of two.
    fn is_known(&self) -> bool {
        let doublings = self.gap.unsigned_abs() / ONE.unsigned_abs();
        let needed = SETTLED.checked_shr(doublings).unwrap_or(0);
        self.on_cpu.samples >= needed && self.on_device.samples >= needed
    }

    /// Looks between two tries of the dearer way, so that its excess is one part in [`EFFORT`] of the work between.
    fn looks_between(&self, calm: u32) -> u64 {
        let gap = i32::try_from(self.gap.unsigned_abs()).unwrap_or(i32::MAX);
        // In 1/256 of the cheaper way's time.
        let excess = scaled(256, gap).saturating_sub(256);
        let operations_a_look = ((STRIDE << calm) / scaled(1, self.cheaper).max(1)).max(1);
        (excess.saturating_mul(EFFORT) / 256 / operations_a_look).max(FEWEST_LOOKS)
    }
}

/// One thread's share of the looking: how much work it may still do before it looks again.
#[derive(Debug)]
pub(crate) struct Watch {
    left: Cell<u64>,
    /// Looks in a row that found nothing new, at most as many as make the longest stride.
    quiet: Cell<u32>,
    /// For strides of unequal length, so that no program's rhythm hides an operation from every look.
    chance: Cell<u32>,
}

impl Watch {
    pub(crate) const fn new() -> Self {
        Watch { left: Cell::new(STRIDE_BYTES), quiet: Cell::new(0), chance: Cell::new(0x9E37_79B9) }
    }

    /// Doublings of the present stride.
    fn calm(&self) -> u32 {
        self.quiet.get() / QUIET
    }

    /// Counts an operation; true if it is to be looked at.
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

    /// Begins a stride after an operation was timed: as many bytes as take a stride's time if they take as long as these. A
    /// stride is the longer the more looks found nothing new.
    fn wind(&self, bytes: u64, took: Duration, as_known: bool) {
        self.quiet.set(if as_known { (self.quiet.get() + 1).min(CALM * QUIET) } else { 0 });
        // Xorshift (G. Marsaglia, *Xorshift RNGs*, Journal of Statistical Software 8, 2003); the same in every run.
        let mut x = self.chance.get();
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.chance.set(x);
        // Between a half and three halves of a stride.
        let nanos = (STRIDE / 2 + u64::from(x) % STRIDE) << self.calm();
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.left.set(bytes.saturating_add(CALL_BYTES).saturating_mul(nanos) / took);
    }
}

thread_local! {
    static WATCH: Watch = const { Watch::new() };
}

/// Who does an operation, by this thread's watch. Nothing but a compare stands before what is hopeless, not even the watch: a
/// count costs 1.5 ns where a copy takes 9 (measured, EPYC of the Zen 4 kind, copies of 64 B to 2 KiB in the cache).
#[inline(always)]
pub(crate) fn choose(judge: &Judge, costs: &Costs, op: Opcode, bytes: u64) -> Choice {
    if judge.is_hopeless(op, bytes) {
        return Choice::SMALL;
    }
    // No more than the count is in the closure, so that all of it is inlined.
    let due = WATCH.with(|watch| watch.is_due(bytes));
    judge.decide(costs, op, bytes, due, || WATCH.with(|watch| watch.calm()))
}

/// What a timed operation cost its caller, who looks again after a stride.
pub(crate) fn learn(judge: &Judge, costs: &Costs, op: Opcode, bytes: u64, device: bool, took: Duration) {
    WATCH.with(|watch| judge.learn(costs, op, bytes, device, took, watch));
}

#[cfg(all(test, not(loom)))]
mod tests;
