//! A test frontend: sends any request, valid or not, with message layouts defined here independently.
#![allow(dead_code, reason = "each test needs some of it")]

pub(crate) mod wire;

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use telpher_vhost::layout::Features;
use telpher_vhost::message::{Header, Reply};
use telpher_vhost::ring::{Base, Direction, MockDriver, MockGuest};
use telpher_vhost::{Control, Offer, PacketPool, PoolOptions, Port, PortOptions, SessionError};

pub(crate) const MRG: u64 = Features::MRG_RXBUF.union(Features::PROTOCOL_FEATURES).union(Features::VERSION_1).bits();
/// `need_reply`.
pub(crate) const ASK: u32 = 8;

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

pub(crate) fn same(file: &OwnedFd) -> OwnedFd {
    file.try_clone().unwrap()
}

pub(crate) fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A frontend that calls the control plane directly, without a socket.
pub(crate) struct Frontend {
    pub(crate) control: Control,
}

impl Frontend {
    pub(crate) fn new(port: &Arc<Port>) -> Frontend {
        Frontend { control: Control::take(port).expect("the port is free") }
    }

    pub(crate) fn say(
        &mut self,
        request: u32,
        flags: u32,
        payload: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, SessionError> {
        let header = Header { request, flags: 1 | flags, size: u32::try_from(payload.len()).unwrap() };
        self.control.hear(&header, payload, files)
    }

    /// Sends a request that asks for a reply; returns whether it succeeded.
    pub(crate) fn ask(&mut self, request: u32, payload: &[u8], files: Vec<OwnedFd>) -> bool {
        match self.say(request, ASK, payload, files) {
            Ok(Some(Reply::Number(number))) => number == 0,
            other => panic!("request {request}: {other:?}"),
        }
    }

    /// Sends a request that must succeed.
    pub(crate) fn tell(&mut self, request: u32, payload: &[u8], files: Vec<OwnedFd>) {
        assert!(self.ask(request, payload, files), "request {request}: {:?}", self.control.refused());
    }

    pub(crate) fn number(&mut self, request: u32) -> u64 {
        match self.say(request, 0, &[], Vec::new()) {
            Ok(Some(Reply::Number(number))) => number,
            other => panic!("request {request}: {other:?}"),
        }
    }

    /// Negotiates these features and all protocol features.
    pub(crate) fn agree(&mut self, features: u64) {
        let offered = self.number(15);
        self.say(16, 0, &u64s(&[offered]), Vec::new()).unwrap();
        self.tell(3, &[], Vec::new());
        self.tell(2, &u64s(&[features]), Vec::new());
    }

    /// Sends the guest's memory as one table.
    pub(crate) fn memory(&mut self, guest: &MockGuest) {
        let region = guest.region();
        let table = u64s(&[1, region.guest, region.len, region.user, region.offset]);
        self.tell(5, &table, vec![same(guest.file())]);
    }

    /// Sets up a driver's ring, which is polled; returns the eventfd for calls.
    pub(crate) fn ring(&mut self, ring: u32, driver: &MockDriver) -> OwnedFd {
        let Base { available, .. } = driver.setup().base;
        self.ring_at(ring, driver, available.into())
    }

    pub(crate) fn ring_at(&mut self, ring: u32, driver: &MockDriver, base: u32) -> OwnedFd {
        let setup = driver.setup();
        let call = event();
        self.tell(8, &u32s(&[ring, setup.size.into()]), Vec::new());
        self.tell(10, &u32s(&[ring, base]), Vec::new());
        self.tell(9, &addresses(ring, driver, 0, 0), Vec::new());
        self.tell(13, &u64s(&[ring.into()]), vec![same(&call)]);
        self.tell(12, &u64s(&[u64::from(ring) | 0x100]), Vec::new());
        self.tell(18, &u32s(&[ring, 1]), Vec::new());
        call
    }

    /// `GET_VRING_BASE`.
    pub(crate) fn stop(&mut self, ring: u32) -> u32 {
        match self.say(11, 0, &u32s(&[ring, 0]), Vec::new()) {
            Ok(Some(Reply::State { ring: answered, base })) if answered == ring => base,
            other => panic!("the base of {ring}: {other:?}"),
        }
    }
}

/// The payload of `SET_VRING_ADDR`.
pub(crate) fn addresses(ring: u32, driver: &MockDriver, flags: u32, log: u64) -> Vec<u8> {
    let at = driver.setup().addresses;
    [u32s(&[ring, flags]), u64s(&[at.descriptors, at.device, at.driver, log])].concat()
}

pub(crate) const HEADER: usize = 12;

/// A port with two queue pairs, and packet lists to poll it with.
pub(crate) struct Switch {
    pub(crate) port: Arc<Port>,
    pub(crate) pool: PacketPool,
}

impl Switch {
    pub(crate) fn new() -> Switch {
        Switch::with(PortOptions { offer: Offer::of_pairs(2), ..PortOptions::default() })
    }

