//! A frontend that sends garbage or half a message, or dies, only ends its session; the next one is served normally.

use crate::frontend::wire::{SocketPath, message, send};
use crate::frontend::{MRG, addresses, event, flags_of, u32s, u64s};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest};
use telpher_vhost::{PacketPool, PoolOptions, Port, PortOptions, Role, Socket};

fn until(mut it: impl FnMut() -> bool) {
    while !it() {
        std::thread::yield_now();
    }
}

fn port() -> (Arc<Port>, PacketPool) {
    let pool = PacketPool::new(PoolOptions { buffers: 64, longest: 2048 }).unwrap();
    (Port::new(&pool, PortOptions::default()), pool)
}

fn reply(stream: &UnixStream) -> Vec<u8> {
    let mut bytes = [0; 12];
    (&*stream).read_exact(&mut bytes).unwrap();
    let mut payload = vec![0; bytes[8].into()];
    (&*stream).read_exact(&mut payload).unwrap();
    payload
}

/// A well-behaved frontend, and one packet from its guest.
fn one_packet(stream: &UnixStream, port: &Port, pool: &PacketPool) {
    let mut guest = MockGuest::new(1 << 20);
    let mut driver = MockDriver::new(&mut guest, 64, Features::from_bits_retain(MRG), Direction::Transmit);
    let region = guest.region();
    assert!(send(stream, &message(15, 0, &[]), &[]));
    let offered = reply(stream);
    assert!(send(stream, &message(16, 0, &offered), &[]));
    assert!(send(stream, &message(2, 0, &u64s(&[MRG])), &[]));
    let table = u64s(&[1, region.guest, region.len, region.user, region.offset]);
    assert!(send(stream, &message(5, 8, &table), &[guest.file().as_fd()]));
    assert_eq!(reply(stream), [0; 8]);
    assert!(send(stream, &message(8, 0, &u32s(&[1, 64])), &[]));
    assert!(send(stream, &message(9, 0, &addresses(1, &driver, 0, 0)), &[]));
    assert!(send(stream, &message(12, 0, &u64s(&[1])), &[event().as_fd()]));
    assert!(send(stream, &message(18, 8, &u32s(&[1, 1])), &[]));
    assert_eq!(reply(stream), [0; 8]);
    let at = guest.lend(2048);
    guest.write(at + 12, b"hello");
    driver.offer(&[(at, 17)]).unwrap();
    let (mut into, mut spare) = (pool.empty(0), pool.allocate(4));
    until(|| port.transmit(0, &mut into, &mut spare, 4) > 0);
    assert_eq!(into.get(0).unwrap(), b"hello");
}

