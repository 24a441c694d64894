//! An engine: a front end that takes one descriptor at a time, a data path that moves one descriptor's bytes at a time,
//! and descriptors whose tails overlap.

use super::descriptors::is_inter_domain;
use super::fault::Unfinished;
use super::memory::{BatchTurn, Route};
use super::merge::LINE;
use super::requests::Requests;
use super::{EngineId, Event, FlowOwner, RefusedWork, World};
use crate::picos::Picos;
use crate::pipes::{Class, WHOLE};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use telpher_abi::{DESCRIPTOR_BYTES, Descriptor, Flags, OpFlags, Opcode, OperandId, Status};
use telpher_mem::Fault;
use telpher_model::{Engine, MAX_LANES, NoObserver, Outcome, Refusal, Step};

/// Descriptors that an engine takes while it works through a batch, at most. Source: ASSUMED; with a single one, an
/// engine would wait for the list of each short batch, and batches of two would be slower than single descriptors.
const LISTS_AHEAD: usize = 2;

/// Time in which the front end looks up the window of a handle. Source: ASSUMED; nothing is published. The table is in
/// the device, so it is less than a read of memory.
const WINDOW_LOOKUP: Picos = Picos::from_nanos(20);

/// The number of handles of a descriptor.
fn handles(work: &Descriptor) -> u64 {
    let (flags, op) = (work.flags(), work.opcode());
    let named = |flag| u64::from(flags.contains(flag));
    if is_inter_domain(op) { named(OpFlags::ALTERNATE_SOURCE) + named(OpFlags::ALTERNATE_DESTINATION) } else { 0 }
}

/// A descriptor that has left the front end.
#[derive(Clone, Copy, Debug)]
struct Ready {
    lane: u8,
    class: Option<Class>,
    /// Its path, if it is a batch member that competes with batches of other engines.
    route: Option<Route>,
    bytes: u64,
    tail: Picos,
    /// Its bytes may flow from this time on.
    from: Picos,
    /// Bytes that are not requested yet: they are when it leaves the front end.
    asks: u64,
    /// Its bytes flow only when the first of them arrive. Members of a batch follow each other without waiting for
    /// other engines.
    waits: bool,
    /// Pause of the data path after it.
    bubble: Picos,
    /// Time for which its last line blocks the device, if it is written partially.
    merge: Picos,
    /// Pages that the engine must first request from the system and wait for.
    requests: u32,
}

impl Ready {
    /// Requests its bytes.
    fn request(&mut self, requests: &mut Requests, now: Picos) {
        let arrive = requests.ask(now, std::mem::take(&mut self.asks));
        self.from = if self.waits { self.from.max(arrive) } else { self.from };
    }
}

/// A descriptor that an engine took while it worked through a batch.
#[derive(Clone, Copy, Debug)]
struct Next {
    lane: u8,
    /// When the first descriptors of its list are fetched.
    list: Picos,
    /// The next step of its lane.
    step: Step,
}

/// A descriptor or member that the front end cannot continue with yet.
#[derive(Clone, Copy, Debug)]
enum Held {
    /// A member with a fence, at this address: it waits for the members before it.
    Fence { lane: u8, address: u64 },
    /// A Drain: it waits for everything before it in its queue.
    Drain { lane: u8 },
}

/// A turn of a front end: its lane, and the state of the descriptor that it handles.
#[derive(Clone, Copy, Debug)]
struct Turn {
    lane: u8,
    /// When the front end is done with the descriptor.
    from: Picos,
    /// The lane's next step, if it is known before the lane is asked.
    step: Option<Step>,
    /// The descriptor left its queue in an earlier turn.
    known: bool,
    /// The fence of the next member was waited for.
    fenced: bool,
    /// The descriptor leaves its queue in this turn.
    taken: bool,
}

