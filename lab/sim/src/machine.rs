//! A machine and its costs: every parameter of the simulation, as integers.
//!
//! A profile (TOML) becomes a `Machine`; no other module of the simulation reads names or parses numbers of profiles.

use crate::picos::Picos;
use crate::workload::{Library, QueueId, SubmitBy};
use telpher_abi::{DESCRIPTOR_BYTES, Opcode};

/// Bytes per second.
pub type Rate = u64;

/// A memory node. Reads and writes share its channels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Highest read rate, in bytes per second, while nothing is written.
    pub read: Rate,
    /// Highest write rate, in bytes per second, while nothing is read.
    pub write: Rate,
    /// Highest read rate of all cores together, in bytes per second, without other traffic.
    pub core_read: Rate,
    /// Read latency of a line for a core of the same socket, idle.
    pub latency: Picos,
    /// Time until the node accepts a written line, idle.
    pub write_latency: Picos,
    /// Socket of the node.
    pub socket: usize,
    /// Tile (part of the socket); nodes of one tile share its path to the mesh.
    pub tile: usize,
}

/// Parameters of all memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryCosts {
    /// Extra latency of a line at a node that is busy for half of the time; at utilization u it is u/(1-u) times as
    /// much.
    pub queue: Picos,
    /// Bytes that one core may have in flight at once.
    pub core_in_flight: u64,
    /// Highest rate of all devices' reads and writes at one tile, in bytes per second; `None` for no limit.
    pub tile: Option<Rate>,
    /// Additional bytes that a node carries for each byte that crosses sockets, in 1/256: its directory.
    pub directory: u64,
}

/// Parameters of the caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheCosts {
    /// Bytes of a core's first-level cache.
    pub l1: u64,
    /// Bytes of a core's second-level cache.
    pub l2: u64,
    /// Bytes of a socket's last-level cache.
    pub llc: u64,
    /// Ways of the last-level cache.
    pub ways: u64,
    /// Ways that devices write to.
    pub ddio_ways: u64,
    /// Latency of a line in the core's second-level cache.
    pub l2_latency: Picos,
    /// Latency of a line in the last-level cache of the core's socket.
    pub llc_latency: Picos,
    /// Extra latency of a device's write to the cache that must first evict a line written by a device.
    pub spill: Picos,
}

impl CacheCosts {
    /// Bytes that devices can write before they evict their own lines.
    #[must_use]
    pub fn ddio(&self) -> u64 {
        self.llc * self.ddio_ways / self.ways.max(1)
    }
}

/// Costs of one operation in an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpCost {
    /// Time of a descriptor of 64 bytes in the front end of an engine.
    pub front: Picos,
    /// Addition to `front` for each doubling of the size up to 1 KiB.
    pub front_per_doubling: Picos,
    /// Time from the front end to the written record, without the transfer time of the bytes, for 64 bytes.
    pub latency: Picos,
    /// Addition to `latency` for each doubling of the size up to 4 KiB.
    pub per_doubling: Picos,
    /// Addition to `latency` for each doubling from 4 KiB to 256 KiB.
    pub per_page_doubling: Picos,
}

impl OpCost {
    /// Time of a descriptor in the front end.
    #[must_use]
    #[inline]
    pub fn front_of(&self, bytes: u64) -> Picos {
        self.front + part(self.front_per_doubling, doublings(bytes, 64, 1024))
    }

    /// Time between the last byte and the record.
    #[must_use]
    pub fn tail(&self, bytes: u64) -> Picos {
        self.latency
            + part(self.per_doubling, doublings(bytes, 64, 4096))
            + part(self.per_page_doubling, doublings(bytes, 4096, 256 << 10))
    }
}

/// Number of doublings from `from` to `bytes`, which is limited to `to`; in 1/256, linear between powers of two.
fn doublings(bytes: u64, from: u64, to: u64) -> u64 {
    let bytes = bytes.clamp(from, to);
    let whole = u64::from(bytes.ilog2() - from.ilog2());
    let power = 1 << bytes.ilog2();
    whole * 256 + (bytes - power) * 256 / power
}