#[test]
fn after_any_frontend_error_the_next_frontend_is_served() {
    let place = SocketPath::new("wrong");
    let (port, pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let many = [null.as_fd(); 64];
    let header = |request: u32, flags: u32, size: u32| u32s(&[request, flags, size]);
    // What is sent, and with how many files; then the connection is closed.
    let hostile: Vec<(&str, Vec<u8>, usize)> = vec![
        ("nothing", vec![], 0),
        ("half a header", header(1, 1, 0)[..7].to_vec(), 0),
        ("half a payload", message(2, 0, &u64s(&[MRG]))[..15].to_vec(), 1),
        ("garbage", (0..999_u32).map(|byte| (byte * 7).to_le_bytes()[0]).collect(), 8),
        ("zeros", vec![0; 4096], 0),
        ("ones", vec![0xff; 4096], 64),
        ("a giant payload", header(5, 1, u32::MAX), 1),
        ("a payload one byte too long", header(5, 1, 265), 1),
        ("another version", header(1, 2, 0), 0),
        ("an unexpected reply", header(1, 5, 0), 0),
        ("an unknown request", message(99, 0, &[]), 0),
        ("post-copy", message(28, 0, &[]), 0),
        ("an IOTLB message", message(22, 0, &[0; 32]), 0),
        ("a request of no length", message(8, 0, &[]), 0),
        ("more files than any request has", message(12, 0, &u64s(&[0])), 64),
        ("a table without files", message(5, 0, &u64s(&[1, 0, 4096, 0, 0])), 0),
        ("a table of a file that is none", message(5, 0, &u64s(&[1, 0, 4096, 0, 0])), 1),
        ("a table of 9 regions", message(5, 0, &u64s(&[9; 33])), 9),
        ("a ring too many", message(8, 0, &u32s(&[2, 64])), 0),
        ("a base of a ring too many", message(11, 0, &u32s(&[u32::MAX, 0])), 0),
        ("a log of a file that is none", message(6, 0, &u64s(&[4096, 0])), 1),
        ("features that were not offered", message(2, 0, &u64s(&[u64::MAX])), 0),
        ("a record of all there could be", message(31, 0, &[0xff; 20]), 0),
    ];
    for (what, bytes, files) in hostile {
        let stream = UnixStream::connect(&place.0).unwrap();
        send(&stream, &bytes, &many[..files]);
        drop(stream);
        let next = UnixStream::connect(&place.0).unwrap();
        one_packet(&next, &port, &pool);
        drop(next);
        until(|| !socket.state().connected);
        assert!(!port.is_running(1), "{what}");
    }
    assert_eq!(pool.free(), 64);
}

#[test]
fn a_half_sent_message_does_not_delay_shutdown() {
    let place = SocketPath::new("half");
    let (port, _pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    let stream = UnixStream::connect(&place.0).unwrap();
    assert!(send(&stream, &[1, 0, 0], &[]));
    until(|| socket.state().connected);
    drop(socket);
    assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
    assert!(!place.0.exists());
}

#[test]
fn a_frontend_that_does_not_read_replies_is_disconnected() {
    let place = SocketPath::new("deaf");
    let (port, pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    let stream = UnixStream::connect(&place.0).unwrap();
    // Until the replies do not fit any more and this side has disconnected.
    while send(&stream, &message(1, 0, &[]), &[]) {}
    drop(stream);
    until(|| !socket.state().connected);
    assert!(socket.state().last.is_some());
    one_packet(&UnixStream::connect(&place.0).unwrap(), &port, &pool);
}

#[test]
fn a_client_connects_whenever_a_frontend_listens() {
    let place = SocketPath::new("client");
    let (port, pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Client).unwrap();
    for _ in 0..2 {
        // Gone and back again, like a restarted frontend.
        let listener = UnixListener::bind(&place.0).unwrap();
        let (stream, _) = listener.accept().unwrap();
        one_packet(&stream, &port, &pool);
        // The listener goes first, or the client finds it once more.
        drop((listener, stream));
        std::fs::remove_file(&place.0).unwrap();
        until(|| !socket.state().connected);
    }
    assert_eq!(socket.state().sessions, 2);
    // The file belongs to the frontend.
    let _listener = UnixListener::bind(&place.0).unwrap();
    drop(socket);
    assert!(place.0.exists());
}

#[test]
fn a_sessions_outcome_is_reported_and_the_next_starts_fresh() {
    let place = SocketPath::new("told");
    let (port, _pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    let stream = UnixStream::connect(&place.0).unwrap();
    assert!(send(&stream, &message(15, 0, &[]), &[]));
    let offered = reply(&stream);
    assert!(send(&stream, &message(16, 0, &offered), &[]));
    assert!(send(&stream, &message(2, 8, &u64s(&[MRG])), &[]));
    assert_eq!(reply(&stream), [0; 8]);
    until(|| socket.state().features.bits() == MRG);
    assert_eq!(socket.state().protocol.bits(), u64::from_le_bytes(offered.try_into().unwrap()));
    assert_eq!((socket.state().sessions, socket.state().refused, socket.state().last), (1, 0, None));
    assert!(send(&stream, &message(8, 8, &u32s(&[9, 64])), &[]));
    assert_eq!(reply(&stream), [1, 0, 0, 0, 0, 0, 0, 0]);
    until(|| socket.state().refused == 1);
    let why = "a frontend's request was refused: ring 9 of 2: the frontend has more queues than this backend";
    assert_eq!(socket.state().last.as_deref(), Some(why));
    drop(stream);
    until(|| !socket.state().connected);
    assert_eq!((socket.state().last.as_deref(), socket.state().features.bits()), (Some(why), MRG));
    let _next = UnixStream::connect(&place.0).unwrap();
    until(|| socket.state().sessions == 2);
    let state = socket.state();
    assert_eq!((state.features.bits(), state.protocol.bits(), state.refused), (0, 0, 1));
}

/// A program that the switch starts must not inherit a guest's files.
#[test]
fn received_files_are_closed_on_exec() {
    let place = SocketPath::new("exec");
    let (port, _pool) = port();
    let _socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    let stream = UnixStream::connect(&place.0).unwrap();
    assert!(send(&stream, &message(15, 0, &[]), &[]));
    let offered = reply(&stream);
    assert!(send(&stream, &message(16, 0, &offered), &[]));
    let call = event();
    assert!(send(&stream, &message(13, 8, &u64s(&[1])), &[call.as_fd()]));
    assert_eq!(reply(&stream), [0; 8]);
    let flags = flags_of(&call);
    assert_eq!(flags.len(), 2);
    assert!(
        flags.iter().all(|flags| rustix::fs::OFlags::from_bits_retain(*flags).contains(rustix::fs::OFlags::CLOEXEC))
    );
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let place = SocketPath::new("stale");
    drop(UnixListener::bind(&place.0).unwrap());
    assert!(place.0.exists());
    let (port, pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    let error = Socket::serve(&port, &place.0, Role::Server).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().ends_with("another process listens there; stop it, or give another path"), "{error}");
    one_packet(&UnixStream::connect(&place.0).unwrap(), &port, &pool);
    drop(socket);
    let long = Socket::serve(&port, "x".repeat(200), Role::Server).unwrap_err();
    assert!(long.to_string().contains("cannot name a socket"), "{long}");
}

/// A listener with a full backlog is alive.
#[test]
fn a_live_socket_with_a_full_backlog_is_left_alone() {
    let place = SocketPath::new("full");
    let listener = UnixListener::bind(&place.0).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&place.0).unwrap();
    let error = Socket::serve(&port().0, &place.0, Role::Server).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
    assert!(place.0.exists());
    drop(listener);
}

/// What broke: connecting to an ordinary file is refused like connecting to a stale socket, and the file was removed as
/// one.
#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let place = SocketPath::new("file");
    let (port, _pool) = port();
    let refused = || {
        let error = Socket::serve(&port, &place.0, Role::Server).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        let words = "there is a file that is not a socket; remove it, or give another path";
        assert!(error.to_string().ends_with(words), "{error}");
    };
    std::fs::write(&place.0, "other data").unwrap();
    refused();
    assert_eq!(std::fs::read(&place.0).unwrap(), b"other data");
    std::fs::remove_file(&place.0).unwrap();
    std::fs::create_dir(&place.0).unwrap();
    refused();
    std::fs::remove_dir(&place.0).unwrap();
    // Nor the target of a link.
    let behind = SocketPath::new("behind");
    drop(UnixListener::bind(&behind.0).unwrap());
    std::os::unix::fs::symlink(&behind.0, &place.0).unwrap();
    refused();
    assert!(behind.0.exists() && place.0.is_symlink());
}

#[test]
fn a_file_that_replaced_the_socket_is_kept() {
    let place = SocketPath::new("taken");
    let (port, _pool) = port();
    let socket = Socket::serve(&port, &place.0, Role::Server).unwrap();
    std::fs::remove_file(&place.0).unwrap();
    std::fs::write(&place.0, "other data").unwrap();
    drop(socket);
    assert_eq!(std::fs::read(&place.0).unwrap(), b"other data");
}
