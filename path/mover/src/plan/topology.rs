//! NUMA nodes: which queues are near a thread or near some memory.

use crate::plan::request::Request;
use crate::sync::{AtomicU64, Ordering};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use telpher_os::Nodes;

/// What a mover asks about NUMA nodes. Programs use the system's topology; tests and simulators provide their own.
///
/// Nodes are numbered as the kernel numbers them, and as [`QueueInfo::numa_node`](telpher_portal::QueueInfo::numa_node)
/// does.
pub trait Topology: Send + Sync + Debug {
    /// Returns one more than the highest node number.
    fn nodes(&self) -> u32;

    /// Returns the distance between two nodes; less is nearer.
    fn distance(&self, from: u32, to: u32) -> u32;

    /// Returns the node that this thread runs on at the moment, if known.
    fn of_this_thread(&self) -> Option<u32>;

    /// Returns the node of the memory at `address`, if known. Called for every operation; the answer is a hint and may
    /// be old.
    fn of_memory(&self, address: u64) -> Option<u32>;
}

/// The kernel's topology, with cached answers.
///
/// The location of a page costs a system call, so an answer is used for the 2 MiB around the page and for the next 4095
/// calls about them. Memory of one buffer is mostly on one node, and pages that have moved are noticed sooner or later.
#[derive(Debug)]
pub struct SystemTopology {
    nodes: Nodes,
    /// The cached answers, by the low bits of the region's number.
    answers: Box<[AtomicU64]>,
}

/// Number of cached answers. Source: assumed; 512 MiB of memory in use at a time.
const KEPT: usize = 256;
/// A region: a huge page, which is never on two nodes.
const REGION_SHIFT: u32 = 21;
/// Bits of an answer, from the lowest: how often it may still be used, the node, the region, and a valid bit. A user
/// address has at most 56 bits, so that a region's number has 35.
const USES: u64 = (1 << 12) - 1;
const NODE_SHIFT: u32 = 12;
const NODE: u64 = (1 << 12) - 1;
const KEY_SHIFT: u32 = 24;
const VALID: u64 = 1 << 63;

impl SystemTopology {
    /// This machine's nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::over(Nodes::of_this_machine())
    }

    fn over(nodes: Nodes) -> Self {
        SystemTopology { nodes, answers: (0..KEPT).map(|_| AtomicU64::new(0)).collect() }
    }

    /// This machine's nodes, read once in this process.
    pub(crate) fn shared() -> Arc<dyn Topology> {
        static SHARED: OnceLock<Arc<SystemTopology>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(Self::new()))) as Arc<dyn Topology>
    }

    /// Returns the node of a region; calls `lookup` if no answer is cached.
    fn kept(&self, address: u64, lookup: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let region = address >> REGION_SHIFT & ((1 << 36) - 1);
        let answer = &self.answers[usize::try_from(region).unwrap_or(0) % KEPT];
        // Relaxed (each access): each word is valid by itself; if two threads count it down at once, one count may be
        // lost.
        let kept = answer.load(Ordering::Relaxed);
        if kept >> KEY_SHIFT == region | VALID >> KEY_SHIFT && kept & USES > 0 {
            answer.store(kept - 1, Ordering::Relaxed);
            return u32::try_from(kept >> NODE_SHIFT & NODE).ok();
        }
        let node = lookup()?;
        if u64::from(node) <= NODE {
            answer.store(VALID | region << KEY_SHIFT | u64::from(node) << NODE_SHIFT | USES, Ordering::Relaxed);
        }
        Some(node)
    }
}

impl Default for SystemTopology {
    fn default() -> Self {
        Self::new()
    }
}

impl Topology for SystemTopology {
    fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        self.nodes.distance(from, to)
    }

    fn of_this_thread(&self) -> Option<u32> {
        self.nodes.of_this_thread()
    }

    fn of_memory(&self, address: u64) -> Option<u32> {
        if self.nodes.count() == 1 {
            return Some(0);
        }
        self.kept(address, || self.nodes.of_page(address))
    }
}

