//! The loop's passes on the test's own thread, so that nothing depends on when another thread runs.

use super::*;
use crate::engine::CpuEngine;
use crate::initiator::requests::{Identity, QueueRequest};
use crate::initiator::{HostEvent, HostOptions, Initiator, Transfer, requests};
use crate::limits::Limits;
use crate::subsystem::SubsystemOptions;
use std::io::{Read as _, Write as _};
use std::time::Instant;

const NQN: &str = "nqn.2026-01.org.example:disk";
/// Longer than a test takes on any machine.
const HOUR_MS: u64 = 3_600_000;
/// How long a test waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(60);

struct Loop {
    server: Server,
    sockets: Sockets,
    memory: PassMemory,
}

struct Host {
    socket: TcpStream,
    initiator: Initiator,
}

impl Loop {
    /// `None` if the kernel refuses the engine; the tests of `tests/server` report that.
    fn new(engine: SocketEngine) -> Option<Loop> {
        let limits = Limits { connect_ms: HOUR_MS, disabled_ms: HOUR_MS, ..Limits::default() };
        let target = Target::new(limits).unwrap();
        let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "test".into(), hosts: None };
        target.add_subsystem(options).unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let mut server = Server::bind(&target, &[local], 1024, Box::<CpuEngine>::default()).unwrap();
        server.socket_engine = engine;
        let sockets = server.sockets().ok()?;
        Some(Loop { server, sockets, memory: PassMemory::default() })
    }

    /// A pass that does not sleep.
    fn pass(&mut self) {
        self.server.signal.wake();
        assert!(self.server.pass(&mut self.sockets, &mut self.memory).unwrap());
    }

    /// Returns whether nothing has happened; otherwise makes a pass.
    fn is_idle(&mut self) -> bool {
        let Loop { server, sockets, memory } = self;
        sockets.wait(Some(Duration::ZERO), &mut memory.events, &mut server.stats).unwrap();
        let is_idle = memory.events.is_empty();
        if !is_idle {
            self.pass();
        }
        is_idle
    }

    fn connect(&mut self) -> Host {
        let socket = TcpStream::connect(self.server.addresses().unwrap()[0]).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut host = Host { socket, initiator: Initiator::new(HostOptions::default()) };
        assert!(matches!(self.event(&mut host), HostEvent::Initialised { .. }));
        host
    }

    /// Makes passes until the host has an event.
    fn event(&mut self, host: &mut Host) -> HostEvent {
        let (mut buffer, end) = (vec![0; 64 << 10], Instant::now() + PATIENCE);
        loop {
            // Requests are small, so the socket takes them whole.
            host.socket.write_all(&host.initiator.take_output()).unwrap();
            if let Some(event) = host.initiator.take_event() {
                return event;
            }
            assert!(Instant::now() < end, "no event within {PATIENCE:?}");
            self.pass();
            match host.socket.read(&mut buffer) {
                Ok(count) => host.initiator.receive(&buffer[..count]).unwrap(),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }
}

#[test]
fn idle_connections_leave_the_loop_nothing_to_do() {
    const CONNECTIONS: usize = 256;
    for engine in [SocketEngine::Epoll, SocketEngine::Uring] {
        let Some(mut server) = Loop::new(engine) else { continue };
        let mut hosts: Vec<Host> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        let identity =
            Identity { host_id: [7; 16], host_nqn: "nqn.2026-01.org.example:host".into(), subsystem_nqn: NQN.into() };
        let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
        for (command, transfer) in [
            (requests::connect(1, queue), Transfer::InCapsule(identity.connect_data(0xffff))),
            (requests::enable(2), Transfer::None),
        ] {
            hosts[0].initiator.send(command, transfer);
            assert!(matches!(server.event(&mut hosts[0]), HostEvent::Completed { .. }));
        }
        assert_eq!(server.server.clients.len(), CONNECTIONS);
        // Each pass but the last takes an end of something that the connections have begun.
        assert!((0..100 * CONNECTIONS).any(|_| server.is_idle()), "{engine:?}: something happens again and again");
        let stats = server.server.stats;
        assert!((0..10).all(|_| server.is_idle()), "{engine:?}");
        assert_eq!((server.server.stats.receives, server.server.stats.sends), (stats.receives, stats.sends));
        let sleep = server.server.timeout().unwrap();
        assert!(sleep > Duration::from_millis(HOUR_MS / 2), "{engine:?}: the loop would wake up after {sleep:?}");
    }
}