fn part(time: Picos, times_256: u64) -> Picos {
    Picos(time.0 * times_256 / 256)
}

/// Costs of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCosts {
    /// Highest read rate, in bytes per second.
    pub read: Rate,
    /// Highest write rate, in bytes per second.
    pub write: Rate,
    /// Highest rate from its reads to its writes, in bytes per second.
    pub through: Rate,
    /// Bytes that its path to memory carries besides the data for a descriptor that writes: list entry, record,
    /// translations. For a descriptor that only reads it is the descriptor itself.
    pub descriptor_bytes: u64,
    /// Pause of an engine's data path after a descriptor that writes.
    pub bubble: Picos,
    /// Time to fetch the first descriptors of a batch's list.
    pub list_fetch: Picos,
    /// Descriptors that an engine keeps ready behind the one whose bytes flow.
    pub ready: usize,
    /// Its engines take batches.
    pub batches: bool,
    /// Bytes in flight to a device at once (its read buffers).
    pub in_flight: u64,
    /// Time for which one partially written line blocks the device.
    pub partial_line: Picos,
    /// The same if exactly one aligned half of the line is written.
    pub half_line: Picos,
    /// Time that reading the destination back adds to a tail.
    pub readback: Picos,
    /// Bytes in flight from a device to memory at once.
    pub writes_in_flight: u64,
    /// Extra latency of a device's path to memory, or to the cache, over a core's.
    pub path: Picos,
    /// Costs of the operations.
    pub ops: OpCosts,
}

/// The operations of DSA 2.x and 3.0 that are simulated, and the operation whose costs each of them has unless a
/// profile has its own: the one that moves its bytes in the same directions. Nothing is published about their times.
pub const SYNTHETIC: [(Opcode, Opcode); 11] = [
    (Opcode::DixGenerate, Opcode::CrcGeneration),
    (Opcode::TypeConversion, Opcode::MemoryMove),
    (Opcode::Reduce, Opcode::MemoryMove),
    (Opcode::ReduceDualcast, Opcode::Dualcast),
    (Opcode::GatherCopy, Opcode::MemoryMove),
    (Opcode::ScatterCopy, Opcode::MemoryMove),
    (Opcode::ScatterFill, Opcode::Fill),
    (Opcode::InterDomainCopy, Opcode::MemoryMove),
    (Opcode::InterDomainFill, Opcode::Fill),
    (Opcode::InterDomainCompare, Opcode::Compare),
    (Opcode::InterDomainComparePattern, Opcode::ComparePattern),
];

/// True if no measurement of the operation is published, so that its simulated times are synthetic.
#[must_use]
pub fn is_synthetic(op: Opcode) -> bool {
    SYNTHETIC.iter().any(|(newer, _)| *newer == op)
}

/// Costs by operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpCosts([OpCost; 256]);

impl OpCosts {
    /// The same cost for every operation; [`with`](OpCosts::with) changes single ones.
    #[must_use]
    pub fn all(cost: OpCost) -> Self {
        OpCosts([cost; 256])
    }

    /// Sets the cost of one operation.
    #[must_use]
    pub fn with(mut self, op: Opcode, cost: OpCost) -> Self {
        self.0[usize::from(op.code())] = cost;
        self
    }

    /// The cost of an operation.
    #[must_use]
    #[inline]
    pub fn of(&self, op: Opcode) -> &OpCost {
        &self.0[usize::from(op.code())]
    }
}

/// Costs of address translation and of missing pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranslationCosts {
    /// Request to the IOMMU for a page that is not the last one of its operand. A part of the measured tail.
    pub miss: Picos,
    /// Bytes that could be read during the page walk for a page that is read.
    pub walk_bytes: u64,
    /// Pages that the IOMMU caches, for which it needs no page walk.
    pub known: u64,
    /// A page request for 4 KiB, served by the system while the engine waits.
    pub page_request: Picos,
    /// Time from the first missing byte to the record that reports it.
    pub report: Picos,
    /// A core's first touch of a page, which maps it.
    pub touch: Picos,
}

