//! How the server uses its sockets: what is in flight when something ends, idle connections, and refused calls.

use super::engines::engine;
use super::file::refused::with_refused;
use super::{Client, NQN, PATIENCE, Running, admin, with_each_engine};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{JobId, Segment, Segments, Shared};
use telpher_nvmf::initiator::{HostEvent, Transfer, requests};
use telpher_nvmf::memory::MemoryOptions;
use telpher_nvmf::server::{Observer, Server, ServerEvent, SocketEngine, SocketsInUse};
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::{Started, Storage, StorageRequest};
use telpher_nvmf::{CpuEngine, Limits, MemoryStorage, Target};

/// Bytes of a read.
const READ_BYTES: u32 = 128 << 10;
/// Reads of a host: more bytes than sockets hold.
const READS: u16 = 60;

/// A backend whose reads are all of the same bytes, so that their owners can be counted.
#[derive(Debug)]
struct SharedBackend {
    bytes: Arc<Vec<u8>>,
    reads: AtomicUsize,
}

impl SharedBackend {
    fn new() -> Arc<SharedBackend> {
        let bytes = (0..READ_BYTES).map(|at| (at / 3).to_le_bytes()[0]).collect();
        Arc::new(SharedBackend { bytes: Arc::new(bytes), reads: AtomicUsize::new(0) })
    }

    /// Waits until no reply has the bytes.
    fn wait_until_free(&self) {
        wait_until("no reply has the bytes", || Arc::strong_count(&self.bytes) == 1);
    }
}

impl Storage for SharedBackend {
    fn start(&self, _id: JobId, _request: StorageRequest) -> Started {
        // Relaxed: a mere count.
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = Shared::Heap(Arc::clone(&self.bytes));
        Started::Done(Ok(Segments::from([Segment::new(bytes, 0..READ_BYTES as usize)])))
    }

