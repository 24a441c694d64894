//! The network port: rings of packets at the rate of the wire, each packet with a number.

use super::lines::CacheLines;
use crate::picos::Picos;
use telpher_vhost::{HEADROOM, PacketPool, Packets, PoolOptions};

/// Offset of a packet's number, behind the MAC addresses and the type; the number is repeated in its last bytes.
const NUMBER: usize = 14;
/// Bytes of the number.
const WORD: usize = size_of::<u64>();

/// Checks that packets arrive in order and complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    /// Number of the last packet plus 1.
    next: u64,
    /// Packets that came out of order, or twice.
    pub(super) disordered: u64,
    /// Packets whose two numbers differ.
    pub(super) torn: u64,
}

impl Seen {
    /// Checks a packet by its two numbers.
    pub(super) fn look(&mut self, front: u64, back: u64) {
        self.torn += u64::from(front != back);
        self.disordered += u64::from(front < self.next);
        self.next = self.next.max(front.saturating_add(1));
    }

    /// The positions of the numbers in a packet of `bytes` bytes.
    pub(super) fn places(bytes: usize) -> [std::ops::Range<usize>; 2] {
        [NUMBER..NUMBER + WORD, bytes.saturating_sub(WORD)..bytes]
    }

    fn look_at(&mut self, packet: &[u8]) {
        let [front, back] = Seen::places(packet.len()).map(|place| number_in(&packet[place]));
        self.look(front, back);
    }
}

/// The number in eight bytes.
pub(super) fn number_in(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(u64::MAX, |word| u64::from_le_bytes(*word))
}

/// The port and the pool of the switch's packets.
#[derive(Debug)]
pub(super) struct Port {
    pool: PacketPool,
    /// Address of the pool's first byte.
    base: u64,
    /// Empty buffers for received packets, and sent packets; those before the last whole ring are gone.
    receive: Packets,
    send: Packets,
    gone: Packets,
    ring: usize,
    /// Bytes of a packet.
    bytes: u32,
    /// Bits of a packet on the wire, and megabits a second.
    wire_bits: u128,
    mbit_s: u64,
    received: u64,
    /// Packets that arrived without room.
    lost: u64,
    sent: u64,
    pub(super) seen: Seen,
}

/// Bytes of an Ethernet frame that programs do not see: its checksum.
pub(super) const CHECKSUM: u32 = 4;
/// Bytes around a packet on the wire: preamble and gap. Source: IEEE 802.3.
const AROUND: u32 = 20;

impl Port {
    /// A port for packets of `wire_bytes` on the wire, and a pool with `besides` buffers in addition to those of its
    /// rings.
    ///
    /// # Panics
    /// If the system has no memory for the packets.
    pub(super) fn new(wire_bytes: u32, mbit_s: u64, ring: u32, besides: u32) -> Port {
        let bytes = wire_bytes - CHECKSUM;
        let buffers = 2 * ring + besides;
        let pool = PacketPool::new(PoolOptions { buffers, longest: bytes.max(PoolOptions::default().longest) });
        let pool = pool.expect("memory for the switch's packets");
        let all = pool.allocate(buffers as usize);
        let first = all.iter().map(address_of).min().unwrap_or(0);
        drop(all);
        let ring = ring as usize;
        let (receive, send, gone) = (pool.allocate(ring), pool.empty(ring), pool.empty(ring));
        let wire_bits = u128::from(wire_bytes + AROUND) * 8;
        let base = first.saturating_sub(HEADROOM.into());
        let seen = Seen::default();
        Port { pool, base, receive, send, gone, ring, bytes, wire_bits, mbit_s, received: 0, lost: 0, sent: 0, seen }
    }

    pub(super) fn pool(&self) -> &PacketPool {
        &self.pool
    }

    /// Offset of a packet from the pool's first byte.
    pub(super) fn place(&self, packet: &[u8]) -> u64 {
        address_of(packet) - self.base
    }

    /// The number of packets that wait for the core now.
    pub(super) fn waiting(&mut self, now: Picos) -> u64 {
        let arrived = u128::from(now.0) * u128::from(self.mbit_s) / self.wire_bits / 1_000_000;
        let arrived = u64::try_from(arrived).unwrap_or(u64::MAX);
        self.lost += arrived.saturating_sub(self.received + self.lost + self.ring as u64);
        arrived.saturating_sub(self.received + self.lost)
    }

    /// When the next packet arrives; `None` if none ever does.
    pub(super) fn next(&self) -> Option<Picos> {
        let bits = u128::from(self.received + self.lost + 1) * self.wire_bits * 1_000_000;
        let at = bits.div_ceil(u128::from(self.mbit_s).checked_sub(1)? + 1);
        u64::try_from(at).ok().map(Picos)
    }

    /// Moves the next packets into `row`: reads their headers, and refills the ring with empty buffers.
    pub(super) fn receive(&mut self, count: usize, row: &mut Packets, lines: &mut CacheLines) {
        let before = row.len();
        self.receive.move_to(count, row);
        for index in before..row.len() {
            row.resize(index, self.bytes);
            let Some(packet) = row.get_mut(index) else { break };
            for place in Seen::places(packet.len()) {
                packet[place].copy_from_slice(&self.received.to_le_bytes());
            }
            let host = address_of(packet) - self.base;
            lines.written(host, self.bytes);
            lines.note(host);
            self.received += 1;
        }
        let had = self.receive.len();
        self.receive.fetch(self.ring);
        (had..self.receive.len())
            .filter_map(|index| self.receive.get(index))
            .for_each(|empty| lines.note(self.place(empty)));
    }

    /// Sends all packets of `row`.
    pub(super) fn send(&mut self, row: &mut Packets, lines: &mut CacheLines) {
        for packet in row.iter() {
            self.seen.look_at(packet);
            lines.port_entry(self.sent, self.ring as u64);
            self.sent += 1;
        }
        row.move_to(row.len(), &mut self.send);
        self.send.move_to(self.send.len().saturating_sub(self.ring), &mut self.gone);
        self.gone.iter().for_each(|packet| lines.note(address_of(packet) - self.base));
        self.gone.truncate(0);
    }
}

/// Address of a packet's first byte.
fn address_of(packet: &[u8]) -> u64 {
    packet.as_ptr().addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disorder_and_torn_packets_are_detected() {
        let mut seen = Seen::default();
        for (front, back) in [(0, 0), (1, 1), (5, 5), (6, 7), (5, 5), (5, 5), (7, 7)] {
            seen.look(front, back);
        }
        assert_eq!((seen.disordered, seen.torn), (2, 1));
    }
}
