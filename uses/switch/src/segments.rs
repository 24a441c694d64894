//! Work that the sender of a frame left to its network card: an incomplete checksum, and large frames that the card
//! would divide into packets (segmentation offload). Guests get complete packets, so it is done here.
//!
//! Sources: VirtIO 1.2 §5.1.6 (the header), RFC 791 (IPv4), RFC 8200 (IPv6), RFC 9293 (TCP), RFC 768 (UDP), RFC 1071
//! and RFC 1624 (checksums), RFC 3168 §6.1.2 (congestion window reduced).

/// Bytes of the header before a frame. Source: UAPI linux/virtio_net.h, `struct virtio_net_hdr`.
pub(crate) const OFFLOAD_BYTES: usize = 10;
/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Offset of a VLAN tag in a frame: behind both addresses.
pub(crate) const TAG_AT: usize = 12;

/// Source of all: UAPI linux/virtio_net.h, `VIRTIO_NET_HDR_F_*` and `VIRTIO_NET_HDR_GSO_*`.
const NEEDS_CHECKSUM: u8 = 1;
const TCP_IPV4: u8 = 1;
const TCP_IPV6: u8 = 4;
const UDP: u8 = 5;
/// The sender uses explicit congestion notification; the kind is in the other bits.
const ECN: u8 = 0x80;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// What the sender left to its network card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offload {
    flags: u8,
    kind: u8,
    /// Bytes of payload of each packet.
    segment: u16,
    /// Where the checksum's range starts; it ends with the frame.
    start: u16,
    /// Where the checksum is stored, from there.
    at: u16,
}

impl Offload {
    /// Reads the header before a frame, which is in the machine's order of bytes.
    pub(crate) fn parse(bytes: &[u8; OFFLOAD_BYTES]) -> Offload {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Offload { flags: bytes[0], kind: bytes[1], segment: word(4), start: word(6), at: word(8) }
    }

    /// Returns whether the frame is large and must be divided into packets.
    #[inline]
    pub(crate) fn is_large(self) -> bool {
        self.kind != 0
    }

    /// Returns whether the frame's checksum is incomplete.
    #[inline]
    pub(crate) fn needs_checksum(self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }

    /// Returns the same for the frame with `bytes` more bytes before the checksum's range.
    pub(crate) fn moved_by(self, bytes: u16) -> Offload {
        Offload { start: self.start.saturating_add(bytes), ..self }
    }

    /// Completes the checksum of a frame, which already has the sum of the pseudo-header. Returns false if it lies
    /// outside of the frame.
    pub(crate) fn complete(self, frame: &mut [u8]) -> bool {
        let (start, at) = (usize::from(self.start), usize::from(self.start) + usize::from(self.at));
        if start > frame.len() || at + 2 > frame.len() {
            return false;
        }
        let sum = match checksum(&frame[start..]) {
            // Both are zero to a receiver (RFC 1071), but UDP says with 0 that there is no checksum.
            0 => u16::MAX,
            sum => sum,
        };
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        true
    }
}

/// A large frame that is being divided.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    frame: Vec<u8>,
    /// Offset of the next packet's payload; the frame's length once all packets were written.
    next: usize,
    /// Bytes of all headers.
    headers: usize,
    /// Bytes of payload of each packet but the last.
    segment: usize,
    /// Offsets of the network's and the transport's header.
    network: usize,
    transport: usize,
    ipv6: bool,
    tcp: bool,
    /// Number of the next packet.
    number: u16,
}

/// The frame cannot be divided: it is of a kind that is not known here, or its headers contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Indivisible;

impl Segments {
    /// Begins to divide a frame. The former one is forgotten.
    pub(crate) fn begin(&mut self, frame: &[u8], tag: Option<[u8; 4]>, offload: Offload) -> Result<(), Indivisible> {
        self.frame.clear();
        self.next = 0;
        let offload = match (tag, frame.get(..TAG_AT)) {
            (Some(tag), Some(addresses)) => {
                self.frame.extend_from_slice(addresses);
                self.frame.extend_from_slice(&tag);
                self.frame.extend_from_slice(&frame[TAG_AT..]);
                offload.moved_by(4)
            }
            _ => {
                self.frame.extend_from_slice(frame);
                offload
            }
        };
        match self.plan(offload) {
            Some(()) => Ok(()),
            None => {
                self.frame.clear();
                Err(Indivisible)
            }
        }
    }

