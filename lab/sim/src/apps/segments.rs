//! Long copies in segments, by a core or by devices.

use crate::places::BufferPlacement;
use crate::workload::{AccessPattern, Library, QueueId, Wait};
use crate::world::{Core, PendingWork, World};
use std::cell::Cell;
use telpher_abi::{Descriptor, Flags, Opcode};

/// What makes the copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Copier {
    /// The core of the process.
    Core,
    /// Devices through these queues, segment by segment in turn.
    Devices(Vec<QueueId>),
}

impl Copier {
    /// The first shared queue of each of `count` devices.
    #[must_use]
    pub fn devices(count: u16) -> Copier {
        Copier::Devices((0..count).map(|device| QueueId { device, wq: 0, shared: true }).collect())
    }

    /// The same for a process at a node: only devices of its socket, if there are any.
    pub(super) fn near(&self, world: &World, node: usize) -> Copier {
        let Copier::Devices(queues) = self else { return Copier::Core };
        let near = |queue: &&QueueId| world.is_near(queue.device, node);
        let own: Vec<QueueId> = queues.iter().filter(near).copied().collect();
        Copier::Devices(if own.is_empty() { queues.clone() } else { own })
    }
}

/// Copies from one place to another, in sequence. A device writes to the cache.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    copier: Copier,
    /// Bytes of a segment.
    piece: u64,
    src: (BufferPlacement, u64),
    dst: (BufferPlacement, u64),
    next: Cell<usize>,
}

/// Copies in flight.
pub(super) struct Pieces(Vec<PendingWork>);

impl Segments {
    /// Copies from `src` to `dst`, `piece` bytes at a time.
    pub(super) fn new(
        world: &mut World,
        copier: &Copier,
        piece: u64,
        src: BufferPlacement,
        dst: BufferPlacement,
    ) -> Self {
        let (from, to) = (world.places.add(src), world.places.add(dst));
        // A segment is one descriptor.
        let piece = piece.clamp(1, u32::MAX.into());
        Segments { copier: copier.clone(), piece, src: (src, from), dst: (dst, to), next: Cell::new(0) }
    }

    /// Begins a copy of `bytes`; a core has finished it on return.
    pub(super) async fn begin(&self, core: &Core, bytes: u64) -> Pieces {
        let walker = core.with_walk(AccessPattern::Sequential).with_library(Library::Lean);
        let mut tickets = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(self.piece);
            left -= piece;
            match &self.copier {
                Copier::Devices(queues) if !queues.is_empty() => {
                    let turn = self.next.get();
                    self.next.set((turn + 1) % queues.len());
                    tickets.push(walker.submit(queues[turn], self.descriptor(piece)).await);
                }
                _ => walker.software(Opcode::MemoryMove, piece, self.src.0, self.dst.0).await,
            }
        }
        Pieces(tickets)
    }

    fn descriptor(&self, piece: u64) -> Descriptor {
        let size = u32::try_from(piece).unwrap_or(u32::MAX);
        World::descriptor(Opcode::MemoryMove, self.src.1, self.dst.1, size).and_flags(Flags::CACHE_CONTROL_1)
    }
}

impl Pieces {
    /// Waits for all of them.
    pub(super) async fn finish(self, core: &Core) {
        for ticket in &self.0 {
            if !ticket.is_done() {
                core.wait(ticket, Wait::Poll).await;
            }
        }
    }
}
