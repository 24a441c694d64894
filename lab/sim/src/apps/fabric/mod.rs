//! Messages between processes by `telpher-fabric`: ping-pong, one direction, exchanges, and a ring of sums.
//!
//! ```text
//! sender's buffer ──copy──► slot ─entry─► receiver ──copy──► its buffer ─answer─► slot free
//!                  a piece of 16 KiB while the receiver empties the slots before
//! ```
//!
//! Endpoints, connections, slots and the order of pieces are `telpher-fabric`'s own code; this module simulates the
//! cores, the devices and the time of the copies. `messages` and `allreduce` simulate libfabric's provider instead.

mod buffers;
mod copies;
mod process;

use super::messages::SharedMemory;
use super::segments::Copier;
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::simulated_portal::Gate;
use crate::workload::{AccessPattern, QueueId};
use crate::world::{Core, Semaphore, World};
use buffers::Words;
use copies::{Copies, Device, Places};
use process::{Process, Times};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::Opcode;
use telpher_fabric::copier::DEFAULT_SHORTEST;
use telpher_fabric::{
    Completes, Config, Endpoint, FabricError, PeerId, ProgressBy, ReceiveRequest, Segments, SendEnd, SendRequest,
};
use telpher_mover::{Channel, ChannelPolicy, ManualClock};
use telpher_portal::Portal;

/// The pattern of the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricPattern {
    /// Two processes: a message in one direction, then one back.
    PingPong,
    /// Two processes: messages in one direction.
    Stream,
    /// Two processes: a message each way at once, while both compute.
    Exchange,
    /// A ring of processes that sum their buffers.
    Sum,
}

/// Processes that exchange messages by `telpher-fabric`.
#[derive(Clone, PartialEq, Debug)]
pub struct Fabric {
    /// The pattern of the messages.
    pub pattern: FabricPattern,
    /// Processes of a sum, 2 to 64; other patterns have two.
    pub ranks: u32,
    /// Bytes of a message, or of each process's buffer in a sum; rounded up to whole words for each process.
    pub bytes: u64,
    /// Number of messages, of pairs in a ping-pong, or of sums.
    pub count: u64,
    /// Milliseconds of computing before each sum, or during each exchange.
    pub compute_ms: f64,
    /// In exchanges, a helper thread on a core of its own moves messages on while its process computes. Without it,
    /// they move when the process has computed.
    pub helper: bool,
    /// What copies the pieces.
    pub copier: Copier,
    /// A core fills slots with non-temporal stores, as the code does by default.
    pub streaming: bool,
    /// Bytes of a slot: a power of two from 4 KiB to 4 MiB.
    pub slot_bytes: u32,
    /// Slots of a connection: a power of two up to 256.
    pub slots: u32,
    /// Copies that an endpoint's device may have at once.
    pub in_flight: u32,
    /// What if: an endpoint submits to all devices of its socket in turn, not to one.
    pub spread: bool,
    /// What if: the device writes to the cache.
    pub to_cache: bool,
    /// Nanoseconds of a piece besides its copy, on each side: its entry, and its part of an answer.
    pub entry_ns: f64,
    /// Times of commands and turns, cached bytes, and sockets. Segments are the provider's and not used.
    pub shared: SharedMemory,
}

impl Default for Fabric {
    /// A hundred ping-pongs of 1 MiB, copied by the processes' own cores.
    fn default() -> Self {
        let Config { slot_bytes, slots, .. } = Config::default();
        Fabric {
            pattern: FabricPattern::PingPong,
            ranks: 2,
            bytes: 1 << 20,
            count: 100,
            compute_ms: 0.0,
            helper: false,
            copier: Copier::Core,
            streaming: true,
            slot_bytes,
            slots,
            in_flight: IN_FLIGHT,
            spread: false,
            to_cache: false,
            entry_ns: 70.0,
            shared: SharedMemory::default(),
        }
    }
}