    /// Finds the headers; `None` if they are not as expected.
    fn plan(&mut self, offload: Offload) -> Option<()> {
        let frame = &self.frame;
        let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let (mut network, mut kind) = (ETHERNET, word(TAG_AT)?);
        // At most two tags: those of a customer and of a provider (IEEE 802.1Q §9.6).
        for _ in 0..2 {
            if [0x8100, 0x88a8].contains(&kind) {
                kind = word(network + 2)?;
                network += 4;
            }
        }
        let (ipv6, transport) = (kind == 0x86dd, usize::from(offload.start));
        let protocol = match offload.kind & !ECN {
            TCP_IPV4 if kind == 0x0800 => 6,
            TCP_IPV6 if ipv6 => 6,
            UDP if ipv6 || kind == 0x0800 => 17,
            _ => return None,
        };
        let tcp = protocol == 6;
        if ipv6 {
            // Extension headers stay as they are.
            (transport >= network + 40).then_some(())?;
        } else {
            let first = *frame.get(network)?;
            let is_ipv4 = first >> 4 == 4 && first & 15 >= 5 && *frame.get(network + 9)? == protocol;
            (is_ipv4 && transport == network + 4 * usize::from(first & 15)).then_some(())?;
        }
        let headers = match tcp {
            true => transport + 4 * usize::from((frame.get(transport + 12)? >> 4).max(5)),
            false => transport + 8,
        };
        let checksum = if tcp { 16 } else { 6 };
        let segment = usize::from(offload.segment);
        let valid = offload.needs_checksum() && usize::from(offload.at) == checksum && segment > 0;
        // The lengths in the headers have 16 bits.
        (valid && headers < frame.len() && frame.len() - network <= usize::from(u16::MAX)).then_some(())?;
        (self.next, self.headers, self.segment) = (headers, headers, segment);
        (self.network, self.transport, self.ipv6, self.tcp, self.number) = (network, transport, ipv6, tcp, 0);
        Some(())
    }

    /// Returns the bytes of the next packet; `None` if there is none.
    #[inline]
    pub(crate) fn next_len(&self) -> Option<usize> {
        let left = self.frame.len() - self.next;
        (left > 0).then(|| self.headers + left.min(self.segment))
    }

    /// Skips the next packet.
    pub(crate) fn skip(&mut self) {
        self.next = self.frame.len().min(self.next + self.segment);
        self.number = self.number.wrapping_add(1);
    }

    /// Writes the next packet into `packet`, which has exactly its length.
    pub(crate) fn write(&mut self, packet: &mut [u8]) {
        let (first, len) = (self.next == self.headers, packet.len() - self.headers);
        let last = self.next + len == self.frame.len();
        packet[..self.headers].copy_from_slice(&self.frame[..self.headers]);
        packet[self.headers..].copy_from_slice(&self.frame[self.next..self.next + len]);
        let put = |packet: &mut [u8], at: usize, word: u16| packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
        let get = |packet: &[u8], at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        // `plan` has checked that the whole frame fits 16 bits.
        let short = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
        let (network, transport) = (self.network, self.transport);
        if self.ipv6 {
            put(packet, network + 4, short(packet.len() - network - 40));
        } else {
            put(packet, network + 2, short(packet.len() - network));
            let identification = get(packet, network + 4).wrapping_add(self.number);
            put(packet, network + 4, identification);
            put(packet, network + 10, 0);
            let sum = checksum(&packet[network..transport]);
            put(packet, network + 10, sum);
        }
        let at = if self.tcp { transport + 16 } else { transport + 6 };
        // The sum of the pseudo-header has the length of the large frame; it gets that of the packet (RFC 1624).
        let (before, after) = (short(self.frame.len() - transport), short(packet.len() - transport));
        let seed = fold(u32::from(get(packet, at)) + u32::from(!before) + u32::from(after));
        put(packet, at, seed);
        if self.tcp {
            let sequence = &mut packet[transport + 4..transport + 8];
            let number = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
            // At most 64 KiB.
            let offset = u32::try_from(self.next - self.headers).unwrap_or(0);
            sequence.copy_from_slice(&number.wrapping_add(offset).to_be_bytes());
            let flags = &mut packet[transport + 13];
            *flags &= if last { 0xff } else { !(FIN | PSH) };
            *flags &= if first { 0xff } else { !CWR };
        } else {
            put(packet, transport + 4, after);
        }
        let sum = match checksum(&packet[transport..]) {
            // UDP says with 0 that there is no checksum.
            0 if !self.tcp => u16::MAX,
            sum => sum,
        };
        put(packet, at, sum);
        self.skip();
    }
}

