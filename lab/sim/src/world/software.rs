//! Operations in software on a core.
//!
//! An operation waits for its first lines; the wait is longer without access history, until the prefetcher runs ahead.
//! Then bytes flow at the rate of one core, through the same pipes as those of devices. `docs/software.md` lists the
//! known facts and the assumptions.

use super::memory::CoreRoute;
use super::{Event, FlowOwner, World};
use crate::machine::{Machine, SoftwareOp};
use crate::picos::Picos;
use crate::pipes::Class;
use crate::places::{BufferPlacement, LineLocation};
use crate::workload::AccessPattern;
use telpher_abi::Opcode;

/// Bytes of a line.
const LINE: u64 = 64;

/// Lines of a page of the prefetcher: 4 KiB, whatever the page size is.
const PAGE_LINES: u64 = 64;

/// An operation of a core, ready to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// The class of its pipes, if it leaves the caches.
    class: Option<Class>,
    bytes: u64,
    /// Its time besides the flow of bytes, or all of its time if none flow.
    besides: Picos,
    /// Node of its core, and the places that it reads and writes.
    core: usize,
    places: [Option<BufferPlacement>; 2],
}

impl Task {
    /// A task that only moves bytes through pipes.
    pub(super) fn through(class: Class, bytes: u64) -> Self {
        Task { class: Some(class), bytes, besides: Picos::ZERO, core: 0, places: [None; 2] }
    }

    /// True if its bytes flow through pipes.
    pub(super) fn flows(&self) -> bool {
        self.class.is_some()
    }

    /// Its time besides the flow of bytes; all of its time if none flow.
    pub(super) fn besides(&self) -> Picos {
        self.besides
    }
}

/// The time of an operation by a core without other traffic, and the rate at which its bytes flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alone {
    pub(super) takes: Picos,
    pub(super) most: u64,
}

/// For `bytes` by a core of node `core`.
pub(super) fn alone(
    machine: &Machine,
    core: usize,
    op: Opcode,
    bytes: u64,
    places: [BufferPlacement; 2],
    walk: AccessPattern,
) -> Alone {
    let costs = &machine.software;
    let SoftwareOp { call, random, reads, writes, line } = *costs.ops.of(op);
    let [src, dst] = places;
    let lines = bytes.div_ceil(LINE);
    let latency = |place: BufferPlacement| {
        let within = match place.lines {
            LineLocation::Llc => machine.cache.llc_latency,
            LineLocation::Memory | LineLocation::Streamed => machine.nodes[place.node].latency,
        };
        within + machine.across(core, place.node)
    };
    // A line that is written past the caches is not read before. It occupies a fill buffer until the memory has it.
    let (write_misses, drained) = match dst.lines {
        LineLocation::Streamed => (0, Picos(latency(dst).0 * writes / costs.fill_buffers.max(1))),
        LineLocation::Memory | LineLocation::Llc => (writes, Picos::ZERO),
    };
    // All misses of one line in sequence; the same with near memory.
    let misses = latency(src) * reads + latency(dst) * write_misses;
    let near = machine.nodes[core].latency * (reads + writes).max(1);
    let flowing = scaled(line.0, misses.0, near.0).max(costs.cached_line).max(drained);
    let first = latency(if reads > 0 { src } else { dst });
    // The prefetcher continues upwards from the previous operation, so it is no help for a copy that runs backwards.
    let is_backward = op == Opcode::MemoryMove && bytes > costs.backward_above && bytes <= costs.forward_above;
    let takes = match walk {
        AccessPattern::Sequential if is_backward => first + flowing * lines,
        AccessPattern::Sequential => flowing * lines,
        // The prefetcher does not run ahead, and no later operation hides the first miss.
        AccessPattern::Alone => {
            let slow = lines.min(costs.alone_lines);
            first + Picos(misses.0 / costs.fill_buffers.max(1)).max(flowing) * slow + flowing * (lines - slow)
        }
        // The page lookups and the first miss precede the rest. The core looks ahead by `window_lines`: shorter
        // operations wait together.
        AccessPattern::Random => {
            let (window, page) = (costs.window_lines, lines.min(PAGE_LINES));
            let seen = page.min(window);
            let shared = |wait: Picos| scaled(wait.0, seen, window);
            let lookups = costs.walk * (reads + writes);
            // While the first lines are awaited, the prefetcher, which needs their translation, continues to the end of
            // the page.
            let prefetched = if is_backward { flowing } else { costs.cached_line };
            let fetched = shared(lookups + first) + flowing * seen + prefetched * (page - seen);
            fetched.max(shared(lookups) + flowing * page) + random + flowing * (lines - page)
        }
    };
    Alone { takes: call + takes, most: per_second(flowing) }
}

