//! What a machine is and what everything on it costs: every parameter of the simulation, resolved to integers.
//!
//! A profile (TOML) becomes a `Machine`; nothing behind this file reads a name or parses a number.

use crate::ps::Ps;
use crate::work::{Lane, Library, Through};
use telpher_abi::{DESCRIPTOR_BYTES, Opcode};

/// Bytes per second.
pub type Rate = u64;

/// One kind of memory at one place. What is read and what is written share its channels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Bytes per second that can be read from it while nothing is written.
    pub read: Rate,
    /// Bytes per second that can be written to it while nothing is read.
    pub write: Rate,
    /// Bytes per second that cores together can read from it while nothing else goes on.
    pub core_read: Rate,
    /// Time of a core of its socket from asking for a line to having it, idle.
    pub latency: Ps,
    /// The same for a line to be accepted.
    pub write_latency: Ps,
    /// Socket it is on.
    pub socket: usize,
    /// Part of the socket it is at; nodes of one share its way to the mesh.
    pub tile: usize,
}

/// What all memory has in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryCosts {
    /// What a line waits longer where a node is busy for half of its time; where it is for a share u, u/(1-u) times as much.
    pub queue: Ps,
    /// Bytes that one core may have asked for at once.
    pub core_in_flight: u64,
    /// Bytes per second that devices can read and write, together, at one tile; `None` where that is no limit.
    pub tile: Option<Rate>,
    /// What of the bytes that come from another socket, or go there, a node carries in addition, in 1/256: its directory.
    pub directory: u64,
}

/// Caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheCosts {
    /// Bytes of a core's own first-level cache.
    pub l1: u64,
    /// Bytes of its second-level cache.
    pub l2: u64,
    /// Bytes of a socket's last-level cache.
    pub llc: u64,
    /// Its ways.
    pub ways: u64,
    /// How many of them devices write to.
    pub ddio_ways: u64,
    /// Time of a core for a line that is in its second-level cache.
    pub l2_latency: Ps,
    /// The same for the last-level cache of its socket.
    pub llc_latency: Ps,
    /// What a device's write to the cache takes longer where it must first drive out a line that a device wrote before.
    pub spill: Ps,
}

impl CacheCosts {
    /// Bytes that devices can write before they drive out their own.
    #[must_use]
    pub fn ddio(&self) -> u64 {
        self.llc * self.ddio_ways / self.ways.max(1)
    }
}

/// What one operation costs an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpCost {
    /// Time for which one descriptor of 64 bytes has the front end of an engine.
    pub front: Ps,
    /// What each doubling of the size up to 1 KiB adds to it.
    pub front_per_doubling: Ps,
    /// Time from the front end to the written record besides that of the bytes themselves, for 64 bytes.
    pub latency: Ps,
    /// What each doubling of the size up to 4 KiB adds to it.
    pub per_doubling: Ps,
    /// What each doubling from 4 KiB to 256 KiB adds.
    pub per_page_doubling: Ps,
}

impl OpCost {
    /// Time for which a descriptor has the front end.
    #[must_use]
    #[inline]
    pub fn front_of(&self, bytes: u64) -> Ps {
        self.front + part(self.front_per_doubling, doublings(bytes, 64, 1024))
    }

    /// Time between the last byte and the record.
    #[must_use]
    pub fn tail(&self, bytes: u64) -> Ps {
        self.latency
            + part(self.per_doubling, doublings(bytes, 64, 4096))
            + part(self.per_page_doubling, doublings(bytes, 4096, 256 << 10))
    }
}

/// Doublings that lead from `from` to `bytes`, which counts as `to` where it is more; in 1/256, linear between powers of two.
fn doublings(bytes: u64, from: u64, to: u64) -> u64 {
    let bytes = bytes.clamp(from, to);
    let whole = u64::from(bytes.ilog2() - from.ilog2());
    let power = 1 << bytes.ilog2();
    whole * 256 + (bytes - power) * 256 / power
}

fn part(time: Ps, times_256: u64) -> Ps {
    Ps(time.0 * times_256 / 256)
}