/// The queues of a mover whose devices are on more than one node, by nearness.
#[derive(Debug)]
pub(crate) struct NodeMap {
    topology: Arc<dyn Topology>,
    /// By node: the queues of the nearest device or devices. Never empty.
    near: Vec<Vec<usize>>,
    /// The queues for an unknown node: all.
    anywhere: Vec<usize>,
}

impl NodeMap {
    /// The map for queues on these nodes; `None` if all known nodes are the same, so that nearness decides nothing.
    pub(crate) fn of(queues: &[Option<u32>], topology: impl FnOnce() -> Arc<dyn Topology>) -> Option<NodeMap> {
        let mut known = queues.iter().flatten();
        let first = known.next()?;
        if known.all(|node| node == first) {
            return None;
        }
        let topology = topology();
        let highest = queues.iter().flatten().max().map_or(0, |node| node.saturating_add(1));
        let nodes = topology.nodes().max(highest).min(1 << 12);
        let nearest = |from: u32| {
            let distance = |node: &Option<u32>| node.map(|node| topology.distance(from, node));
            let least = queues.iter().filter_map(distance).min();
            (0..queues.len()).filter(|&queue| distance(&queues[queue]) == least).collect()
        };
        let near = (0..nodes).map(nearest).collect();
        Some(NodeMap { topology, near, anywhere: (0..queues.len()).collect() })
    }

    fn by_node(&self, node: Option<u32>) -> &[usize] {
        node.and_then(|node| self.near.get(node as usize)).unwrap_or(&self.anywhere)
    }

    /// Returns the queues nearest to this thread.
    pub(crate) fn near_thread(&self) -> &[usize] {
        self.by_node(self.topology.of_this_thread())
    }

    /// Returns the queues nearest to what a request reads, and to what it writes; twice the same if it does only one of
    /// them. The kernel usually allocates missing pages on the thread's node, so that node is used for them.
    pub(crate) fn near_memory(&self, request: &Request) -> [&[usize]; 2] {
        let ranges = request.ranges();
        let address =
            |written| ranges.iter().flatten().find(|range| range.written == written).map(|range| range.address);
        let near = |address| match self.topology.of_memory(address) {
            None => self.near_thread(),
            node => self.by_node(node),
        };
        match (address(false), address(true)) {
            (Some(read), Some(written)) => [near(read), near(written)],
            (Some(one), None) | (None, Some(one)) => [near(one); 2],
            (None, None) => [self.near_thread(); 2],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn an_answer_is_cached_for_its_region_for_a_limited_time() {
        let topology = SystemTopology::new();
        let asked = Cell::new(0);
        let node = |address, node: u32| {
            topology.kept(address, || {
                asked.set(asked.get() + 1);
                Some(node)
            })
        };
        assert_eq!(node(0x20_0000, 3), Some(3));
        assert_eq!((node(0x3f_ffff, 9), asked.get()), (Some(3), 1), "the same region");
        assert_eq!((node(0x40_0000, 5), asked.get()), (Some(5), 2), "the next");
        assert_eq!(
            (node(0x20_0000 + ((KEPT as u64) << REGION_SHIFT), 7), asked.get()),
            (Some(7), 3),
            "the same cache entry"
        );
        assert_eq!((node(0x20_0000, 4), asked.get()), (Some(4), 4));
        for _ in 0..USES {
            assert_eq!(node(0x20_0000, 8), Some(4));
        }
        assert_eq!((node(0x20_0000, 8), asked.get()), (Some(8), 5), "the page may have moved");
    }

    #[test]
    fn an_unknown_node_is_looked_up_again() {
        let topology = SystemTopology::new();
        assert_eq!(topology.kept(0, || None), None);
        assert_eq!(topology.kept(0, || Some(0)), Some(0));
        assert_eq!(topology.kept(0, || Some(1)), Some(0));
    }
}
