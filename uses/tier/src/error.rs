//! What cannot be had or done.

use std::io;
use telpher_mem::{MapError, UserfaultError};

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
    /// This process is a forked child of the heap's.
    #[error("a heap stays with the process that made it; a forked child has its memory, and makes a heap of its own")]
    Forked,
    /// More pieces of memory than are kept account of.
    #[error(
        "the heap has {most} pieces of memory apart from each other and cannot keep account of more; use fewer, larger arenas"
    )]
    TooManySpans {
        /// So many.
        most: usize,
    },
}
