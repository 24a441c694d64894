//! The cache lines that a packet's processing touches, and those that miss the core's cache.

use super::super::core_cache::CoreCache;
use std::ops::Range;
use telpher_vhost::ring::RingAddresses;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// First lines of the guest's memory and of the port's rings; the pool of the host's packets begins at 0.
const GUEST: u64 = 1 << 40;
const PORT: u64 = 2 << 40;
/// Entries of a port's ring in a line. Source: 16 bytes a descriptor, as in common ports.
const PORT_ENTRIES: u64 = 4;

/// Bytes in front of a packet that are copied with it. Source: VirtIO 1.2 §5.1.6, the header with `num_buffers`.
pub(super) const HEADER: u32 = telpher_vhost::layout::HEADER_BYTES;

/// A host's packet, by its offset in the pool.
pub(super) type Host = u64;

/// The core's cache, and its misses.
#[derive(Debug)]
pub(super) struct CacheLines {
    cache: CoreCache,
    /// Misses of packets' lines, and of others, since the last call of `missed`.
    payload: u64,
    others: u64,
}

/// The lines of a packet of `bytes` that begins at `at`, and of `before` bytes in front of it.
fn lines_of(at: u64, bytes: u32, before: u32) -> Range<u64> {
    (at - u64::from(before)) / LINE..(at + u64::from(bytes)).div_ceil(LINE)
}

impl CacheLines {
    pub(super) fn new(cache: CoreCache) -> CacheLines {
        CacheLines { cache, payload: 0, others: 0 }
    }

    /// Misses since the last call: lines of packets, and others.
    pub(super) fn missed(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.payload), std::mem::take(&mut self.others))
    }

    fn other(&mut self, line: u64) {
        self.others += u64::from(!self.cache.touch(line));
    }

    /// The port driver's metadata of a buffer, in the line before its packet.
    pub(super) fn note(&mut self, host: Host) {
        self.other((host - 1) / LINE);
    }

    /// The entry of the port's transmit ring for packet number `number`.
    pub(super) fn port_entry(&mut self, number: u64, ring: u64) {
        self.other(PORT + number % ring / PORT_ENTRIES);
    }

    /// The entries of a virtqueue by which chain `id` was made available, as number `number`.
    pub(super) fn available(&mut self, ring: &RingAddresses, size: u64, number: u64, id: u16) {
        self.other(GUEST + (ring.driver + 4 + 2 * (number % size)) / LINE);
        self.other(GUEST + (ring.descriptors + 16 * u64::from(id)) / LINE);
    }

    /// The entry by which the chain with number `number` is returned.
    pub(super) fn used(&mut self, ring: &RingAddresses, size: u64, number: u64) {
        self.other(GUEST + (ring.device + 4 + 8 * (number % size)) / LINE);
    }

    /// A device wrote the host's packet, and the core reads its first line.
    pub(super) fn written(&mut self, host: Host, bytes: u32) {
        lines_of(host, bytes, 0).for_each(|line| self.cache.invalidate(line));
        self.cache.touch(host / LINE);
    }

    /// The guest has read and written the packet's headers: the net header before it, and its first line.
    pub(super) fn guest_forwarded(&mut self, guest: u64) {
        lines_of(guest, 1, HEADER).for_each(|line| self.cache.invalidate(GUEST + line));
    }

    /// The core copies a packet to the guest, with the header before it; returns the number of lines. The port wrote
    /// the source lines: reading them is part of the cost `line`. So are the header's line and the packet's first line,
    /// which all sides have read and written.
    pub(super) fn copy_in(&mut self, host: Host, guest: u64, bytes: u32) -> u64 {
        lines_of(host, bytes, HEADER).for_each(|line| {
            self.cache.touch(line);
        });
        let lines = lines_of(guest, bytes, HEADER);
        self.count(GUEST + lines.start..GUEST + lines.end, 2);
        lines.end - lines.start
    }

    /// The same from the guest; the header is not copied.
    pub(super) fn copy_out(&mut self, guest: u64, host: Host, bytes: u32) -> u64 {
        let (from, to) = (lines_of(guest, bytes, 0), lines_of(host, bytes, 0));
        self.count(GUEST + from.start..GUEST + from.end, 1);
        self.count(to.clone(), 1);
        to.end - to.start
    }

    /// Touches lines; misses count except for the first `free` lines.
    fn count(&mut self, lines: Range<u64>, free: u64) {
        for line in lines.clone() {
            let hit = self.cache.touch(line);
            self.payload += u64::from(!hit && line - lines.start >= free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_touches_the_lines_of_packet_and_header() {
        let mut lines = CacheLines::new(CoreCache::new(1 << 20, 16));
        // 60 bytes from a line's start, the header in the line before.
        assert_eq!((lines.copy_in(128, 4096, 60), lines.missed()), (2, (0, 0)));
        // 1514 bytes: 24 lines and the header's. To the guest, all guest lines miss but the first two; from it, both
        // sides' but the first.
        assert_eq!((lines.copy_in(8192 + 128, 8192, 1514), lines.missed()), (25, (23, 0)));
        assert_eq!((lines.copy_out(16384, 16384, 1514), lines.missed()), (24, (46, 0)));
        assert_eq!((lines.copy_out(16384, 16384, 1514), lines.missed()), (24, (0, 0)));
        // A device wrote the host's lines; the metadata line before them stays.
        lines.note(16384);
        assert_eq!(lines.missed(), (0, 1));
        lines.written(16384, 1514);
        lines.note(16384);
        assert_eq!((lines.copy_out(16384, 16384, 1514), lines.missed()), (24, (23, 0)));
    }

    #[test]
    fn entries_share_lines() {
        let mut lines = CacheLines::new(CoreCache::new(1 << 20, 16));
        let ring = RingAddresses { descriptors: 0, driver: 1 << 20, device: 2 << 20 };
        for number in 0..64 {
            lines.available(&ring, 64, number, u16::try_from(number).unwrap());
            lines.used(&ring, 64, number);
            lines.port_entry(number, 64);
        }
        // Descriptors, the available ring behind its head, the used ring behind its head, the port's ring.
        assert_eq!(lines.missed(), (0, 16 + 3 + 8 + 16));
    }
}