/// Adds the upper half to the lower half until 16 bits are left.
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

/// Computes the checksum of these bytes. Source: RFC 1071.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    // Words of 32 bits in a sum of 64: at most 64 KiB, so it cannot overflow.
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_be_bytes(last));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum over the pseudo-header and the transport's bytes, which is 0 if the checksum is right.
    fn transport_sum(packet: &[u8], network: usize, transport: usize) -> u16 {
        let ipv6 = packet[network] >> 4 == 6;
        let addresses = if ipv6 { network + 8..network + 40 } else { network + 12..network + 20 };
        let protocol = packet[network + if ipv6 { 6 } else { 9 }];
        let len = u16::try_from(packet.len() - transport).unwrap();
        let mut bytes = packet[addresses].to_vec();
        bytes.extend([0, protocol]);
        bytes.extend(len.to_be_bytes());
        bytes.extend(&packet[transport..]);
        checksum(&bytes)
    }

    /// Returns a large frame, with the sum of its pseudo-header as its checksum, and the offload.
    fn large(ipv6: bool, tcp: bool, payload: usize, segment: u16) -> (Vec<u8>, Offload) {
        let mut frame = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        frame.extend(if ipv6 { [0x86, 0xdd] } else { [8, 0] });
        let header = if tcp { 32 } else { 8 };
        let len = u16::try_from(header + payload).unwrap();
        let protocol = if tcp { 6 } else { 17 };
        if ipv6 {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend((0..32).map(|at| 0xa0 + at));
        } else {
            frame.extend([0x45, 0]);
            frame.extend((20 + len).to_be_bytes());
            frame.extend([0xff, 0xff, 0x40, 0, 64, protocol, 0, 0, 10, 1, 2, 3, 10, 4, 5, 6]);
        }
        let transport = frame.len();
        let mut header = vec![0; header];
        header[..4].copy_from_slice(&[1, 2, 3, 4]);
        if tcp {
            header[4..8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
            (header[12], header[13]) = (0x80, FIN | PSH | CWR | 0x10);
        } else {
            header[4..6].copy_from_slice(&len.to_be_bytes());
        }
        frame.extend(header);
        frame.extend((0..payload).map(|at| (at * 7 % 251).to_le_bytes()[0]));
        let at: u16 = if tcp { 16 } else { 6 };
        let network = ETHERNET;
        let all = transport_sum(&frame, network, transport);
        let bytes = checksum(&frame[transport..]);
        // The complement of the pseudo-header's checksum: its sum.
        let seed = fold(u32::from(!all) + u32::from(bytes));
        let field = transport + usize::from(at);
        frame[field..field + 2].copy_from_slice(&seed.to_be_bytes());
        let kind = match (tcp, ipv6) {
            (false, _) => UDP,
            (true, false) => TCP_IPV4 | ECN,
            (true, true) => TCP_IPV6,
        };
        let start = u16::try_from(transport).unwrap();
        (frame, Offload { flags: NEEDS_CHECKSUM, kind, segment, start, at })
    }

    fn divided(segments: &mut Segments) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some(len) = segments.next_len() {
            let mut packet = vec![0xee; len];
            segments.write(&mut packet);
            packets.push(packet);
        }
        packets
    }

    #[test]
    fn a_large_frame_becomes_packets_with_valid_headers() {
        for (ipv6, tcp, tag) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)) {
            for (payload, segment, count) in [(4001, 1000, 5), (3000, 1000, 3), (5, 1, 5), (7, 1448, 1)] {
                let (frame, offload) = large(ipv6, tcp, payload, segment);
                let mut segments = Segments::default();
                let tagged = tag.then_some([0x81, 0, 0, 7]);
                segments.begin(&frame, tagged, offload).unwrap();
                let packets = divided(&mut segments);
                assert_eq!(packets.len(), count);
                let shift = if tag { 4 } else { 0 };
                let (network, transport) = (ETHERNET + shift, usize::from(offload.start) + shift);
                let header = if tcp { 32 } else { 8 };
                let mut joined: Vec<u8> = Vec::new();
                for (number, packet) in packets.iter().enumerate() {
                    assert_eq!(packet[..12], frame[..12]);
                    assert_eq!(&packet[12..12 + shift], &tagged.unwrap_or_default()[..shift]);
                    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
                    let (from_network, from_transport) = (packet.len() - network, packet.len() - transport);
                    if ipv6 {
                        assert_eq!(usize::from(word(network + 4)), from_network - 40);
                    } else {
                        assert_eq!(usize::from(word(network + 2)), from_network);
                        assert_eq!(checksum(&packet[network..network + 20]), 0);
                        assert_eq!(word(network + 4), 0xffff_u16.wrapping_add(u16::try_from(number).unwrap()));
                    }
                    assert_eq!(transport_sum(packet, network, transport), 0);
                    if tcp {
                        let sequence = &packet[transport + 4..transport + 8];
                        let expected = 0xffff_ff00_u32.wrapping_add(u32::try_from(joined.len()).unwrap());
                        assert_eq!(sequence, expected.to_be_bytes());
                        let flags = packet[transport + 13];
                        assert_eq!(flags & CWR != 0, number == 0);
                        assert_eq!(flags & (FIN | PSH), if number + 1 == count { FIN | PSH } else { 0 });
                    } else {
                        assert_eq!(usize::from(word(transport + 4)), from_transport);
                    }
                    joined.extend(&packet[transport + header..]);
                }
                assert_eq!(joined, frame[usize::from(offload.start) + header..]);
            }
        }
    }

    #[test]
    fn an_incomplete_checksum_is_completed() {
        for (ipv6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            for payload in [0, 1, 100, 101] {
                let (mut frame, offload) = large(ipv6, tcp, payload, 9);
                let zero = payload == 100;
                if zero {
                    // The sum of everything else becomes the checksum's complement.
                    let (start, end) = (usize::from(offload.start), frame.len());
                    let sum = checksum(&frame[start..]);
                    let word = u16::from_be_bytes([frame[end - 2], frame[end - 1]]);
                    frame[end - 2..].copy_from_slice(&fold(u32::from(word) + u32::from(sum)).to_be_bytes());
                }
                assert!(offload.needs_checksum() && offload.complete(&mut frame));
                assert_eq!(transport_sum(&frame, ETHERNET, usize::from(offload.start)), 0);
                let at = usize::from(offload.start + offload.at);
                assert_eq!(frame[at..at + 2] == [0xff; 2], zero, "a checksum is never 0");
            }
        }
    }

    /// Every length and every value of each byte of the headers: such frames are divided or refused, without a panic.
    #[test]
    fn hostile_frames_are_refused_or_divided() {
        let mut segments = Segments::default();
        for (ipv6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            let (frame, offload) = large(ipv6, tcp, 40, 16);
            for len in 0..frame.len() {
                let _ = segments.begin(&frame[..len], None, offload);
                divided(&mut segments);
                let _ = segments.begin(&frame[..len], Some([0x81, 0, 0, 1]), offload);
                divided(&mut segments);
                let _ = offload.complete(&mut frame[..len].to_vec());
            }
            let end = frame.len().min(usize::from(offload.start) + 20);
            for (at, byte) in (TAG_AT..end).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut frame = frame.clone();
                frame[at] = byte;
                let _ = segments.begin(&frame, None, offload);
                divided(&mut segments);
            }
            for (start, at, segment) in [(0, 0, 1), (u16::MAX, u16::MAX, 1), (offload.start, offload.at, 0)] {
                let odd = Offload { start, at, segment, ..offload };
                assert_eq!(segments.begin(&frame, None, odd), Err(Indivisible));
                assert_eq!(segments.next_len(), None);
                let _ = odd.complete(&mut frame.clone());
            }
            for kind in [2, 3, 6, 0x7f] {
                let odd = Offload { kind, ..offload };
                assert_eq!(segments.begin(&frame, None, odd), Err(Indivisible));
            }
            let odd = Offload { flags: 0, ..offload };
            assert_eq!(segments.begin(&frame, None, odd), Err(Indivisible));
        }
    }
}