/// What one device does with its descriptors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCosts {
    /// Bytes per second it can read.
    pub read: Rate,
    /// Bytes per second it can write.
    pub write: Rate,
    /// Bytes per second that can pass from its reads to its writes.
    pub through: Rate,
    /// Bytes that its path to memory carries for a descriptor that writes besides the data: list entry, record, translations. For
    /// one that only reads it is the descriptor itself.
    pub descriptor_bytes: u64,
    /// Time that an engine's data path rests after a descriptor that writes.
    pub bubble: Ps,
    /// Time until the first descriptors of a batch's list are there.
    pub list_fetch: Ps,
    /// Descriptors that an engine keeps ready behind the one whose bytes flow.
    pub ready: usize,
    /// Bytes that may be on their way to a device at once (its read buffers).
    pub in_flight: u64,
    /// Time for which one line that is written in part holds up the device.
    pub partial_line: Ps,
    /// The same where one half of it is written, and whole.
    pub half_line: Ps,
    /// What reading the destination back adds to a tail.
    pub readback: Ps,
    /// Bytes that may be on their way from a device to memory at once.
    pub writes_in_flight: u64,
    /// What a device's way to memory, or to the cache, takes longer than a core's.
    pub path: Ps,
    /// Cost of operations.
    pub ops: OpCosts,
}

/// Costs by operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpCosts([OpCost; 256]);

impl OpCosts {
    /// The same for every operation; [`with`](OpCosts::with) tells some apart.
    #[must_use]
    pub fn all(cost: OpCost) -> Self {
        OpCosts([cost; 256])
    }

    /// One told apart.
    #[must_use]
    pub fn with(mut self, op: Opcode, cost: OpCost) -> Self {
        self.0[usize::from(op.code())] = cost;
        self
    }

    /// That of an operation.
    #[must_use]
    #[inline]
    pub fn of(&self, op: Opcode) -> &OpCost {
        &self.0[usize::from(op.code())]
    }
}

/// What it takes to learn where a page is, and to get one that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranslationCosts {
    /// A page that is not the last of its operand: asking the IOMMU. A part of the tail as it was measured.
    pub miss: Ps,
    /// Bytes that could have been read while the tables of a page that is read are walked through.
    pub walk_bytes: u64,
    /// Pages that the IOMMU knows without.
    pub known: u64,
    /// One page request, served by the system while the engine waits: a page of 4 KiB.
    pub page_request: Ps,
    /// From the first byte that cannot be had to the record that says so.
    pub report: Ps,
    /// A core's first touch of a page, which brings it.
    pub touch: Ps,
}

/// What it takes to bring 64 bytes to a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubmitCosts {
    /// Time for which a core is taken by one MOVDIR64B in a stream of them.
    pub movdir: Ps,
    /// Time for which ENQCMD keeps a core, to the portal and back.
    pub enqcmd: Ps,
    /// Time of a `write()` to the node.
    pub system_call: Ps,
    /// From the core to the portal.
    pub transit: Ps,
}

impl SubmitCosts {
    /// The system call before the instruction, and how long both keep a core.
    #[must_use]
    pub fn instructing(&self, lane: Lane, through: Through) -> (Ps, Ps) {
        let call = if through == Through::Write { self.system_call } else { Ps::ZERO };
        (call, call + if lane.shared { self.enqcmd } else { self.movdir })
    }
}

/// What a library does around each operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LibraryCosts {
    /// Preparing one submission.
    pub prepare: Ps,
    /// Preparing one descriptor of a batch's list.
    pub prepare_member: Ps,
    /// After a record was seen.
    pub complete: Ps,
}

/// Costs by library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Libraries {
    /// None: descriptors are kept and used again.
    pub raw: LibraryCosts,
    /// One that builds each descriptor, and no more.
    pub lean: LibraryCosts,
    /// Intel's DML.
    pub dml: LibraryCosts,
    /// The kernel's dmaengine.
    pub kernel: LibraryCosts,
}

impl Libraries {
    /// That of one.
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

/// How waiting takes its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitCosts {
    /// From a record's being written to its being seen by who polls.
    pub poll: Ps,
    /// One look at a record that is not there yet.
    pub look: Ps,
    /// Setting the monitor and falling into UMWAIT.
    pub umwait_entry: Ps,
    /// Waking up from it.
    pub umwait_exit: Ps,
    /// From a completion interrupt to the thread it wakes; its core is busy for so long.
    pub interrupt: Ps,
    /// By how much a sleep ends later than asked.
    pub wake_up: Ps,
}

/// What an operation takes a core that does it itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoftwareOp {
    /// What each takes besides its lines.
    pub call: Ps,
    /// What it takes besides at a place that has nothing to do with the last one's: branches guessed wrongly.
    pub random: Ps,
    /// Lines it reads for each line of its size: 1, 2 for a comparison of two, 0 for a fill.
    pub reads: u64,
    /// Lines it writes.
    pub writes: u64,
    /// One line of its size, of near memory, in a long stream of them.
    pub line: Ps,
}

