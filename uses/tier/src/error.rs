//! The errors of this crate.

use crate::heat::DamonError;
use std::io;
use telpher_mem::{FileError, MapError};
use telpher_os::{PerfError, UserfaultError};

/// NotTaken a heap could not be created, or did not do what was requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The options are invalid.
    #[error(
        "a heap has 2 to 8 tiers, one of them its home, and moves 1 to 65536 pages at once; \
         the options have {tiers} tiers, home {home} and batches of {batch} pages"
    )]
    Options {
        /// The number of tiers given.
        tiers: usize,
        /// The home tier given.
        home: u8,
        /// The batch size given, in pages.
        batch: usize,
    },
    /// No such tier.
    #[error("there is no tier {tier}: the heap has {tiers} tiers, numbered from 0")]
    NoSuchTier {
        /// The tier named.
        tier: u8,
        /// The number of tiers.
        tiers: usize,
    },
    /// The kernel does not let this process answer its page faults.
    #[error("pages cannot be moved under a running program")]
    Userfault(#[from] UserfaultError),
    /// The kernel does not report which pages are present.
    #[error("cannot read which pages are present: that needs Linux 6.7 or later, and /proc")]
    Scan(#[source] io::Error),
    /// The system refused memory.
    #[error("cannot set up a tier's memory")]
    Map(#[from] MapError),
    /// `move_pages` was requested, and not every tier is a NUMA node.
    #[error(
        "the kernel can move pages only between NUMA nodes here; give each tier a node of its own, \
         or use Linux 6.8 or later, where tiers need no nodes"
    )]
    Nodes,
    /// `Remap` was requested for a heap; only shared arenas have their mappings replaced.
    #[error("mechanism Remap is only for shared arenas; request no mechanism, and create a shared arena")]
    OnlyShared,
    /// The kernel does not move pages to a node.
    #[error(
        "cannot move pages to node {node}; name a node of this machine that has memory and that this process may use"
    )]
    Node {
        /// The node.
        node: u32,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system refused a thread, or a descriptor to wake it by.
    #[error("cannot start the thread that answers page faults")]
    Keeper(#[source] io::Error),
    /// The system refused to register memory with the userfaultfd.
    #[error("cannot register memory for page faults with the userfaultfd")]
    Register(#[source] io::Error),
    /// A tier's file cannot be used.
    #[error("cannot set up a tier's memory")]
    File(#[from] FileError),
    /// The home tier's file is shorter than the arena.
    #[error(
        "the home tier's memory has {has} bytes, and the arena needs {needed}; \
         ask for less, or give the tier a longer file"
    )]
    HomeTooSmall {
        /// Bytes that the arena needs.
        needed: u64,
        /// Bytes that the file has.
        has: u64,
    },
    /// `shared_memory` has more entries than there are tiers.
    #[error("shared memory is set for {given} tiers, but the heap has {tiers}")]
    SharedMemory {
        /// The number of entries.
        given: usize,
        /// The number of tiers.
        tiers: usize,
    },
    /// This process is a forked child of the heap's process.
    #[error(
        "a heap belongs to the process that created it; a forked child keeps the memory, \
         and must create a heap of its own"
    )]
    Forked,
    /// A part of the range belongs to the heap already.
    #[error(
        "memory at {start:#x} to {end:#x}, or a part of it, belongs to the heap already; \
         release it first, or adopt only the rest"
    )]
    Known {
        /// The range's first byte.
        start: u64,
        /// The byte after its last.
        end: u64,
    },
    /// The kernel, or the heap's mechanism, does not track writes.
    #[error(
        "writes to this heap's pages cannot be tracked: that needs the mechanism Exchange and Linux 6.7 or later; \
         request another source"
    )]
    NoWindows,
    /// DAMON cannot be used.
    #[error("DAMON cannot be used to find hot pages")]
    Damon(#[from] Box<DamonError>),
    /// The heap's mechanism cannot trap pages.
    #[error(
        "this heap's pages cannot be trapped: that needs the mechanism Exchange, Linux 6.8 or later; \
         request another source"
    )]
    NoTraps,
    /// The processor cannot sample loads and stores.
    #[error("cannot sample loads and stores")]
    Perf(#[from] PerfError),
    /// The policy is for another number of tiers.
    #[error("the policy is for {capacity} tiers, but the heap has {tiers}; give a capacity, or none, for each tier")]
    PolicyTiers {
        /// The number of the heap's tiers.
        tiers: usize,
        /// The number of the policy's tiers.
        capacity: usize,
    },
    /// Too much advice is waiting for a manager.
    #[error("too much advice is waiting for a manager; start one first")]
    TooMuchAdvice,
    /// The range does not consist of whole pages.
    #[error("{start:#x} to {end:#x} is not one or more whole pages of 4 KiB")]
    NotPages {
        /// The range's first byte.
        start: u64,
        /// The byte behind its last.
        end: u64,
    },
    /// Too many separate ranges of memory.
    #[error("the heap has {most} separate ranges of memory, which is the limit; use fewer, larger arenas")]
    TooManySpans {
        /// The most ranges.
        most: usize,
    },
}
