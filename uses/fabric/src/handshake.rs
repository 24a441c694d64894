//! The two packets that open a connection.
//!
//! ```text
//! connecting process                      accepting process
//!   Hello: version, sizes, own address ─►   checks the user, the version, the sizes, the file's seals and length
//!          with the memory file
//!                                      ◄─ Reply: a verdict
//! ```
//!
//! The socket keeps packets apart (`SOCK_SEQPACKET`), so a packet arrives whole or not at all. After the handshake a
//! packet of one byte wakes the peer's helper thread, and one of six bytes brings a file of the connecting process or
//! takes one back; there are no others.

use crate::address::{ADDRESS_BYTES, Address};
use crate::layout::Sizes;
use crate::peer_files::MOST_FILES;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The version of the packets, the layout and the entries. It must be the same on both sides.
const VERSION: u32 = 4;
/// Begins both packets. Source: chosen.
const MAGIC: [u8; 8] = *b"telpherF";
/// Where the sizes begin, after the magic and the version.
const SIZES_AT: usize = 12;
const SIZES: usize = 6;
const ADDRESS_AT: usize = SIZES_AT + SIZES * 4;
/// Bytes of a Hello.
pub(crate) const HELLO_BYTES: usize = ADDRESS_AT + ADDRESS_BYTES;
/// Bytes of a Reply.
const REPLY_BYTES: usize = 16;
/// Bytes of which a packet is read: one more than the longest that is valid.
const MOST_BYTES: usize = HELLO_BYTES + 1;
/// Files of a packet that are looked at; one is valid. The kernel closes further ones.
const SEEN_FILES: usize = 2;
/// The packet that wakes the peer's helper thread.
pub(crate) const WAKE: [u8; 1] = [1];
/// Begins the packet of a file: then its place and its generation.
const FILE: u8 = 2;
/// Bytes of the packet of a file.
const FILE_BYTES: usize = 6;

/// What the accepting process says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accepted,
    OtherUser,
    OtherVersion,
    Malformed,
    WrongSizes,
    WrongMemory,
    TooMany,
    OtherProcess,
}

impl Verdict {
    const ALL: [Verdict; 8] = [
        Verdict::Accepted,
        Verdict::OtherUser,
        Verdict::OtherVersion,
        Verdict::Malformed,
        Verdict::WrongSizes,
        Verdict::WrongMemory,
        Verdict::TooMany,
        Verdict::OtherProcess,
    ];

    /// Returns the reason of a refusal.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Verdict::Accepted => "it accepted the connection",
            Verdict::OtherUser => "its process has another user",
            Verdict::OtherVersion => "it has another version of telpher; use the same for all processes",
            Verdict::Malformed => "it did not understand the request",
            Verdict::WrongSizes => "a size of the connection is outside its limits",
            Verdict::WrongMemory => "it cannot map the memory of the connection",
            Verdict::TooMany => "it has too many connections",
            Verdict::OtherProcess => "the request came with the address of another process",
        }
    }
}

/// Opens a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) sizes: Sizes,
    pub(crate) from: Address,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let Sizes { ring_entries, payload_bytes, long_payload_bytes, slots, slot_bytes, eager_bytes } = self.sizes;
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..SIZES_AT].copy_from_slice(&VERSION.to_le_bytes());
        let sizes = [ring_entries, payload_bytes, long_payload_bytes, slots, slot_bytes, eager_bytes];
        for (bytes, size) in bytes[SIZES_AT..ADDRESS_AT].as_chunks_mut::<4>().0.iter_mut().zip(sizes) {
            *bytes = size.to_le_bytes();
        }
        bytes[ADDRESS_AT..].copy_from_slice(&self.from.encode());
        bytes
    }

    /// Decodes a packet. Checks the limits of the sizes; the caller checks whether the address can be the sender's.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, Verdict> {
        if version(bytes)? != VERSION {
            return Err(Verdict::OtherVersion);
        }
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| Verdict::Malformed)?;
        let sizes: [u32; SIZES] = std::array::from_fn(|at| word(bytes, SIZES_AT + 4 * at));
        let [ring_entries, payload_bytes, long_payload_bytes, slots, slot_bytes, eager_bytes] = sizes;
        let sizes = Sizes { ring_entries, payload_bytes, long_payload_bytes, slots, slot_bytes, eager_bytes };
        let from = Address::decode(&bytes[ADDRESS_AT..]).ok_or(Verdict::Malformed)?;
        sizes.check().map_err(|_| Verdict::WrongSizes)?;
        Ok(Hello { sizes, from })
    }

    /// Sends the packet and the memory file. A socket without room for it is as good as closed.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
        send_packet(socket, &self.encode(), &[file])
    }
}

/// Sends a packet with files, if the socket has room for it.
fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Shows the peer a file, or takes it back.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    place: u8,
    generation: u32,
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let [a, b, c, d] = generation.to_le_bytes();
    send_packet(socket, &[FILE, place, a, b, c, d], file.as_slice())
}

