//! What cannot be had or done.

use crate::heat::DamonError;
use std::io;
use telpher_mem::{FileError, MapError};
use telpher_os::{PerfError, UserfaultError};

/// Why there is no heap, or why it did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The options make no sense.
    #[error(
        "a heap has 2 to 8 tiers, one of them its home, and moves 1 to 65536 pages at once; it was given {tiers} tiers, home {home}, batches of {batch}"
    )]
    Options {
        /// Tiers given.
        tiers: usize,
        /// The home given.
        home: u8,
        /// Pages at once.
        batch: usize,
    },
    /// No such tier.
    #[error("tier {tier} was named, and there are {tiers}")]
    NoSuchTier {
        /// Named.
        tier: u8,
        /// There are.
        tiers: usize,
    },
    /// The kernel does not let this process answer its page faults.
    #[error("pages cannot be moved under a running program")]
    Userfault(#[from] UserfaultError),
    /// The kernel does not tell which pages are there.
    #[error("cannot ask which pages are present: that wants Linux 6.7 or later, and /proc")]
    Scan(#[source] io::Error),
    /// The system refused memory.
    #[error("cannot set a tier's memory up")]
    Map(#[from] MapError),
    /// The kernel is to move pages between nodes, and not every tier is one.
    #[error(
        "the kernel moves pages between NUMA nodes; give each tier a node of its own, or take Linux 6.8 or later, which moves them otherwise"
    )]
    Nodes,
    /// Only shared arenas have their mappings replaced.
    #[error(
        "a heap's own arenas are not moved by replacing their mappings; leave the mechanism to the heap, and ask it for a shared arena"
    )]
    OnlyShared,
    /// The kernel does not move pages to a node.
    #[error(
        "cannot move pages to node {node}; name a node of this machine that has memory, and that this process may use"
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
    /// The system refused to have an arena's faults answered.
    #[error("cannot have page faults of an arena answered")]
    Register(#[source] io::Error),
    /// A tier's file is none that can be had.
    #[error("cannot set a tier's memory up")]
    File(#[from] FileError),
    /// The home tier's file is shorter than an arena that is to be there.
    #[error(
        "the home tier's memory has {has} bytes, and the arena needs {needed}; ask for less, or give the tier a longer file"
    )]
    HomeTooSmall {
        /// The arena's.
        needed: u64,
        /// The file's.
        has: u64,
    },
    /// More is said of shared arenas' memory than there are tiers.
    #[error("what shared arenas are made of is said of {given} tiers, and there are {tiers}")]
    SharedMemory {
        /// Said of so many.
        given: usize,
        /// There are.
        tiers: usize,
    },
    /// This process is a forked child of the heap's.
    #[error("a heap stays with the process that made it; a forked child has its memory, and makes a heap of its own")]
    Forked,
    /// A part of the range is the heap's already.
    #[error(
        "memory at {start:#x} to {end:#x} is the heap's already, or a part of it is; let it go first, or take over the rest"
    )]
    Known {
        /// The range's first byte.
        start: u64,
        /// The byte behind its last.
        end: u64,
    },
    /// The kernel, or the heap's mechanism, does not track writes.
    #[error(
        "writes to pages of this heap cannot be tracked: that wants pages that move by exchange, and Linux 6.7 or later; ask for another source"
    )]
    NoWindows,
    /// DAMON does not say which pages are used.
    #[error("DAMON cannot be asked which pages are used")]
    Damon(#[from] Box<DamonError>),
    /// The heap's mechanism cannot trap.
    #[error(
        "pages of this heap cannot be trapped to see who touches them: that wants pages that move by exchange, Linux 6.8 or later; ask for another source"
    )]
    NoTraps,
    /// The processor's unit does not say which addresses are used.
    #[error("cannot sample loads and stores")]
    Perf(#[from] PerfError),
    /// A policy is for other tiers.
    #[error("a policy for {capacity} tiers was given to a heap of {tiers}; name a bound, or none, for each tier")]
    PolicyTiers {
        /// The heap's.
        tiers: usize,
        /// The policy's.
        capacity: usize,
    },
    /// Nobody hears what is said of the heap's memory.
    #[error("more has been said of the heap's memory than is kept until somebody hears it; start a manager first")]
    TooMuchAdvice,
    /// A range is not of whole pages.
    #[error("{start:#x} to {end:#x} are no whole pages of 4 KiB, of which there is one at least")]
    NotPages {
        /// The range's first byte.
        start: u64,
        /// The byte behind its last.
        end: u64,
    },
    /// More pieces of memory than are kept account of.
    #[error(
        "the heap has {most} pieces of memory apart from each other and cannot keep account of more; use fewer, larger arenas"
    )]
    TooManySpans {
        /// So many.
        most: usize,
    },
}
