//! The server with real sockets on the loopback interface.

#[path = "../common/engines.rs"]
mod engines;
mod file;
mod load;
#[path = "../../../../ci/skip.rs"]
mod skip;
mod sockets;

use engines::{engine, with_each_engine};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use telpher_nvmf::command::{FUSED_FIRST, FUSED_SECOND, Submission, admin, io};
use telpher_nvmf::controller::{ENTRY_SIZES, property};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{CpuEngine, JobId, Segment, Segments};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::server::{Handle, Server};
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::{Started, Storage, StorageRequest};
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::target::Target;

const NQN: &str = "nqn.2026-01.org.example:disk";

/// How long a test waits for what a wrong server never does.
const PATIENCE: Duration = Duration::from_secs(60);

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
        let mut server = Server::bind(&target, &[local], most_connections, Box::<CpuEngine>::default()).unwrap();
        server.use_sockets(engine()).unwrap();
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
        self.next().expect("the server closed the connection")
    }

    /// Waits for an event. `None` if the server closes the connection.
    fn next(&mut self) -> Option<HostEvent> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            // The server may have closed its side.
            let flushed = self.socket.write_all(&self.host.take_output());
            if let Some(event) = self.host.take_event() {
                return Some(event);
            }
            let count = self.socket.read(&mut buffer).unwrap();
            if count == 0 {
                return None;
            }
            flushed.unwrap();
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