/// Where the data of a core's operation is when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataState {
    /// In the nearest cache that has room for source and destination: the core's second-level cache, or the socket's.
    Cached,
    /// In memory; the prefetcher has no history.
    InMemory,
    /// In memory, and the destination's pages are not mapped: the core maps each of them.
    Unmapped,
}

impl Machine {
    /// The time of a core of node 0 for an operation in near memory, without other traffic.
    #[must_use]
    pub fn core_time(&self, op: Opcode, bytes: u64, state: DataState) -> Picos {
        let SoftwareOp { call, reads, writes, .. } = *self.software.ops.of(op);
        let lines = bytes.div_ceil(LINE);
        match state {
            DataState::Cached if bytes.saturating_mul(reads + writes) <= self.cache.l2 => {
                call + self.software.cached_line * lines
            }
            DataState::Cached => {
                let place = BufferPlacement { lines: LineLocation::Llc, ..BufferPlacement::on(0) };
                alone(self, 0, op, bytes, [place; 2], AccessPattern::Sequential).takes
            }
            DataState::InMemory => alone(self, 0, op, bytes, [BufferPlacement::on(0); 2], AccessPattern::Alone).takes,
            DataState::Unmapped => {
                let pages = bytes.div_ceil(PAGE_LINES * LINE);
                self.core_time(op, bytes, DataState::InMemory) + self.translation.touch * pages
            }
        }
    }
}

/// `what * times / by`, with `by` at least 1.
fn scaled(what: u64, times: u64, by: u64) -> Picos {
    Picos(u64::try_from(u128::from(what) * u128::from(times) / u128::from(by.max(1))).unwrap_or(u64::MAX))
}

/// Bytes per second, given the time of one line.
fn per_second(line: Picos) -> u64 {
    LINE * 1_000_000_000_000 / line.0.max(1)
}

impl World {
    /// An operation by a core of a node.
    pub(super) fn task(
        &mut self,
        core: usize,
        op: Opcode,
        bytes: u64,
        places: [BufferPlacement; 2],
        walk: AccessPattern,
    ) -> Task {
        let Alone { takes, most } = alone(&self.machine, core, op, bytes, places, walk);
        let SoftwareOp { reads, writes, .. } = *self.machine.software.ops.of(op);
        let node = |place: BufferPlacement, times: u64| {
            (place.lines != LineLocation::Llc && times > 0).then_some((place.node, times))
        };
        let route = CoreRoute { core, read: node(places[0], reads), write: node(places[1], writes), most, sharing: 1 };
        let touched = |place: BufferPlacement, times: u64| (times > 0).then_some(place);
        let cached = touched(places[1], writes).filter(|place| place.lines != LineLocation::Streamed);
        let places = [touched(places[0], reads), cached];
        if bytes == 0 || route.read.is_none() && route.write.is_none() {
            return Task { class: None, bytes, besides: takes, core, places };
        }
        let flows = scaled(bytes, 1_000_000_000_000, most);
        Task { class: Some(self.core_class(route)), bytes, besides: takes.since(flows), core, places }
    }

    /// Begins a task; when it is done, `over` happens.
    pub(super) fn begin_task(&mut self, task: Task, owner: FlowOwner, over: Event) {
        for (place, write) in task.places.into_iter().zip([false, true]) {
            if let Some(place) = place {
                self.through_cache(owner, task.core, place, task.bytes, write);
            }
        }
        match task.class {
            Some(class) => self.pipes.start(self.events.now(), class, task.bytes, owner),
            None => self.events.after(task.besides, over),
        }
    }