/// What software takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareCosts {
    /// What a miss takes besides where its page must be looked up.
    pub walk: Ps,
    /// Misses that a core has under way at once.
    pub fill_buffers: u64,
    /// Lines of an operation by itself that are missed before the prefetcher runs ahead.
    pub alone_lines: u64,
    /// Lines that a core looks ahead, beyond the end of the operation it is at.
    pub window_lines: u64,
    /// One line at least, wherever it is.
    pub cached_line: Ps,
    /// By operation.
    pub ops: SoftwareOps,
}

/// Software by operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareOps([SoftwareOp; 256]);

impl SoftwareOps {
    /// The same for every operation; [`with`](SoftwareOps::with) tells some apart.
    #[must_use]
    pub fn all(cost: SoftwareOp) -> Self {
        SoftwareOps([cost; 256])
    }

    /// One told apart.
    #[must_use]
    pub fn with(mut self, op: Opcode, cost: SoftwareOp) -> Self {
        self.0[usize::from(op.code())] = cost;
        self
    }

    /// That of an operation.
    #[must_use]
    #[inline]
    pub fn of(&self, op: Opcode) -> &SoftwareOp {
        &self.0[usize::from(op.code())]
    }
}

/// A machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// What outputs call it.
    pub name: String,
    /// Which parameters these are: FNV-1a of the profile's text and its bases', 64 bits.
    pub hash: u64,
    /// Memory, by node.
    pub nodes: Vec<Node>,
    /// What it has in common.
    pub memory: MemoryCosts,
    /// Caches.
    pub cache: CacheCosts,
    /// Bytes per second between two sockets, in each direction; `None` for machines of one.
    pub link: Option<Rate>,
    /// What crossing it adds to a latency.
    pub link_latency: Ps,
    /// Node that each device is at.
    pub devices: Vec<usize>,
    /// What devices cost; all are alike.
    pub device: DeviceCosts,
    /// Where pages are.
    pub translation: TranslationCosts,
    /// Submission.
    pub submit: SubmitCosts,
    /// Software around it.
    pub library: Libraries,
    /// Waiting.
    pub wait: WaitCosts,
    /// What cores do themselves.
    pub software: SoftwareCosts,
}

impl Machine {
    /// Preparing one submission of so many descriptors, one of `lists` in turn: a batch's own takes no longer than one that goes by
    /// itself. Lists that the first-level cache has no room for come from the second.
    #[must_use]
    pub fn preparing(&self, library: Library, descriptors: u32, lists: u32) -> Ps {
        let costs = self.library.of(library);
        if descriptors <= 1 {
            return costs.prepare;
        }
        let bytes = u64::from(descriptors) * u64::from(lists) * DESCRIPTOR_BYTES;
        let line = if bytes > self.cache.l1 { self.cache.l2_latency } else { Ps::ZERO };
        costs.prepare.max((costs.prepare_member + line) * u64::from(descriptors))
    }

    /// Until descriptors that are in no cache are a core's own: those of a batch, and the batch's.
    #[must_use]
    pub fn owning(&self, core: usize, batch: u32) -> Ps {
        let (one, others) = (self.nodes[core].latency, if batch > 1 { u64::from(batch) } else { 0 });
        one + Ps((one * others).0 / self.software.fill_buffers.max(1))
    }

    /// How much longer it takes from a core of one node to another than within a socket.
    #[must_use]
    pub fn across(&self, core: usize, node: usize) -> Ps {
        if self.nodes[core].socket == self.nodes[node].socket { Ps::ZERO } else { self.link_latency }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_grows_by_doublings_and_ends_to_grow() {
        let cost = OpCost {
            front: Ps::from_nanos(40),
            front_per_doubling: Ps::from_nanos(4),
            latency: Ps::from_nanos(500),
            per_doubling: Ps::from_nanos(40),
            per_page_doubling: Ps::from_nanos(90),
        };
        assert_eq!(cost.tail(1), Ps::from_nanos(500));
        assert_eq!(cost.tail(128), Ps::from_nanos(540));
        assert_eq!(cost.tail(192), Ps::from_nanos(560));
        assert_eq!(cost.tail(8192), Ps::from_nanos(500 + 240 + 90));
        assert_eq!(cost.tail(1 << 30), Ps::from_nanos(500 + 240 + 540));
        assert_eq!((cost.front_of(1), cost.front_of(128)), (Ps::from_nanos(40), Ps::from_nanos(44)));
        assert_eq!(cost.front_of(1 << 30), Ps::from_nanos(40 + 16));
    }
}
