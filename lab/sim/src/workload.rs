//! Workloads: threads that submit operations, and how they do it.

use crate::places::{BufferPlacement, LineLocation};
use crate::rng::Rng;
use telpher_abi::Opcode;
use telpher_mover::{Policy, Route, Split, Threshold};

/// An enum whose values have names in options and files.
pub trait NamedValue: Copy + PartialEq + 'static {
    /// All names and values.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the value with this name.
    #[must_use]
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the name of the value.
    #[must_use]
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

impl NamedValue for Wait {
    const NAMES: &'static [(&'static str, Self)] =
        &[("poll", Wait::Poll), ("umwait", Wait::Umwait), ("interrupt", Wait::Interrupt), ("sleep", Wait::Sleep)];
}

impl NamedValue for Library {
    const NAMES: &'static [(&'static str, Self)] =
        &[("raw", Library::Raw), ("lean", Library::Lean), ("dml", Library::Dml), ("kernel", Library::Kernel)];
}

impl NamedValue for SubmitBy {
    const NAMES: &'static [(&'static str, Self)] = &[("portal", SubmitBy::Portal), ("write", SubmitBy::Write)];
}

impl NamedValue for AccessPattern {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("alone", AccessPattern::Alone),
        ("random", AccessPattern::Random),
        ("sequential", AccessPattern::Sequential),
    ];
}

impl NamedValue for LineLocation {
    const NAMES: &'static [(&'static str, Self)] =
        &[("memory", LineLocation::Memory), ("cache", LineLocation::Llc), ("streamed", LineLocation::Streamed)];
}

/// How a thread waits for a completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wait {
    /// Polls the record all the time.
    #[default]
    Poll,
    /// Waits with UMWAIT until the record's line is written.
    Umwait,
    /// Sleeps until the device interrupts.
    Interrupt,
    /// Sleeps for the predicted duration of the operation, then polls.
    Sleep,
}

/// The access pattern of a core that executes operations itself. A ratio of a device to software holds for one walk
/// only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum AccessPattern {
    /// A single operation that the core completes before the next one, at an address that was not accessed before. Its
    /// lines are where [`BufferPlacement::lines`] says, and the prefetcher has no history.
    #[default]
    Alone,
    /// Consecutive operations, each at another address: the core begins the next before the last is done.
    Random,
    /// Consecutive operations on adjacent memory: the prefetcher is always ahead.
    Sequential,
}

/// The software between a program and the portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Library {
    /// None: the program builds descriptors itself.
    #[default]
    Raw,
    /// A thin library.
    Lean,
    /// Intel's DML.
    Dml,
    /// The kernel's dmaengine, with its mapping of pages.
    Kernel,
}

/// How a descriptor's 64 bytes reach a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SubmitBy {
    /// With MOVDIR64B (dedicated queue) or ENQCMD (shared queue).
    #[default]
    Portal,
    /// With `write()` on its device node.
    Write,
}

/// The queue that a thread submits to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueId {
    /// Number of the device.
    pub device: u16,
    /// Number of the queue within the device.
    pub wq: usize,
    /// True if the queue is shared.
    pub shared: bool,
}

/// What executes a thread's operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutedBy {
    /// A device, through one of its queues.
    Device(QueueId),
    /// The thread's own core.
    Cpu,
    /// Either, as a mover decides, over all queues of all devices.
    Mover(MoverSettings),
}

/// The part of a mover's policy that decides between core and device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoverSettings {
    /// Smallest size that goes to a device, in bytes.
    pub threshold: u64,
    /// The queue that is tried first.
    pub route: Route,
    /// How a long operation is split.
    pub split: Split,
}

impl MoverSettings {
    /// The policy settings that this struct covers, by the names of `Policy::set`.
    pub const SETTINGS: [&'static str; 4] = ["threshold", "route", "split", "hybrid"];

    /// The settings of a policy for an operation.
    #[must_use]
    pub fn of(policy: &Policy, op: Opcode) -> Self {
        MoverSettings { threshold: policy.threshold.of(op), route: policy.route, split: policy.split }
    }

    /// A policy with these settings.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            threshold: Threshold::all(self.threshold),
            route: self.route,
            split: self.split,
            wait: telpher_mover::Wait::Predicted,
            ..Policy::default()
        }
    }
}