/// An engine in simulated time.
#[derive(Debug)]
pub(super) struct Pe {
    /// The model's engine, once for each descriptor that can be in progress.
    lanes: Vec<Engine>,
    idle: Vec<u8>,
    /// The lane of the batch that the front end works through.
    batch: Option<u8>,
    /// Descriptors taken during that batch, with which the front end continues afterwards.
    next: VecDeque<Next>,
    /// A descriptor, or next member, that waits for those before it.
    held: Option<Held>,
    /// When the front end is free.
    free_at: Picos,
    /// The front end's next turn is scheduled.
    awake: bool,
    ready: VecDeque<Ready>,
    /// The descriptor whose bytes flow.
    flowing: Option<Ready>,
    /// The data path pauses, or its next turn is scheduled.
    resting: bool,
    /// By lane: the number of descriptors whose tail has not ended.
    open: [u32; MAX_LANES],
    /// By lane: address of the record of its descriptor, or of its batch.
    owner: [u64; MAX_LANES],
    /// By lane: the turn of its batch on the device, in the order in which front ends began them.
    order: [u64; MAX_LANES],
    /// By lane: descriptors that could not be finished.
    unfinished: BTreeMap<u8, Vec<Unfinished>>,
    /// By lane: the record to write when its descriptors are done.
    record: [Option<u64>; MAX_LANES],
    /// Busy time of the front end, and of the data path.
    pub(super) front_busy: Picos,
    pub(super) data_busy: Picos,
    flow_began: Picos,
}

impl Pe {
    pub(super) fn new(index: usize) -> Self {
        Pe {
            lanes: (0..MAX_LANES).map(|lane| Engine::new(index, lane)).collect(),
            idle: (0..MAX_LANES).rev().map(|lane| u8::try_from(lane).unwrap_or(u8::MAX)).collect(),
            batch: None,
            next: VecDeque::with_capacity(LISTS_AHEAD),
            held: None,
            free_at: Picos::ZERO,
            awake: false,
            ready: VecDeque::new(),
            flowing: None,
            resting: false,
            open: [0; MAX_LANES],
            owner: [0; MAX_LANES],
            order: [0; MAX_LANES],
            record: [None; MAX_LANES],
            unfinished: BTreeMap::new(),
            front_busy: Picos::ZERO,
            data_busy: Picos::ZERO,
            flow_began: Picos::ZERO,
        }
    }

    /// True if the front end has no turn scheduled, so that a submission must wake it.
    pub(super) fn is_asleep(&self) -> bool {
        !self.awake
    }

    /// True if it can take a descriptor from a queue.
    pub(super) fn has_room(&self) -> bool {
        self.next.is_empty() && !self.idle.is_empty()
    }

    /// True if its front end could begin with a descriptor now.
    pub(super) fn is_free(&self, ready: usize) -> bool {
        self.batch.is_none() && self.next.is_empty() && self.held.is_none() && self.ready.len() < ready
    }

    /// When the list of the first descriptor that it took ahead is there; `None` without one, or if the engine is about
    /// to begin with it.
    pub(super) fn ahead(&self) -> Option<Picos> {
        self.next.front().filter(|_| self.batch.is_some()).map(|next| next.list)
    }

    /// Takes over the first descriptor that another engine of the group has taken ahead; true if there is one.
    pub(super) fn take_over(&mut self, other: &mut Pe) -> bool {
        if !self.has_room() {
            return false;
        }
        let Some(next) = other.next.pop_front() else { return false };
        let Some(lane) = self.idle.pop() else { return false };
        let (to, from) = (usize::from(lane), usize::from(next.lane));
        // The model's engines of a group are interchangeable; the lane keeps what it has begun.
        std::mem::swap(&mut self.lanes[to], &mut other.lanes[from]);
        self.owner[to] = other.owner[from];
        other.idle.push(next.lane);
        self.next.push_back(Next { lane, ..next });
        true
    }

    /// The order of the batch whose bytes flow, or flow next.
    fn batch_order(&self) -> Option<u64> {
        let first = self.flowing.as_ref().or(self.ready.front())?;
        first.route.map(|_| self.order[usize::from(first.lane)])
    }

    /// Wakes the front end if it holds a descriptor that may continue now; returns when it is free.
    pub(super) fn retries(&mut self) -> Option<Picos> {
        (self.held.is_some() && !self.awake).then(|| self.wake())
    }

