//! Paths of devices and cores to memory: the pipes of their bytes, and the latencies.
//!
//! ```text
//! device ─ reads, writes ─┬─ bytes in flight (Little's law)      bytes in flight / latency is a rate
//!                         ├─ link, if on another socket
//!                         ├─ tile, if it has a limit
//!                         └─ the node's channels                 or the cache, which uses no channel
//! ```

use super::World;
use crate::machine::{Machine, Rate};
use crate::picos::Picos;
use crate::pipes::{Class, Pipe, Pipes, WHOLE};
use crate::places::{BufferPlacement, LineLocation};
use std::collections::BTreeMap;

/// Bytes in flight are a pipe that carries them once per this time; a class's share in it is its latency in this unit.
const TURN: Picos = Picos::from_nanos(10);

/// Largest share in a pipe of bytes in flight: latencies above 168 ms are limited to it.
const MOST_SHARE: u64 = 1 << 32;

/// The highest rate up to `most` that does not exceed its own bound, which falls as the rate rises; to 1/4096 of
/// `most`.
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

/// Rate of the pipe that represents bytes in flight.
pub(super) fn carrier(in_flight: u64) -> Rate {
    in_flight.saturating_mul(1_000_000_000_000 / TURN.0)
}

/// Where the bytes of a leg are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum At {
    /// In memory.
    Memory,
    /// In the last-level cache; for writes, in the ways of devices.
    Cache,
    /// Written to those ways while they are full of device-written lines, which are first evicted to memory.
    Spilled,
}

/// One range of a flow: its location, its direction, and its share of the flow's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Leg {
    pub(super) node: usize,
    pub(super) write: bool,
    pub(super) at: At,
    pub(super) share: u64,
}

/// The turn of an engine's batch among the batches whose bytes flow on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum BatchTurn {
    /// It is the only one, or no batch.
    Alone,
    /// It is the oldest.
    First,
    /// There is an older one.
    Later,
}

/// The path of a device's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Route {
    pub(super) device: u16,
    /// The group, if it has only a part of the device's read buffers or bandwidth.
    pub(super) group: Option<u16>,
    pub(super) turn: BatchTurn,
    pub(super) legs: [Option<Leg>; 4],
}

/// The part of a device's read buffers that the oldest of several batches gets, in eighths. Source: ASSUMED, see
/// docs/device.md.
const OLDEST_EIGHTHS: u64 = 7;

/// The pipes to memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// By node: its channels.
    pub(super) nodes: Vec<Pipe>,
    /// By the socket that the bytes leave.
    pub(super) links: Vec<Pipe>,
    /// By tile.
    pub(super) tiles: BTreeMap<usize, Pipe>,
    /// By socket: bytes that devices write to the cache repeatedly.
    ddio: Vec<u64>,
    /// The classes of routes used so far.
    route_classes: BTreeMap<Route, RouteClass>,
    /// The classes of cores' transfers used so far.
    core_routes: BTreeMap<CoreRoute, Class>,
}

/// A transfer by a core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct CoreRoute {
    pub(super) core: usize,
    /// Memory node that is read, and lines per line of the operation; `None` if it is in the last-level cache.
    pub(super) read: Option<(usize, u64)>,
    /// The same for writes.
    pub(super) write: Option<(usize, u64)>,
    /// Highest rate in bytes per second.
    pub(super) most: Rate,
    /// Hardware threads of the core that transfer data and share its bytes in flight. 0 counts as 1.
    pub(super) sharing: u32,
}

impl CoreRoute {
    /// Bytes that it may have in flight at once.
    fn in_flight(&self, of_a_core: u64) -> u64 {
        of_a_core / u64::from(self.sharing.max(1))
    }

    /// Nodes, lines per line of the operation, and whether they are written.
    fn ranges(&self) -> impl Iterator<Item = (usize, u64, bool)> {
        let range = |range: Option<(usize, u64)>, write| range.map(|(node, times)| (node, times, write));
        [range(self.read, false), range(self.write, true)].into_iter().flatten()
    }
}

/// A route's class, and the pipes of bytes in flight among its pipes.
#[derive(Clone, Copy, Debug)]
struct RouteClass {
    class: Class,
    /// The pipe of its group's bytes in flight.
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
        Memory {
            nodes,
            links,
            tiles,
            ddio: vec![0; sockets],
            route_classes: BTreeMap::new(),
            core_routes: BTreeMap::new(),
        }
    }
}

