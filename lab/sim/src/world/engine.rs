//! An engine: a front end that takes one descriptor at a time, a data path that moves one descriptor's bytes at a time, and many
//! descriptors whose tails overlap.

use super::{EngineId, Event, Whose, World};
use crate::pipes::{Class, WHOLE};
use crate::ps::Ps;
use std::collections::VecDeque;
use telpher_abi::{Opcode, Status};
use telpher_mem::Fault;
use telpher_model::{Engine, MAX_LANES, Outcome, Step, Unobserved};

/// Between whom bytes flow: device, and for each range its node, whether it is written, and its share of the flow's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Route {
    device: u16,
    ranges: [Option<(usize, bool, u64)>; 3],
}

/// A descriptor whose front end time is over.
#[derive(Clone, Copy, Debug)]
struct Ready {
    lane: u8,
    class: Option<Class>,
    bytes: u64,
    tail: Ps,
    /// Bytes may flow from here on.
    from: Ps,
}

/// An engine in simulated time.
#[derive(Debug)]
pub(super) struct Pe {
    /// The model's engine once for each descriptor it may have in hand.
    lanes: Vec<Engine>,
    idle: Vec<u8>,
    /// The lane whose batch the front end walks through.
    batch: Option<u8>,
    /// When the front end is free.
    free_at: Ps,
    /// Its next look is scheduled.
    awake: bool,
    ready: VecDeque<Ready>,
    /// Lane and tail of the descriptor whose bytes flow.
    flowing: Option<(u8, Ps)>,
    /// The data path rests, or its next look is scheduled.
    resting: bool,
    /// By lane: descriptors whose tail is not over.
    open: [u32; MAX_LANES],
    /// By lane: the record that its descriptor, or its batch, asks for.
    owner: [u64; MAX_LANES],
    /// By lane: the record to write when they are.
    record: [Option<u64>; MAX_LANES],
    /// Time for which the front end, and the data path, was busy.
    pub(super) front_busy: Ps,
    pub(super) data_busy: Ps,
    flow_began: Ps,
}

impl Pe {
    pub(super) fn new(index: usize) -> Self {
        Pe {
            lanes: (0..MAX_LANES).map(|lane| Engine::new(index, lane)).collect(),
            idle: (0..MAX_LANES).rev().map(|lane| u8::try_from(lane).unwrap_or(u8::MAX)).collect(),
            batch: None,
            free_at: Ps::ZERO,
            awake: false,
            ready: VecDeque::new(),
            flowing: None,
            resting: false,
            open: [0; MAX_LANES],
            owner: [0; MAX_LANES],
            record: [None; MAX_LANES],
            front_busy: Ps::ZERO,
            data_busy: Ps::ZERO,
            flow_began: Ps::ZERO,
        }
    }

    /// Nothing will make its front end look for work but who brings some.
    pub(super) fn is_asleep(&self) -> bool {
        !self.awake
    }

    /// Descriptors before the data path.
    pub(super) fn load(&self) -> usize {
        self.ready.len() + usize::from(self.flowing.is_some())
    }

    /// Marks the front end as woken; when it is free.
    pub(super) fn wake(&mut self) -> Ps {
        self.awake = true;
        self.free_at
    }
}

impl World {
    /// The front end looks for its next descriptor.
    pub(super) fn front(&mut self, at: EngineId) {
        let now = self.agenda.now();
        let costs = &self.machine.device;
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        pe.awake = false;
        if pe.ready.len() >= costs.ready {
            // Woken again when the data path takes one.
            return;
        }
        let Some(lane) = pe.batch.or_else(|| pe.idle.pop()) else { return };
        let index = usize::from(lane);
        let (mut from, mut taken) = (now, false);
        loop {
            match pe.lanes[index].step(&dsa.model, &Unobserved) {
                Step::Idle | Step::Again | Step::Wait => {
                    if pe.batch.is_none() {
                        pe.idle.push(lane);
                    }
                    return;
                }
                Step::Ended => {}
                Step::Fetch { address } => {
                    if pe.batch.is_none() {
                        pe.batch = Some(lane);
                        from += costs.list_fetch;
                        taken = true;
                        let job = pe.lanes[index].job();
                        pe.owner[index] = job.member.map_or(job.descriptor, |member| member.batch).completion_address();
                    }
                    let member = self.places.descriptor(address).copied();
                    let fault = Fault { address, write: false, done: 0 };
                    pe.lanes[index].fetched(&dsa.model, member.ok_or(fault));
                }
                Step::Execute => {
                    let engine = &mut pe.lanes[index];
                    let op = engine.descriptor().0.opcode();
                    if pe.batch.is_some() {
                        // What comes of it is known; only its time is not over. The next member need not wait for that.
                        engine.executed(&dsa.model, Outcome::of(Status::Success));
                    } else {
                        taken = true;
                        pe.owner[index] = engine.descriptor().0.completion_address();
                    }
                    let owner = pe.owner[index];
                    let cost = *costs.ops.of(op);
                    from += cost.front;
                    pe.front_busy += cost.front;
                    pe.open[index] += 1;
                    self.descriptors += 1;
                    self.make_ready(at, lane, from, op);
                    if taken {
                        self.taken(owner);
                    }
                    return;
                }
                Step::Record { address } => {
                    if pe.lanes[index].job().member.is_some() {
                        pe.lanes[index].recorded(&dsa.model, Ok(()));
                        continue;
                    }
                    pe.batch = None;
                    pe.record[index] = Some(address);
                    pe.free_at = from;
                    pe.awake = true;
                    self.agenda.at(from, Event::Front(at));
                    if self.devices[usize::from(at.device)].pes[usize::from(at.engine)].open[index] == 0 {
                        self.write_record(at, lane);
                    }
                    return;
                }
                Step::Log { .. } | Step::Interrupt(_) => {}
            }
        }
    }

