//! How devices and cores reach memory: through which pipes their bytes go, and how far it is.
//!
//! ```text
//! device ─ reads, writes ─┬─ bytes in flight (Little's law)      bytes in flight / latency is a rate
//!                         ├─ link, if another socket's
//!                         ├─ tile, if it is a limit
//!                         └─ the node's channels                 or the cache, which spares them
//! ```

use super::World;
use crate::machine::{Machine, Rate};
use crate::pipes::{Class, Pipe, Pipes, WHOLE};
use crate::places::{Lines, Place};
use crate::ps::Ps;
use std::collections::BTreeMap;

/// Bytes in flight are a pipe that carries them every so often; a class's share in it is its latency in this unit.
const TURN: Ps = Ps::from_nanos(10);

/// Of a pipe of bytes in flight: latencies beyond 168 ms count as that.
const MOST_SHARE: u64 = 1 << 32;

/// The rate, `most` at most, at which something goes whose rate is bound the more the faster it goes; to 1/4096 of that.
fn settled(most: Rate, bound: impl Fn(Rate) -> Rate) -> Rate {
    if bound(most) >= most {
        return most;
    }
    let (mut low, mut high) = (0, most);
    for _ in 0..12 {
        let middle = Rate::midpoint(low, high);
        *(if bound(middle) >= middle { &mut low } else { &mut high }) = middle;
    }
    low
}

/// Rate of the pipe that stands for bytes in flight.
pub(super) fn carrier(in_flight: u64) -> Rate {
    in_flight.saturating_mul(1_000_000_000_000 / TURN.0)
}

/// Where the bytes of a leg are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum At {
    /// In memory.
    Memory,
    /// In the last-level cache; when written, in the ways that devices write to.
    Cache,
    /// Written to those ways while they are full of what devices wrote before: that goes to memory first.
    Spilled,
}

/// One range of a flow: where it is, whether it is written, and its share of the flow's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Leg {
    pub(super) node: usize,
    pub(super) write: bool,
    pub(super) at: At,
    pub(super) share: u64,
}

/// Between whom bytes of a device flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Route {
    pub(super) device: u16,
    /// The group, if it may not have all of the device's read buffers.
    pub(super) pool: Option<u16>,
    pub(super) legs: [Option<Leg>; 3],
}

/// The pipes before memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// By node: its channels.
    pub(super) nodes: Vec<Pipe>,
    /// By the socket that the bytes leave.
    pub(super) links: Vec<Pipe>,
    /// By tile.
    pub(super) tiles: BTreeMap<usize, Pipe>,
    /// By socket: bytes that devices write to the cache again and again.
    ddio: Vec<u64>,
    /// Classes of routes that were gone.
    ways: BTreeMap<Route, Way>,
    /// And of what cores moved.
    hauls: BTreeMap<Haul, Class>,
}

/// What a core of a node moves itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Haul {
    pub(super) core: usize,
    /// Memory node that is read, and how often; nothing for what is in the last-level cache.
    pub(super) read: Option<(usize, u64)>,
    /// That is written.
    pub(super) write: Option<(usize, u64)>,
    /// Bytes per second that it can go at most.
    pub(super) most: Rate,
    /// Its hardware threads that move something: what a core has asked for at once is that of all of them. 0 is 1.
    pub(super) sharing: u32,
}

impl Haul {
    /// Bytes that it may have asked for at once.
    fn in_flight(&self, of_a_core: u64) -> u64 {
        of_a_core / u64::from(self.sharing.max(1))
    }

    /// Nodes, how often, and whether they are written.
    fn ranges(&self) -> impl Iterator<Item = (usize, u64, bool)> {
        let range = |range: Option<(usize, u64)>, write| range.map(|(node, times)| (node, times, write));
        [range(self.read, false), range(self.write, true)].into_iter().flatten()
    }
}

/// A route's class, and which pipes of it are bytes in flight.
#[derive(Clone, Copy, Debug)]
struct Way {
    class: Class,
    /// Also those of its group.
    pool: Option<Pipe>,
    reading: bool,
    writing: bool,
}

impl Memory {
    pub(super) fn sockets(&self) -> usize {
        self.ddio.len()
    }