impl Verdict {
    /// Sends the verdict.
    pub(crate) fn send(self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let number = Verdict::ALL.iter().position(|verdict| *verdict == self).expect("all are listed");
        let mut bytes = [0; REPLY_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = number.to_le_bytes()[0];
        rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Decodes a Reply. An unknown verdict and a malformed Reply are refusals, too.
    pub(crate) fn decode(bytes: &[u8]) -> Verdict {
        match version(bytes) {
            Ok(VERSION) if bytes.len() == REPLY_BYTES => {}
            Ok(VERSION) | Err(_) => return Verdict::Malformed,
            Ok(_) => return Verdict::OtherVersion,
        }
        let number = usize::try_from(word(bytes, 12)).unwrap_or(usize::MAX);
        Verdict::ALL.get(number).copied().unwrap_or(Verdict::Malformed)
    }
}

/// Returns the version of a packet.
fn version(bytes: &[u8]) -> Result<u32, Verdict> {
    let is_ours = bytes.len() >= SIZES_AT && bytes.starts_with(&MAGIC);
    if is_ours { Ok(word(bytes, 8)) } else { Err(Verdict::Malformed) }
}

/// Returns the word at byte `at`, which exists.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A packet of a peer, not decoded.
#[derive(Debug)]
pub(crate) struct Packet {
    bytes: [u8; MOST_BYTES],
    len: usize,
    files: Vec<OwnedFd>,
    /// True if the packet had more bytes or files than were read.
    is_cut: bool,
}

impl Packet {
    /// Receives a packet, if one is there. An empty packet means that the peer has closed the socket.
    pub(crate) fn receive(socket: impl AsFd) -> Result<Packet, Errno> {
        let mut packet = Packet { bytes: [0; MOST_BYTES], len: 0, files: Vec::new(), is_cut: false };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SEEN_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut packet.bytes)], &mut ancillary, flags)?;
        packet.len = received.bytes.min(MOST_BYTES);
        packet.is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                packet.files.extend(files);
            }
        }
        Ok(packet)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the packet wakes the helper thread.
    pub(crate) fn is_wake(&self) -> bool {
        self.bytes[..self.len] == WAKE && self.files.is_empty() && !self.is_cut
    }

    /// Decodes the packet of a file: its place, its generation, and the file unless it is taken back.
    pub(crate) fn shown_file(&self) -> Option<(u8, u32, Option<&OwnedFd>)> {
        let bytes: [u8; FILE_BYTES] = self.bytes[..self.len].try_into().ok()?;
        let [FILE, place, generation @ ..] = bytes else { return None };
        let is_valid = usize::from(place) < MOST_FILES && self.files.len() <= 1 && !self.is_cut;
        is_valid.then(|| (place, u32::from_le_bytes(generation), self.files.first()))
    }

    /// Decodes a Hello, which has one file.
    pub(crate) fn into_hello(mut self) -> Result<(Hello, OwnedFd), Verdict> {
        let hello = Hello::decode(&self.bytes[..self.len])?;
        match (self.files.pop(), self.files.is_empty(), self.is_cut) {
            (Some(file), true, false) => Ok((hello, file)),
            _ => Err(Verdict::Malformed),
        }
    }

    /// Decodes a Reply, which has no file.
    pub(crate) fn verdict(&self) -> Verdict {
        if self.files.is_empty() && !self.is_cut {
            Verdict::decode(&self.bytes[..self.len])
        } else {
            Verdict::Malformed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn hello() -> Hello {
        let from = Address { boot: [7; 16], user: 1, process: 2, number: 3 };
        Hello { sizes: Sizes::of(&Config::default()).unwrap(), from }
    }

    #[test]
    fn a_hello_is_decoded_to_what_was_encoded() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn every_change_of_a_hello_is_noticed_or_harmless() {
        let good = hello().encode();
        for len in 0..HELLO_BYTES {
            assert_eq!(Hello::decode(&good[..len]), Err(Verdict::Malformed), "{len} bytes");
        }
        assert_eq!(Hello::decode(&[&good[..], &[0]].concat()), Err(Verdict::Malformed));
        for at in 0..HELLO_BYTES {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = good;
                bytes[at] ^= change;
                let expected = match at {
                    0..8 => Some(Verdict::Malformed),
                    8..12 => Some(Verdict::OtherVersion),
                    // Another size may be valid, too; so is another address.
                    _ => None,
                };
                match Hello::decode(&bytes) {
                    Ok(decoded) => assert!(expected.is_none() && decoded != hello() && decoded.sizes.check().is_ok()),
                    Err(verdict) => assert!(expected.is_none_or(|expected| expected == verdict), "byte {at}"),
                }
            }
        }
    }

    #[test]
    fn every_verdict_arrives_and_others_are_refusals() {
        let (one, other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        for verdict in Verdict::ALL {
            verdict.send(one.as_fd()).unwrap();
            assert_eq!(Packet::receive(&other).unwrap().verdict(), verdict);
        }
        let mut bytes = [0; REPLY_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        assert_eq!(Verdict::decode(&bytes), Verdict::Accepted);
        bytes[12] = 8;
        assert_eq!(Verdict::decode(&bytes), Verdict::Malformed);
        bytes[8] += 1;
        assert_eq!(Verdict::decode(&bytes), Verdict::OtherVersion);
        assert_eq!(Verdict::decode(&[]), Verdict::Malformed);
    }
}
