//! The crate's initiator with a blocking socket.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;
use telpher_nvmf::Initiator;
use telpher_nvmf::command::{Completion, Submission};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostError, HostEvent, HostOptions, Transfer};
use telpher_nvmf::status::Status;

/// How long the other side may be silent. A peer in a guest may need seconds on a busy machine.
const SILENCE: Duration = Duration::from_secs(60);

/// Why there was no event.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The other side closed the connection.
    Closed,
    /// It violated the protocol. Tests that expect no violation only print it.
    #[allow(dead_code, reason = "other tests use it")]
    Violation(HostError),
}

/// A completed command.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) completion: Completion,
    pub(crate) data: Vec<u8>,
    /// The data was complete, and its digests were right.
    pub(crate) is_intact: bool,
}

/// One connection of a host.
#[derive(Debug)]
pub(crate) struct Host {
    socket: TcpStream,
    pub(crate) machine: Initiator,
    buffer: Vec<u8>,
    next_cid: u16,
}

impl Host {
    /// Connects, and exchanges ICReq and ICResp.
    pub(crate) fn new(address: SocketAddr, digests: Digests) -> Host {
        let machine = Initiator::new(HostOptions { digests, ..HostOptions::default() });
        let mut host = Host::silent(address, machine);
        let event = host.event();
        assert!(matches!(event, Ok(HostEvent::Initialised { .. })), "{event:?}");
        host
    }

    /// Connects, and sends nothing.
    pub(crate) fn silent(address: SocketAddr, machine: Initiator) -> Host {
        let socket = TcpStream::connect(address).expect("the other side listens");
        socket.set_read_timeout(Some(SILENCE)).expect("a valid time");
        socket.set_nodelay(true).expect("a TCP socket");
        Host { socket, machine, buffer: vec![0; 64 << 10], next_cid: 0 }
    }

    /// Connects an admin queue and enables its controller; returns the controller's identifier too.
    pub(crate) fn admin(address: SocketAddr, nqn: &str, digests: Digests) -> (Host, u16) {
        let mut host = Host::new(address, digests);
        let controller = host.connect(nqn, 0, 0xffff);
        let cid = host.cid();
        host.ok(requests::enable(cid), Transfer::None);
        (host, controller)
    }

    /// Connects an I/O queue.
    pub(crate) fn queue(address: SocketAddr, nqn: &str, digests: Digests, controller: u16, qid: u16) -> Host {
        let mut host = Host::new(address, digests);
        host.connect(nqn, qid, controller);
        host
    }

    fn connect(&mut self, nqn: &str, qid: u16, controller: u16) -> u16 {
        let host_nqn = "nqn.2014-08.org.nvmexpress:uuid:77777777-2222-3333-4444-555555555555".into();
        let identity = Identity { host_id: [7; 16], host_nqn, subsystem_nqn: nqn.into() };
        let keep_alive_ms = if qid == 0 { 120_000 } else { 0 };
        let queue = QueueRequest { qid, entries: 32, flow_control: true, keep_alive_ms };
        let command = requests::connect(self.cid(), queue);
        let (result, _) = self.ok(command, Transfer::InCapsule(identity.connect_data(controller)));
        u16::try_from(result & 0xffff).expect("16 bits")
    }

    /// An identifier for the next command.
    pub(crate) fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid % 1000 + 1;
        self.next_cid
    }

    /// Sends what the state machine wants to send. An error shows when the next event is waited for.
    pub(crate) fn flush(&mut self) {
        let _ = self.socket.write_all(&self.machine.take_output());
    }

    /// Waits for the next event.
    ///
    /// # Panics
    /// If the other side is silent for a minute.
    pub(crate) fn event(&mut self) -> Result<HostEvent, Ended> {
        loop {
            self.flush();
            if let Some(event) = self.machine.take_event() {
                return Ok(event);
            }
            match self.socket.read(&mut self.buffer) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => self.machine.receive(&self.buffer[..count]).map_err(Ended::Violation)?,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Err(Ended::Closed),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("the other side is silent: {error}"),
            }
        }
    }

    /// Receives a whole PDU that the state machine does not see. It must not have received a part of it.
    pub(crate) fn pdu(&mut self) -> Vec<u8> {
        self.flush();
        let mut pdu = vec![0; 8];
        self.socket.read_exact(&mut pdu).expect("a PDU");
        let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
        pdu.resize(len, 0);
        self.socket.read_exact(&mut pdu[8..]).expect("the rest of the PDU");
        pdu
    }

    /// Closes the connection at once: what has not been sent is dropped, and the other side gets a reset.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO)).expect("a TCP socket");
    }

    /// Tells the other side that nothing more will come.
    pub(crate) fn end_output(&self) {
        // An error means that the other side has closed the connection.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Waits until the other side closes the connection.
    pub(crate) fn wait_for_close(mut self) {
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(1..) => {}
                Ok(0) => return,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the other side does not close: {error}"),
            }
        }
    }

    /// Sends a command, and waits for its completion.
    pub(crate) fn execute(&mut self, command: Submission, transfer: Transfer) -> Result<Completed, Ended> {
        self.machine.send(command, transfer);
        match self.event()? {
            HostEvent::Completed { completion, data, is_intact, .. } => {
                assert_eq!(completion.cid, command.cid);
                Ok(Completed { completion, data, is_intact })
            }
            event => panic!("a completion expected: {event:?}"),
        }
    }

    /// Sends a command that succeeds; returns its result and its data.
    pub(crate) fn ok(&mut self, command: Submission, transfer: Transfer) -> (u64, Vec<u8>) {
        let done = self.execute(command, transfer).expect("the connection is kept");
        assert_eq!((done.completion.status(), done.is_intact), (Status::SUCCESS, true), "{command:?}");
        (done.completion.result.get(), done.data)
    }
}
