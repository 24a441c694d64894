//! Our own guest, for machines without testpmd and for measurements that testpmd cannot make. Its owner steps its
//! driver, and its packets may carry the time at which they were sent.
//!
//! It negotiates with the backend by the same messages as over a socket, but without the socket.

use super::super::BenchError;
use crate::options::VhostTraffic;
use std::sync::Arc;
use telpher_vhost::layout::Features;
use telpher_vhost::message::Header;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest};
use telpher_vhost::{Control, Port};

/// Entries of each ring. Source: the value of the peer's guest in this benchmark.
pub(super) const RING: u16 = 1024;
/// Bytes of a buffer; not a power of two, like the distance of DPDK's buffers.
const BUFFER: u32 = 2176;
/// Packets in circulation, as many as with testpmd's `tx_first 16`.
pub(super) const LOOPING: usize = 512;
/// Bytes of the net header before each packet. Source: VirtIO 1.2 §5.1.6.1.
pub(super) const HEADER: u32 = 12;
/// Offset of the time stamp in a packet, behind the Ethernet header.
const STAMP: u64 = 14;

/// Requests. Source: vhost-user, "Front-end message types".
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;

/// A guest that is connected to a port.
pub(super) struct Guest {
    memory: MockGuest,
    receive: RingDriver,
    transmit: RingDriver,
    /// Buffers that are in neither ring.
    free: Vec<u64>,
    back: Vec<(u16, u32)>,
    /// The guest's control of the port; when it is dropped, the rings stop.
    _control: Control,
}

/// The driver of one ring.
struct RingDriver {
    driver: MockDriver,
    /// The buffer in flight for each descriptor identifier.
    buffers: Vec<u64>,
}

impl RingDriver {
    fn new(memory: &mut MockGuest, features: Features, direction: Direction) -> RingDriver {
        let mut driver = MockDriver::new(memory, RING, features, direction);
        driver.want_calls(false);
        RingDriver { driver, buffers: vec![0; RING.into()] }
    }

    fn offer(&mut self, buffer: u64, len: u32) -> bool {
        let id = self.driver.offer(&[(buffer, len)]);
        if let Some(id) = id {
            self.buffers[usize::from(id)] = buffer;
        }
        id.is_some()
    }
}

impl Guest {
    /// Connects a guest to a port without a guest, with split or packed rings.
    pub(super) fn connect(port: &Arc<Port>, packed: bool) -> Result<Guest, BenchError> {
        let mut features = Features::VERSION_1 | Features::MRG_RXBUF;
        features.set(Features::RING_PACKED, packed);
        let buffers = usize::from(RING) + LOOPING;
        let mut memory = MockGuest::new(buffers as u64 * u64::from(BUFFER) + (1 << 20));
        let receive = RingDriver::new(&mut memory, features, Direction::Receive);
        let transmit = RingDriver::new(&mut memory, features, Direction::Transmit);
        let mut control = Control::take(port)
            .ok_or_else(|| BenchError::NotHere("the bench's port is taken by another guest".into()))?;
        let mut tell = |request, payload: Vec<u8>, files| {
            let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let answer = control.hear(&Header { request, flags: 1, size }, &payload, files);
            answer.map(drop).map_err(|error| BenchError::NotHere(format!("the bench's own guest was refused: {error}")))
        };
        tell(SET_OWNER, Vec::new(), Vec::new())?;
        tell(SET_FEATURES, u64s(&[features.bits()]), Vec::new())?;
        let region = memory.region();
        let file = memory.file().try_clone();
        let file = file.map_err(|source| BenchError::Program { what: "sharing the guest's memory".into(), source })?;
        let table = u64s(&[1, region.guest, region.len, region.user, region.offset]);
        tell(SET_MEM_TABLE, table, vec![file])?;
        for (ring, side) in [(0, &receive), (1, &transmit)] {
            let (setup, at) = (side.driver.setup(), side.driver.setup().addresses);
            tell(SET_VRING_NUM, u32s(&[ring, setup.size.into()]), Vec::new())?;
            tell(SET_VRING_BASE, u32s(&[ring, setup.base.available.into()]), Vec::new())?;
            let addresses = u64s(&[at.descriptors, at.device, at.driver, 0]);
            tell(SET_VRING_ADDR, [u32s(&[ring, 0]), addresses].concat(), Vec::new())?;
            // Without a file, the backend polls the ring.
            tell(SET_VRING_KICK, u64s(&[u64::from(ring) | 0x100]), Vec::new())?;
        }
        let free = (0..buffers).map(|_| memory.lend(BUFFER.into())).collect();
        Ok(Guest { memory, receive, transmit, free, back: Vec::with_capacity(RING.into()), _control: control })
    }