    fn capacity(&self) -> u64 {
        64 << 20
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A host that has asked for more than it can get while it does not read, and the server's backend. The server has
/// executed as many reads as the limit of its replies permits, and cannot send all of them.
fn with_replies_in_flight(qid: u16, running: &Running, controller: u16, backend: &SharedBackend) -> Client {
    let executed = backend.reads.load(Ordering::Relaxed);
    let mut client = Client::new(running.address, Digests::default());
    client.connect(qid, controller);
    rustix::net::sockopt::set_socket_recv_buffer_size(&client.socket, 64 << 10).unwrap();
    for cid in 0..READS {
        client.host.send(requests::blocks(io::READ, cid, 1, 0, 32), Transfer::ToHost(READ_BYTES));
    }
    client.flush();
    let least = Limits::default().send_bytes / READ_BYTES as usize;
    wait_until("the server has executed reads", || backend.reads.load(Ordering::Relaxed) >= executed + least);
    client
}

fn serve(backend: &Arc<SharedBackend>) -> Running {
    let own = Arc::clone(backend);
    Running::with(Limits::default(), 64, |_| own)
}

/// A loop that is told to finish sends all replies of the commands that it has accepted.
fn replies_in_flight_reach_the_host_before_the_server_ends() {
    let backend = SharedBackend::new();
    let running = serve(&backend);
    let (_admin, controller) = admin(&running, Digests::default());
    let mut client = with_replies_in_flight(1, &running, controller, &backend);
    running.handle.finish(PATIENCE);
    let mut completed = 0;
    while let Some(event) = client.next() {
        let HostEvent::Completed { completion, data, is_intact: true, .. } = event else { panic!("{event:?}") };
        assert!(completion.status().is_success() && data == *backend.bytes);
        completed += 1;
    }
    assert_eq!(completed, backend.reads.load(Ordering::Relaxed), "each accepted read was answered");
    drop(running);
    backend.wait_until_free();
}

/// The memory of replies belongs to the kernel while it sends, and is free after the host has closed the connection.
fn a_reset_while_replies_are_sent_frees_their_memory() {
    let backend = SharedBackend::new();
    let running = serve(&backend);
    let (_admin, controller) = admin(&running, Digests::default());
    for qid in 1..=5 {
        let client = with_replies_in_flight(qid, &running, controller, &backend);
        assert!(Arc::strong_count(&backend.bytes) > 1);
        // The kernel of the host sends RST, because bytes are unread.
        drop(client);
        backend.wait_until_free();
    }
    let mut client = Client::new(running.address, Digests::default());
    client.connect(9, controller);
    let read = requests::blocks(io::READ, 1, 1, 0, 32);
    assert!(client.ok(read, Transfer::ToHost(READ_BYTES)).1 == *backend.bytes);
}

fn a_stop_while_replies_are_sent_frees_their_memory() {
    let backend = SharedBackend::new();
    let running = serve(&backend);
    let (_admin, controller) = admin(&running, Digests::default());
    let clients = [1, 2, 3].map(|qid| with_replies_in_flight(qid, &running, controller, &backend));
    // Stops the loop, and waits for its thread.
    drop(running);
    backend.wait_until_free();
    clients.into_iter().for_each(Client::wait_for_close);
}

/// Another program truncates the file of a namespace while replies with its bytes wait. Each command completes: with
/// the right data or with an error, and with the digest of the bytes that were sent. Once, the digest was that of the
/// bytes before.
fn replies_whose_file_is_truncated_end_with_an_error() {
    Digests::ALL.into_iter().for_each(|digests| truncate_under_replies(digests, false));
}

/// The same if the reads of another connection have already found the pages lost, and zeroes are in their place. Once,
/// a send that waited for room in the io_uring sent these zeroes, with a response of success.
fn replies_whose_pages_another_connection_has_found_lost_end_with_an_error() {
    Digests::ALL.into_iter().for_each(|digests| truncate_under_replies(digests, true));
}

fn truncate_under_replies(digests: Digests, is_noticed: bool) {
    let name = format!("telpher-{}-{:?}-{}-{is_noticed}", std::process::id(), engine(), digests.bits());
    let path = std::path::Path::new("/dev/shm").join(name);
    let _ = std::fs::remove_file(&path);
    let bytes = u64::from(READ_BYTES) * u64::from(READS);
    let storage = MemoryStorage::create(&path, MemoryOptions::fixed(bytes)).unwrap();
    let running = Running::with(Limits::default(), 64, |_| Arc::new(storage));
    let (_admin, controller) = admin(&running, Digests::default());
    let mut client = Client::new(running.address, digests);
    client.connect(1, controller);
    rustix::net::sockopt::set_socket_recv_buffer_size(&client.socket, 64 << 10).unwrap();
    let mut other = Client::new(running.address, digests);
    other.connect(2, controller);
    let command = |opcode, number: u16| requests::blocks(opcode, number, 1, u64::from(number) * 32, 32);
    let data = |number: u16| vec![number.to_le_bytes()[0] + 1; READ_BYTES as usize];
    for number in 0..READS {
        client.ok(command(io::WRITE, number), Transfer::OnRequest(data(number)));
    }
    for number in 0..READS {
        client.host.send(command(io::READ, number), Transfer::ToHost(READ_BYTES));
    }
    client.flush();
    // The first reply is on its way, so others wait behind it.
    client.socket.peek(&mut [0]).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    if is_noticed {
        for number in 0..READS {
            other.host.send(command(io::READ, number), Transfer::ToHost(READ_BYTES));
            let event = other.wait();
            let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
            assert_eq!(completion.status(), Status::READ_ERROR);
        }
    }
    let (mut failed, mut damaged) = (0, 0);
    for _ in 0..READS {
        let event = client.wait();
        let HostEvent::Completed { completion, data: received, is_intact, .. } = event else { panic!("{event:?}") };
        if completion.status().is_success() {
            assert!(is_intact && received == data(completion.cid.get()));
        } else {
            assert_eq!(completion.status(), Status::READ_ERROR);
            failed += 1;
            damaged += usize::from(digests.data && !is_intact && !received.is_empty());
        }
    }
    assert!(failed > 0, "the file has lost most of its pages");
    assert!(damaged <= 1, "{damaged} digests do not match; only one reply was sent in part");
    std::fs::remove_file(&path).unwrap();
}

fn a_server_runs_once() {
    let target = Target::new(Limits::default()).unwrap();
    let mut server = Server::new(&target, Vec::new(), 1, Box::<CpuEngine>::default()).unwrap();
    server.use_sockets(engine()).unwrap();
    server.handle().stop();
    server.run().unwrap();
    let message = "this server has run before; create another one to serve the target again";
    assert_eq!(server.run().unwrap_err().to_string(), message);
}

with_each_engine! {
    replies_whose_file_is_truncated_end_with_an_error
    replies_whose_pages_another_connection_has_found_lost_end_with_an_error
    replies_in_flight_reach_the_host_before_the_server_ends
    a_reset_while_replies_are_sent_frees_their_memory
    a_stop_while_replies_are_sent_frees_their_memory
    a_server_runs_once
}

/// Collects the events of a server.
#[derive(Debug, Default)]
struct Events(Mutex<Vec<ServerEvent>>);

impl Observer for Events {
    fn observe(&self, event: ServerEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// The io_uring that was tried when the server was built is refused to the thread that runs it.
#[test]
fn a_loop_that_starts_with_epoll_instead_reports_it() {
    let target = Target::new(Limits::default()).unwrap();
    let mut server = Server::new(&target, Vec::new(), 1, Box::<CpuEngine>::default()).unwrap();
    server.use_sockets(SocketEngine::Auto).unwrap();
    let events = Arc::new(Events::default());
    server.observe_by(Arc::<Events>::clone(&events));
    let handle = server.handle();
    let report = handle.report();
    let report = with_refused(libc::SYS_io_uring_setup, None, libc::EPERM, move || {
        std::thread::scope(|scope| {
            let running = scope.spawn(|| server.run());
            let report = report.recv_timeout(PATIENCE);
            handle.stop();
            running.join().unwrap().unwrap();
            report
        })
    });
    assert_eq!(report.unwrap().socket_engine, SocketEngine::Epoll);
    let error = "Operation not permitted (os error 1)".to_owned();
    assert_eq!(*events.0.lock().unwrap(), [ServerEvent::NoRing { error }]);
}

#[test]
fn epoll_replaces_an_io_uring_that_is_refused() {
    for (errno, text) in [(libc::EPERM, "Operation not permitted"), (libc::ENOSYS, "Function not implemented")] {
        with_refused(libc::SYS_io_uring_setup, None, errno, || {
            let target = Target::new(Limits::default()).unwrap();
            let mut server = Server::new(&target, Vec::new(), 1, Box::<CpuEngine>::default()).unwrap();
            assert_eq!(server.use_sockets(SocketEngine::Uring).unwrap_err().raw_os_error(), Some(errno));
            let in_use = server.use_sockets(SocketEngine::Auto).unwrap();
            assert!(matches!(&in_use, SocketsInUse::Epoll { refusal: Some(_) }), "{in_use:?}");
            let message = format!(
                "io_uring is refused: {text} (os error {errno}); epoll, recv and writev move the bytes of sockets"
            );
            assert_eq!(in_use.to_string(), message);
            // The thread of this server has the same filter.
            let running = Running::start(Limits::default(), 64);
            let (_admin, controller) = admin(&running, Digests::default());
            let mut client = Client::new(running.address, Digests::default());
            client.connect(1, controller);
            client.ok(requests::blocks(io::WRITE, 1, 1, 3, 1), Transfer::InCapsule(vec![9; 4096]));
            let (_, data) = client.ok(requests::blocks(io::READ, 2, 1, 3, 1), Transfer::ToHost(4096));
            assert!(data == [9; 4096]);
            assert!(running.target.subsystems().find(NQN).is_some());
        });
    }
}
