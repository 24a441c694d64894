//! A frontend of our own: says what it is told to, right or wrong, by words that are written out here once more.
#![allow(dead_code, reason = "each test needs some of it")]

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use telpher_vhost::message::{Header, Reply};
use telpher_vhost::ring::{Base, MockDriver, MockGuest};
use telpher_vhost::words::Features;
use telpher_vhost::{Control, Port, SessionError};

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

/// A frontend that talks to the control plane without a socket between.
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

    /// Says it, asking for an answer: whether it was done.
    pub(crate) fn ask(&mut self, request: u32, payload: &[u8], files: Vec<OwnedFd>) -> bool {
        match self.say(request, ASK, payload, files) {
            Ok(Some(Reply::Number(number))) => number == 0,
            other => panic!("request {request}: {other:?}"),
        }
    }

    /// Says it, and it is done.
    pub(crate) fn tell(&mut self, request: u32, payload: &[u8], files: Vec<OwnedFd>) {
        assert!(self.ask(request, payload, files), "request {request}: {:?}", self.control.refused());
    }

    pub(crate) fn number(&mut self, request: u32) -> u64 {
        match self.say(request, 0, &[], Vec::new()) {
            Ok(Some(Reply::Number(number))) => number,
            other => panic!("request {request}: {other:?}"),
        }
    }

    /// Agrees on these features and all of the protocol's.
    pub(crate) fn agree(&mut self, features: u64) {
        let offered = self.number(15);
        self.say(16, 0, &u64s(&[offered]), Vec::new()).unwrap();
        self.tell(3, &[], Vec::new());
        self.tell(2, &u64s(&[features]), Vec::new());
    }

    /// The guest's memory, as one table.
    pub(crate) fn memory(&mut self, guest: &MockGuest) {
        let region = guest.region();
        let table = u64s(&[1, region.guest, region.len, region.user, region.offset]);
        self.tell(5, &table, vec![same(guest.file())]);
    }

    /// A driver's ring, to be polled, and called through the event that comes back.
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
            Ok(Some(Reply::State { ring: told, base })) if told == ring => base,
            other => panic!("the base of {ring}: {other:?}"),
        }
    }
}

/// The payload of `SET_VRING_ADDR`.
pub(crate) fn addresses(ring: u32, driver: &MockDriver, flags: u32, log: u64) -> Vec<u8> {
    let at = driver.setup().addresses;
    [u32s(&[ring, flags]), u64s(&[at.descriptors, at.device, at.driver, log])].concat()
}

/// How often an event was counted up since it was asked last.
pub(crate) fn count(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}