/// Copies that a device may have at once. Source: `telpher-ofi`.
const IN_FLIGHT: u32 = 256;
/// Copies of a core that its channel holds: more than a process can start.
const MOST_COPIES: u32 = 1024;
/// Messages of a stream that are received at the same time. Source: OSU's bandwidth test.
const WINDOW: u64 = 64;
/// How long the processes may take to connect, in real time.
const CONNECTING: Duration = Duration::from_secs(60);

/// State shared by all processes.
#[derive(Default)]
struct Shared {
    until: Picos,
    /// Time of the slowest process in sums.
    summing: Picos,
    /// Time of the cores in their own work.
    busy: Picos,
    wrong: u64,
    by_device: u64,
    pieces: u64,
    /// Processes that have ended. They stay until all have: a dropped endpoint ends its connections.
    ended: Vec<Process>,
}

/// How a core that computes and one that exchanges messages for it tell each other of exchanges.
#[derive(Clone, Copy)]
struct Helped {
    begins: Semaphore,
    has_ended: Semaphore,
}

/// Starts the core of a process that computes during each exchange.
fn computes(world: &mut World, node: usize, app: &Rc<Fabric>, shared: &Rc<RefCell<Shared>>) -> Helped {
    let helped = Helped { begins: world.signal(0), has_ended: world.signal(0) };
    let (app, shared) = (app.clone(), shared.clone());
    world.spawn(node, move |core| async move {
        for _ in 0..app.count {
            core.give(helped.begins);
            core.busy(app.computing()).await;
            core.until(helped.has_ended).await;
        }
        let until = core.now();
        let mut shared = shared.borrow_mut();
        shared.until = shared.until.max(until);
    });
    helped
}

/// A word of a process's buffer.
fn value(rank: u64, index: u64) -> u64 {
    (rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index)
}

impl Fabric {
    fn config(&self) -> Config {
        let mut config = Config::default();
        config.slots = self.slots.clamp(2, 256).next_power_of_two();
        config.slot_bytes = self.slot_bytes.clamp(4 << 10, 4 << 20).next_power_of_two();
        if !self.streaming {
            config.streaming_bytes = u64::MAX;
        }
        // The largest connection has a gigabyte of slots.
        config.memory_bytes = 4 << 30;
        config
    }

    fn times(&self) -> Times {
        Times { command: self.shared.command(), turn: self.shared.turn(), entry: Picos::from_nanos_f64(self.entry_ns) }
    }

    /// The queues of a process: that of one device of its socket, or of all. None if its core copies.
    fn queues(&self, world: &World, rank: u64, node: usize) -> Vec<QueueId> {
        let Copier::Devices(mut queues) = self.copier.near(world, node) else { return Vec::new() };
        if !queues.is_empty() {
            let first = usize::try_from(rank).unwrap_or(0) % queues.len();
            queues.rotate_left(first);
        }
        queues.truncate(if self.spread { usize::MAX } else { 1 });
        queues
    }

    /// The places of a process at a node, with its neighbours' nodes.
    fn places(&self, config: &Config, node: usize, [left, right]: [usize; 2], by_device: bool) -> Places {
        // The computing between sums takes the cache; that of exchanges needs no memory.
        let used = u64::from(self.ranks).saturating_mul(self.bytes);
        let takes_cache = self.pattern == FabricPattern::Sum && self.compute_ms > 0.0;
        let is_cached = used <= self.shared.cache_bytes && !takes_cache;
        let lines = if is_cached { LineLocation::Llc } else { LineLocation::Memory };
        let buffer = |lines| BufferPlacement { lines, footprint: self.bytes, ..BufferPlacement::on(node) };
        let footprint = u64::from(config.slots) * u64::from(config.slot_bytes);
        let slots = |node, lines| BufferPlacement { lines, footprint, ..BufferPlacement::on(node) };
        let (slots_out, slots_in, came) = if by_device {
            // The connection's memory is the sender's. The endpoint's descriptors have no cache hint.
            let written = if self.to_cache { LineLocation::Llc } else { LineLocation::Memory };
            (slots(node, written), slots(left, written), buffer(written))
        } else if self.streaming {
            (slots(node, LineLocation::Streamed), slots(left, LineLocation::Memory), buffer(lines))
        } else {
            // A core finds the lines that it writes where they were read, and those that it reads where they were
            // written.
            (slots(right, LineLocation::Llc), slots(left, LineLocation::Llc), buffer(lines))
        };
        // Plain stores of the cores, whatever fills the slots.
        let rings = [slots(right, LineLocation::Llc), slots(left, LineLocation::Llc)];
        Places { own: buffer(lines), slots_out, slots_in, rings, came }
    }

