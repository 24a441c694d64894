//! Changes to packets, and generated packets: Ethernet frames with UDP over IPv4.
//!
//! Sources: IEEE 802.3 §3 (frames), RFC 791 (IPv4), RFC 768 (UDP), RFC 1071 (the checksum), RFC 2544 appendix C.2.2
//! (addresses for benches), RFC 903 (RARP).

use telpher_vhost::Packets;

/// Bytes of a frame's two addresses.
const ADDRESSES: usize = 12;
/// Bytes before a generated packet's payload: Ethernet 14, IPv4 20, UDP 8.
const HEADERS: usize = 42;
/// The shortest generated frame. Source: IEEE 802.3 §4.4.2, 64 bytes; as in testpmd, it has 64 bytes although the 4 of
/// the frame check sequence are missing.
pub const SHORTEST: u32 = 64;
/// Port of both sides. Source: RFC 863 (discard).
const DISCARD: u16 = 9;
/// Source and destination addresses. Source: RFC 2544, appendix C.2.2: 198.18.0.0/15 is for benchmarks.
const SOURCE: [u8; 4] = [198, 18, 0, 1];
const DESTINATION: [u8; 4] = [198, 19, 0, 1];

/// Returns the locally administered address (IEEE 802 §8.4) of port `index`; the guest's side has another one. Source:
/// testpmd's default peers, 02:00:00:00:00:XX.
fn address(index: usize, guest: bool) -> [u8; 6] {
    let [low, high, ..] = index.to_le_bytes();
    [2, 0, 0, u8::from(!guest), high, low]
}

/// The addresses of frames sent through a port: to its guest, from the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses([u8; ADDRESSES]);

impl Addresses {
    pub(crate) fn of_port(index: usize) -> Addresses {
        let mut bytes = [0; ADDRESSES];
        bytes[..6].copy_from_slice(&address(index, true));
        bytes[6..].copy_from_slice(&address(index, false));
        Addresses(bytes)
    }

    /// Writes the addresses into each packet that is long enough.
    #[inline]
    pub(crate) fn write(&self, packets: &mut Packets) {
        packets.for_each_mut(|packet| {
            if let Some(addresses) = packet.first_chunk_mut() {
                *addresses = self.0;
            }
        });
    }
}

/// Bytes of an announcement. Source: IEEE 802.3 §4.4.2, the shortest frame, without its frame check sequence.
pub(crate) const ANNOUNCEMENT: u32 = 60;

/// Returns the frame from which a network learns a migrated guest's new location: a broadcast from the guest, a request
/// without an answer. Source: vhost-user, `SEND_RARP`, "fake RARP"; RFC 903.
pub(crate) fn announcement(guest: [u8; 6]) -> [u8; ANNOUNCEMENT as usize] {
    let mut frame = [0; ANNOUNCEMENT as usize];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&guest);
    frame[12..14].copy_from_slice(&0x8035_u16.to_be_bytes());
    // Ethernet (1) and IPv4, addresses of 6 and 4 bytes; a reverse request (3).
    frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 3]);
    // Sender and target are the guest; the IPv4 addresses stay zero.
    frame[22..28].copy_from_slice(&guest);
    frame[32..38].copy_from_slice(&guest);
    frame
}

/// Makes packets of one length, numbered from 0 in the first eight bytes of their payload, least significant first.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    headers: [u8; HEADERS],
    len: u32,
    /// Number of destinations; then they repeat.
    flows: u32,
    next: u64,
}

