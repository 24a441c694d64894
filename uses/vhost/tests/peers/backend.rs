//! Who has the device's side, and what the two sides do with packets.

use crate::room::Room;
use crate::testpmd::{Memory, Testpmd};
use std::ops::{Add, Sub};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Who answers the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backend {
    /// DPDK's `net_vhost`.
    Dpdk,
}

impl Backend {
    /// What keeps it from running here.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Backend::Dpdk => crate::testpmd::missing(),
        }
    }

    /// A backend with a port at each of these sockets.
    pub(crate) fn start(self, room: &Room, sockets: &[Socket]) -> Testpmd {
        match self {
            Backend::Dpdk => Testpmd::backend(room, sockets),
        }
    }
}

/// Tests that hold whoever answers: `fn name(who: Backend)`, which becomes `dpdk::name`.
macro_rules! with_each_backend {
    ($(fn $name:ident($who:ident: Backend) $body:block)+) => {
        $(fn $name($who: Backend) $body)+
        mod dpdk {
            $(#[test] fn $name() { super::$name(crate::backend::Backend::Dpdk); })+
        }
    };
}
pub(crate) use with_each_backend;

/// Where a backend and a guest meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// Pairs of queues the backend offers.
    pub(crate) queues: u16,
    /// The backend goes to the guest, and again when it is gone.
    pub(crate) client: bool,
    /// The backend's own memory.
    pub(crate) memory: Memory,
}

impl Socket {
    /// A socket at which the backend waits, with one pair of queues.
    pub(crate) fn new(room: &Room, name: &str) -> Socket {
        Socket { path: room.file(name), queues: 1, client: false, memory: Memory::Small }
    }
}

/// What one side does with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Sends packets of so many bytes, as many as the other takes.
    Source(u32),
    /// Takes packets.
    Sink,
    /// Sends some packets of so many bytes, and each again when it comes back.
    Begin(u32),
    /// Sends back what comes.
    Return,
    /// Answers ARP requests and pings.
    Echo,
}

/// What went through a side's ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) errors: u64,
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            errors: self.errors + other.errors,
        }
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, other: Counts) -> Counts {
        Counts {
            received: self.received - other.received,
            received_bytes: self.received_bytes - other.received_bytes,
            sent: self.sent - other.sent,
            sent_bytes: self.sent_bytes - other.sent_bytes,
            errors: self.errors - other.errors,
        }
    }
}

/// Asks for counts until they are as wanted, and answers them.
///
/// # Panics
/// If they are not in time, with what they were.
pub(crate) fn until(what: &str, mut counts: impl FnMut() -> Counts, wanted: impl Fn(&Counts) -> bool) -> Counts {
    // Also a machine with much else to do moves packets in this time.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = counts();
        if wanted(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{what}: {now:?}");
    }
}