    pub(super) fn new<T: Ord + Copy>(machine: &Machine, pipes: &mut Pipes<T>) -> Self {
        let nodes = machine.nodes.iter().map(|node| pipes.pipe(node.read)).collect();
        let sockets = machine.nodes.iter().map(|node| node.socket + 1).max().unwrap_or(1);
        let links = machine.link.map(|rate| (0..sockets).map(|_| pipes.pipe(rate)).collect()).unwrap_or_default();
        let mut tiles = BTreeMap::new();
        if let Some(rate) = machine.memory.tile {
            for node in &machine.nodes {
                tiles.entry(node.tile).or_insert_with(|| pipes.pipe(rate));
            }
        }
        Memory { nodes, links, tiles, ddio: vec![0; sockets], ways: BTreeMap::new(), hauls: BTreeMap::new() }
    }
}

/// Shares of pipes, one entry for each.
#[derive(Default)]
struct Through(Vec<(Pipe, u64)>);

impl Through {
    fn add(&mut self, pipe: Pipe, share: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == pipe) {
            Some((_, sum)) => *sum += share,
            None if share > 0 => self.0.push((pipe, share)),
            None => {}
        }
    }
}

impl World {
    fn socket(&self, node: usize) -> usize {
        self.machine.nodes[node].socket
    }

    /// The first node of a socket; the first of all, if there is no such socket.
    pub(crate) fn node_of(&self, socket: u64) -> usize {
        self.machine.nodes.iter().position(|node| node.socket as u64 == socket).unwrap_or(0)
    }

    /// A device is at the socket of a node.
    pub(crate) fn is_near(&self, device: u16, node: usize) -> bool {
        let there = self.devices.get(usize::from(device));
        there.is_some_and(|there| self.socket(there.node) == self.socket(node))
    }

    /// What a line waits longer at a node for its being busy now.
    #[inline]
    fn queued(&self, node: usize) -> Ps {
        self.busy(self.pipes.in_use(self.memory.nodes[node]))
    }

    /// The same if so much of it is in use, and so much not.
    #[inline]
    fn busy(&self, (used, left): (u64, u64)) -> Ps {
        if used == 0 {
            return Ps::ZERO;
        }
        // A pipe that is full would mean for ever; requests in flight are bounded.
        Ps(self.machine.memory.queue.0.saturating_mul(used) / left.max(used / 32).max(1))
    }

    /// Time of one line from or to a socket, with memory idle.
    fn idle(&self, socket: usize, node: usize, write: bool, at: At) -> Ps {
        let (its, cache) = (&self.machine.nodes[node], &self.machine.cache);
        let memory = if write { its.write_latency } else { its.latency };
        let time = match at {
            At::Cache => cache.llc_latency,
            At::Memory => memory,
            At::Spilled => memory + cache.spill,
        };
        if its.socket == socket { time } else { time + self.machine.link_latency }
    }

    /// The same as busy as it is now.
    fn reach(&self, socket: usize, node: usize, write: bool, at: At) -> Ps {
        let idle = self.idle(socket, node, write, at);
        if at == At::Cache { idle } else { idle + self.queued(node) }
    }

    /// How much farther a core of one node has to a line of a place than to what is idle: its latency.
    pub(super) fn core_latency(&self, core: usize, node: usize) -> Ps {
        self.reach(self.socket(core), node, false, At::Memory)
    }

    /// The leg of a range that a device reads, or writes with or without asking for the cache.
    pub(super) fn leg(
        &mut self,
        device: u16,
        address: u64,
        bytes: u64,
        write: bool,
        to_cache: bool,
        share: u64,
    ) -> Leg {
        let place = self.places.at(address).unwrap_or(Place::on(self.devices[usize::from(device)].node));
        let at = match (write, to_cache) {
            (false, _) if place.lines == Lines::Llc => At::Cache,
            (true, true) => self.allocate(device, place.node, address, bytes),
            _ => At::Memory,
        };
        Leg { node: place.node, write, at, share }
    }

