//! A host with a blocking socket, for tests of this crate and of the command.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::status::Status;

pub(crate) const HOST: &str = "nqn.2026-01.org.example:host";

/// One connection of a host.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    pub(crate) host: Initiator,
}

impl Client {
    /// Connects, and exchanges ICReq and ICResp.
    pub(crate) fn new(address: SocketAddr, digests: Digests) -> Client {
        let socket = TcpStream::connect(address).expect("a connection");
        // So that a test of a server that does not answer fails, and does not hang.
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        let mut client = Client { socket, host: Initiator::new(HostOptions { digests, ..HostOptions::default() }) };
        assert!(matches!(client.wait(), HostEvent::Initialised { .. }));
        client
    }

    /// Connects the admin queue and enables the controller. Returns CNTLID too.
    pub(crate) fn admin(address: SocketAddr, nqn: &str, digests: Digests) -> (Client, u16) {
        let mut client = Client::new(address, digests);
        let controller = client.connect(nqn, 0, 0xffff);
        client.ok(requests::enable(2), Transfer::None);
        (client, controller)
    }

    /// Connects an I/O queue.
    pub(crate) fn queue(address: SocketAddr, nqn: &str, digests: Digests, controller: u16, qid: u16) -> Client {
        let mut client = Client::new(address, digests);
        client.connect(nqn, qid, controller);
        client
    }

    fn connect(&mut self, nqn: &str, qid: u16, controller: u16) -> u16 {
        let (status, result) = self.try_connect(nqn, qid, controller);
        assert!(status.is_success(), "Connect: {status:?}");
        u16::try_from(result & 0xffff).expect("16 bits")
    }

    /// Sends Connect; returns the status and the result.
    pub(crate) fn try_connect(&mut self, nqn: &str, qid: u16, controller: u16) -> (Status, u64) {
        let identity = Identity { host_id: [7; 16], host_nqn: HOST.into(), subsystem_nqn: nqn.into() };
        let queue = QueueRequest { qid, entries: 64, flow_control: true, keep_alive_ms: 0 };
        self.host.send(requests::connect(1, queue), Transfer::InCapsule(identity.connect_data(controller)));
        let (status, result, _) = self.completion();
        (status, result)
    }

    pub(crate) fn flush(&mut self) {
        self.socket.write_all(&self.host.take_output()).expect("the server takes bytes");
    }

    /// Sends what waits, and waits for an event.
    pub(crate) fn wait(&mut self) -> HostEvent {
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.flush();
            if let Some(event) = self.host.take_event() {
                return event;
            }
            let count = self.socket.read(&mut buffer).expect("the server answers");
            assert_ne!(count, 0, "the server closed the connection");
            self.host.receive(&buffer[..count]).expect("the server keeps the protocol");
        }
    }

    /// Waits for a completion: its status, its result and its data.
    pub(crate) fn completion(&mut self) -> (Status, u64, Vec<u8>) {
        let event = self.wait();
        let HostEvent::Completed { completion, data, is_intact: true, .. } = event else { panic!("{event:?}") };
        (completion.status(), completion.result.get(), data)
    }

    /// Sends a command, and waits for its success.
    pub(crate) fn ok(&mut self, command: Submission, transfer: Transfer) -> (u64, Vec<u8>) {
        self.host.send(command, transfer);
        let (status, result, data) = self.completion();
        assert!(status.is_success(), "{status:?}");
        (result, data)
    }

    pub(crate) fn write(&mut self, nsid: u32, first: u64, blocks: u32, data: &[u8]) {
        self.ok(requests::blocks(io::WRITE, 10, nsid, first, blocks), Transfer::OnRequest(data.to_vec()));
    }

    /// Reads `bytes` bytes in `blocks` blocks.
    pub(crate) fn read(&mut self, nsid: u32, first: u64, blocks: u32, bytes: u32) -> Vec<u8> {
        self.ok(requests::blocks(io::READ, 11, nsid, first, blocks), Transfer::ToHost(bytes)).1
    }

    /// Reads until the server closes the connection.
    pub(crate) fn wait_for_close(mut self) {
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                // The server may close with bytes of this host unread.
                Err(error) => return assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
    }

    /// A command whose answer shows that all commands before it were taken.
    pub(crate) fn keep_alive(&mut self) {
        self.ok(Submission::new(admin::KEEP_ALIVE, 12, 0), Transfer::None);
    }
}
