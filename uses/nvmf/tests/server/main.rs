//! The server with real sockets on the loopback interface.

mod file;
mod load;
#[path = "../../../../ci/skip.rs"]
mod skip;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::controller::{ENTRY_SIZES, property};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::CpuEngine;
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::server::{Handle, Server};
use telpher_nvmf::storage::Storage;
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::target::Target;

const NQN: &str = "nqn.2026-01.org.example:disk";

struct Running {
    target: Arc<Target>,
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits, most_connections: usize) -> Running {
        Running::with(limits, most_connections, |_| Arc::new(MemoryStorage::new(8 << 20)))
    }

    fn with(
        limits: Limits,
        most_connections: usize,
        storage: impl FnOnce(&Arc<Target>) -> Arc<dyn Storage>,
    ) -> Running {
        Running::protected(limits, most_connections, None, storage)
    }

    fn protected(
        limits: Limits,
        most_connections: usize,
        protection: Option<Protection>,
        storage: impl FnOnce(&Arc<Target>) -> Arc<dyn Storage>,
    ) -> Running {
        let target = Target::new(limits).unwrap();
        let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "test".into(), hosts: None };
        target.add_subsystem(options).unwrap();
        let storage = storage(&target);
        let options = NamespaceOptions {
            nsid: 1,
            block_bytes: 4096,
            uuid: [1; 16],
            nguid: [2; 16],
            is_read_only: false,
            protection,
            storage,
        };
        target.add_namespace(NQN, options).unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let mut server = Server::bind(&target, &[local], most_connections, CpuEngine::default()).unwrap();
        let (address, handle) = (server.addresses().unwrap()[0], server.handle());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Running { target, address, handle, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Client {
    socket: TcpStream,
    host: Initiator,
}

impl Client {
    fn new(address: SocketAddr, digests: Digests) -> Client {
        let socket = TcpStream::connect(address).unwrap();
        let mut client = Client { socket, host: Initiator::new(HostOptions { digests, ..HostOptions::default() }) };
        assert!(matches!(client.wait(), HostEvent::Initialised { .. }));
        client
    }

    fn flush(&mut self) {
        self.socket.write_all(&self.host.take_output()).unwrap();
    }

    fn wait(&mut self) -> HostEvent {
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.flush();
            if let Some(event) = self.host.take_event() {
                return event;
            }
            let count = self.socket.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the server closed the connection");
            self.host.receive(&buffer[..count]).unwrap();
        }
    }

    fn ok(&mut self, command: Submission, transfer: Transfer) -> (u64, Vec<u8>) {
        self.host.send(command, transfer);
        let event = self.wait();
        let HostEvent::Completed { completion, data, is_intact: true, .. } = event else { panic!("{event:?}") };
        assert!(completion.status().is_success(), "{:?}", completion.status());
        (completion.result.get(), data)
    }

    fn connect(&mut self, qid: u16, controller: u16) -> u16 {
        let identity =
            Identity { host_id: [7; 16], host_nqn: "nqn.2026-01.org.example:host".into(), subsystem_nqn: NQN.into() };
        let queue = QueueRequest { qid, entries: 64, flow_control: true, keep_alive_ms: 0 };
        let command = requests::connect(1, queue);
        u16::try_from(self.ok(command, Transfer::InCapsule(identity.connect_data(controller))).0).unwrap()
    }

    /// Waits until the server closes the connection.
    fn wait_for_close(mut self) {
        let mut buffer = [0; 4096];
        while self.socket.read(&mut buffer).is_ok_and(|count| count > 0) {}
    }
}

fn admin(running: &Running, digests: Digests) -> (Client, u16) {
    let mut client = Client::new(running.address, digests);
    let controller = client.connect(0, 0xffff);
    client.ok(requests::enable(2), Transfer::None);
    (client, controller)
}

