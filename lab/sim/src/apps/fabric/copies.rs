//! The copies of an endpoint's pieces in simulated time. The endpoint offers each to a [`Gate`], for a core too, and
//! the gate moves the bytes when the simulated copy has ended.

use super::buffers::Words;
use crate::places::BufferPlacement;
use crate::simulated_portal::{Gate, Offered};
use crate::workload::{AccessPattern, Library, QueueId};
use crate::world::{Core, PendingWork, World};
use std::collections::VecDeque;
use std::sync::Arc;
use telpher_abi::{Descriptor, Flags, Opcode};

/// Where the bytes of a process are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// The buffer that it sends from.
    pub(super) own: BufferPlacement,
    /// The slots that it fills.
    pub(super) slots_out: BufferPlacement,
    /// The slots that it empties.
    pub(super) slots_in: BufferPlacement,
    /// The bytes within its rings: to the next process, and from the one before.
    pub(super) rings: [BufferPlacement; 2],
    /// The buffer that it receives into.
    pub(super) came: BufferPlacement,
}

/// A piece that is not copied yet.
struct Piece {
    number: u64,
    descriptor: Descriptor,
    /// From the own buffer into a slot, not from a slot.
    is_out: bool,
}

/// The device of a process, or several in turn.
pub(super) struct Device {
    queues: Vec<QueueId>,
    next: usize,
    to_cache: bool,
    /// Addresses of the regions at the process's places.
    own: u64,
    slots_out: u64,
    slots_in: u64,
    came: u64,
}

impl Device {
    /// A device behind each of these queues, of which there is at least one.
    pub(super) fn new(world: &mut World, queues: Vec<QueueId>, places: &Places, to_cache: bool) -> Device {
        let mut add = |place: BufferPlacement| world.places.add(place);
        Device {
            queues,
            next: 0,
            to_cache,
            own: add(places.own),
            slots_out: add(places.slots_out),
            slots_in: add(places.slots_in),
            came: add(places.came),
        }
    }
}

/// What makes the copies of a process.
pub(super) struct Copies {
    gate: Arc<Gate>,
    device: Option<Device>,
    waiting: VecDeque<Piece>,
    in_flight: Vec<(u64, PendingWork)>,
    /// Bytes of a piece.
    piece: u64,
    pub(super) by_device: u64,
}

impl Copies {
    /// Copies by the process's core, or by the device.
    pub(super) fn new(gate: Arc<Gate>, device: Option<Device>, piece: u64) -> Copies {
        Copies { gate, device, waiting: VecDeque::new(), in_flight: Vec::new(), piece, by_device: 0 }
    }

    /// Bytes of a whole piece.
    pub(super) fn piece(&self) -> u64 {
        self.piece
    }

    /// Takes the pieces that the endpoint has offered.
    pub(super) fn take(&mut self, own: &Words) {
        for Offered { number, .. } in self.gate.offered() {
            let Some(descriptor) = self.gate.descriptor(number) else { continue };
            self.waiting.push_back(Piece { number, descriptor, is_out: own.contains(descriptor.src()) });
        }
    }

    /// Copies one piece by the core, or submits all and takes the device's results. Returns the number of copies that
    /// have ended.
    pub(super) async fn advance(&mut self, core: &Core, places: &Places) -> u64 {
        let core = core.with_walk(AccessPattern::Sequential).with_library(Library::Lean);
        let Some(device) = &mut self.device else {
            let Some(Piece { number, descriptor, is_out }) = self.waiting.pop_front() else { return 0 };
            let (src, dst) = if is_out { (places.own, places.slots_out) } else { (places.slots_in, places.came) };
            core.software(Opcode::MemoryMove, descriptor.size().into(), src, dst).await;
            self.gate.execute(number);
            return 1;
        };
        while let Some(Piece { number, descriptor, is_out }) = self.waiting.pop_front() {
            let (src, dst) = if is_out { (device.own, device.slots_out) } else { (device.slots_in, device.came) };
            let hint = descriptor.flags() & Flags::CACHE_CONTROL_1;
            let hint = if device.to_cache { Flags::CACHE_CONTROL_1 } else { hint };
            let copy = World::descriptor(Opcode::MemoryMove, src, dst, descriptor.size()).and_flags(hint);
            let queue = device.queues[device.next];
            device.next = (device.next + 1) % device.queues.len();
            self.in_flight.push((number, core.submit(queue, copy).await));
        }
        let before = self.in_flight.len();
        let gate = &self.gate;
        self.in_flight.retain(|(number, work)| {
            let is_done = work.is_done();
            if is_done {
                gate.execute(*number);
            }
            !is_done
        });
        let ended = (before - self.in_flight.len()) as u64;
        self.by_device += ended;
        ended
    }

    /// The oldest copy that a device makes.
    pub(super) fn oldest(&self) -> Option<&PendingWork> {
        self.in_flight.first().map(|(_, work)| work)
    }

    /// Executes what is left: the simulation is over.
    pub(super) fn open(&self) {
        self.gate.open();
    }
}