    pub(crate) fn with(options: PortOptions) -> Switch {
        let pool = PacketPool::new(PoolOptions { buffers: 256, longest: 2048 }).unwrap();
        Switch { port: Port::new(&pool, options), pool }
    }

    /// Gives packets to the guest; returns how many it takes.
    pub(crate) fn send(&self, packets: &[&[u8]]) -> usize {
        let mut row = self.pool.allocate(packets.len());
        for (index, packet) in packets.iter().enumerate() {
            row.resize(index, u32::try_from(packet.len()).unwrap());
            row.get_mut(index).unwrap().copy_from_slice(packet);
        }
        self.port.receive(0, &mut row, &mut self.pool.empty(0))
    }

    pub(crate) fn packets(&self) -> Vec<Vec<u8>> {
        let (mut into, mut spare) = (self.pool.empty(0), self.pool.allocate(32));
        self.port.transmit(0, &mut into, &mut spare, 32);
        into.iter().map(<[u8]>::to_vec).collect()
    }
}

/// A guest with a ring in each direction.
pub(crate) struct Guest {
    pub(crate) memory: MockGuest,
    pub(crate) receive: MockDriver,
    pub(crate) transmit: MockDriver,
}

impl Guest {
    pub(crate) fn new(features: u64) -> Guest {
        let mut memory = MockGuest::new(4 << 20);
        let features = Features::from_bits_retain(features);
        let receive = MockDriver::new(&mut memory, 64, features, Direction::Receive);
        let transmit = MockDriver::new(&mut memory, 64, features, Direction::Transmit);
        Guest { memory, receive, transmit }
    }

    /// A frontend that has finished the setup.
    pub(crate) fn connect(&self, port: &Arc<Port>) -> Frontend {
        let features = (self.receive.setup().features).bits();
        let mut frontend = Frontend::new(port);
        frontend.agree(features);
        frontend.memory(&self.memory);
        frontend.ring(0, &self.receive);
        frontend.ring(1, &self.transmit);
        frontend
    }

    /// Makes a packet available; returns its buffer.
    pub(crate) fn say(&mut self, packet: &[u8]) -> u64 {
        let at = self.memory.lend(2048);
        self.memory.write(at + HEADER as u64, packet);
        let len = u32::try_from(HEADER + packet.len()).unwrap();
        self.transmit.offer(&[(at, len)]).unwrap();
        at
    }

    pub(crate) fn listen(&mut self) -> u64 {
        let at = self.memory.lend(2048);
        self.receive.offer(&[(at, 2048)]).unwrap();
        at
    }

    pub(crate) fn heard(&mut self, at: u64) -> Vec<u8> {
        let back = self.receive.collect();
        assert_eq!(back.len(), 1);
        self.memory.read(at + HEADER as u64, back[0].1 as usize - HEADER)
    }
}

/// The pages that a log marks as written.
pub(crate) fn dirty(log: &OwnedFd, pages: u64) -> Vec<u64> {
    let mut bytes = vec![0; usize::try_from(pages / 8).unwrap()];
    rustix::io::pread(log, &mut bytes, 0).unwrap();
    // Cleared, as a migration does, for the next read.
    rustix::io::pwrite(log, &vec![0; bytes.len()], 0).unwrap();
    (0..pages).filter(|page| bytes[usize::try_from(page / 8).unwrap()] >> (page % 8) & 1 == 1).collect()
}

/// The eventfds of this process.
pub(crate) fn holders(event: &OwnedFd) -> usize {
    flags_of(event).len()
}

/// Their flags. Source: proc(5), /proc/pid/fdinfo: an eventfd's entry has its number, `eventfd-id`.
pub(crate) fn flags_of(event: &OwnedFd) -> Vec<u32> {
    let folder = std::path::Path::new("/proc/self/fdinfo");
    let field = |text: &str, name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let ours = std::fs::read_to_string(folder.join(event.as_raw_fd().to_string())).unwrap();
    let id = field(&ours, "eventfd-id:").expect("an eventfd has a number");
    // Descriptors of other threads may disappear.
    let texts =
        std::fs::read_dir(folder).unwrap().flatten().filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let same = texts.filter(|text| field(text, "eventfd-id:").as_ref() == Some(&id));
    same.map(|text| u32::from_str_radix(&field(&text, "flags:").expect("it has flags"), 8).unwrap()).collect()
}

/// How often an eventfd was incremented since the last call.
pub(crate) fn count(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}