    /// Whether a batch is in progress, and the number of descriptors in the data path.
    pub(super) fn load(&self) -> (bool, usize) {
        (self.batch.is_some(), self.ready.len() + usize::from(self.flowing.is_some()))
    }

    /// The first descriptor before the data path has its requested pages at time `by`.
    pub(super) fn first_has_pages(&mut self, by: Picos) {
        if let Some(first) = self.ready.front_mut() {
            (first.requests, first.from) = (0, by);
        }
    }

    /// Marks the front end as woken; returns when it is free.
    pub(super) fn wake(&mut self) -> Picos {
        self.awake = true;
        self.free_at
    }
}

impl World {
    /// The front end takes its next descriptor or batch member, and schedules its next turn.
    pub(super) fn front(&mut self, at: EngineId) {
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        pe.awake = false;
        let now = self.events.now();
        if let Some(last) = pe.ready.back_mut().filter(|last| last.asks > 0 && pe.free_at <= now) {
            last.request(&mut dsa.requests, now);
        }
        if pe.batch.is_some() {
            self.look_ahead(at);
        }
        let Some(mut turn) = self.begin_turn(at) else { return };
        loop {
            let dsa = &mut self.devices[usize::from(at.device)];
            let lane = &mut dsa.pes[usize::from(at.engine)].lanes[usize::from(turn.lane)];
            let step = turn.step.take().unwrap_or_else(|| lane.step(&dsa.model, &NoObserver));
            let flow = match step {
                Step::Wait => self.hold_drain(at, turn),
                Step::Idle | Step::Again => self.release_lane(at, turn.lane),
                Step::Ended | Step::Log { .. } | Step::Interrupt(_) => ControlFlow::Continue(()),
                Step::Fetch { address } => self.fetch_member(at, &mut turn, address),
                Step::ReadBitmap { .. } => {
                    // No simulated memory holds a bitmap of submitters, so no bit is set.
                    lane.bitmap_read(&dsa.model, Ok(0));
                    ControlFlow::Continue(())
                }
                Step::Execute => self.execute(at, &mut turn),
                Step::Record { address } => self.record_step(at, turn, address),
            };
            if flow.is_break() {
                return;
            }
        }
    }

    /// Chooses the lane of a front end's turn: a held one, the batch in progress, the one taken ahead, or an idle one.
    /// `None` if the front end cannot continue yet.
    fn begin_turn(&mut self, at: EngineId) -> Option<Turn> {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        if pe.ready.len() >= self.machine.device.ready {
            // The data path wakes the front end when it takes a descriptor.
            return None;
        }
        let mut from = now.max(pe.free_at);
        let mut step = None;
        // A held Drain, and a descriptor taken ahead, have left their queue before.
        let drains = matches!(pe.held, Some(Held::Drain { .. }));
        let known = drains || pe.held.is_none() && pe.batch.is_none() && !pe.next.is_empty();
        let lane = match (pe.held, pe.batch, pe.next.front().copied()) {
            (Some(Held::Fence { lane, .. }), ..) if pe.open[usize::from(lane)] > 0 => return None,
            (Some(Held::Fence { lane, address }), ..) => {
                step = Some(Step::Fetch { address });
                lane
            }
            (Some(Held::Drain { lane }), ..) | (None, Some(lane), _) => lane,
            (None, None, Some(next)) => {
                pe.next.pop_front();
                pe.front_busy += next.list.since(from);
                from = from.max(next.list);
                step = Some(next.step);
                if let Step::Fetch { .. } = next.step {
                    pe.batch = Some(next.lane);
                    dsa.batches += 1;
                    pe.order[usize::from(next.lane)] = dsa.batches;
                }
                next.lane
            }
            (None, None, None) => pe.idle.pop()?,
        };
        let fenced = matches!(pe.held, Some(Held::Fence { .. }));
        pe.held = None;
        Some(Turn { lane, from, step, known, fenced, taken: false })
    }