impl Source {
    /// Creates frames sent through port `index`, of `len` bytes (at least [`SHORTEST`]), to `flows` destinations in
    /// turn.
    pub(crate) fn new(index: usize, len: u32, flows: u32) -> Source {
        let len = len.max(SHORTEST);
        let mut headers = [0; HEADERS];
        headers[..12].copy_from_slice(&Addresses::of_port(index).0);
        headers[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
        // No packet is longer than 64 KiB.
        let total = u16::try_from(len - 14).unwrap_or(u16::MAX);
        // Version 4 and five words, no service class; no fragments (identification and flags 0); 64 hops; UDP.
        headers[14..16].copy_from_slice(&[0x45, 0]);
        headers[16..18].copy_from_slice(&total.to_be_bytes());
        headers[22..24].copy_from_slice(&[64, 17]);
        headers[26..30].copy_from_slice(&SOURCE);
        headers[30..34].copy_from_slice(&DESTINATION);
        headers[34..36].copy_from_slice(&DISCARD.to_be_bytes());
        headers[36..38].copy_from_slice(&DISCARD.to_be_bytes());
        headers[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        let sum = checksum(&headers[14..34]);
        headers[24..26].copy_from_slice(&sum.to_be_bytes());
        Source { headers, len, flows: flows.max(1), next: 0 }
    }

    /// Writes generated packets into those from index `from` on. Bytes after the number keep their old content.
    #[inline]
    pub(crate) fn make(&mut self, packets: &mut Packets, from: usize) {
        for index in from..packets.len() {
            packets.resize(index, self.len);
            let Some(packet) = packets.get_mut(index) else { break };
            if self.flows > 1 {
                self.turn();
            }
            packet[..HEADERS].copy_from_slice(&self.headers);
            packet[HEADERS..HEADERS + 8].copy_from_slice(&self.next.to_le_bytes());
            self.next += 1;
        }
    }

    /// Returns the next destination and its checksum.
    fn turn(&mut self) {
        let flow = u32::try_from(self.next % u64::from(self.flows)).unwrap_or(0);
        // 15 bits of the network 198.18.0.0/15 are free above 198.19.0.0.
        let [_, _, low @ ..] = (flow + 1).to_be_bytes();
        self.headers[32..34].copy_from_slice(&low);
        self.headers[24..26].fill(0);
        let sum = checksum(&self.headers[14..34]);
        self.headers[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Computes the checksum of a header with an even number of bytes. Source: RFC 1071.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    // The sum of ten words needs at most two folds.
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_vhost::{PacketPool, PoolOptions};

    /// Source: the example of RFC 1071 §3 (0001 f203 f4f5 f6f7 sum to ddf2).
    #[test]
    fn the_checksum_matches_the_rfc_s_example() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn packets_are_numbered_and_their_headers_are_valid() {
        let pool = PacketPool::new(PoolOptions { buffers: 8, longest: 2048 }).unwrap();
        for (len, flows) in [(64, 1), (1518, 1), (200, 3)] {
            let mut source = Source::new(3, len, flows);
            let mut row = pool.allocate(8);
            source.make(&mut row, 0);
            let mut destinations = std::collections::BTreeSet::new();
            for (number, packet) in row.iter().enumerate() {
                assert_eq!(packet.len(), len as usize);
                assert_eq!(packet[..12], [2, 0, 0, 0, 0, 3, 2, 0, 0, 1, 0, 3]);
                // A header including its checksum sums to zero.
                assert_eq!((checksum(&packet[14..34]), &packet[12..14]), (0, &[8, 0][..]));
                assert_eq!(usize::from(u16::from_be_bytes([packet[16], packet[17]])), packet.len() - 14);
                assert_eq!(usize::from(u16::from_be_bytes([packet[38], packet[39]])), packet.len() - 34);
                assert_eq!(packet[42..50], (number as u64).to_le_bytes());
                destinations.insert(packet[30..34].to_vec());
            }
            assert_eq!(destinations.len(), flows as usize);
        }
    }

    /// Source: the table of fields in RFC 903, and RFC 826 for their lengths.
    #[test]
    fn an_announcement_is_a_broadcast_reverse_request_of_the_guest() {
        let mut frame = vec![0xff; 6];
        frame.extend([0x52, 0x54, 0, 1, 2, 3, 0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        frame.extend([0x52, 0x54, 0, 1, 2, 3, 0, 0, 0, 0, 0x52, 0x54, 0, 1, 2, 3, 0, 0, 0, 0]);
        frame.resize(60, 0);
        assert_eq!(announcement([0x52, 0x54, 0, 1, 2, 3]).to_vec(), frame);
    }

    #[test]
    fn frames_too_short_for_addresses_stay_unchanged() {
        let pool = PacketPool::new(PoolOptions { buffers: 2, longest: 64 }).unwrap();
        let mut row = pool.allocate(2);
        row.resize(0, 11);
        row.resize(1, 12);
        row.for_each_mut(|packet| packet.fill(9));
        Addresses::of_port(258).write(&mut row);
        assert_eq!(row.get(0).unwrap(), [9; 11]);
        assert_eq!(row.get(1).unwrap(), [2, 0, 0, 0, 1, 2, 2, 0, 0, 1, 1, 2]);
    }
}