    /// A device writes to the cache. Where all that devices write there again and again does not fit into their ways, each line has left
    /// them before it is written again, if the oldest goes first.
    fn allocate(&mut self, device: u16, node: usize, address: u64, bytes: u64) -> At {
        let socket = self.socket(node);
        let room = self.machine.cache.ddio();
        let new = self.places.cached(address, bytes);
        let used = &mut self.memory.ddio[socket];
        *used = used.saturating_add(new.unwrap_or(0));
        let spilled = *used > room;
        let written = if spilled { bytes } else { new.unwrap_or(0) };
        self.cache.device_wrote(&self.machine.cache, device, socket, written);
        if spilled { At::Spilled } else { At::Cache }
    }

    /// How much longer a descriptor's tail is, in picoseconds, than with idle memory of its device's node, which its numbers were
    /// measured with.
    pub(super) fn farther(&self, route: &Route) -> i64 {
        let dsa = &self.devices[usize::from(route.device)];
        let (own, socket) = (&self.machine.nodes[dsa.node], self.socket(dsa.node));
        let most = |write: bool, near: Ps| {
            let far = route.legs.iter().flatten().filter(|leg| leg.write == write);
            let far = far.map(|leg| self.reach(socket, leg.node, write, leg.at)).max().unwrap_or(near);
            i64::try_from(far.0).unwrap_or(i64::MAX).saturating_sub(i64::try_from(near.0).unwrap_or(i64::MAX))
        };
        most(false, own.latency).saturating_add(most(true, own.write_latency))
    }

    /// Share of a route in the bytes that its device reads, or writes, in flight, if lines wait so long at a node.
    fn in_flight(&self, route: &Route, write: bool, wait: impl Fn(usize) -> Ps) -> u64 {
        let dsa = &self.devices[usize::from(route.device)];
        let socket = self.socket(dsa.node);
        let of = |leg: &Leg| {
            let wait = if leg.at == At::Cache { Ps::ZERO } else { wait(leg.node) };
            let time = self.idle(socket, leg.node, write, leg.at) + wait + self.machine.device.path;
            time.0 * leg.share / TURN.0
        };
        let all: u64 = route.legs.iter().flatten().filter(|leg| leg.write == write).map(of).sum();
        all.min(MOST_SHARE)
    }

    /// The same where a flow joins a class, with memory as busy as its flows then make it within what that pipe carries of bytes in
    /// flight.
    fn loaded(&self, route: &Route, write: bool, pipe: Pipe, class: Class) -> u64 {
        let flows = self.pipes.flows(class) + 1;
        let share = |rate: Rate| {
            let wait = |node: usize| self.busy(self.pipes.if_joined(self.memory.nodes[node], class, rate));
            self.in_flight(route, write, wait).max(1)
        };
        let carried = u128::from(self.pipes.rate(pipe)) * u128::from(WHOLE) / u128::from(flows);
        let bound = |rate: Rate| u64::try_from(carried / u128::from(share(rate))).unwrap_or(u64::MAX);
        let costs = &self.machine.device;
        share(settled(if write { costs.write } else { costs.read } / flows, bound))
    }

    /// The class of a route; made when it is first gone.
    pub(super) fn class_of(&mut self, route: Route) -> Class {
        if let Some(way) = self.memory.ways.get(&route).copied() {
            let dsa = &self.devices[usize::from(route.device)];
            let reading = way.reading.then_some(dsa.reading);
            let writing = way.writing.then_some(dsa.writing);
            for (pipe, write) in [(reading, false), (writing, true), (way.pool, false)] {
                if let Some(pipe) = pipe {
                    let share = self.loaded(&route, write, pipe, way.class);
                    self.pipes.share(way.class, pipe, share);
                }
            }
            return way.class;
        }
        let way = self.new_way(&route);
        self.memory.ways.insert(route, way);
        way.class
    }

