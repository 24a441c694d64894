//! What is asked of a machine: threads that submit operations, and how.

use crate::dice::Dice;
use crate::places::{Lines, Place};
use telpher_abi::Opcode;
use telpher_mover::{Policy, Route, Split, Threshold};

/// Something with a few values, each with the name that options and files call it.
pub trait Named: Copy + PartialEq + 'static {
    /// Names and values.
    const NAMES: &'static [(&'static str, Self)];

    /// The value of a name.
    #[must_use]
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Its name.
    #[must_use]
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

impl Named for Wait {
    const NAMES: &'static [(&'static str, Self)] =
        &[("poll", Wait::Poll), ("umwait", Wait::Umwait), ("interrupt", Wait::Interrupt), ("sleep", Wait::Sleep)];
}

impl Named for Library {
    const NAMES: &'static [(&'static str, Self)] =
        &[("raw", Library::Raw), ("lean", Library::Lean), ("dml", Library::Dml), ("kernel", Library::Kernel)];
}

impl Named for Through {
    const NAMES: &'static [(&'static str, Self)] = &[("portal", Through::Portal), ("write", Through::Write)];
}

impl Named for Walk {
    const NAMES: &'static [(&'static str, Self)] =
        &[("alone", Walk::Alone), ("random", Walk::Random), ("sequential", Walk::Sequential)];
}

impl Named for Lines {
    const NAMES: &'static [(&'static str, Self)] = &[("memory", Lines::Memory), ("cache", Lines::Llc)];
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wait {
    /// Looks at the record all the time.
    #[default]
    Poll,
    /// Sleeps lightly until the record's line is written.
    Umwait,
    /// Sleeps until the device interrupts.
    Interrupt,
    /// Sleeps for as long as the operation is thought to take, then looks.
    Sleep,
}

/// What a core finds when it does an operation itself: each ratio of a device to software holds for one of them only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Walk {
    /// An operation by itself, which is waited for before the next, at a place that nobody was at before: its lines are where
    /// [`Place::lines`] says, and the prefetcher knows nothing.
    #[default]
    Alone,
    /// One operation after the other, each at another place: the core begins the next before the last is over.
    Random,
    /// One operation after the other, each behind the last: the prefetcher is always ahead.
    Sequential,
}

/// What software stands between a program and the portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Library {
    /// None: descriptors are built by hand.
    #[default]
    Raw,
    /// A thin one.
    Lean,
    /// Intel's DML.
    Dml,
    /// The kernel's dmaengine, with its mapping of pages.
    Kernel,
}

/// How 64 bytes reach a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Through {
    /// By instruction: MOVDIR64B or ENQCMD, as the queue is dedicated or shared.
    #[default]
    Portal,
    /// By `write()` on its node.
    Write,
}

/// Which queue a thread submits to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Number of the device.
    pub device: u16,
    /// Number of its queue.
    pub wq: usize,
    /// The queue is shared.
    pub shared: bool,
}

/// Who does a thread's operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A device, through one of its queues.
    Device(Lane),
    /// The thread's own core.
    Cpu,
    /// Either, as a mover decides, over all queues there are.
    Mover(Moves),
}

/// What of a mover's policy decides who does an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moves {
    /// Bytes from which an operation goes to a device.
    pub threshold: u64,
    /// Which queue is asked first.
    pub route: Route,
    /// How a long one is shared out.
    pub split: Split,
}

impl Moves {
    /// Settings of a policy that decide so, as a mover names them (`Policy::set`).
    pub const SETTINGS: [&'static str; 4] = ["threshold", "route", "split", "hybrid"];

    /// Of a policy, for an operation.
    #[must_use]
    pub fn of(policy: &Policy, op: Opcode) -> Self {
        Moves { threshold: policy.threshold.of(op), route: policy.route, split: policy.split }
    }

    /// The policy with those decisions.
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

impl By {
    /// The first queue of the first device.
    pub const DEDICATED: By = By::Device(Lane { device: 0, wq: 0, shared: false });
    /// The same where it is shared.
    pub const SHARED: By = By::Device(Lane { device: 0, wq: 0, shared: true });
}

/// When a thread's operations come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arrivals {
    /// One as soon as there is room for it among those in flight.
    #[default]
    Closed,
    /// So many a second, evenly, whether there is room or not.
    Even(u64),
    /// So many a second on average, each without knowing of the others: a Poisson process.
    Poisson(u64),
}

/// Sizes that a [`Sizes`] can hold.
const MOST_SIZES: usize = 16;

/// Sizes of operations, each with its weight: how often it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes([(u32, u32); MOST_SIZES]);

impl Sizes {
    /// None: all operations are of the stream's one size.
    pub const NONE: Sizes = Sizes([(0, 0); MOST_SIZES]);

    /// These sizes with these weights; `None` for more than 16, for none, and where a weight is 0.
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

    /// One of them by chance, as often as its weight says.
    pub(crate) fn one(&self, dice: &mut Dice) -> Option<u32> {
        let all: u64 = self.iter().map(|(_, weight)| u64::from(weight)).sum();
        let mut at = if all > 0 { dice.below(all) } else { return None };
        for (size, weight) in self.iter() {
            match at.checked_sub(weight.into()) {
                None => return Some(size),
                Some(rest) => at = rest,
            }
        }
        None
    }
}

/// What a thread does: one operation again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Operation.
    pub op: Opcode,
    /// Bytes of each.
    pub size: u32,
    /// Sizes that come in its place, by chance.
    pub sizes: Sizes,
    /// Descriptors, or batches, it keeps in flight.
    pub depth: u32,
    /// Descriptors of a batch; 1 submits each by itself.
    pub batch: u32,
    /// Submissions in all.
    pub submissions: u64,
    /// When they come.
    pub arrivals: Arrivals,
    /// What chance begins with, in arrivals and sizes.
    pub seed: u64,
    /// Who does it.
    pub by: By,
    /// How descriptors reach the queue.
    pub through: Through,
    /// Node whose core the thread is on.
    pub core: usize,
    /// How its operations follow each other where the core does them itself.
    pub walk: Walk,
    /// Source.
    pub src: Place,
    /// Destination.
    pub dst: Place,
    /// Results go to the cache (Cache Control 1), not to memory.
    pub cache_control: bool,
    /// What is written is read back before the record says that it is there (Destination Readback).
    pub readback: bool,
    /// The device waits for pages that are not there (Block On Fault).
    pub block_on_fault: bool,
    /// Its descriptors are flushed from the caches between two uses; those of a mover are not.
    pub cold_descriptors: bool,
    /// How it waits.
    pub wait: Wait,
    /// What software it uses.
    pub library: Library,
}

impl Stream {
    /// A thousand operations, one at a time, through the first dedicated queue, near memory, polled for.
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
            by: By::DEDICATED,
            through: Through::Portal,
            core: 0,
            walk: Walk::Alone,
            src: Place::on(0),
            dst: Place::on(0),
            cache_control: false,
            readback: false,
            block_on_fault: false,
            cold_descriptors: false,
            wait: Wait::Poll,
            library: Library::Raw,
        }
    }
}