    /// What copies the pieces of a process, and its endpoint.
    fn endpoint(
        &self,
        world: &World,
        config: &Config,
        queues: &[QueueId],
    ) -> Result<(Endpoint, Arc<Gate>), FabricError> {
        let by_core = QueueId { device: 0, wq: 0, shared: false };
        let info = world.queue_info(queues.first().copied().unwrap_or(by_core));
        let gate = Arc::new(Gate::new(info));
        // One descriptor a piece: the simulated device writes only the last record of a batch, and the real one that
        // of each piece.
        let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
        let (slots, shortest) =
            if queues.is_empty() { (MOST_COPIES, 1) } else { (self.in_flight.clamp(1, MOST_COPIES), DEFAULT_SHORTEST) };
        // A clock that does not advance: a slow simulation makes no copy late.
        let clock = Arc::new(ManualClock::new(Duration::ZERO));
        let channel = Channel::with_clock(Arc::clone(&gate) as Arc<dyn Portal>, slots, policy, clock)
            .expect("the number of slots is within the limits");
        let copier = telpher_fabric::Copier::device(channel, shortest);
        Ok((Endpoint::open(config.clone(), copier, ProgressBy::Caller)?, gate))
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let ranks = if self.pattern == FabricPattern::Sum { self.ranks.clamp(2, 64) } else { 2 };
        let word_of_each = u64::from(ranks) * 8;
        let app = Rc::new(Fabric {
            ranks,
            bytes: self.bytes.clamp(word_of_each, 1 << 30).next_multiple_of(word_of_each),
            count: self.count.max(1),
            ..self.clone()
        });
        let processes = app.processes(world).expect("the system has memory, sockets and a thread for each process");
        let shared = Rc::new(RefCell::new(Shared::default()));
        for (rank, mut process) in (0..).zip(processes) {
            let node = app.shared.home(world, rank, ranks.into());
            let helped =
                (app.pattern == FabricPattern::Exchange && app.helper).then(|| computes(world, node, &app, &shared));
            let (app, shared) = (app.clone(), shared.clone());
            world.spawn(node, move |core| async move {
                let mut summing = Picos::ZERO;
                match app.pattern {
                    FabricPattern::PingPong => app.ping_pong(&core, &mut process, rank == 0).await,
                    FabricPattern::Stream => app.stream(&core, &mut process, rank == 0).await,
                    FabricPattern::Exchange => app.exchanges(&core, &mut process, rank, helped).await,
                    FabricPattern::Sum => summing = app.sums(&core, &mut process, rank).await,
                }
                let until = core.now();
                let wrong = app.wrong(&process, rank);
                let mut shared = shared.borrow_mut();
                shared.until = shared.until.max(until);
                shared.summing = shared.summing.max(summing);
                shared.busy += core.cycles().busy;
                shared.wrong += wrong;
                shared.by_device += process.copies.by_device;
                let counted = process.endpoint.statistics();
                shared.pieces += counted.pieces_by_cpu + counted.pieces_by_device + counted.pieces_by_fallback();
                shared.ended.push(process);
            });
        }
        Box::new(move |_| {
            let shared = shared.borrow();
            app.measures(&shared)
        })
    }