/// Shares of pipes, one entry per pipe.
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

    /// The first node of a socket; node 0 if there is no such socket.
    pub(crate) fn node_of(&self, socket: u64) -> usize {
        self.machine.nodes.iter().position(|node| node.socket as u64 == socket).unwrap_or(0)
    }

    /// True if a device is at the socket of a node.
    pub(crate) fn is_near(&self, device: u16, node: usize) -> bool {
        let there = self.devices.get(usize::from(device));
        there.is_some_and(|there| self.socket(there.node) == self.socket(node))
    }

    /// Extra latency of a line at a node under its current load.
    #[inline]
    fn queued(&self, node: usize) -> Picos {
        self.busy(self.pipes.in_use(self.memory.nodes[node]))
    }

    /// Extra latency at a used and an unused rate.
    #[inline]
    fn busy(&self, (used, left): (u64, u64)) -> Picos {
        if used == 0 {
            return Picos::ZERO;
        }
        // A full pipe would mean an infinite latency; requests in flight are bounded.
        Picos(self.machine.memory.queue.0.saturating_mul(used) / left.max(used / 32).max(1))
    }

    /// Latency of one line from or to a socket, with idle memory.
    fn idle(&self, socket: usize, node: usize, write: bool, at: At) -> Picos {
        let (its, cache) = (&self.machine.nodes[node], &self.machine.cache);
        let memory = if write { its.write_latency } else { its.latency };
        let time = match at {
            At::Cache => cache.llc_latency,
            At::Memory => memory,
            At::Spilled => memory + cache.spill,
        };
        if its.socket == socket { time } else { time + self.machine.link_latency }
    }

    /// Latency under the current load.
    fn reach(&self, socket: usize, node: usize, write: bool, at: At) -> Picos {
        let idle = self.idle(socket, node, write, at);
        if at == At::Cache { idle } else { idle + self.queued(node) }
    }

    /// Latency of a line in memory for a core, under the current load.
    pub(super) fn core_latency(&self, core: usize, node: usize) -> Picos {
        self.reach(self.socket(core), node, false, At::Memory)
    }

    /// The leg of a range that a device reads, or writes with or without the cache hint.
    pub(super) fn leg(
        &mut self,
        device: u16,
        address: u64,
        bytes: u64,
        write: bool,
        to_cache: bool,
        share: u64,
    ) -> Leg {
        let place = self.places.at(address).unwrap_or(BufferPlacement::on(self.devices[usize::from(device)].node));
        let at = match (write, to_cache) {
            (false, _) if place.lines == LineLocation::Llc => At::Cache,
            (true, true) => self.allocate(device, place.node, address, bytes),
            _ => At::Memory,
        };
        Leg { node: place.node, write, at, share }
    }

    /// A device writes to the cache. If all repeatedly written bytes of devices do not fit into their ways, each line
    /// is evicted before it is written again, with oldest-first replacement.
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

    /// Additional time of a descriptor's tail, in picoseconds, over the tail measured with idle memory of its device's
    /// node.
    pub(super) fn farther(&self, route: &Route) -> i64 {
        let dsa = &self.devices[usize::from(route.device)];
        let (own, socket) = (&self.machine.nodes[dsa.node], self.socket(dsa.node));
        let most = |write: bool, near: Picos| {
            let far = route.legs.iter().flatten().filter(|leg| leg.write == write);
            let far = far.map(|leg| self.reach(socket, leg.node, write, leg.at)).max().unwrap_or(near);
            i64::try_from(far.0).unwrap_or(i64::MAX).saturating_sub(i64::try_from(near.0).unwrap_or(i64::MAX))
        };
        most(false, own.latency).saturating_add(most(true, own.write_latency))
    }

    /// Share of a route in its device's reads (or writes) in flight, if lines wait for `wait` at a node.
    fn in_flight(&self, route: &Route, write: bool, wait: impl Fn(usize) -> Picos) -> u64 {
        let dsa = &self.devices[usize::from(route.device)];
        let socket = self.socket(dsa.node);
        let of = |leg: &Leg| {
            let wait = if leg.at == At::Cache { Picos::ZERO } else { wait(leg.node) };
            let time = self.idle(socket, leg.node, write, leg.at) + wait + self.machine.device.path;
            time.0 * leg.share / TURN.0
        };
        let all: u64 = route.legs.iter().flatten().filter(|leg| leg.write == write).map(of).sum();
        all.min(MOST_SHARE)
    }

    /// The same for a flow that joins a class. Memory has the load that the class's flows then cause, within the limit
    /// of bytes in flight.
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

    /// The class of a route; created at its first use.
    pub(super) fn class_of(&mut self, route: Route) -> Class {
        if let Some(known) = self.memory.route_classes.get(&route).copied() {
            let dsa = &self.devices[usize::from(route.device)];
            let reading = known.reading.then_some(dsa.reading);
            let writing = known.writing.then_some(dsa.writing);
            for (pipe, write) in [(reading, false), (writing, true), (known.pool, false)] {
                if let Some(pipe) = pipe {
                    let share = self.loaded(&route, write, pipe, known.class);
                    self.pipes.share(known.class, pipe, share);
                }
            }
            return known.class;
        }
        let known = self.new_route_class(&route);
        self.memory.route_classes.insert(route, known);
        known.class
    }

    fn new_route_class(&mut self, route: &Route) -> RouteClass {
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
        let [read_limit, write_limit] = route.group.map_or([None; 2], |group| dsa.limits[usize::from(group)]);
        for (limit, share) in [(read_limit, reads), (write_limit, writes)] {
            if let Some(limit) = limit {
                through.add(limit, share);
            }
        }
        // If twice the latency would not fill the buffers, they are no limit; leaving their pipe out saves time.
        let limits = |write: bool, rate: Rate, in_flight: u64| {
            let share = self.in_flight(route, write, |_| Picos::ZERO);
            let filled =
                u128::from(rate) * u128::from(share) * u128::from(TURN.0) / u128::from(WHOLE) / 1_000_000_000_000;
            (2 * filled > u128::from(in_flight)).then_some(share)
        };
        let reading = limits(false, costs.read, costs.in_flight);
        let writing = limits(true, costs.write, costs.writes_in_flight);
        let pool = route.group.and_then(|group| dsa.pools[usize::from(group)]);
        let pooled = pool.and_then(|(pipe, bytes)| limits(false, costs.read, bytes).map(|share| (pipe, share)));
        if let Some((pipe, share)) = pooled {
            through.add(pipe, share);
        }
        through.add(dsa.reading, reading.unwrap_or(0));
        through.add(dsa.writing, writing.unwrap_or(0));
        // The buffers of the device in lines; an equal part of them for each engine, unless batches compete.
        let (lines, engines) = (costs.in_flight / 64, dsa.engines.max(1));
        let weight = match route.turn {
            BatchTurn::Alone => lines / engines,
            BatchTurn::First => lines * OLDEST_EIGHTHS / 8,
            BatchTurn::Later => lines * (8 - OLDEST_EIGHTHS) / 8 / engines,
        };
        let class = self.pipes.class(&through.0, None);
        self.pipes.weigh(class, weight);
        RouteClass { class, pool: pooled.map(|(pipe, _)| pipe), reading: reading.is_some(), writing: writing.is_some() }
    }

    /// Additional bytes at the home node for a share of bytes that cross sockets.
    fn directory(&self, share: u64, remote: bool) -> u64 {
        if remote { share * self.machine.memory.directory / 256 } else { 0 }
    }

    /// Adds the channels and the link of a leg.
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

    /// The class of a core's transfer; created at its first use.
    pub(super) fn core_class(&mut self, route: CoreRoute) -> Class {
        let class = self.memory.core_routes.get(&route).copied().unwrap_or_else(|| self.new_core_route(route));
        let most = self.core_rate(&route, class);
        self.pipes.limit(class, most);
        class
    }

    fn new_core_route(&mut self, route: CoreRoute) -> Class {
        let (own, mut through) = (self.socket(route.core), Through::default());
        for (node, times, write) in route.ranges() {
            let leg = Leg { node, write: false, at: At::Memory, share: times * WHOLE };
            self.add_leg(&mut through, own, leg, true);
            // Written lines are read first: a core owns a line before it writes to it.
            if write {
                self.add_leg(&mut through, own, Leg { write, ..leg }, true);
            }
        }
        let class = self.pipes.class(&through.0, Some(route.most));
        self.pipes.weigh(class, route.in_flight(self.machine.memory.core_in_flight) / 64);
        self.memory.core_routes.insert(route, class);
        class
    }

    /// The rate of a core that joins a class, and of the others in it: at most the bytes in flight of a core over the
    /// latency of its lines, under the load that they cause.
    fn core_rate(&self, route: &CoreRoute, class: Class) -> Rate {
        let own = self.socket(route.core);
        let bound = |rate: Rate| {
            let line = |(node, times, _): (usize, u64, bool)| {
                (self.idle(own, node, false, At::Memory)
                    + self.busy(self.pipes.if_joined(self.memory.nodes[node], class, rate)))
                    * times
            };
            let asked: u128 = route.ranges().map(|range| u128::from(line(range).0)).sum();
            let most =
                u128::from(route.in_flight(self.machine.memory.core_in_flight)) * 1_000_000_000_000 / asked.max(1);
            u64::try_from(most).unwrap_or(u64::MAX)
        };
        settled(route.most, bound)
    }
}
