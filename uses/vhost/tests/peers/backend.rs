//! The backends under test, and what both sides do with packets.

use crate::peer_slot::PeerSlot;
use crate::telpher::Telpher;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telpher_vhost::peers::{self, Counts, Memory, Testpmd, TestpmdSetup, VhostPort, Work, lacking};

/// The backend that serves the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backend {
    /// DPDK's `net_vhost`.
    Dpdk,
    /// This crate.
    Telpher(Copies),
}

/// The copy path of this crate's backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copies {
    /// The polling thread.
    Cpu,
    /// A modelled device, for all copies.
    Device,
    /// Either, depending on length.
    CopyPolicy,
}

impl Copies {
    pub(crate) const ALL: [Copies; 3] = [Copies::Cpu, Copies::Device, Copies::CopyPolicy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Copies::Cpu => "cpu",
            Copies::Device => "device",
            Copies::CopyPolicy => "hybrid",
        }
    }

    pub(crate) fn named(name: &str) -> Copies {
        Copies::ALL
            .into_iter()
            .find(|copies| copies.name() == name)
            .unwrap_or_else(|| panic!("unknown copy path {name:?}"))
    }
}

impl Backend {
    /// What this machine lacks to run it.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Backend::Dpdk => peers::missing(),
            Backend::Telpher(_) => lacking(&[("setpriv", "util-linux"), ("taskset", "util-linux")]),
        }
    }

    /// Starts a backend with a port at each of these sockets.
    pub(crate) fn start(self, slot: &PeerSlot, sockets: &[Socket]) -> Box<dyn Endpoint> {
        match self {
            Backend::Telpher(copies) => Box::new(Telpher::start(copies, slot, sockets)),
            Backend::Dpdk => {
                let port = |socket: &Socket| VhostPort {
                    socket: socket.path.clone(),
                    queues: socket.queues,
                    client: socket.client,
                };
                let ports: Vec<_> = sockets.iter().map(port).collect();
                let memory = sockets.first().map_or(Memory::Small, |socket| socket.memory);
                let seat = TestpmdSetup { memory, ..slot.seat("backend", 0) };
                let backend = Testpmd::backend(&seat, &ports);
                Box::new(Driven(backend.unwrap_or_else(|error| panic!("{error}"))))
            }
        }
    }
}

/// Defines tests for every backend: `fn name(kind: Backend)` becomes `cpu::name`, `device::name` and so on.
///
/// Tests with DPDK's backend belong to the long run (`ci/peers.sh` leaves `dpdk::` out): their result does not depend
/// on this crate.
macro_rules! with_each_backend {
    ($(fn $name:ident($kind:ident: Backend) $body:block)+) => {
        crate::backend::with_each_of_ours! { $(fn $name($kind: Backend) $body)+ }
        mod dpdk {
            $(
                #[test]
                fn $name() { super::$name(crate::backend::Backend::Dpdk); }
            )+
        }
    };
}
pub(crate) use with_each_backend;

/// Defines tests for every copy path of this crate.
macro_rules! with_each_of_ours {
    ($(fn $name:ident($kind:ident: Backend) $body:block)+) => {
        $(fn $name($kind: Backend) $body)+
        mod cpu {
            $(#[test] fn $name() { super::$name(crate::backend::Backend::Telpher(crate::backend::Copies::Cpu)); })+
        }
        mod device {
            $(#[test] fn $name() { super::$name(crate::backend::Backend::Telpher(crate::backend::Copies::Device)); })+
        }
    };
}
pub(crate) use with_each_of_ours;

/// One end of the socket, and what it does with packets.
pub(crate) trait Endpoint {
    /// Starts processing packets in this mode.
    fn work(&mut self, work: Work);

    /// Stops; all packets received and sent by then are counted.
    fn rest(&mut self);

    /// The packet counters since it was started.
    fn counts(&mut self) -> Counts;

    /// How many packets came back to it that its predecessor had sent.
    fn earlier(&mut self) -> u64 {
        0
    }

    /// Kills it with SIGKILL.
    fn kill(&mut self);

    /// Returns whether it is still running.
    fn runs(&mut self) -> bool;
}

/// A testpmd whose failures fail the test.
#[derive(Debug)]
pub(crate) struct Driven(pub(crate) Testpmd);

impl Endpoint for Driven {
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

/// The socket between a backend and a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// The queue pairs that the backend offers.
    pub(crate) queues: u16,
    /// The backend connects to the guest, and reconnects.
    pub(crate) client: bool,
    /// The backend's own memory.
    pub(crate) memory: Memory,
}

impl Socket {
    /// A socket at which the backend listens, with one queue pair.
    pub(crate) fn new(slot: &PeerSlot, name: &str) -> Socket {
        Socket { path: slot.file(name), queues: 1, client: false, memory: Memory::Small }
    }
}

/// Polls the counters until they are as wanted, and returns them.
///
/// # Panics
/// If they are not as wanted in time, with their values.
pub(crate) fn until(what: &str, mut counts: impl FnMut() -> Counts, wanted: impl Fn(&Counts) -> bool) -> Counts {
    // Even a busy machine moves packets in this time.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = counts();
        if wanted(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{what}: {now:?}");
    }
}