    /// Performs one step of the driver: offers buffers and collects used ones. Returns the number of packets in the
    /// direction of the traffic.
    pub(super) fn step(&mut self, traffic: VhostTraffic, len: u32) -> u64 {
        match traffic {
            VhostTraffic::B2f => self.take_in(|_, _| false),
            VhostTraffic::F2b => {
                let sent = self.sent();
                while self.send(len, None) {}
                sent
            }
            VhostTraffic::Loop => {
                // The buffers of sent packets are free again; received packets are sent on unchanged.
                self.sent();
                self.take_in(|guest, (buffer, len)| guest.transmit.offer(buffer, len))
            }
        }
    }

    /// Collects the received packets and passes each packet's buffer and length (with its header) to `keep`; then
    /// offers free buffers to the ring. Returns the number of packets. A buffer that `keep` does not keep is free
    /// again.
    pub(super) fn take_in(&mut self, mut keep: impl FnMut(&mut Guest, (u64, u32)) -> bool) -> u64 {
        let mut back = std::mem::take(&mut self.back);
        back.clear();
        self.receive.driver.collect_into(&mut back);
        for &(id, written) in &back {
            let buffer = self.receive.buffers[usize::from(id)];
            if !keep(self, (buffer, written)) {
                self.free.push(buffer);
            }
        }
        let count = back.len() as u64;
        self.back = back;
        while let Some(buffer) = self.free.pop() {
            if !self.receive.offer(buffer, BUFFER) {
                self.free.push(buffer);
                break;
            }
        }
        count
    }

    /// Frees the buffers of packets that the backend has taken; returns their number.
    pub(super) fn sent(&mut self) -> u64 {
        self.back.clear();
        self.transmit.driver.collect_into(&mut self.back);
        self.free.extend(self.back.iter().map(|&(id, _)| self.transmit.buffers[usize::from(id)]));
        self.back.len() as u64
    }

    /// Sends a packet of `len` bytes, with a time stamp if given. Returns false if no buffer or no ring entry is free.
    pub(super) fn send(&mut self, len: u32, stamp: Option<u64>) -> bool {
        let Some(buffer) = self.free.pop() else { return false };
        if let Some(stamp) = stamp {
            self.memory.write(buffer + u64::from(HEADER) + STAMP, &stamp.to_le_bytes());
        }
        let sent = self.transmit.offer(buffer, HEADER + len);
        if !sent {
            self.free.push(buffer);
        }
        sent
    }

    /// Returns the time stamp in a received packet.
    pub(super) fn stamp_of(&self, buffer: u64) -> u64 {
        let bytes = self.memory.read(buffer + u64::from(HEADER) + STAMP, 8);
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Fills the receive ring, and sends the circulating packets if the traffic is a loop.
    pub(super) fn begin(&mut self, traffic: VhostTraffic, len: u32) {
        self.take_in(|_, _| false);
        if traffic == VhostTraffic::Loop {
            for _ in 0..LOOPING {
                self.send(len, None);
            }
        }
    }
}

/// Returns the time stamp counter, which packets carry.
pub(super) fn now() -> u64 {
    telpher_os::ticks()
}

fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_vhost::{PacketPool, PoolOptions, PortOptions};

    #[test]
    fn sent_packets_come_back_with_their_time_stamps_over_either_ring() {
        for packed in [false, true] {
            let pool = PacketPool::new(PoolOptions { buffers: 256, longest: 2048 }).unwrap();
            let port = Port::new(&pool, PortOptions::default());
            let mut guest = Guest::connect(&port, packed).unwrap();
            guest.begin(VhostTraffic::B2f, 0);
            assert!((0..10).all(|stamp| guest.send(60, Some(stamp))));
            let (mut spare, mut row, mut done) = (pool.allocate(32), pool.empty(32), pool.empty(32));
            assert_eq!(port.transmit(0, &mut row, &mut spare, 32), 10);
            assert_eq!(guest.sent(), 10);
            assert_eq!(port.receive(0, &mut row, &mut done), 10);
            let mut stamps = Vec::new();
            guest.take_in(|guest, (buffer, len)| {
                assert_eq!(len, 60 + HEADER);
                stamps.push(guest.stamp_of(buffer));
                false
            });
            assert_eq!(stamps, (0..10).collect::<Vec<_>>());
            drop(guest);
            assert!(Guest::connect(&port, packed).is_ok(), "the port is free again");
        }
    }

    #[test]
    fn a_port_has_one_guest() {
        let pool = PacketPool::new(PoolOptions { buffers: 4, longest: 100 }).unwrap();
        let port = Port::new(&pool, PortOptions::default());
        let _guest = Guest::connect(&port, false).unwrap();
        assert!(Guest::connect(&port, false).is_err());
    }
}