    /// Opens and connects the endpoints, in real time.
    fn processes(&self, world: &mut World) -> Result<Vec<Process>, FabricError> {
        let config = self.config();
        let ranks = u64::from(self.ranks);
        let nodes: Vec<usize> = (0..ranks).map(|rank| self.shared.home(world, rank, ranks)).collect();
        let bells: Vec<_> = nodes.iter().map(|_| world.signal(0)).collect();
        let mut processes = Vec::new();
        for (index, rank) in (0..nodes.len()).zip(0..) {
            let (left, right) = ((index + nodes.len() - 1) % nodes.len(), (index + 1) % nodes.len());
            let queues = self.queues(world, rank, nodes[index]);
            let places = self.places(&config, nodes[index], [nodes[left], nodes[right]], !queues.is_empty());
            let (endpoint, gate) = self.endpoint(world, &config, &queues)?;
            let device = (!queues.is_empty()).then(|| Device::new(world, queues, &places, self.to_cache));
            processes.push(Process {
                endpoint,
                own: Words::new(self.bytes, |index| value(rank, index)),
                came: Words::new(
                    if self.pattern == FabricPattern::Sum { self.bytes / ranks } else { self.bytes },
                    |_| 0,
                ),
                copies: Copies::new(gate, device, config.slot_bytes.into()),
                times: self.times(),
                places,
                eager_bytes: config.eager_bytes.into(),
                bell: bells[index],
                bells_of_peers: [left, right].map(|peer| bells[peer]).into(),
                peer: PeerId(0),
                done: Vec::new(),
                under_way: 0,
                charged: 0,
            });
        }
        connect(&mut processes)?;
        Ok(processes)
    }

    async fn ping_pong(&self, core: &Core, process: &mut Process, is_first: bool) {
        for _ in 0..self.count {
            let into = process.came.lend(0, self.bytes);
            process.receive(core, into);
            if is_first {
                process.send(core, 0, self.bytes).await;
            }
            process.finish(core, 0).await;
            if !is_first {
                process.send(core, 0, self.bytes).await;
                process.finish(core, 0).await;
            }
        }
    }

    async fn stream(&self, core: &Core, process: &mut Process, is_first: bool) {
        let mut left = self.count;
        while left > 0 {
            let some = left.min(WINDOW);
            left -= some;
            for _ in 0..some {
                if is_first {
                    process.send(core, 0, self.bytes).await;
                    process.finish(core, 0).await;
                } else {
                    let into = process.came.lend(0, self.bytes);
                    process.receive(core, into);
                }
            }
            process.finish(core, 0).await;
        }
    }

    /// Exchanges messages. The core computes meanwhile, or tells the core that does.
    async fn exchanges(&self, core: &Core, process: &mut Process, rank: u64, helped: Option<Helped>) {
        for exchange in 0..self.count {
            if let Some(helped) = helped {
                core.until(helped.begins).await;
            }
            // Other words in each exchange, so that those of an earlier one count as wrong.
            process.own.fill(|index| value(rank + 2 * exchange, index));
            let into = process.came.lend(0, self.bytes);
            process.receive(core, into);
            process.send(core, 0, self.bytes).await;
            if helped.is_none() {
                core.busy(self.computing()).await;
            }
            process.finish(core, 0).await;
            if let Some(helped) = helped {
                core.give(helped.has_ended);
            }
        }
    }

    fn computing(&self) -> Picos {
        Picos::from_nanos_f64(self.compute_ms * 1e6)
    }

    /// Returns the time in sums.
    async fn sums(&self, core: &Core, process: &mut Process, rank: u64) -> Picos {
        let ranks = u64::from(self.ranks);
        let part = self.bytes / ranks;
        let adder = core.with_walk(AccessPattern::Sequential);
        let mut summing = Picos::ZERO;
        for _ in 0..self.count {
            process.own.fill(|index| value(rank, index));
            core.busy(self.computing()).await;
            let start = core.now();
            for step in 0..2 * (ranks - 1) {
                // The first half of the steps sums the parts, the second half passes the sums on, of which this process
                // then has the next part's.
                let adds = step < ranks - 1;
                let first = if adds { rank + ranks - step } else { rank + 2 * ranks - step };
                let (sends, takes) = (first % ranks, (first - 1) % ranks);
                let into = if adds { process.came.lend(0, part) } else { process.own.lend(takes * part, part) };
                process.receive(core, into);
                process.send(core, sends * part, part).await;
                process.finish(core, 0).await;
                if adds {
                    process.own.add(takes * part, &process.came, part);
                    let Places { own, came, .. } = process.places;
                    adder.software(Opcode::Compare, part, own, came).await;
                }
            }
            summing += core.now().since(start);
        }
        summing
    }