    fn new_way(&mut self, route: &Route) -> Way {
        let dsa = &self.devices[usize::from(route.device)];
        let (own, costs) = (self.socket(dsa.node), &self.machine.device);
        let mut through = Through::default();
        let (mut reads, mut writes) = (0, 0);
        for leg in route.legs.into_iter().flatten() {
            self.add_leg(&mut through, own, leg, false);
            let node = &self.machine.nodes[leg.node];
            if let (Some(tile), true) = (self.memory.tiles.get(&node.tile), leg.at != At::Cache) {
                through.add(*tile, leg.share + self.directory(leg.share, node.socket != own));
            }
            *(if leg.write { &mut writes } else { &mut reads }) += leg.share;
        }
        through.add(dsa.read, reads);
        through.add(dsa.write, writes);
        through.add(dsa.through, reads.min(writes));
        // Where twice the latency would not fill the buffers, they are no limit, and cost nothing.
        let limits = |write: bool, rate: Rate, in_flight: u64| {
            let share = self.in_flight(route, write, |_| Ps::ZERO);
            let filled =
                u128::from(rate) * u128::from(share) * u128::from(TURN.0) / u128::from(WHOLE) / 1_000_000_000_000;
            (2 * filled > u128::from(in_flight)).then_some(share)
        };
        let reading = limits(false, costs.read, costs.in_flight);
        let writing = limits(true, costs.write, costs.writes_in_flight);
        let pool = route.pool.and_then(|group| dsa.pools[usize::from(group)]);
        let pooled = pool.and_then(|(pipe, bytes)| limits(false, costs.read, bytes).map(|share| (pipe, share)));
        if let Some((pipe, share)) = pooled {
            through.add(pipe, share);
        }
        through.add(dsa.reading, reading.unwrap_or(0));
        through.add(dsa.writing, writing.unwrap_or(0));
        let weight = costs.in_flight / 64 / dsa.engines.max(1);
        let class = self.pipes.class(&through.0, None);
        self.pipes.weigh(class, weight);
        Way { class, pool: pooled.map(|(pipe, _)| pipe), reading: reading.is_some(), writing: writing.is_some() }
    }

    /// What a share of bytes that cross sockets takes besides at its home.
    fn directory(&self, share: u64, remote: bool) -> u64 {
        if remote { share * self.machine.memory.directory / 256 } else { 0 }
    }

    /// The channels and the link that a leg takes.
    fn add_leg(&self, through: &mut Through, own: usize, leg: Leg, core: bool) {
        let node = &self.machine.nodes[leg.node];
        let remote = node.socket != own;
        if leg.at != At::Cache {
            let rate = if leg.write {
                node.write
            } else if core {
                node.core_read
            } else {
                node.read
            };
            let share = leg.share * node.read / rate.max(1);
            through.add(self.memory.nodes[leg.node], share + self.directory(share, remote));
        }
        if remote && !self.memory.links.is_empty() {
            through.add(self.memory.links[if leg.write { own } else { node.socket }], leg.share);
        }
    }

    /// The class of what a core moves; made when that is first done.
    pub(super) fn core_class(&mut self, haul: Haul) -> Class {
        let class = self.memory.hauls.get(&haul).copied().unwrap_or_else(|| self.new_haul(haul));
        let most = self.core_rate(&haul, class);
        self.pipes.limit(class, most);
        class
    }

    fn new_haul(&mut self, haul: Haul) -> Class {
        let (own, mut through) = (self.socket(haul.core), Through::default());
        for (node, times, write) in haul.ranges() {
            let leg = Leg { node, write: false, at: At::Memory, share: times * WHOLE };
            self.add_leg(&mut through, own, leg, true);
            // What is written is read first: a core owns a line before it writes to it.
            if write {
                self.add_leg(&mut through, own, Leg { write, ..leg }, true);
            }
        }
        let class = self.pipes.class(&through.0, Some(haul.most));
        self.pipes.weigh(class, haul.in_flight(self.machine.memory.core_in_flight) / 64);
        self.memory.hauls.insert(haul, class);
        class
    }

    /// How fast a core that joins a class, and all in it, can go: no faster than what a core may have asked for at once by how long a
    /// line takes that must be had to be read or written, as busy as they make memory.
    fn core_rate(&self, haul: &Haul, class: Class) -> Rate {
        let own = self.socket(haul.core);
        let bound = |rate: Rate| {
            let line = |(node, times, _): (usize, u64, bool)| {
                (self.idle(own, node, false, At::Memory)
                    + self.busy(self.pipes.if_joined(self.memory.nodes[node], class, rate)))
                    * times
            };
            let asked: u128 = haul.ranges().map(|range| u128::from(line(range).0)).sum();
            let most =
                u128::from(haul.in_flight(self.machine.memory.core_in_flight)) * 1_000_000_000_000 / asked.max(1);
            u64::try_from(most).unwrap_or(u64::MAX)
        };
        settled(haul.most, bound)
    }
}