    /// The descriptor is a Drain that must wait. The front end tries it again whenever a descriptor has ended.
    fn hold_drain(&mut self, at: EngineId, turn: Turn) -> ControlFlow<()> {
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(turn.lane));
        pe.held = Some(Held::Drain { lane: turn.lane });
        dsa.drains = true;
        if !turn.known {
            let owner = pe.lanes[index].descriptor().0.completion_address();
            pe.owner[index] = owner;
            self.taken(owner);
        }
        ControlFlow::Break(())
    }

    /// There is no descriptor: the lane is idle again, unless it has a batch. The engine then takes over what another
    /// one of its group has taken ahead.
    fn release_lane(&mut self, at: EngineId, lane: u8) -> ControlFlow<()> {
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        if pe.batch.is_none() {
            pe.idle.push(lane);
            if dsa.take_over(at.engine) {
                dsa.pes[usize::from(at.engine)].awake = true;
                self.events.after(Picos::ZERO, Event::Front(at));
            }
        }
        ControlFlow::Break(())
    }

    /// Fetches the batch member at `address`; before the first member it waits for the batch's list. A fence holds the
    /// front end until the members before it are done.
    fn fetch_member(&mut self, at: EngineId, turn: &mut Turn, address: u64) -> ControlFlow<()> {
        let costs = &self.machine.device;
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(turn.lane));
        if pe.batch.is_none() {
            pe.batch = Some(turn.lane);
            dsa.batches += 1;
            pe.order[index] = dsa.batches;
            // The front end does nothing else meanwhile.
            turn.from += costs.list_fetch;
            pe.front_busy += costs.list_fetch;
            turn.taken = true;
            let job = pe.lanes[index].job();
            pe.owner[index] = job.member.map_or(job.descriptor, |member| member.batch).completion_address();
        }
        let member = self.places.descriptor(address).copied();
        let fence = member.is_some_and(|member| member.flags().contains(Flags::FENCE));
        if fence && !turn.fenced && pe.open[index] > 0 {
            pe.held = Some(Held::Fence { lane: turn.lane, address });
            return ControlFlow::Break(());
        }
        if member.is_some_and(|member| member.opcode() == Opcode::Nop) {
            // A No-op has nothing to execute, but the front end takes and checks it like any other.
            let front = costs.ops.of(Opcode::Nop).front_of(0);
            turn.from += front;
            pe.front_busy += front;
            self.descriptors += 1;
        }
        let fault = Fault { address, write: false, done: 0 };
        pe.lanes[index].fetched(&dsa.model, member.ok_or(fault));
        ControlFlow::Continue(())
    }

    /// The descriptor is to be executed: passes it to the data path.
    fn execute(&mut self, at: EngineId, turn: &mut Turn) -> ControlFlow<()> {
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(turn.lane));
        let engine = &mut pe.lanes[index];
        let op = engine.descriptor().0.opcode();
        let bytes = u64::from(engine.descriptor().0.size());
        let unfinished = if self.places.all_there() || engine.blocks_on_fault() {
            None
        } else {
            Unfinished::of(&self.places, engine.action(), engine.descriptor().0)
        };
        if let Some(unfinished) = unfinished {
            pe.unfinished.entry(turn.lane).or_default().push(unfinished);
        }
        if pe.batch.is_some() {
            // Its result is known already, so the next member need not wait for its time to pass.
            let success = Outcome::of(Status::Success);
            engine.executed(&dsa.model, unfinished.map_or(success, |unfinished| unfinished.outcome()));
        } else {
            turn.taken = !turn.known;
            pe.owner[index] = engine.descriptor().0.completion_address();
        }
        let owner = pe.owner[index];
        let windows = handles(engine.descriptor().0);
        let front = self.machine.device.ops.of(op).front_of(bytes) + Picos(WINDOW_LOOKUP.0 * windows);
        turn.from += front;
        pe.front_busy += front;
        pe.open[index] += 1;
        self.descriptors += 1;
        self.make_ready(at, turn.lane, turn.from, op, unfinished.map(|unfinished| unfinished.done));
        if turn.taken {
            self.taken(owner);
        }
        ControlFlow::Break(())
    }

    /// The engine wants to write a record. A batch member continues with the next one. A single descriptor (a No-op, or
    /// a refused one) gets its record after a time. A batch gets its record when its members are done.
    fn record_step(&mut self, at: EngineId, turn: Turn, address: u64) -> ControlFlow<()> {
        let Turn { lane, from, known, .. } = turn;
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(lane));
        if pe.lanes[index].job().member.is_some() {
            pe.lanes[index].recorded(&dsa.model, Ok(()));
            return ControlFlow::Continue(());
        }
        if pe.batch.take().is_none() {
            self.record_without_data(at, lane, address, from);
            if !known {
                self.taken(address);
            }
            return ControlFlow::Break(());
        }
        pe.record[index] = Some(address);
        pe.free_at = from;
        pe.awake = true;
        let done = pe.open[index] == 0;
        self.events.at(from, Event::Front(at));
        if done {
            self.write_record(at, lane);
        }
        ControlFlow::Break(())
    }

    /// A descriptor that is not executed, a No-op or a refused one: the front end takes and checks it like any other,
    /// and its record takes as long.
    fn record_without_data(&mut self, at: EngineId, lane: u8, record: u64, from: Picos) {
        let pe = &mut self.devices[usize::from(at.device)].pes[usize::from(at.engine)];
        let index = usize::from(lane);
        let engine = &pe.lanes[index];
        let cost = self.machine.device.ops.of(engine.descriptor().0.opcode());
        let (front, tail) = (cost.front_of(0), cost.tail(0));
        self.descriptors += u64::from(engine.record().status() == Status::Success);
        pe.front_busy += front;
        (pe.owner[index], pe.record[index]) = (record, Some(record));
        pe.open[index] += 1;
        pe.free_at = from + front;
        pe.awake = true;
        self.events.at(from + front, Event::Front(at));
        self.events.at(from + front + tail, Event::Tail { at, lane });
    }

    /// Takes the descriptors behind a batch that is in progress; of those that are batches themselves, the lists are
    /// fetched meanwhile.
    fn look_ahead(&mut self, at: EngineId) {
        while self.devices[usize::from(at.device)].pes[usize::from(at.engine)].next.len() < LISTS_AHEAD {
            if !self.take_ahead(at) {
                return;
            }
        }
    }

    /// Takes one of them; false if there is none for this engine.
    fn take_ahead(&mut self, at: EngineId) -> bool {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        if dsa.has_free_beside(at.engine, self.machine.device.ready) {
            return false;
        }
        let pe = &mut dsa.pes[usize::from(at.engine)];
        let Some(lane) = pe.idle.pop() else { return false };
        let index = usize::from(lane);
        let step = loop {
            match pe.lanes[index].step(&dsa.model, &NoObserver) {
                Step::Idle | Step::Again => {
                    pe.idle.push(lane);
                    return false;
                }
                Step::Ended | Step::Log { .. } | Step::Interrupt(_) => {}
                step => break step,
            }
        };
        let job = pe.lanes[index].job();
        let list = if let Step::Fetch { .. } = step { now + self.machine.device.list_fetch } else { now };
        pe.owner[index] = job.member.map_or(job.descriptor, |member| member.batch).completion_address();
        pe.next.push_back(Next { lane, list, step });
        let owner = pe.owner[index];
        self.taken(owner);
        true
    }

    /// A descriptor leaves the front end at `from`: its bytes may flow then, and the front end may take the next.
    fn make_ready(&mut self, at: EngineId, lane: u8, from: Picos, op: Opcode, only: Option<u64>) {
        let pe = &self.devices[usize::from(at.device)].pes[usize::from(at.engine)];
        let engine = &pe.lanes[usize::from(lane)];
        let action = *engine.action();
        let flags = engine.descriptor().0.flags();
        let (readback, cached) = (flags.contains(Flags::DESTINATION_READBACK), flags.contains(Flags::CACHE_CONTROL_1));
        let (mut whole, mut uneven, mut walked) = (0, 0, 0);
        let known = self.machine.translation.known;
        // Lists are short, and not read as the data is.
        let mut lists = 0;
        for range in action.ranges() {
            lists += u64::from(range.operand == OperandId::ScatterGatherList);
            whole = whole.max(range.len);
            let (pages, unknown) = self.places.enter(range.address, range.len, known);
            self.translations.remembered += u64::from(pages == 0);
            self.translations.requested += pages;
            if unknown {
                self.translations.walked += pages;
                walked += if range.write { 0 } else { pages };
            }
            uneven |= if range.write { range.address | range.len } else { 0 };
        }
        let group = self.devices[usize::from(at.device)].limited_group(at.engine);
        let mut route = Route { device: at.device, group, turn: BatchTurn::Alone, legs: [None; 4] };
        for (slot, range) in route.legs.iter_mut().zip(action.ranges()) {
            let share = (range.len * WHOLE).checked_div(whole).unwrap_or(0);
            *slot = Some(self.leg(at.device, range.address, range.len, range.write, cached, share));
        }
        let bytes = only.unwrap_or(whole);
        let requests = if self.places.all_there() || only.is_some() { 0 } else { self.missing(&action) };
        let mut tail = self.machine.device.ops.of(op).tail(bytes);
        if only.is_some() {
            tail += self.machine.translation.report;
        }
        if readback {
            tail += self.machine.device.readback;
        }
        let tail = Picos(tail.0.saturating_add_signed(self.farther(&route)));
        let class = (bytes > 0).then(|| self.class_of(route));
        let reads = route.legs.iter().flatten().filter(|leg| !leg.write).count() as u64 - lists;
        let written = route.legs.iter().flatten().filter(|leg| leg.write).count() as u64;
        let writes = written > 0;
        let costs = &self.machine.device;
        let bytes = bytes + if writes { costs.descriptor_bytes } else { DESCRIPTOR_BYTES / reads.max(1) };
        let bytes = bytes + walked * self.machine.translation.walk_bytes / reads.max(1);
        let bubble = if writes { costs.bubble } else { Picos::ZERO };
        let (first, merge) = if uneven % LINE != 0 && !cached && only.is_none() {
            self.partial_lines(at.device, &action, from)
        } else {
            (from, Picos::ZERO)
        };
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        // Bytes that are written pass the device in the same order.
        let asks = if dsa.engines > 1 { bytes * reads.max(written).max(1) } else { 0 };
        let waits = pe.batch.is_none() || pe.flowing.is_none() && !pe.resting;
        let route = (dsa.engines > 1 && pe.batch.is_some() && class.is_some()).then_some(route);
        let ready = Ready { lane, class, route, bytes, tail, from: first, asks, waits, bubble, merge, requests };
        pe.ready.push_back(ready);
        pe.free_at = from;
        pe.awake = true;
        if pe.flowing.is_none() && !pe.resting {
            pe.resting = true;
            self.events.at(from, Event::Data(at));
        }
        self.events.at(from, Event::Front(at));
    }

    /// The data path takes the next ready descriptor.
    pub(super) fn data(&mut self, at: EngineId) {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        pe.resting = false;
        let Some(next) = pe.ready.front().copied() else { return };
        if next.from > now {
            pe.resting = true;
            self.events.at(next.from, Event::Data(at));
            return;
        }
        if next.requests > 0 {
            // Descriptors do not overtake each other, so those behind it wait, too.
            pe.resting = true;
            let owner = pe.owner[usize::from(next.lane)];
            self.ask_for_pages(at, next.requests, owner);
            return;
        }
        if let (Some(first), true) = (pe.ready.front_mut(), next.asks > 0) {
            first.request(&mut dsa.requests, now);
            if first.from > now {
                pe.resting = true;
                self.events.at(first.from, Event::Data(at));
                return;
            }
        }
        pe.ready.pop_front();
        pe.flowing = Some(next);
        pe.flow_began = now;
        if !pe.awake {
            let free = pe.wake();
            self.events.at(free, Event::Front(at));
        }
        let class = match next.route.map(|route| (route, self.turn_of(at))) {
            Some((route, turn)) if turn != BatchTurn::Alone => Some(self.class_of(Route { turn, ..route })),
            _ => next.class,
        };
        match class {
            Some(class) => self.pipes.start(now, class, next.bytes, FlowOwner::Engine(at)),
            None => self.flowed(at),
        }
    }

    /// The turn of the batch in an engine's data path among those of the device's other engines.
    fn turn_of(&self, at: EngineId) -> BatchTurn {
        let pes = &self.devices[usize::from(at.device)].pes;
        let own = pes[usize::from(at.engine)].batch_order();
        let others = (0..).zip(pes).filter(|(engine, _)| *engine != at.engine);
        match (own, others.filter_map(|(_, pe)| pe.batch_order()).min()) {
            (Some(own), Some(oldest)) if own < oldest => BatchTurn::First,
            (Some(_), Some(_)) => BatchTurn::Later,
            _ => BatchTurn::Alone,
        }
    }

    /// The last byte of the descriptor in the data path has flowed.
    pub(super) fn flowed(&mut self, at: EngineId) {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        let pe = &mut dsa.pes[usize::from(at.engine)];
        if let Some(flowing) = &mut pe.flowing
            && flowing.merge > Picos::ZERO
        {
            let merge = std::mem::take(&mut flowing.merge);
            return self.merge_last(at, merge);
        }
        let Some(Ready { lane, tail, bubble, .. }) = pe.flowing.take() else { return };
        pe.data_busy += now.since(pe.flow_began);
        pe.resting = true;
        let owner = pe.owner[usize::from(lane)];
        self.flowed_of(owner);
        self.events.after(tail, Event::Tail { at, lane });
        self.events.after(bubble, Event::Data(at));
    }

    /// A descriptor's tail ends.
    pub(super) fn tail(&mut self, at: EngineId, lane: u8) {
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(lane));
        pe.open[index] -= 1;
        if pe.open[index] == 0
            && let Some(free) = pe.retries()
        {
            self.events.at(free, Event::Front(at));
        }
        if pe.record[index].is_none() {
            let engine = &mut pe.lanes[index];
            if pe.batch == Some(lane) || engine.job().member.is_some() {
                return;
            }
            let unfinished = pe.unfinished.get(&lane).and_then(|all| all.last());
            engine.executed(&dsa.model, unfinished.map_or(Outcome::of(Status::Success), Unfinished::outcome));
            if let Step::Record { address } = engine.step(&dsa.model, &NoObserver) {
                pe.record[index] = Some(address);
            }
        }
        if pe.open[index] == 0 {
            self.write_record(at, lane);
        }
    }

    /// All descriptors of a lane are done: writes its record and frees the lane.
    fn write_record(&mut self, at: EngineId, lane: u8) {
        let dsa = &mut self.devices[usize::from(at.device)];
        let (pe, index) = (&mut dsa.pes[usize::from(at.engine)], usize::from(lane));
        let engine = &mut pe.lanes[index];
        let unfinished = if pe.unfinished.is_empty() { None } else { pe.unfinished.remove(&lane) };
        let well = matches!(engine.record().status(), Status::Success | Status::SuccessPredicateFalse);
        if !well && unfinished.is_none() {
            self.refused += 1;
            let (size, refusal) = (engine.descriptor().0.size(), Refusal::from(engine.record().status()));
            self.refusal.get_or_insert(RefusedWork { size, refusal });
        }
        engine.recorded(&dsa.model, Ok(()));
        engine.settle(&dsa.model, &NoObserver);
        pe.idle.push(lane);
        let record = pe.record[index].take();
        if std::mem::take(&mut dsa.drains) {
            for (engine, pe) in (0..).zip(&mut dsa.pes) {
                if let Some(free) = pe.retries() {
                    self.events.at(free, Event::Front(EngineId { engine, ..at }));
                }
            }
        }
        let pe = &mut dsa.pes[usize::from(at.engine)];
        if !pe.awake && pe.ready.len() < self.machine.device.ready {
            let free = pe.wake();
            self.events.at(free, Event::Front(at));
        }
        match (record, unfinished) {
            (Some(record), Some(unfinished)) => self.repair(record, &unfinished),
            (Some(record), None) => self.recorded(record),
            (None, _) => {}
        }
    }
}