    /// A descriptor's front end time ends at `from`: then its bytes may flow, and the front end take the next.
    fn make_ready(&mut self, at: EngineId, lane: u8, from: Ps, op: Opcode) {
        let pe = &self.devices[usize::from(at.device)].pes[usize::from(at.engine)];
        let action = *pe.lanes[usize::from(lane)].action();
        let bytes = action.ranges().map(|range| range.len).max().unwrap_or(0);
        let mut route = Route { device: at.device, ranges: [None; 3] };
        for (slot, range) in route.ranges.iter_mut().zip(action.ranges()) {
            let node = self.places.at(range.address).map_or(0, |place| place.node);
            *slot = Some((node, range.write, (range.len * WHOLE).checked_div(bytes).unwrap_or(0)));
        }
        let tail = self.machine.device.ops.of(op).tail(bytes);
        let class = (bytes > 0).then(|| self.class_of(route));
        let pe = &mut self.devices[usize::from(at.device)].pes[usize::from(at.engine)];
        let reads = route.ranges.iter().flatten().filter(|(_, write, _)| !write).count().max(1) as u64;
        let bytes = bytes + self.machine.device.descriptor_bytes / reads;
        pe.ready.push_back(Ready { lane, class, bytes, tail, from });
        pe.free_at = from;
        pe.awake = true;
        self.agenda.at(from, Event::Front(at));
        if pe.flowing.is_none() && !pe.resting {
            pe.resting = true;
            self.agenda.at(from, Event::Data(at));
        }
    }

    /// The class of a route; made when it is first gone.
    fn class_of(&mut self, route: Route) -> Class {
        if let Some(class) = self.classes.get(&route) {
            return *class;
        }
        let dsa = &self.devices[usize::from(route.device)];
        let mut through = Vec::new();
        let socket = |node: usize| self.machine.nodes[node].socket;
        let (mut reads, mut writes) = (0, 0);
        for (node, write, share) in route.ranges.into_iter().flatten() {
            let (pipes, own) = (self.nodes[node], socket(dsa.node));
            through.push(if write { (pipes.write, share) } else { (pipes.read, share) });
            if socket(node) != own && !self.links.is_empty() {
                through.push((self.links[if write { own } else { socket(node) }], share));
            }
            *(if write { &mut writes } else { &mut reads }) += share;
        }
        through.push((dsa.read, reads));
        through.push((dsa.write, writes));
        through.push((dsa.through, reads.min(writes)));
        through.retain(|(_, share)| *share > 0);
        let class = self.pipes.class(&through, None);
        self.classes.insert(route, class);
        class
    }

    /// The data path takes the next descriptor that is ready.
    pub(super) fn data(&mut self, at: EngineId) {
        let now = self.agenda.now();
        let pe = &mut self.devices[usize::from(at.device)].pes[usize::from(at.engine)];
        pe.resting = false;
        let Some(next) = pe.ready.front().copied() else { return };
        if next.from > now {
            pe.resting = true;
            self.agenda.at(next.from, Event::Data(at));
            return;
        }
        pe.ready.pop_front();
        pe.flowing = Some((next.lane, next.tail));
        pe.flow_began = now;
        if !pe.awake {
            let free = pe.wake();
            self.agenda.at(free, Event::Front(at));
        }
        match next.class {
            Some(class) => self.pipes.start(now, class, next.bytes, Whose::Engine(at)),
            None => self.flowed(at),
        }
    }

    /// The last byte of the descriptor in the data path has gone.
    pub(super) fn flowed(&mut self, at: EngineId) {
        let now = self.agenda.now();
        let pe = &mut self.devices[usize::from(at.device)].pes[usize::from(at.engine)];
        let Some((lane, tail)) = pe.flowing.take() else { return };
        pe.data_busy += now.since(pe.flow_began);
        pe.resting = true;
        let owner = pe.owner[usize::from(lane)];
        self.flowed_of(owner);
        self.agenda.after(tail, Event::Tail { at, lane });
        self.agenda.after(self.machine.device.bubble, Event::Data(at));
    }

    /// A descriptor's tail is over.
    pub(super) fn tail(&mut self, at: EngineId, lane: u8) {
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(lane));
        pe.open[index] -= 1;
        if pe.record[index].is_none() {
            let engine = &mut pe.lanes[index];
            if pe.batch == Some(lane) || engine.job().member.is_some() {
                return;
            }
            engine.executed(&dsa.model, Outcome::of(Status::Success));
            if let Step::Record { address } = engine.step(&dsa.model, &Unobserved) {
                pe.record[index] = Some(address);
            }
        }
        if pe.open[index] == 0 {
            self.write_record(at, lane);
        }
    }

    /// Everything of a lane is done: its record is written, and the lane is free.
    fn write_record(&mut self, at: EngineId, lane: u8) {
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(lane));
        let engine = &mut pe.lanes[index];
        engine.recorded(&dsa.model, Ok(()));
        engine.settle(&dsa.model, &Unobserved);
        pe.idle.push(lane);
        let record = pe.record[index].take();
        if !pe.awake && pe.ready.len() < self.machine.device.ready {
            let free = pe.wake();
            self.agenda.at(free, Event::Front(at));
        }
        if let Some(record) = record {
            self.recorded(record);
        }
    }
}
