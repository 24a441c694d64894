//! How a query is executed: threads, prefetching and late blocks.

use super::pipeline::Shape;
use std::thread;

/// Which blocks are prefetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PrefetchWhen {
    /// Blocks whose copies would be on another NUMA node, or on an unknown one: reading a copy on the same node gains
    /// nothing.
    #[default]
    WhereApart,
    /// All blocks.
    Always,
}

/// What an aggregation does with a block whose copy is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnLate {
    /// Reads it from the source: the thesis' weak wait (Fürst, §4.1.4, §5.2).
    #[default]
    Source,
    /// Waits for the copy.
    Wait,
}

/// How a query is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How the work is divided. Its rows are replaced by those of the query's table. There are no fetching threads
    /// without a cache, without columns that only the aggregation reads, or, on a machine with one NUMA node, if
    /// [`ahead`](Options::ahead) leaves them nothing to fetch.
    pub shape: Shape,
    /// Which blocks are prefetched.
    pub ahead: PrefetchWhen,
    /// What to do with blocks that arrive late.
    pub late: OnLate,
    /// The NUMA node whose CPUs the threads may use; none for all.
    pub node: Option<u32>,
    /// Counts the bytes that the stages read; this takes some time.
    pub traffic: bool,
}

/// Rows of a chunk. Source: assumed; 2 MiB of a column of 64-bit integers, which is also the most that a descriptor of
/// a typical queue may copy, so that each chunk is one descriptor.
const CHUNK: u64 = 1 << 18;

impl Options {
    /// Creates options for this many hardware threads: one group for each, with one scanning, one fetching (relaxed)
    /// and one aggregating thread. These share the hardware threads, because within a group one of them mostly waits
    /// for another.
    #[must_use]
    pub const fn new(hardware_threads: u32) -> Self {
        let groups = hardware_threads;
        let shape = Shape {
            rows: 0,
            groups,
            chunk: CHUNK,
            scanners: 1,
            fetchers: 1,
            aggregators: 1,
            relaxed: true,
            overlapping: true,
        };
        Options { shape, ahead: PrefetchWhen::WhereApart, late: OnLate::Source, node: None, traffic: false }
    }
}

impl Default for Options {
    /// Creates options for the hardware threads that this process may use.
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, |threads| u32::try_from(threads.get()).unwrap_or(MOST));
        Options::new(threads)
    }
}

/// The most threads of a query. Source: assumed; several for each hardware thread of the largest machines with such
/// devices.
pub(crate) const MOST: u32 = 4096;