    /// Words that are not what the peer sent, or not the sum.
    fn wrong(&self, process: &Process, rank: u64) -> u64 {
        match self.pattern {
            FabricPattern::PingPong => process.came.wrong(self.bytes, |index| value(1 - rank, index)),
            FabricPattern::Exchange => {
                let last = 2 * self.count.saturating_sub(1);
                process.came.wrong(self.bytes, |index| value(1 - rank + last, index))
            }
            FabricPattern::Stream if rank == 0 => 0,
            FabricPattern::Stream => process.came.wrong(self.bytes, |index| value(0, index)),
            FabricPattern::Sum => process.own.wrong(self.bytes, |index| {
                (0..u64::from(self.ranks)).fold(0, |sum: u64, rank| sum.wrapping_add(value(rank, index)))
            }),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn measures(&self, shared: &Shared) -> Vec<crate::scenario::Measure> {
        let (until, summing) = (shared.until.as_secs_f64(), shared.summing.as_secs_f64());
        let count = self.count as f64;
        let messages = count * if self.pattern == FabricPattern::PingPong { 2.0 } else { 1.0 };
        let busy = shared.busy.as_secs_f64() * 1e6;
        let by_device = shared.by_device as f64 / (shared.pieces as f64).max(1.0) * 100.0;
        let mut measures = match self.pattern {
            FabricPattern::Sum => vec![
                measure("time per sum", summing * 1e6 / count, "us"),
                measure("time per step", until * 1e6 / count, "us"),
                measure("share of time in sums", summing / until.max(1e-12) * 100.0, "%"),
            ],
            FabricPattern::Exchange => vec![measure("time per exchange", until * 1e6 / count, "us")],
            _ => vec![
                measure("time per message", until * 1e6 / messages, "us"),
                measure("bandwidth", messages * self.bytes as f64 / until.max(1e-12) / 1e9, "GB/s"),
                measure("core time per message", busy / messages, "us"),
            ],
        };
        measures.push(measure("pieces by the device", by_device, "%"));
        measures.push(measure("wrong words", shared.wrong as f64, "words"));
        measures.push(measure("processes that ended", shared.ended.len() as f64, "processes"));
        measures
    }
}

/// Makes each process known to the next one, and sends an empty message to it, which opens the connection.
fn connect(processes: &mut [Process]) -> Result<(), FabricError> {
    let addresses: Vec<_> = processes.iter().map(|process| process.endpoint.address()).collect();
    for (index, process) in processes.iter_mut().enumerate() {
        process.peer = process.endpoint.insert_peer(&addresses[(index + 1) % addresses.len()])?;
        let completes = Completes::Always;
        let segments = Segments::default();
        process.endpoint.receive(ReceiveRequest {
            segments,
            from: None,
            tag: None,
            context: 0,
            completes,
            many: None,
        })?;
        process.endpoint.send(SendRequest {
            to: process.peer,
            segments,
            tag: None,
            data: None,
            context: 0,
            completes,
            end: SendEnd::Matched,
            inject: false,
        })?;
    }
    let start = Instant::now();
    while processes.iter().any(|process| process.done.len() < 2) {
        assert!(start.elapsed() < CONNECTING, "the helper threads of the endpoints do not answer");
        for process in &mut *processes {
            process.endpoint.completions(&mut process.done, 2);
        }
        std::thread::yield_now();
    }
    processes.iter_mut().for_each(|process| process.done.clear());
    Ok(())
}