#[test]
fn data_written_through_one_connection_is_read_through_another() {
    let running = Running::start(Limits { h2c_bytes: 65536, ..Limits::default() }, 64);
    for digests in Digests::ALL {
        let (_admin, controller) = admin(&running, digests);
        let mut writer = Client::new(running.address, digests);
        writer.connect(1, controller);
        let mut reader = Client::new(running.address, digests);
        reader.connect(2, controller);
        for (number, blocks) in (0_u16..).zip([1_u32, 2, 3, 8, 31, 32]) {
            let data: Vec<u8> = (0..blocks * 4096).map(|at| (at / 7).to_le_bytes()[0] ^ digests.bits()).collect();
            let write = requests::blocks(io::WRITE, number, 1, u64::from(number) * 32, blocks);
            writer.ok(write, Transfer::OnRequest(data.clone()));
            let read = requests::blocks(io::READ, number, 1, u64::from(number) * 32, blocks);
            assert!(reader.ok(read, Transfer::ToHost(blocks * 4096)).1 == data);
        }
    }
}

#[test]
fn many_replies_reach_a_host_that_reads_late() {
    let running = Running::start(Limits { send_bytes: 1 << 20, ..Limits::default() }, 64);
    let (_admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(running.address, Digests { header: true, data: true });
    client.connect(1, controller);
    // 60 reads of 128 KiB: more than the sockets and the send limit hold.
    for cid in 0..60 {
        client.host.send(requests::blocks(io::READ, cid, 1, 0, 32), Transfer::ToHost(32 * 4096));
    }
    client.flush();
    for _ in 0..60 {
        assert!(matches!(client.wait(), HostEvent::Completed { is_intact: true, .. }));
    }
}

#[test]
fn a_change_of_the_target_wakes_a_waiting_host() {
    let running = Running::start(Limits::default(), 64);
    let (mut client, _) = admin(&running, Digests::default());
    client.ok(requests::set_feature(3, 0x0b, 0x100), Transfer::None);
    client.host.send(Submission::new(admin::EVENT_REQUEST, 4, 0), Transfer::None);
    client.flush();
    // A command behind the request has been answered, so the request waits.
    client.ok(Submission::new(admin::KEEP_ALIVE, 5, 0), Transfer::None);
    running.target.resize_namespace(NQN, 1, 4 << 20).unwrap();
    let event = client.wait();
    let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
    assert_eq!((completion.cid.get(), completion.result.get()), (4, 0x0004_0002));
}

#[test]
fn io_connections_close_when_the_admin_connection_does() {
    let running = Running::start(Limits::default(), 64);
    let (admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(running.address, Digests::default());
    client.connect(1, controller);
    admin.socket.shutdown(Shutdown::Both).unwrap();
    client.wait_for_close();
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let running = Running::start(Limits::default(), 2);
    let (_admin, _) = admin(&running, Digests::default());
    let _second = Client::new(running.address, Digests::default());
    let socket = TcpStream::connect(running.address).unwrap();
    let third = Client { socket, host: Initiator::new(HostOptions::default()) };
    third.wait_for_close();
}

#[test]
fn a_host_that_violates_the_protocol_is_told_and_can_connect_again() {
    let running = Running::start(Limits::default(), 64);
    let mut client = Client::new(running.address, Digests::default());
    client.host.send_raw(&[0x55; 8]);
    assert_eq!(client.wait(), HostEvent::Terminated { fes: 1, fei: 0, header: vec![0x55; 8] });
    drop(client);
    let (_admin, _) = admin(&running, Digests::default());
}

#[test]
fn two_loops_serve_one_controller() {
    let running = Running::start(Limits::default(), 64);
    let local = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::bind(&running.target, &[local], 64, CpuEngine::default()).unwrap();
    let (address, handle) = (server.addresses().unwrap()[0], server.handle());
    assert_eq!(running.target.subsystems().listeners(), [running.address, address]);
    let thread = std::thread::spawn(move || server.run().unwrap());
    let (mut admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(address, Digests::default());
    client.connect(1, controller);
    client.ok(requests::blocks(io::READ, 2, 1, 0, 1), Transfer::ToHost(4096));
    // A reset by the admin queue ends the I/O queue in the other loop.
    admin.ok(requests::property_set(3, property::CC, ENTRY_SIZES), Transfer::None);
    client.wait_for_close();
    handle.stop();
    thread.join().unwrap();
}
