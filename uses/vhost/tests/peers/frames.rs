//! Frames that the test switch creates and checks: numbered frames, testpmd's frames, and pings.

/// The length of an Ethernet header, and the offset of its type. Source: IEEE 802.3.
const ETHERNET: usize = 14;
const TYPE: std::ops::Range<usize> = 12..14;
/// For experiments. Source: IEEE 802, local experimental ethertype 1.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
/// This side's address: locally administered.
const OURS: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// Creates a frame from its number.
pub(crate) fn write_numbered(frame: &mut [u8], number: u64) {
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&OURS);
    frame[TYPE].copy_from_slice(&EXPERIMENT);
    let (count, rest) = frame[ETHERNET..].split_at_mut(8);
    count.copy_from_slice(&number.to_be_bytes());
    rest.fill(number.to_le_bytes()[0]);
}

/// The number of such a frame after it was sent back with changed addresses; `None` if anything else was changed.
pub(crate) fn numbered(frame: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(frame.get(ETHERNET..ETHERNET + 8)?.try_into().ok()?);
    let byte = number.to_le_bytes()[0];
    let whole = frame[TYPE] == EXPERIMENT && frame[ETHERNET + 8..].iter().all(|&other| other == byte);
    whole.then_some(number)
}

/// How many different frames testpmd sends by default (`--flowgen-flows`).
pub(crate) const FLOWS: u32 = 1024;

/// Checks that a frame is one of testpmd's: IPv4 over its whole length, with a valid checksum. Returns its number, if
/// testpmd numbers its frames: the end of the destination address. Source: `flowgen` sends to 10.253.0.0 and following
/// addresses, `txonly` to 198.18.0.2.
pub(crate) fn of_testpmd(frame: &[u8]) -> Option<Option<u32>> {
    let header: &[u8; 20] = frame.get(ETHERNET..ETHERNET + 20)?.try_into().ok()?;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let whole = frame[TYPE] == IPV4 && header[0] == 0x45 && len + ETHERNET == frame.len() && checksum(header) == 0;
    let number = u32::from_be_bytes([0, 0, header[18], header[19]]);
    whole.then_some((header[16] == 10).then_some(number % FLOWS))
}

/// Turns an ARP request or a ping into its answer. Any other frame becomes one that no host accepts, and false is
/// returned. Source: RFC 826, RFC 792.
pub(crate) fn answer(frame: &mut [u8]) -> bool {
    let ours = match frame.get(TYPE) {
        Some(kind) if kind == ARP && frame.len() >= ETHERNET + 28 && frame[20..22] == [0, 1] => {
            frame[21] = 2;
            // This side answers for every requested address.
            let asked: [u8; 4] = frame[38..42].try_into().expect("four bytes");
            frame.copy_within(22..32, 32);
            frame[22..28].copy_from_slice(&OURS);
            frame[28..32].copy_from_slice(&asked);
            true
        }
        // A header of 20 bytes, ICMP, an echo request.
        Some(kind)
            if kind == IPV4
                && frame.len() >= ETHERNET + 28
                && frame[14] == 0x45
                && frame[23] == 1
                && frame[34] == 8 =>
        {
            let (from, to) = frame[26..34].split_at_mut(4);
            from.swap_with_slice(to);
            let len = usize::from(u16::from_be_bytes([frame[16], frame[17]])).clamp(28, frame.len() - ETHERNET);
            let message = &mut frame[34..ETHERNET + len];
            (message[0], message[2], message[3]) = (0, 0, 0);
            let sum = checksum(message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
            true
        }
        _ => false,
    };
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&OURS);
    if !ours {
        frame[TYPE].copy_from_slice(&EXPERIMENT);
    }
    ours
}

/// Returns whether the checksum of an ICMP message is wrong.
pub(crate) fn is_damaged(frame: &[u8]) -> bool {
    let is_icmp = frame.get(TYPE) == Some(&IPV4) && frame.get(14) == Some(&0x45) && frame.get(23) == Some(&1);
    is_icmp && {
        let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        frame.get(34..ETHERNET + len).is_none_or(|message| checksum(message) != 0)
    }
}

/// Source: RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping() -> Vec<u8> {
        let mut ping = vec![0_u8; 60];
        ping[TYPE].copy_from_slice(&IPV4);
        ping[14] = 0x45;
        ping[16..18].copy_from_slice(&46_u16.to_be_bytes());
        ping[23] = 1;
        ping[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        ping[34] = 8;
        ping[59] = 7;
        let sum = checksum(&ping[34..]).to_be_bytes();
        ping[36..38].copy_from_slice(&sum);
        ping
    }

    #[test]
    fn pings_are_answered_and_damage_is_detected() {
        let mut ping = ping();
        let mut damaged = ping.clone();
        damaged[50] ^= 1;
        assert_eq!((is_damaged(&ping), is_damaged(&damaged)), (false, true));
        assert!(answer(&mut ping) && !answer(&mut [0; 20]));
        assert_eq!((&ping[26..34], ping[34], checksum(&ping[34..])), (&[10, 0, 0, 1, 10, 0, 0, 2][..], 0, 0));
    }

    #[test]
    fn a_frame_number_is_read_only_if_the_rest_is_intact() {
        let mut frame = vec![0; 64];
        write_numbered(&mut frame, 300);
        assert_eq!((numbered(&frame), numbered(&frame[..20])), (Some(300), None));
        frame[..12].fill(3);
        assert_eq!(numbered(&frame), Some(300));
        frame[63] ^= 1;
        assert_eq!(numbered(&frame), None);
    }

    #[test]
    fn testpmd_frames_have_a_checksum_and_an_optional_number() {
        let mut frame = ping();
        frame[30..34].copy_from_slice(&[10, 253, 4, 5]);
        let sum = checksum(&frame[14..34]).to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        assert_eq!((of_testpmd(&frame), of_testpmd(&frame[..59])), (Some(Some(5)), None));
        frame[33] = 6;
        assert_eq!(of_testpmd(&frame), None);
    }
}