impl ExecutedBy {
    /// The first queue of the first device.
    pub const DEDICATED: ExecutedBy = ExecutedBy::Device(QueueId { device: 0, wq: 0, shared: false });
    /// The first queue of the first device, as a shared queue.
    pub const SHARED: ExecutedBy = ExecutedBy::Device(QueueId { device: 0, wq: 0, shared: true });
}

/// When a thread's operations arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arrivals {
    /// As soon as fewer than `depth` operations are in flight.
    #[default]
    Closed,
    /// At a fixed rate (operations a second), evenly spaced, whether there is room or not.
    Even(u64),
    /// At a mean rate (operations a second) with independent arrivals: a Poisson process.
    Poisson(u64),
}

/// Largest number of sizes in a [`Sizes`].
const MOST_SIZES: usize = 16;

/// Sizes of operations, each with its weight (relative frequency).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes([(u32, u32); MOST_SIZES]);

impl Sizes {
    /// No sizes: all operations have the stream's one size.
    pub const NONE: Sizes = Sizes([(0, 0); MOST_SIZES]);

    /// Creates a list of (size, weight). Returns `None` for more than 16 sizes, for none, and if a weight is 0.
    #[must_use]
    pub fn new(sizes: &[(u32, u32)]) -> Option<Sizes> {
        let mut all = Sizes::NONE;
        if sizes.is_empty() || sizes.len() > MOST_SIZES || sizes.iter().any(|(_, weight)| *weight == 0) {
            return None;
        }
        all.0[..sizes.len()].copy_from_slice(sizes);
        Some(all)
    }

    /// The sizes and their weights.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied().filter(|(_, weight)| *weight > 0)
    }

    /// Returns a random size with a probability proportional to its weight.
    pub(crate) fn one(&self, rng: &mut Rng) -> Option<u32> {
        let all: u64 = self.iter().map(|(_, weight)| u64::from(weight)).sum();
        let mut at = if all > 0 { rng.below(all) } else { return None };
        for (size, weight) in self.iter() {
            match at.checked_sub(weight.into()) {
                None => return Some(size),
                Some(rest) => at = rest,
            }
        }
        None
    }
}

/// The workload of a thread: one operation, repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// The operation.
    pub op: Opcode,
    /// Bytes of each operation.
    pub size: u32,
    /// Random sizes that replace `size`, if not empty.
    pub sizes: Sizes,
    /// Descriptors, or batches, that the thread keeps in flight.
    pub depth: u32,
    /// Descriptors of a batch; with 1 each descriptor is submitted alone.
    pub batch: u32,
    /// Total number of submissions.
    pub submissions: u64,
    /// When operations arrive.
    pub arrivals: Arrivals,
    /// Seed of the random arrivals and sizes.
    pub seed: u64,
    /// What executes the operations.
    pub by: ExecutedBy,
    /// How descriptors reach the queue.
    pub through: SubmitBy,
    /// Memory node whose core runs the thread.
    pub core: usize,
    /// Access pattern of the core if it executes the operations itself.
    pub walk: AccessPattern,
    /// Source buffer.
    pub src: BufferPlacement,
    /// Destination buffer.
    pub dst: BufferPlacement,
    /// Results are written to the cache (Cache Control 1), not to memory.
    pub cache_control: bool,
    /// The device reads the written bytes back before it writes the record (Destination Readback).
    pub readback: bool,
    /// The device waits for missing pages (Block On Fault).
    pub block_on_fault: bool,
    /// The descriptors are flushed from the caches between two uses; does not apply to a mover's descriptors.
    pub cold_descriptors: bool,
    /// How the thread waits.
    pub wait: Wait,
    /// Submissions of each thread that are done before its results count: the start does not last.
    pub warm_up: u64,
    /// The library that the thread uses.
    pub library: Library,
}

impl Stream {
    /// A thousand operations, one at a time, through the first dedicated queue, in near memory, completed by polling.
    #[must_use]
    pub const fn of(op: Opcode, size: u32) -> Self {
        Stream {
            op,
            size,
            sizes: Sizes::NONE,
            depth: 1,
            batch: 1,
            submissions: 1000,
            arrivals: Arrivals::Closed,
            seed: 0,
            by: ExecutedBy::DEDICATED,
            through: SubmitBy::Portal,
            core: 0,
            walk: AccessPattern::Alone,
            src: BufferPlacement::on(0),
            dst: BufferPlacement::on(0),
            cache_control: false,
            readback: false,
            block_on_fault: false,
            cold_descriptors: false,
            wait: Wait::Poll,
            warm_up: 0,
            library: Library::Raw,
        }
    }
}
