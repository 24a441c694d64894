//! What is asked of a machine: threads that submit operations, and how.

use crate::places::{Lines, Place};
use telpher_abi::Opcode;

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
}

impl By {
    /// The first queue of the first device.
    pub const DEDICATED: By = By::Device(Lane { device: 0, wq: 0, shared: false });
    /// The same where it is shared.
    pub const SHARED: By = By::Device(Lane { device: 0, wq: 0, shared: true });
}

/// What a thread does: one operation again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Operation.
    pub op: Opcode,
    /// Bytes of each.
    pub size: u32,
    /// Descriptors, or batches, it keeps in flight.
    pub depth: u32,
    /// Descriptors of a batch; 1 submits each by itself.
    pub batch: u32,
    /// Submissions in all.
    pub submissions: u64,
    /// Who does it.
    pub by: By,
    /// How descriptors reach the queue.
    pub through: Through,
    /// Node whose core the thread is on.
    pub core: usize,
    /// Source.
    pub src: Place,
    /// Destination.
    pub dst: Place,
    /// Results go to the cache (Cache Control 1), not to memory.
    pub cache_control: bool,
    /// The device waits for pages that are not there (Block On Fault).
    pub block_on_fault: bool,
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
            depth: 1,
            batch: 1,
            submissions: 1000,
            by: By::DEDICATED,
            through: Through::Portal,
            core: 0,
            src: Place::on(0),
            dst: Place::on(0),
            cache_control: false,
            block_on_fault: false,
            wait: Wait::Poll,
            library: Library::Raw,
        }
    }
}
