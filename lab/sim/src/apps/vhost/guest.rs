//! The guest: its memory, the driver's side of both virtqueues, and a core that sends every packet back.

use super::Shared;
use super::lines::{CacheLines, HEADER};
use super::port::{Seen, number_in};
use crate::picos::Picos;
use crate::world::{Core, Semaphore};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest, Ring};

/// The negotiated features. Source: white paper Tables 6 and 7: split virtqueues, mergeable buffers.
const FEATURES: Features = Features::VERSION_1.union(Features::MRG_RXBUF);
/// Bytes of a buffer before its packet: the driver's metadata, and headroom. Source: DPDK, 128 each.
const BEFORE: u64 = 256;
/// Packets that a driver keeps in its cache. Source: DPDK's `mbcache`.
const AT_HAND: u32 = 250;
/// Smallest size of a buffer in bytes. Source: DPDK, 2048.
const LEAST_ROOM: u32 = 2048;

/// One virtqueue from the driver's side.
#[derive(Debug)]
pub(super) struct GuestQueue {
    driver: MockDriver,
    /// Address of the packet of each chain in flight, by identifier.
    packets: Vec<u64>,
    /// Chains that the switch has not taken.
    offered: VecDeque<u16>,
    /// Number of chains that the switch has taken, and returned.
    taken: u64,
    back: u64,
    /// Number of returned chains that the guest has collected.
    collected: u64,
}

impl GuestQueue {
    fn new(memory: &mut MockGuest, size: u16, direction: Direction) -> GuestQueue {
        let driver = MockDriver::new(memory, size, FEATURES, direction);
        GuestQueue { driver, packets: vec![0; size.into()], offered: VecDeque::new(), taken: 0, back: 0, collected: 0 }
    }

    /// Makes a packet's buffer of `bytes` bytes (with the header before it) available; returns whether there was an
    /// entry.
    fn offer(&mut self, packet: u64, bytes: u32) -> bool {
        let Some(id) = self.driver.offer(&[(packet - u64::from(HEADER), bytes)]) else { return false };
        self.packets[usize::from(id)] = packet;
        self.offered.push_back(id);
        true
    }

    /// The switch takes the next chain; returns the address of its packet.
    pub(super) fn take(&mut self, lines: &mut CacheLines) -> u64 {
        let Some(id) = self.offered.pop_front() else { return BEFORE };
        lines.available(&self.driver.parts(), self.packets.len() as u64, self.taken, id);
        self.taken += 1;
        self.packets[usize::from(id)]
    }

    /// The switch returns `chains` chains.
    pub(super) fn give_back(&mut self, chains: usize, lines: &mut CacheLines) {
        for _ in 0..chains {
            lines.used(&self.driver.parts(), self.packets.len() as u64, self.back);
            self.back += 1;
        }
    }

    /// Packets of returned chains.
    fn collect(&mut self) -> Vec<u64> {
        let back = self.driver.collect();
        self.collected += back.len() as u64;
        back.into_iter().map(|(id, _)| self.packets[usize::from(id)]).collect()
    }
}

/// The guest.
#[derive(Debug)]
pub(super) struct Guest {
    memory: MockGuest,
    pub(super) receive: GuestQueue,
    pub(super) transmit: GuestQueue,
    /// Bytes of a packet, and of a buffer with the header.
    bytes: u32,
    room: u32,
    /// Packets received and not yet forwarded, and packets in hand.
    arrived: VecDeque<u64>,
    in_hand: VecDeque<u64>,
    /// Sent buffers; a ring's worth stays before they are reused, as in real drivers.
    sent: VecDeque<u64>,
    idle: VecDeque<u64>,
    pub(super) seen: Seen,
}

impl Guest {
    /// A guest for packets of `bytes` bytes; both virtqueues have `size` entries, the first full of empty buffers.
    ///
    /// # Panics
    /// If the system has no memory for it.
    pub(super) fn new(size: u16, bytes: u32) -> Guest {
        let space = u64::from(bytes.max(LEAST_ROOM));
        // An odd number of lines, so that buffers spread over sets.
        let stride = ((BEFORE + space).div_ceil(64) | 1) * 64;
        let count = 2 * u64::from(size) + u64::from(AT_HAND);
        let rings = 64 * u64::from(size) + (1 << 20);
        let mut memory = MockGuest::new(rings + stride * count);
        let mut side = |direction| GuestQueue::new(&mut memory, size, direction);
        let (receive, transmit) = (side(Direction::Receive), side(Direction::Transmit));
        let first = memory.lend(stride * count);
        let idle = (0..count).map(|index| first + index * stride + BEFORE).collect();
        let room = HEADER + bytes.max(LEAST_ROOM);
        let (arrived, in_hand, sent) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let seen = Seen::default();
        let mut guest = Guest { memory, receive, transmit, bytes, room, arrived, in_hand, sent, idle, seen };
        guest.refill();
        guest
    }

    /// The switch's side of its virtqueues: the receive and the transmit queue.
    pub(super) fn rings(&self) -> [Ring; 2] {
        let ring =
            |side: &GuestQueue| Ring::new(self.memory.memory(), side.driver.setup()).expect("the driver set it up");
        [ring(&self.receive), ring(&self.transmit)]
    }

    /// True if it has no packet, and none to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.receive.back == self.receive.collected
            && self.arrived.is_empty()
            && self.in_hand.is_empty()
            && self.transmit.offered.is_empty()
    }

    /// True if it found no room for its packets in hand.
    pub(super) fn waits_to_send(&self) -> bool {
        !self.in_hand.is_empty()
    }

    fn refill(&mut self) {
        while let Some(packet) = self.idle.front()
            && self.receive.offer(*packet, self.room)
        {
            self.idle.pop_front();
        }
    }

    /// Collects received and sent packets; takes up to a burst in hand. Returns their number.
    fn look(&mut self, burst: usize, lines: &mut CacheLines) -> usize {
        for packet in self.receive.collect() {
            let [front, back] = Seen::places(self.bytes as usize)
                .map(|place| number_in(&self.memory.read(packet + place.start as u64, place.len())));
            self.seen.look(front, back);
            self.arrived.push_back(packet);
        }
        self.sent.extend(self.transmit.collect());
        let size = self.receive.packets.len();
        self.idle.extend(self.sent.drain(..self.sent.len().saturating_sub(size)));
        self.refill();
        let count = self.arrived.len().min(burst.saturating_sub(self.in_hand.len()));
        for packet in self.arrived.drain(..count) {
            lines.guest_forwarded(packet);
            self.in_hand.push_back(packet);
        }
        count
    }

    /// Sends the packets in hand, as far as there is room.
    fn send(&mut self) {
        while let Some(packet) = self.in_hand.front()
            && self.transmit.offer(*packet, HEADER + self.bytes)
        {
            self.in_hand.pop_front();
        }
    }
}

/// The guest's core: forwards all received packets.
pub(super) async fn forward(core: Core, shared: Rc<RefCell<Shared>>, bell: Semaphore, burst: usize, packet: Picos) {
    loop {
        let (count, over) = {
            let Shared { guest, lines, over, .. } = &mut *shared.borrow_mut();
            (guest.look(burst, lines), *over)
        };
        if count > 0 {
            core.busy(packet * count as u64).await;
            shared.borrow_mut().guest.send();
        } else if over {
            return;
        } else {
            shared.borrow_mut().guest.send();
            core.until(bell).await;
        }
    }
}