fn io_connections_close_when_the_admin_connection_does() {
    let running = Running::start(Limits::default(), 64);
    let (admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(running.address, Digests::default());
    client.connect(1, controller);
    admin.socket.shutdown(Shutdown::Both).unwrap();
    client.wait_for_close();
}

fn connections_beyond_the_limit_are_closed() {
    let running = Running::start(Limits::default(), 2);
    let (_admin, _) = admin(&running, Digests::default());
    let _second = Client::new(running.address, Digests::default());
    let socket = TcpStream::connect(running.address).unwrap();
    let third = Client { socket, host: Initiator::new(HostOptions::default()) };
    third.wait_for_close();
}

fn a_host_that_violates_the_protocol_is_told_and_can_connect_again() {
    let running = Running::start(Limits::default(), 64);
    let mut client = Client::new(running.address, Digests::default());
    client.host.send_raw(&[0x55; 8]);
    assert_eq!(client.wait(), HostEvent::Terminated { fes: 1, fei: 0, header: vec![0x55; 8] });
    drop(client);
    let (_admin, _) = admin(&running, Digests::default());
}

fn a_loop_that_is_to_finish_waits_no_longer_than_its_bound() {
    let running = Running::start(Limits::default(), 64);
    let (_admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(running.address, Digests::default());
    client.connect(1, controller);
    // The host never sends the data that the target asks for.
    client.host.send(requests::blocks(io::WRITE, 5, 1, 0, 32), Transfer::OnRequest(vec![8; 131_072]));
    client.flush();
    client.socket.read_exact(&mut [0; 24]).unwrap();
    assert_eq!(running.handle.connections(), 2);
    running.handle.finish(std::time::Duration::ZERO);
    client.wait_for_close();
    assert!(TcpStream::connect(running.address).is_err());
}

/// A backend that reports each request, and whose requests wait until the test answers them.
#[derive(Debug)]
struct LateBackend {
    started: Mutex<Sender<JobId>>,
}

impl LateBackend {
    fn new() -> (Arc<LateBackend>, Receiver<JobId>) {
        let (started, ids) = channel();
        (Arc::new(LateBackend { started: Mutex::new(started) }), ids)
    }
}

impl Storage for LateBackend {
    fn start(&self, id: JobId, _request: StorageRequest) -> Started {
        self.started.lock().unwrap().send(id).unwrap();
        Started::Later
    }

    fn capacity(&self) -> u64 {
        1 << 20
    }
}

/// A backend's answer and a request for a report come after the loop has looked for the last time.
fn a_server_that_is_dropped_keeps_no_request_and_no_namespace() {
    let (backend, started) = LateBackend::new();
    let own = Arc::<LateBackend>::clone(&backend);
    let running = Running::with(Limits::default(), 64, |_| own);
    let local = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::bind(&running.target, &[local], 64, Box::<CpuEngine>::default()).unwrap();
    server.use_sockets(engine()).unwrap();
    let (address, handle) = (server.addresses().unwrap()[0], server.handle());
    let thread = std::thread::spawn(move || {
        server.run().unwrap();
        server
    });
    let (_admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(address, Digests::default());
    client.connect(1, controller);
    for cid in [2, 3] {
        client.host.send(requests::blocks(io::WRITE, cid, 1, 0, 1), Transfer::InCapsule(vec![1; 4096]));
    }
    client.flush();
    let [first, second] = [started.recv().unwrap(), started.recv().unwrap()];
    handle.stop();
    let server = thread.join().unwrap();
    let report = handle.report();
    running.target.loops().answer(first, Ok(Segments::new()));
    drop(server);
    running.target.loops().answer(second, Ok(Segments::new()));
    let later = handle.report();
    for report in [report, later] {
        assert_eq!(report.recv_timeout(PATIENCE).unwrap_err(), RecvTimeoutError::Disconnected);
    }
    running.target.remove_namespace(NQN, 1).unwrap();
    assert_eq!(Arc::strong_count(&backend), 1, "only the test has the backend");
}

/// The error is behind a read whose reply fills the send limit, so it is seen when the backend has answered. All other
/// time-outs are an hour away.
fn a_host_that_does_not_close_after_a_late_error_is_disconnected() {
    let hour = 3_600_000;
    let (backend, started) = LateBackend::new();
    let limits = Limits { send_bytes: 4096, terminate_ms: 1, connect_ms: hour, disabled_ms: hour, ..Limits::default() };
    let running = Running::with(limits, 64, |_| backend);
    let (_admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(running.address, Digests::default());
    client.connect(1, controller);
    client.host.send(requests::blocks(io::READ, 2, 1, 0, 1), Transfer::ToHost(4096));
    client.host.send_raw(&[0x55; 8]);
    client.flush();
    let id = started.recv().unwrap();
    running.target.loops().answer(id, Ok(Segments::from([Segment::whole(vec![1; 4096])])));
    client.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut received = Vec::new();
    client.socket.read_to_end(&mut received).expect("the server closes the connection");
    // C2HData with its header, the response, and C2HTermReq with the header of the error.
    assert_eq!(received.len(), 24 + 4096 + 24 + 24 + 8);
}

fn two_loops_serve_one_controller() {
    let running = Running::start(Limits::default(), 64);
    let local = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::bind(&running.target, &[local], 64, Box::<CpuEngine>::default()).unwrap();
    server.use_sockets(engine()).unwrap();
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

/// The Abort comes through one loop, and its command is on another.
fn a_command_of_another_loop_is_aborted() {
    let running = Running::start(Limits::default(), 64);
    let local = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::bind(&running.target, &[local], 64, Box::<CpuEngine>::default()).unwrap();
    server.use_sockets(engine()).unwrap();
    let (address, handle) = (server.addresses().unwrap()[0], server.handle());
    let thread = std::thread::spawn(move || server.run().unwrap());
    let (mut admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(address, Digests { header: true, data: true });
    client.connect(1, controller);
    client.host.send(requests::blocks(io::WRITE, 7, 1, 0, 32), Transfer::OnRequest(vec![1; 32 * 4096]));
    client.flush();
    // A read behind the write has been answered, so the write waits for its data, which the host still has.
    let mut buffer = vec![0; 64 << 10];
    client.host.send(requests::blocks(io::READ, 8, 1, 0, 1), Transfer::ToHost(4096));
    client.flush();
    let completed = |client: &mut Client| match client.host.take_event() {
        Some(HostEvent::Completed { completion, .. }) => Some((completion.cid.get(), completion.status())),
        _ => None,
    };
    let mut wait = |client: &mut Client| loop {
        if let Some(event) = completed(client) {
            return event;
        }
        let count = client.socket.read(&mut buffer).unwrap();
        client.host.receive(&buffer[..count]).unwrap();
    };
    assert_eq!(wait(&mut client), (8, Status::SUCCESS));
    let mut abort = Submission::new(admin::ABORT, 50, 0);
    abort.set_dword(10, 1 | 7 << 16);
    assert_eq!(admin.ok(abort, Transfer::None).0, 0);
    assert_eq!(wait(&mut client), (7, Status::ABORTED));
    // The data comes late, and harms nothing.
    client.flush();
    let read = requests::blocks(io::READ, 9, 1, 0, 32);
    assert_eq!(client.ok(read, Transfer::ToHost(32 * 4096)).1, vec![0; 32 * 4096]);
    handle.stop();
    thread.join().unwrap();
}

/// Waits until queue 1 of a controller can be connected, because its last connection has ended.
fn connect_again(running: &Running, controller: u16) -> Client {
    let identity =
        Identity { host_id: [7; 16], host_nqn: "nqn.2026-01.org.example:host".into(), subsystem_nqn: NQN.into() };
    loop {
        let mut client = Client::new(running.address, Digests::default());
        let queue = QueueRequest { qid: 1, entries: 64, flow_control: true, keep_alive_ms: 0 };
        client.host.send(requests::connect(1, queue), Transfer::InCapsule(identity.connect_data(controller)));
        let HostEvent::Completed { completion, .. } = client.wait() else { panic!("Connect is answered") };
        if completion.status().is_success() {
            return client;
        }
        assert_eq!(completion.status(), Status::INVALID_QUEUE);
    }
}

/// The host's kernel sends RST, because bytes of the target are unread when the socket is closed.
fn a_connection_may_be_reset_while_data_is_awaited() {
    let running = Running::start(Limits::default(), 64);
    let (_admin, controller) = admin(&running, Digests::default());
    for _ in 0..10 {
        let mut client = connect_again(&running, controller);
        client.host.send(requests::blocks(io::WRITE, 2, 1, 0, 32), Transfer::OnRequest(vec![1; 32 * 4096]));
        client.flush();
        assert_eq!(client.socket.peek(&mut [0; 24]).unwrap(), 24, "the R2T is there");
        drop(client);
    }
    let mut client = connect_again(&running, controller);
    let read = requests::blocks(io::READ, 9, 1, 0, 32);
    assert_eq!(client.ok(read, Transfer::ToHost(32 * 4096)).1, vec![0; 32 * 4096]);
}

/// A host that violates the protocol and closes left a socket that kept a core of SPDK busy. Here the only connection
/// that the server takes is free again.
fn spdk_3842_a_dead_socket_is_closed() {
    let running = Running::start(Limits::default(), 1);
    for bytes in [&[0x55; 8][..], &[0; 200], &[4, 0, 72, 0, 72, 0, 0, 0]] {
        // The server closes connections beyond its limit at once, until the last one has been removed.
        loop {
            let mut socket = TcpStream::connect(running.address).unwrap();
            let mut host = Initiator::new(HostOptions::default());
            let mut response = [0; 128];
            if socket.write_all(&host.take_output()).and_then(|()| socket.read_exact(&mut response)).is_err() {
                continue;
            }
            socket.write_all(bytes).unwrap();
            socket.shutdown(Shutdown::Both).unwrap();
            break;
        }
    }
}

/// Hosts on two loops count in one block, each with pairs of Compare and Write. No step is lost or done twice.
fn count_with_pairs(running: &Running) {
    const STEPS: u64 = 60;
    let local = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::bind(&running.target, &[local], 64, Box::<CpuEngine>::default()).unwrap();
    server.use_sockets(engine()).unwrap();
    let (address, handle) = (server.addresses().unwrap()[0], server.handle());
    let thread = std::thread::spawn(move || server.run().unwrap());
    let (_admin, controller) = admin(running, Digests::default());
    let block = |count: u64| [&count.to_le_bytes()[..], &[0; 4088]].concat();
    let hosts: Vec<_> = [(1, running.address), (2, address), (3, running.address), (4, address)]
        .into_iter()
        .map(|(qid, address)| {
            let mut client = Client::new(address, Digests { header: false, data: true });
            client.connect(qid, controller);
            std::thread::spawn(move || {
                let (mut count, mut steps, mut failures) = (0, 0, 0);
                while steps < STEPS {
                    let mut compare = requests::blocks(io::COMPARE, 1, 1, 5, 1);
                    compare.flags |= FUSED_FIRST;
                    let mut write = requests::blocks(io::WRITE, 2, 1, 5, 1);
                    write.flags |= FUSED_SECOND;
                    client.host.send(compare, Transfer::InCapsule(block(count)));
                    client.host.send(write, Transfer::InCapsule(block(count + 1)));
                    let statuses = [client.wait(), client.wait()].map(|event| match event {
                        HostEvent::Completed { completion, .. } => completion.status(),
                        other => panic!("{other:?}"),
                    });
                    if statuses == [Status::SUCCESS; 2] {
                        steps += 1;
                        count += 1;
                        continue;
                    }
                    assert_eq!(statuses, [Status::COMPARE_FAILURE, Status::FAILED_FUSED]);
                    failures += 1;
                    // Another host has counted.
                    let (_, data) = client.ok(requests::blocks(io::READ, 3, 1, 5, 1), Transfer::ToHost(4096));
                    let seen = u64::from_le_bytes(data[..8].try_into().unwrap());
                    assert!(seen > count && data[8..] == [0; 4088]);
                    count = seen;
                }
                failures
            })
        })
        .collect();
    let failures: u64 = hosts.into_iter().map(|host| host.join().unwrap()).sum();
    assert!(failures > 0, "at least the hosts that come later start with the wrong count");
    let mut client = Client::new(running.address, Digests::default());
    client.connect(9, controller);
    let (_, data) = client.ok(requests::blocks(io::READ, 3, 1, 5, 1), Transfer::ToHost(4096));
    assert!(data == block(4 * STEPS));
    handle.stop();
    thread.join().unwrap();
}

fn pairs_of_hosts_on_two_loops_are_atomic_in_memory() {
    count_with_pairs(&Running::start(Limits::default(), 64));
    let protection = Some(Protection::default());
    count_with_pairs(&Running::protected(Limits::default(), 64, protection, |_| {
        Arc::new(MemoryStorage::new(1026 * 4104))
    }));
}

with_each_engine! {
    data_written_through_one_connection_is_read_through_another
    many_replies_reach_a_host_that_reads_late
    a_change_of_the_target_wakes_a_waiting_host
    io_connections_close_when_the_admin_connection_does
    connections_beyond_the_limit_are_closed
    a_host_that_violates_the_protocol_is_told_and_can_connect_again
    a_loop_that_is_to_finish_waits_no_longer_than_its_bound
    a_server_that_is_dropped_keeps_no_request_and_no_namespace
    a_host_that_does_not_close_after_a_late_error_is_disconnected
    two_loops_serve_one_controller
    a_command_of_another_loop_is_aborted
    a_connection_may_be_reset_while_data_is_awaited
    spdk_3842_a_dead_socket_is_closed
    pairs_of_hosts_on_two_loops_are_atomic_in_memory
}
