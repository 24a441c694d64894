//! Messages between processes through shared memory, segment by segment: libfabric's shm provider where a process may
//! not read another's memory (KUPER appendix A).
//!
//! ```text
//! sender's buffer ──copy──► segments in shared memory ──copy──► receiver's buffer
//! up to 64 of 32 KiB, then the receiver's turn
//! ```
//!
//! Only one message is in flight to a peer, and the two copies of its segments take turns: both are the provider's own
//! rules.

use super::segments::{Copier, Segments};
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::world::{Core, Semaphore, World};
use std::cell::RefCell;
use std::rc::Rc;

/// The pattern of the messages between two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessagePattern {
    /// A message in one direction, then one back.
    PingPong,
    /// Messages in one direction: remote writes, or a bandwidth test.
    Stream,
}

/// Two processes.
#[derive(Clone, PartialEq, Debug)]
pub struct Messages {
    /// The pattern of their messages.
    pub talk: MessagePattern,
    /// Bytes of a message.
    pub bytes: u64,
    /// Number of messages; in a ping-pong, of pairs.
    pub count: u64,
    /// What makes the copies.
    pub copier: Copier,
    /// Parameters of the shared memory.
    pub shared: SharedMemory,
}

/// Parameters of messages through shared memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedMemory {
    /// Bytes of a segment.
    pub segment: u64,
    /// Segments that are copied before the other side's turn.
    pub segments: u64,
    /// Segments of a process, shared by its peers.
    pub pool: u64,
    /// Nanoseconds to write, transfer and read a command.
    pub command_ns: f64,
    /// Nanoseconds until the other side sees that it is its turn.
    pub turn_ns: f64,
    /// Bytes of buffers that stay in the last-level cache from one message to the next.
    pub cache_bytes: u64,
    /// Sockets over which processes are spread, neighbours together. Each process uses the devices of its socket.
    pub sockets: u32,
}

impl Default for SharedMemory {
    fn default() -> Self {
        SharedMemory {
            segment: 32 << 10,
            segments: 64,
            pool: 256,
            command_ns: 300.0,
            turn_ns: 150.0,
            cache_bytes: 105 << 20,
            sockets: 1,
        }
    }
}

impl Default for Messages {
    /// A hundred ping-pongs of 1 MiB, copied by the processes' own cores.
    fn default() -> Self {
        Messages {
            talk: MessagePattern::PingPong,
            bytes: 1 << 20,
            count: 100,
            copier: Copier::Core,
            shared: SharedMemory::default(),
        }
    }
}

impl SharedMemory {
    /// First memory node of the socket of process number `process` of `of`.
    pub(super) fn home(&self, world: &World, process: u64, of: u64) -> usize {
        world.node_of(process * u64::from(self.sockets.max(1)) / of.max(1))
    }

    /// The copies into and out of segments, from a process at one node to another's at the second, for buffers of `own`
    /// bytes each and `all` together. Segments are in the receiver's memory, are reused and stay in the cache; buffers
    /// stay cached if all of them fit.
    pub(super) fn ways(
        &self,
        world: &mut World,
        copier: &Copier,
        own: u64,
        all: u64,
        [from, to]: [usize; 2],
    ) -> (Rc<Segments>, Rc<Segments>) {
        let segments = |node| BufferPlacement {
            lines: LineLocation::Llc,
            footprint: self.share().min(MOST_FOOTPRINT),
            ..BufferPlacement::on(node)
        };
        let lines = if all <= self.cache_bytes { LineLocation::Llc } else { LineLocation::Memory };
        let buffers = |node| BufferPlacement { lines, footprint: own.min(MOST_FOOTPRINT), ..BufferPlacement::on(node) };
        let mut way = |node, src, dst| {
            let copier = copier.near(world, node);
            Rc::new(Segments::new(world, &copier, self.segment, src, dst))
        };
        // A core leaves the lines that it wrote in its own socket's cache; a device writes to the cache of the memory's
        // socket.
        let written = if *copier == Copier::Core { from } else { to };
        (way(from, buffers(from), segments(to)), way(to, segments(written), buffers(to)))
    }

    /// Bytes that are copied before the other side's turn.
    pub(super) fn share(&self) -> u64 {
        self.segment.max(1).saturating_mul(self.segments.max(1))
    }

    pub(super) fn command(&self) -> Picos {
        Picos::from_nanos_f64(self.command_ns)
    }

    pub(super) fn turn(&self) -> Picos {
        Picos::from_nanos_f64(self.turn_ns)
    }
}

/// A larger footprint makes no difference for the caches.
const MOST_FOOTPRINT: u64 = 1 << 40;

/// One direction: copies into shared memory and out of it, and the turns of both sides.
#[derive(Clone)]
struct Channel {
    into: Rc<Segments>,
    out: Rc<Segments>,
    room: Semaphore,
    filled: Semaphore,
    shared: SharedMemory,
}

impl Channel {
    fn new(world: &mut World, app: &Messages, nodes: [usize; 2]) -> Self {
        let (into, out) = app.shared.ways(world, &app.copier, app.bytes, app.bytes.saturating_mul(2), nodes);
        Channel { into, out, room: world.signal(1), filled: world.signal(0), shared: app.shared }
    }

    /// Sends a message, turn by turn.
    async fn send(&self, core: &Core, bytes: u64) {
        core.busy(self.shared.command()).await;
        let mut left = bytes;
        while left > 0 {
            let share = left.min(self.shared.share());
            left -= share;
            core.until(self.room).await;
            self.into.begin(core, share).await.finish(core).await;
            core.give(self.filled);
        }
    }

    /// Receives a message.
    async fn receive(&self, core: &Core, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let share = left.min(self.shared.share());
            left -= share;
            core.until(self.filled).await;
            core.busy(self.shared.turn()).await;
            self.out.begin(core, share).await.finish(core).await;
            core.give(self.room);
        }
    }
}

impl Messages {
    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = self.clone();
        let [one, other] = [0, 1].map(|process| app.shared.home(world, process, 2));
        let there = Channel::new(world, &app, [one, other]);
        let back = Channel::new(world, &app, [other, one]);
        let over = Rc::new(RefCell::new(Picos::ZERO));
        let pairs = app.talk == MessagePattern::PingPong;
        let (count, bytes) = (app.count, app.bytes);
        let ends = [(one, there.clone(), back.clone(), true), (other, back, there, false)];
        for (node, mine, its, first) in ends {
            let over = over.clone();
            world.spawn(node, move |core| async move {
                for _ in 0..count {
                    if first {
                        mine.send(&core, bytes).await;
                    }
                    if !first || pairs {
                        its.receive(&core, bytes).await;
                    }
                    if !first && pairs {
                        mine.send(&core, bytes).await;
                    }
                }
                let mut over = over.borrow_mut();
                *over = core.now().max(*over);
            });
        }
        Box::new(move |_| {
            #[allow(clippy::cast_precision_loss, reason = "for display")]
            let messages = (count * if pairs { 2 } else { 1 }) as f64;
            let seconds = over.borrow().as_secs_f64();
            #[allow(clippy::cast_precision_loss, reason = "for display")]
            let bytes = bytes as f64;
            vec![
                measure("time per message", seconds * 1e6 / messages.max(1.0), "us"),
                measure("bandwidth", messages * bytes / seconds.max(1e-12) / 1e9, "GB/s"),
            ]
        })
    }
}