/// Costs of writing 64 bytes to a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubmitCosts {
    /// Core time of one MOVDIR64B in a stream of them.
    pub movdir: Picos,
    /// Core time of ENQCMD, to the portal and back.
    pub enqcmd: Picos,
    /// Time of a `write()` to the device node.
    pub system_call: Picos,
    /// Time from the core to the portal.
    pub transit: Picos,
}

impl SubmitCosts {
    /// Returns the time of the system call before the instruction, and the core time of both.
    #[must_use]
    pub fn instructing(&self, queue: QueueId, through: SubmitBy) -> (Picos, Picos) {
        let call = if through == SubmitBy::Write { self.system_call } else { Picos::ZERO };
        (call, call + if queue.shared { self.enqcmd } else { self.movdir })
    }
}

/// Costs of a library for each operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LibraryCosts {
    /// Time to prepare one submission.
    pub prepare: Picos,
    /// Time to prepare one descriptor of a batch's list.
    pub prepare_member: Picos,
    /// Time of the library after it has seen a record.
    pub complete: Picos,
}

/// Costs by library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Libraries {
    /// None: descriptors are reused.
    pub raw: LibraryCosts,
    /// A library that only builds each descriptor.
    pub lean: LibraryCosts,
    /// Intel's DML.
    pub dml: LibraryCosts,
    /// The kernel's dmaengine.
    pub kernel: LibraryCosts,
}

impl Libraries {
    /// The costs of a library.
    #[must_use]
    pub fn of(&self, library: Library) -> &LibraryCosts {
        match library {
            Library::Raw => &self.raw,
            Library::Lean => &self.lean,
            Library::Dml => &self.dml,
            Library::Kernel => &self.kernel,
        }
    }
}

/// Costs of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitCosts {
    /// Time from the write of a record until a polling thread sees it.
    pub poll: Picos,
    /// One poll of a record that is not written yet.
    pub look: Picos,
    /// Setting the monitor and entering UMWAIT.
    pub umwait_entry: Picos,
    /// Leaving UMWAIT.
    pub umwait_exit: Picos,
    /// Time from a completion interrupt to the thread that it wakes; the core is busy for this time.
    pub interrupt: Picos,
    /// Delay of the end of a sleep beyond the requested time.
    pub wake_up: Picos,
}

/// Costs of an operation that a core executes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoftwareOp {
    /// Time of each operation besides its lines.
    pub call: Picos,
    /// Additional time at an address unrelated to the last one: mispredicted branches.
    pub random: Picos,
    /// Lines read for each line of its size: 1, 2 for a comparison of two buffers, 0 for a fill.
    pub reads: u64,
    /// Lines written for each line of its size.
    pub writes: u64,
    /// Time of one line of its size in near memory, in a long stream.
    pub line: Picos,
}

/// Costs of operations in software.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareCosts {
    /// Cores of a socket, if the profile says so. It has no effect on a simulation, in which each thread has a core of
    /// its own; a run with more threads gets a remark.
    pub cores: Option<u32>,
    /// Additional time of a miss whose page must be looked up.
    pub walk: Picos,
    /// Misses that a core has in flight at once.
    pub fill_buffers: u64,
    /// Lines of a single operation that miss before the prefetcher runs ahead.
    pub alone_lines: u64,
    /// Lines that a core looks ahead, beyond the end of its current operation.
    pub window_lines: u64,
    /// Shortest time of one line, wherever it is.
    pub cached_line: Picos,
    /// The C library's copies of more than this many bytes run backwards, from the end to the start.
    pub backward_above: u64,
    /// The C library's copies of more than this many bytes run forwards again.
    pub forward_above: u64,
    /// Costs per operation.
    pub ops: SoftwareOps,
}

/// Software costs per operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareOps([SoftwareOp; 256]);

