//! What a core does itself: operations in software.
//!
//! An operation waits for its first lines, for longer where nothing is known about its place, until the prefetcher runs ahead; from
//! then on bytes flow at the rate of one core, through the same pipes as those of devices. `docs/software.md` tells what is known
//! about it, and what is not.

use super::memory::Haul;
use super::{Event, Whose, World};
use crate::machine::{Machine, SoftwareOp};
use crate::pipes::Class;
use crate::places::{Lines, Place};
use crate::ps::Ps;
use crate::work::Walk;
use telpher_abi::Opcode;

/// Bytes of a line.
const LINE: u64 = 64;

/// Lines of the pages that a prefetcher keeps to: 4 KiB, whatever the page is.
const PAGE_LINES: u64 = 64;

/// An operation by a core, ready to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// The pipes it goes through, if it leaves the caches.
    class: Option<Class>,
    bytes: u64,
    /// What it takes besides, or altogether.
    besides: Ps,
    /// Its core's node, and what it reads and writes.
    core: usize,
    places: [Option<Place>; 2],
}

impl Task {
    /// Bytes that go through pipes, and nothing besides.
    pub(super) fn through(class: Class, bytes: u64) -> Self {
        Task { class: Some(class), bytes, besides: Ps::ZERO, core: 0, places: [None; 2] }
    }

    /// Its bytes go through pipes.
    pub(super) fn flows(&self) -> bool {
        self.class.is_some()
    }

    /// What it takes besides that; all of it where they do not.
    pub(super) fn besides(&self) -> Ps {
        self.besides
    }
}

/// What an operation takes by the core alone, and the rate at which its bytes flow within that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alone {
    pub(super) takes: Ps,
    pub(super) most: u64,
}

/// Of `bytes`, by a core of a node.
pub(super) fn alone(machine: &Machine, core: usize, op: Opcode, bytes: u64, places: [Place; 2], walk: Walk) -> Alone {
    let costs = &machine.software;
    let SoftwareOp { call, random, reads, writes, line } = *costs.ops.of(op);
    let [src, dst] = places;
    let lines = bytes.div_ceil(LINE);
    let latency = |place: Place| {
        let within = match place.lines {
            Lines::Llc => machine.cache.llc_latency,
            Lines::Memory => machine.nodes[place.node].latency,
        };
        within + machine.across(core, place.node)
    };
    // All misses of one line, one after the other; and with near memory.
    let misses = latency(src) * reads + latency(dst) * writes;
    let near = machine.nodes[core].latency * (reads + writes).max(1);
    let flowing = scaled(line.0, misses.0, near.0).max(costs.cached_line);
    let first = latency(if reads > 0 { src } else { dst });
    let takes = match walk {
        Walk::Sequential => flowing * lines,
        // Nothing runs ahead of it, and nothing behind it hides its first miss.
        Walk::Alone => {
            let slow = lines.min(costs.alone_lines);
            first + Ps(misses.0 / costs.fill_buffers.max(1)).max(flowing) * slow + flowing * (lines - slow)
        }
        // Its pages are looked up and its first line is missed before the rest can flow. The core looks so many lines ahead: shorter
        // operations wait together.
        Walk::Random => {
            let (window, page) = (costs.window_lines, lines.min(PAGE_LINES));
            let seen = page.min(window);
            let shared = |wait: Ps| scaled(wait.0, seen, window);
            let lookups = costs.walk * (reads + writes);
            // While the first lines are waited for the prefetcher, who needs to know where they are, goes on to the end of their page.
            let fetched = shared(lookups + first) + flowing * seen + costs.cached_line * (page - seen);
            fetched.max(shared(lookups) + flowing * page) + random + flowing * (lines - page)
        }
    };
    Alone { takes: call + takes, most: per_second(flowing) }
}

/// So much, times something, by something else that counts as 1 if it is nothing.
fn scaled(what: u64, times: u64, by: u64) -> Ps {
    Ps(u64::try_from(u128::from(what) * u128::from(times) / u128::from(by.max(1))).unwrap_or(u64::MAX))
}

/// Bytes per second of a line in so much time.
fn per_second(line: Ps) -> u64 {
    LINE * 1_000_000_000_000 / line.0.max(1)
}

impl World {
    /// An operation by a core of a node.
    pub(super) fn task(&mut self, core: usize, op: Opcode, bytes: u64, places: [Place; 2], walk: Walk) -> Task {
        let Alone { takes, most } = alone(&self.machine, core, op, bytes, places, walk);
        let SoftwareOp { reads, writes, .. } = *self.machine.software.ops.of(op);
        let node =
            |place: Place, times: u64| (place.lines == Lines::Memory && times > 0).then_some((place.node, times));
        let haul = Haul { core, read: node(places[0], reads), write: node(places[1], writes), most, sharing: 1 };
        let touched = |place: Place, times: u64| (times > 0).then_some(place);
        let places = [touched(places[0], reads), touched(places[1], writes)];
        if bytes == 0 || haul.read.is_none() && haul.write.is_none() {
            return Task { class: None, bytes, besides: takes, core, places };
        }
        let flows = scaled(bytes, 1_000_000_000_000, most);
        Task { class: Some(self.core_class(haul)), bytes, besides: takes.since(flows), core, places }
    }

    /// A task begins; when it is over, `whose` goes on.
    pub(super) fn begin_task(&mut self, task: Task, whose: Whose, over: Event) {
        for (place, write) in task.places.into_iter().zip([false, true]) {
            if let Some(place) = place {
                self.through_cache(whose, task.core, place, task.bytes, write);
            }
        }
        match task.class {
            Some(class) => self.pipes.start(self.agenda.now(), class, task.bytes, whose),
            None => self.agenda.after(task.besides, over),
        }
    }

    /// The last byte of a task has gone.
    pub(super) fn task_flowed(&mut self, task: Task, over: Event) {
        self.agenda.after(task.besides, over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::BUILT_IN;

    #[test]
    fn what_is_longer_or_farther_is_never_sooner_done() {
        for (profile, _) in BUILT_IN {
            let machine = Machine::built_in(profile).unwrap();
            let cached = Place { lines: Lines::Llc, ..Place::on(0) };
            for op in Opcode::ALL {
                for walk in [Walk::Alone, Walk::Random, Walk::Sequential] {
                    let of = |bytes, place| alone(&machine, 0, *op, bytes, [place; 2], walk).takes;
                    let mut before = Ps::ZERO;
                    for lines in 0..300 {
                        let near = of(lines * LINE, Place::on(0));
                        assert!(near >= before, "{profile} {op:?} {walk:?} {lines} lines");
                        assert!(of(lines * LINE, cached) <= near, "{profile} {op:?} {walk:?} {lines} lines");
                        for node in 1..machine.nodes.len() {
                            let nearer =
                                machine.nodes[node].latency + machine.across(0, node) < machine.nodes[0].latency;
                            let there = of(lines * LINE, Place::on(node));
                            assert!(nearer || there >= near, "{profile} {op:?} {walk:?} {lines} lines at node {node}");
                        }
                        before = near;
                    }
                }
            }
        }
    }
}