    /// The last byte of a task has flowed.
    pub(super) fn task_flowed(&mut self, task: Task, over: Event) {
        self.events.after(task.besides, over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::BUILT_IN;

    #[test]
    fn a_backward_copy_waits_for_one_more_miss() {
        let machine = Machine::built_in("spr-asplos").unwrap();
        let near = BufferPlacement::on(0);
        let of = |op, bytes, walk| alone(&machine, 0, op, bytes, [near; 2], walk).takes;
        let line = machine.software.ops.of(Opcode::MemoryMove).line;
        let copy = |bytes| of(Opcode::MemoryMove, bytes, AccessPattern::Sequential);
        assert_eq!(copy(576) - copy(512), line + machine.nodes[0].latency);
        assert_eq!(copy(2112) - copy(576), line * 24);
        assert_eq!(copy(2176) - copy(512), line * 26);
        // A fill is no copy. At random addresses, the lines beyond the core's window are not prefetched.
        assert_eq!(
            of(Opcode::Fill, 576, AccessPattern::Sequential) - of(Opcode::Fill, 512, AccessPattern::Sequential),
            machine.software.ops.of(Opcode::Fill).line
        );
        let random = |bytes| of(Opcode::MemoryMove, bytes, AccessPattern::Random);
        assert_eq!(random(2112) - random(1024), line * 17);
    }

    #[test]
    fn farther_data_never_takes_less_time() {
        for (profile, _) in BUILT_IN {
            let machine = Machine::built_in(profile).unwrap();
            for op in [Opcode::MemoryMove, Opcode::Fill, Opcode::Compare] {
                for bytes in [0, 64, 4096, 65536, 1 << 20, 1 << 24] {
                    let [cached, memory, unmapped] = [DataState::Cached, DataState::InMemory, DataState::Unmapped]
                        .map(|state| machine.core_time(op, bytes, state));
                    assert!(cached <= memory && memory <= unmapped, "{profile} {op:?} {bytes}");
                }
            }
        }
        // Against a measured core (Debian 12, EPYC): 1.2, 5.9 and 27.8 µs.
        let machine = Machine::built_in("spr-asplos").unwrap();
        let of = |state| machine.core_time(Opcode::MemoryMove, 65536, state).as_nanos_f64() / 1e3;
        let [cached, memory, unmapped] = [DataState::Cached, DataState::InMemory, DataState::Unmapped].map(of);
        assert!((1.0..3.0).contains(&cached) && (5.0..9.0).contains(&memory), "{cached} {memory}");
        assert!((20.0..35.0).contains(&unmapped), "{unmapped}");
    }

    #[test]
    fn larger_or_farther_operations_never_take_less_time() {
        for (profile, _) in BUILT_IN {
            let machine = Machine::built_in(profile).unwrap();
            let cached = BufferPlacement { lines: LineLocation::Llc, ..BufferPlacement::on(0) };
            for op in Opcode::ALL {
                for walk in [AccessPattern::Alone, AccessPattern::Random, AccessPattern::Sequential] {
                    let of = |bytes, place| alone(&machine, 0, *op, bytes, [place; 2], walk).takes;
                    let mut before = Picos::ZERO;
                    for lines in 0..300 {
                        let near = of(lines * LINE, BufferPlacement::on(0));
                        // Copies that run forwards again are faster than those below, which run backwards.
                        let is_first_forward = lines == machine.software.forward_above / LINE + 1;
                        assert!(near >= before || is_first_forward, "{profile} {op:?} {walk:?} {lines} lines");
                        assert!(of(lines * LINE, cached) <= near, "{profile} {op:?} {walk:?} {lines} lines");
                        for node in 1..machine.nodes.len() {
                            let nearer =
                                machine.nodes[node].latency + machine.across(0, node) < machine.nodes[0].latency;
                            let there = of(lines * LINE, BufferPlacement::on(node));
                            assert!(nearer || there >= near, "{profile} {op:?} {walk:?} {lines} lines at node {node}");
                        }
                        before = near;
                    }
                }
            }
        }
    }
}
