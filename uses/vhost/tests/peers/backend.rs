//! Who has the device's side, and what the two sides do with packets.

use crate::room::Room;
use crate::telpher::Telpher;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telpher_vhost::peers::{self, Counts, Memory, Seat, Testpmd, VhostPort, Work, lacking};

/// Who answers the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backend {
    /// DPDK's `net_vhost`.
    Dpdk,
    /// This crate.
    Telpher(Copies),
}

/// Who copies this crate's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copies {
    /// The thread that polls.
    Cpu,
    /// A modelled device, all of them.
    Device,
    /// Either, by length.
    Hybrid,
}

impl Copies {
    pub(crate) const ALL: [Copies; 3] = [Copies::Cpu, Copies::Device, Copies::Hybrid];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Copies::Cpu => "cpu",
            Copies::Device => "device",
            Copies::Hybrid => "hybrid",
        }
    }

    pub(crate) fn named(name: &str) -> Copies {
        Copies::ALL.into_iter().find(|copies| copies.name() == name).unwrap_or_else(|| panic!("nobody is {name:?}"))
    }
}

impl Backend {
    /// What keeps it from running here.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Backend::Dpdk => peers::missing(),
            Backend::Telpher(_) => lacking(&[("setpriv", "util-linux"), ("taskset", "util-linux")]),
        }
    }

    /// A backend with a port at each of these sockets.
    pub(crate) fn start(self, room: &Room, sockets: &[Socket]) -> Box<dyn Side> {
        match self {
            Backend::Telpher(copies) => Box::new(Telpher::start(copies, room, sockets)),
            Backend::Dpdk => {
                let port = |socket: &Socket| VhostPort {
                    socket: socket.path.clone(),
                    queues: socket.queues,
                    client: socket.client,
                };
                let ports: Vec<_> = sockets.iter().map(port).collect();
                let memory = sockets.first().map_or(Memory::Small, |socket| socket.memory);
                let seat = Seat { memory, ..room.seat("backend", 0) };
                let backend = Testpmd::backend(&seat, &ports);
                Box::new(Driven(backend.unwrap_or_else(|error| panic!("{error}"))))
            }
        }
    }
}

/// Tests that hold whoever answers: `fn name(who: Backend)`, which becomes `cpu::name`, `device::name` and so on.
///
/// Those with DPDK's backend are of the long run (`ci/peers.sh` leaves `dpdk::` out): what they show does not change with this crate.
macro_rules! with_each_backend {
    ($(fn $name:ident($who:ident: Backend) $body:block)+) => {
        crate::backend::with_each_of_ours! { $(fn $name($who: Backend) $body)+ }
        mod dpdk {
            $(
                #[test]
                fn $name() { super::$name(crate::backend::Backend::Dpdk); }
            )+
        }
    };
}
pub(crate) use with_each_backend;

/// Tests that hold whoever of this crate copies.
macro_rules! with_each_of_ours {
    ($(fn $name:ident($who:ident: Backend) $body:block)+) => {
        $(fn $name($who: Backend) $body)+
        mod cpu {
            $(#[test] fn $name() { super::$name(crate::backend::Backend::Telpher(crate::backend::Copies::Cpu)); })+
        }
        mod device {
            $(#[test] fn $name() { super::$name(crate::backend::Backend::Telpher(crate::backend::Copies::Device)); })+
        }
    };
}
pub(crate) use with_each_of_ours;

/// Whoever is at one end, and what it is told to do.
pub(crate) trait Side {
    /// Begins to do something with packets.
    fn work(&mut self, work: Work);

    /// Stops doing it; what it has received and sent by then is counted.
    fn rest(&mut self);

    /// What went through its ports since it was started.
    fn counts(&mut self) -> Counts;

    /// How many packets came back to it that one in its place had sent around before it.
    fn earlier(&mut self) -> u64 {
        0
    }

    /// SIGKILL.
    fn kill(&mut self);

    /// True if it has not ended.
    fn runs(&mut self) -> bool;
}

/// A testpmd whose failures are the test's.
#[derive(Debug)]
pub(crate) struct Driven(pub(crate) Testpmd);

impl Side for Driven {
    fn work(&mut self, work: Work) {
        self.0.work(work).unwrap_or_else(|error| panic!("{error}"));
    }

    fn rest(&mut self) {
        self.0.rest().unwrap_or_else(|error| panic!("{error}"));
    }

    fn counts(&mut self) -> Counts {
        self.0.counts().unwrap_or_else(|error| panic!("{error}"))
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn runs(&mut self) -> bool {
        self.0.runs()
    }
}

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

/// Asks for counts until they are as wanted, and answers them.
///
/// # Panics
/// If they are not in time, with what they were.
pub(crate) fn until(what: &str, mut counts: impl FnMut() -> Counts, wanted: impl Fn(&Counts) -> bool) -> Counts {
    // Also a machine with much else to do moves packets in this time.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = counts();
        if wanted(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{what}: {now:?}");
    }
}
