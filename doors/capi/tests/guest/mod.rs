//! A guest at the other end of a port's socket: a frontend that sends the required requests, and one queue pair with a
//! correct driver.

#![allow(dead_code, reason = "each test needs some of it")]

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::HashMap;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use telpher_vhost::layout::{Features, HEADER_BYTES};
use telpher_vhost::ring::{Direction, MockDriver, MockGuest};

/// The number of descriptors of a ring, and the size of a buffer in bytes.
const SIZE: u16 = 256;
const BUFFER: u64 = 2048;

pub(crate) struct Guest {
    stream: UnixStream,
    memory: MockGuest,
    receive: MockDriver,
    transmit: MockDriver,
    /// The buffer address of each identifier.
    to_fill: HashMap<u16, u64>,
    in_flight: HashMap<u16, u64>,
    /// Buffers that are not in flight.
    idle: Vec<u64>,
    /// The eventfd for calls to the driver.
    _call: OwnedFd,
}

impl Guest {
    /// Connects when a backend listens, and starts both queues. All receive buffers are made available.
    pub(crate) fn connect(path: &Path, more: Features) -> Guest {
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(_) => std::thread::yield_now(),
            }
        };
        let agreed = Features::VERSION_1 | Features::MRG_RXBUF | Features::PROTOCOL_FEATURES | more;
        let mut memory = MockGuest::new(4 << 20);
        let receive = MockDriver::new(&mut memory, SIZE, agreed, Direction::Receive);
        let transmit = MockDriver::new(&mut memory, SIZE, agreed, Direction::Transmit);
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let idle = (0..SIZE).map(|_| memory.lend(BUFFER)).collect();
        let (to_fill, in_flight) = (HashMap::new(), HashMap::new());
        let mut guest = Guest { stream, memory, receive, transmit, to_fill, in_flight, idle, _call: call };
        guest.introduce(agreed);
        for _ in 0..SIZE {
            let at = guest.memory.lend(BUFFER);
            guest.offer(at);
        }
        guest
    }

    fn introduce(&self, agreed: Features) {
        self.say(15, &[], &[]);
        let offered = self.answer();
        self.say(16, &[offered], &[]);
        self.say(2, &[agreed.bits()], &[]);
        let region = self.memory.region();
        self.ask(5, &[1, region.guest, region.len, region.user, region.offset], &[self.memory.file().as_fd()]);
        for (ring, driver) in [(0, &self.receive), (1, &self.transmit)] {
            let at = driver.setup().addresses;
            let base = u64::from(driver.setup().base.available);
            let pair = |number: u64| ring | number << 32;
            self.say(8, &[pair(SIZE.into())], &[]);
            self.say(10, &[pair(base)], &[]);
            self.say(9, &[ring, at.descriptors, at.device, at.driver, 0], &[]);
            self.say(13, &[ring], &[self._call.as_fd()]);
            // No kicks: the other side polls.
            self.say(12, &[ring | 0x100], &[]);
            self.ask(18, &[pair(1)], &[]);
        }
    }

    /// Sends a request without reply, or one that returns a value.
    fn say(&self, request: u32, words: &[u64], files: &[BorrowedFd<'_>]) {
        self.send_message(request, 1, words, files);
    }

    /// Sends a request, and checks that it succeeded.
    fn ask(&self, request: u32, words: &[u64], files: &[BorrowedFd<'_>]) {
        self.send_message(request, 1 | 8, words, files);
        assert_eq!(self.answer(), 0, "request {request} was refused");
    }

    fn send_message(&self, request: u32, flags: u32, words: &[u64], files: &[BorrowedFd<'_>]) {
        let size = u32::try_from(8 * words.len()).expect("a few words");
        let head = [request, flags, size].into_iter().flat_map(u32::to_le_bytes);
        let bytes: Vec<u8> = head.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()));
    }

    fn answer(&self) -> u64 {
        let mut bytes = [0; 20];
        (&self.stream).read_exact(&mut bytes).expect("an answer");
        u64::from_le_bytes(*bytes.last_chunk().expect("20 are more than 8"))
    }

    /// Makes its driver announce more transmit chains than its ring can hold.
    pub(crate) fn jump(&mut self) {
        // The index of a split ring's driver area. Source: VirtIO 1.2 §2.7.6.
        self.memory.write(self.transmit.parts().driver + 2, &40_000_u16.to_le_bytes());
    }

    fn offer(&mut self, at: u64) {
        let length = u32::try_from(BUFFER).expect("a few bytes");
        let id = self.receive.offer(&[(at, length)]).expect("as many buffers as descriptors");
        self.to_fill.insert(id, at);
    }

    /// Sends a packet; returns false if all buffers are in flight.
    pub(crate) fn send(&mut self, packet: &[u8]) -> bool {
        for (id, _) in self.transmit.collect() {
            self.idle.push(self.in_flight.remove(&id).expect("a returned buffer was in flight"));
        }
        let Some(at) = self.idle.pop() else { return false };
        self.memory.write(at, &[0; HEADER_BYTES as usize]);
        self.memory.write(at + u64::from(HEADER_BYTES), packet);
        let length = u32::try_from(packet.len()).expect("a short packet");
        let id = self.transmit.offer(&[(at, HEADER_BYTES + length)]).expect("as many buffers as descriptors");
        self.in_flight.insert(id, at);
        true
    }

    /// Packets received since the last call, in order; their buffers are made available again.
    pub(crate) fn received(&mut self) -> Vec<Vec<u8>> {
        let mut filled = Vec::new();
        for (id, written) in self.receive.collect() {
            filled.push((self.to_fill.remove(&id).expect("what comes back was to be filled"), written));
        }
        let read =
            |(at, written): &(u64, u32)| self.memory.read(*at, *written as usize).split_off(HEADER_BYTES as usize);
        let packets = filled.iter().map(read).collect();
        // Only now, because identifiers are reused.
        filled.into_iter().for_each(|(at, _)| self.offer(at));
        packets
    }
}