impl SoftwareOps {
    /// The same cost for every operation; [`with`](SoftwareOps::with) changes single ones.
    #[must_use]
    pub fn all(cost: SoftwareOp) -> Self {
        SoftwareOps([cost; 256])
    }

    /// Sets the cost of one operation.
    #[must_use]
    pub fn with(mut self, op: Opcode, cost: SoftwareOp) -> Self {
        self.0[usize::from(op.code())] = cost;
        self
    }

    /// The cost of an operation.
    #[must_use]
    #[inline]
    pub fn of(&self, op: Opcode) -> &SoftwareOp {
        &self.0[usize::from(op.code())]
    }
}

/// A machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Its name in outputs.
    pub name: String,
    /// Identifies the parameters: FNV-1a of the text of the profile and its bases, 64 bits.
    pub hash: u64,
    /// Memory nodes.
    pub nodes: Vec<Node>,
    /// Parameters of all memory.
    pub memory: MemoryCosts,
    /// Caches.
    pub cache: CacheCosts,
    /// Bytes per second between two sockets, in each direction; `None` for machines with one socket.
    pub link: Option<Rate>,
    /// Latency that crossing the link adds.
    pub link_latency: Picos,
    /// Memory node of each device.
    pub devices: Vec<usize>,
    /// Costs of a device; all devices are alike.
    pub device: DeviceCosts,
    /// Costs of address translation.
    pub translation: TranslationCosts,
    /// Costs of submission.
    pub submit: SubmitCosts,
    /// Costs of libraries.
    pub library: Libraries,
    /// Costs of waiting.
    pub wait: WaitCosts,
    /// Costs of operations on cores.
    pub software: SoftwareCosts,
}

impl Machine {
    /// Time to prepare one submission of `descriptors` descriptors, in one of `lists` lists that are used in turn. A
    /// batch's own descriptor takes no longer than a single one. If the lists exceed the first-level cache, their lines
    /// come from the second.
    #[must_use]
    pub fn preparing(&self, library: Library, descriptors: u32, lists: u32) -> Picos {
        let costs = self.library.of(library);
        if descriptors <= 1 {
            return costs.prepare;
        }
        let bytes = u64::from(descriptors) * u64::from(lists) * DESCRIPTOR_BYTES;
        let line = if bytes > self.cache.l1 { self.cache.l2_latency } else { Picos::ZERO };
        costs.prepare.max((costs.prepare_member + line) * u64::from(descriptors))
    }

    /// Time until a core owns uncached descriptors: those of a batch and the batch descriptor.
    #[must_use]
    pub fn owning(&self, core: usize, batch: u32) -> Picos {
        let (one, others) = (self.nodes[core].latency, if batch > 1 { u64::from(batch) } else { 0 });
        one + Picos((one * others).0 / self.software.fill_buffers.max(1))
    }

    /// Extra latency from a core of one node to memory of another over an access within the socket.
    #[must_use]
    pub fn across(&self, core: usize, node: usize) -> Picos {
        if self.nodes[core].socket == self.nodes[node].socket { Picos::ZERO } else { self.link_latency }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_grows_by_doublings_up_to_a_limit() {
        let cost = OpCost {
            front: Picos::from_nanos(40),
            front_per_doubling: Picos::from_nanos(4),
            latency: Picos::from_nanos(500),
            per_doubling: Picos::from_nanos(40),
            per_page_doubling: Picos::from_nanos(90),
        };
        assert_eq!(cost.tail(1), Picos::from_nanos(500));
        assert_eq!(cost.tail(128), Picos::from_nanos(540));
        assert_eq!(cost.tail(192), Picos::from_nanos(560));
        assert_eq!(cost.tail(8192), Picos::from_nanos(500 + 240 + 90));
        assert_eq!(cost.tail(1 << 30), Picos::from_nanos(500 + 240 + 540));
        assert_eq!((cost.front_of(1), cost.front_of(128)), (Picos::from_nanos(40), Picos::from_nanos(44)));
        assert_eq!(cost.front_of(1 << 30), Picos::from_nanos(40 + 16));
    }
}
