use super::*;
use crate::entry::{Envelope, Message};
use crate::handshake::{HELLO_BYTES, Packet, Verdict};
use crate::incoming::Incoming;
use crate::memory::Memory;
use crate::offered::OfferedFile;
use crate::outgoing::Outgoing;
use crate::{Payload, Segments};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, accept, connect, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Far more than any step takes; a test that waits so long has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for the next event of a connector.
fn next_event(of: &Connector) -> ConnectorEvent {
    let end = Instant::now() + LIMIT;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(Instant::now() < end, "no event");
        std::thread::sleep(Duration::from_micros(100));
        of.events(&mut events);
        if events.len() > 1 {
            // The others come again.
            events.drain(1..).for_each(|event| of.shared.events.push(event));
        }
    }
    events.remove(0)
}

fn connected(of: &Connector) -> (ConnectionId, Outgoing) {
    match next_event(of) {
        ConnectorEvent::Connected { id, outgoing } => (id, outgoing),
        event => panic!("{event:?}"),
    }
}

fn accepted(of: &Connector) -> (ConnectionId, Address, Incoming) {
    match next_event(of) {
        ConnectorEvent::Accepted { id, from, incoming } => (id, from, incoming),
        event => panic!("{event:?}"),
    }
}

fn refused(of: &Connector) -> FabricError {
    match next_event(of) {
        ConnectorEvent::Refused { error, .. } => error,
        event => panic!("{event:?}"),
    }
}

fn died(of: &Connector) -> ConnectionId {
    match next_event(of) {
        ConnectorEvent::Died { id } => id,
        event => panic!("{event:?}"),
    }
}

fn open() -> Connector {
    Connector::open(&Config::default()).unwrap()
}

fn push(outgoing: &mut Outgoing, tag: u64) {
    let envelope = Envelope { is_tagged: true, tag, data: None, len: 0 };
    outgoing.push(&Message::Eager { envelope, wants_answer: None }, &Segments::default()).unwrap();
}

/// Takes the next message, which is there, and returns its tag.
fn pull(incoming: &mut Incoming) -> u64 {
    let arrived = incoming.next_message().unwrap().expect("a message");
    assert!(matches!(arrived.payload(), Payload::Inline(_)));
    match arrived.message() {
        Message::Eager { envelope, .. } => envelope.tag,
        message => panic!("{message:?}"),
    }
}

/// A peer that does not keep to the rules.
struct Hostile {
    socket: OwnedFd,
    address: Address,
    sizes: Sizes,
}

impl Hostile {
    fn connect(to: &Connector) -> Hostile {
        let socket = socket().unwrap();
        connect(&socket, &socket_name(&to.address()).unwrap()).unwrap();
        Hostile { socket, address: to.address(), sizes: to.sizes }
    }

    /// A valid Hello.
    fn hello(&self) -> Vec<u8> {
        let (one, other) = pair();
        let (_, file) = Memory::create(self.sizes).unwrap();
        crate::handshake::Hello { sizes: self.sizes, from: self.address }.send(one.as_fd(), file.as_fd()).unwrap();
        let mut bytes = vec![0; HELLO_BYTES];
        assert_eq!(rustix::io::read(&other, &mut bytes).unwrap(), HELLO_BYTES);
        bytes
    }

    /// A valid memory file.
    fn file(&self) -> OwnedFd {
        Memory::create(self.sizes).unwrap().1
    }

    fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    /// Waits for a packet; an empty one means that the other side has closed the socket.
    fn receive(&self) -> Packet {
        let end = Instant::now() + LIMIT;
        loop {
            match Packet::receive(&self.socket) {
                Ok(packet) => return packet,
                Err(Errno::AGAIN) => assert!(Instant::now() < end, "no packet"),
                // Closed while a packet of ours was unread.
                Err(Errno::CONNRESET) => {}
                Err(error) => panic!("{error}"),
            }
            let mut waited = [PollFd::new(&self.socket, PollFlags::IN)];
            let _ = poll(&mut waited, Some(&rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 }));
        }
    }

    /// Sends a Hello that must be refused.
    fn expect(self, verdict: Verdict, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(bytes, files);
        assert_eq!(self.receive().verdict(), verdict, "{} bytes, {} files", bytes.len(), files.len());
        assert!(self.receive().is_empty());
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    rustix::net::socketpair(family, kind, flags, None).unwrap()
}

#[test]
fn two_endpoints_connect_both_ways_at_once() {
    let (one, other) = (open(), open());
    assert_ne!(one.address(), other.address());
    let (there, back) = (one.connect(&other.address()).unwrap(), other.connect(&one.address()).unwrap());
    for (connector, expected, peer) in [(&one, there, &other), (&other, back, &one)] {
        let mut seen = (None, None);
        while seen.0.is_none() || seen.1.is_none() {
            match next_event(connector) {
                ConnectorEvent::Connected { id, outgoing } => seen.0 = Some((id, outgoing)),
                ConnectorEvent::Accepted { from, incoming, .. } => seen.1 = Some((from, incoming)),
                event => panic!("{event:?}"),
            }
        }
        assert_eq!((seen.0.unwrap().0, seen.1.unwrap().0), (expected, peer.address()));
    }
    let stats = one.stats();
    assert_eq!((stats.connected, stats.accepted, stats.refused, stats.died), (1, 1, 0, 0));
}

#[test]
fn an_endpoint_connects_to_itself_and_messages_arrive() {
    let own = open();
    own.connect(&own.address()).unwrap();
    let (mut ends, mut id) = ((None, None), None);
    while ends.0.is_none() || ends.1.is_none() {
        match next_event(&own) {
            ConnectorEvent::Connected { outgoing, id: of } => (ends.0, id) = (Some(outgoing), Some(of)),
            ConnectorEvent::Accepted { incoming, .. } => ends.1 = Some(incoming),
            event => panic!("{event:?}"),
        }
    }
    let (mut outgoing, mut incoming) = (ends.0.unwrap(), ends.1.unwrap());
    (0..10).for_each(|tag| push(&mut outgoing, tag));
    assert!((0..10).all(|tag| pull(&mut incoming) == tag));
    // The end that was closed has no event; the other one has.
    own.close(id.unwrap());
    assert_ne!(died(&own), id.unwrap());
}

#[test]
fn messages_of_a_peer_that_has_ended_can_still_be_taken() {
    let (here, peer) = (open(), open());
    peer.connect(&here.address()).unwrap();
    let (_, mut outgoing) = connected(&peer);
    (0..3).for_each(|tag| push(&mut outgoing, tag));
    let (id, from, mut incoming) = accepted(&here);
    assert_eq!(from, peer.address());
    drop((outgoing, peer));
    assert_eq!(died(&here), id);
    assert!((0..3).all(|tag| pull(&mut incoming) == tag));
    assert!(incoming.next_message().unwrap().is_none());
    assert_eq!(here.stats().died, 1);
}

#[test]
fn an_address_without_an_endpoint_is_unreachable() {
    let (here, ended) = (open(), open().address());
    here.connect(&ended).unwrap();
    assert!(matches!(refused(&here), FabricError::Unreachable { address } if address == ended));
    let elsewhere = Address { boot: [9; 16], ..ended };
    assert!(matches!(here.connect(&elsewhere), Err(FabricError::OtherMachine { .. })));
    let of_another = Address { user: ended.user + 1, ..ended };
    assert!(matches!(here.connect(&of_another), Err(FabricError::OtherUser { .. })));
}

#[test]
fn a_hello_that_breaks_a_rule_is_refused() {
    let here = open();
    let hostile = || Hostile::connect(&here);
    let (hello, file) = (hostile().hello(), hostile().file());
    let file = file.as_fd();
    let changed = |at: usize, bytes: &[u8]| {
        let mut hello = hello.clone();
        hello[at..at + bytes.len()].copy_from_slice(bytes);
        hello
    };
    hostile().expect(Verdict::Malformed, b"x", &[]);
    hostile().expect(Verdict::Malformed, &[0xff; 300], &[file]);
    hostile().expect(Verdict::Malformed, &[&hello[..], b"x"].concat(), &[file]);
    hostile().expect(Verdict::Malformed, &hello[..HELLO_BYTES - 1], &[file]);
    hostile().expect(Verdict::Malformed, &changed(0, b"T"), &[file]);
    hostile().expect(Verdict::Malformed, &hello, &[]);
    hostile().expect(Verdict::Malformed, &hello, &[file, file]);
    hostile().expect(Verdict::Malformed, &hello, &[file, file, file]);
    hostile().expect(Verdict::OtherVersion, &changed(8, &[1]), &[file]);
    hostile().expect(Verdict::OtherVersion, &changed(8, &[1])[..20], &[]);
    for size in 0..6 {
        for value in [0_u32, 3, u32::MAX, 1 << 31] {
            hostile().expect(Verdict::WrongSizes, &changed(12 + 4 * size, &value.to_le_bytes()), &[file]);
        }
    }
    // Other sizes that are valid, but not those of the file.
    hostile().expect(Verdict::WrongMemory, &changed(12, &1024_u32.to_le_bytes()), &[file]);
    hostile().expect(Verdict::Malformed, &changed(36, b"T"), &[file]);
    hostile().expect(Verdict::OtherUser, &changed(44, &[9; 16]), &[file]);
    hostile().expect(Verdict::OtherUser, &changed(60, &(here.address().user + 1).to_le_bytes()), &[file]);
    // This process with the address of another one.
    hostile().expect(Verdict::OtherProcess, &changed(64, &(here.address().process + 1).to_le_bytes()), &[file]);
    // The same Hello is accepted without a change.
    let honest = hostile();
    honest.send(&hello, &[file]);
    assert_eq!(honest.receive().verdict(), Verdict::Accepted);
    accepted(&here);
    let stats = here.stats();
    assert_eq!((stats.accepted, stats.refused_users), (1, 0));
    assert!(stats.refused >= 38, "{stats:?}");
}

#[test]
fn a_file_that_is_not_sealed_or_has_another_length_is_refused() {
    let here = open();
    let hello = Hostile::connect(&here).hello();
    let total = here.sizes.total();
    let good = SealFlags::SHRINK | SealFlags::GROW;
    let short = [(total - 4096, good), (0, good), (total * 2, good)];
    let open_to_change = [(total, SealFlags::empty()), (total, SealFlags::SHRINK), (total, SealFlags::GROW)];
    for (len, seals) in short.into_iter().chain(open_to_change).chain([(total, good | SealFlags::WRITE)]) {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        Hostile::connect(&here).expect(Verdict::WrongMemory, &hello, &[file.as_fd()]);
    }
    let (socket, _other) = pair();
    let device = std::fs::File::open("/dev/zero").unwrap();
    for other in [socket.as_fd(), device.as_fd()] {
        Hostile::connect(&here).expect(Verdict::WrongMemory, &hello, &[other]);
    }
}

#[test]
fn a_packet_of_a_file_that_breaks_a_rule_ends_the_connection() {
    let here = open();
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 8192).unwrap();
    let memory = memory.as_fd();
    let open_connection = || {
        let peer = Hostile::connect(&here);
        peer.send(&peer.hello(), &[peer.file().as_fd()]);
        assert_eq!(peer.receive().verdict(), Verdict::Accepted);
        let (_, _, incoming) = accepted(&here);
        (peer, incoming)
    };
    let wrong: [(&[u8], &[BorrowedFd<'_>]); 5] = [
        (&[2, 8, 7, 0, 0, 0], &[memory]),
        (&[2, 0, 7, 0, 0], &[memory]),
        (&[2, 0, 7, 0, 0, 0, 0], &[memory]),
        (&[2, 0, 7, 0, 0, 0], &[memory, memory]),
        (&[3, 0, 7, 0, 0, 0], &[]),
    ];
    for (bytes, files) in wrong {
        let (peer, _incoming) = open_connection();
        peer.send(bytes, files);
        assert!(peer.receive().is_empty(), "{bytes:?} with {} files", files.len());
        died(&here);
    }
    // A file is shown, replaced by one that is no memory, shown again, and taken back.
    let (peer, incoming) = open_connection();
    let program = std::fs::File::open("/proc/self/status").unwrap();
    for (files, is_there) in [(&[memory][..], true), (&[program.as_fd()], false), (&[memory], true), (&[], false)] {
        peer.send(&[2, 3, 7, 0, 0, 0], files);
        let end = Instant::now() + LIMIT;
        while incoming.offered_bytes(&OfferedFile { place: 3, generation: 7, offset: 4096 }, 4096).is_some() != is_there
        {
            assert!(Instant::now() < end, "{} files", files.len());
            std::thread::yield_now();
        }
    }
    // The accepting side shows no files.
    let other = open();
    here.connect(&other.address()).unwrap();
    connected(&here);
    let (id, ..) = accepted(&other);
    crate::handshake::send_file(other.socket(id).unwrap().as_fd(), 0, 1, Some(memory)).unwrap();
    died(&here);
}

#[test]
fn stalled_peers_do_not_hold_up_others_and_are_bounded() {
    let here = open();
    let stalled: Vec<Hostile> = (0..200).map(|_| Hostile::connect(&here)).collect();
    let peer = open();
    peer.connect(&here.address()).unwrap();
    connected(&peer);
    accepted(&here);
    // The connection above came last, so all others were accepted before; the oldest were closed.
    let is_closed = |peer: &&Hostile| !matches!(Packet::receive(&peer.socket), Err(Errno::AGAIN));
    assert_eq!(stalled.iter().filter(is_closed).count(), 200 - 64 + 1);
    assert!(!is_closed(&stalled.last().unwrap()), "the newest is served");
}

#[test]
fn a_peer_that_does_not_answer_holds_up_no_other_and_can_be_given_up() {
    let (here, peer) = (open(), open());
    // A listener that never accepts, under a valid address.
    let silent = Address { number: here.address().number ^ 1, ..here.address() };
    let listener = socket().unwrap();
    bind(&listener, &socket_name(&silent).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    // More than its queue holds: some connections wait for the queue.
    let ids: Vec<ConnectionId> = (0..4).map(|_| here.connect(&silent).unwrap()).collect();
    here.connect(&peer.address()).unwrap();
    connected(&here);
    ids[1..].iter().for_each(|id| here.close(*id));
    // The first one is answered with garbage at last.
    let answering = accept(&listener).unwrap();
    send(&answering, b"garbage", SendFlags::empty()).unwrap();
    assert!(matches!(refused(&here), FabricError::Refused { .. }));
    here.connect(&peer.address()).unwrap();
    connected(&here);
}

#[test]
fn a_listener_that_closes_is_unreachable() {
    let here = open();
    let other = Address { number: here.address().number ^ 1, ..here.address() };
    let listener = socket().unwrap();
    bind(&listener, &socket_name(&other).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    here.connect(&other).unwrap();
    drop(listener);
    assert!(matches!(refused(&here), FabricError::Unreachable { .. }));
}

#[test]
fn connections_beyond_the_limits_are_refused() {
    let config = Config { incoming_connections: 2, ..Config::default() };
    let here = Connector::open(&config).unwrap();
    let config = Config { memory_bytes: here.sizes.total() * 3, ..Config::default() };
    let peer = Connector::open(&config).unwrap();
    let mut kept = Vec::new();
    for _ in 0..2 {
        peer.connect(&here.address()).unwrap();
        kept.push((connected(&peer), accepted(&here)));
    }
    peer.connect(&here.address()).unwrap();
    let error = refused(&peer);
    assert!(error.to_string().contains("too many connections"), "{error}");
    // A closed connection makes room for another one, on both sides.
    let ((closed, _), _) = kept.remove(0);
    peer.close(closed);
    died(&here);
    peer.connect(&here.address()).unwrap();
    kept.push((connected(&peer), accepted(&here)));
    // The memory of three connections is the limit, and a refused one gives its memory back.
    peer.connect(&Address { number: here.address().number ^ 1, ..here.address() }).unwrap();
    refused(&peer);
    let silent = open();
    peer.connect(&silent.address()).unwrap();
    assert!(matches!(peer.connect(&here.address()), Err(FabricError::Limit { .. })));
}

#[test]
fn an_endpoint_that_takes_no_events_stops_to_accept() {
    let here = Connector::open(&Config { incoming_connections: 10_000, ..Config::default() }).unwrap();
    let hello = Hostile::connect(&here).hello();
    let file = Hostile::connect(&here).file();
    let mut ended = 0;
    // Each one leaves two events: accepted, and died.
    for _ in 0..2500 {
        let peer = Hostile::connect(&here);
        peer.send(&hello, &[file.as_fd()]);
        ended += 1;
        while here.shared.events.len() < 2 * ended && here.shared.events.len() < 4096 {
            if !matches!(Packet::receive(&peer.socket), Err(Errno::AGAIN)) {
                break;
            }
            std::thread::yield_now();
        }
    }
    assert!((4096..4096 + 2 * 64).contains(&here.shared.events.len()), "{}", here.shared.events.len());
    // Others are accepted when the events were taken.
    let late = open();
    late.connect(&here.address()).unwrap();
    let mut events = Vec::new();
    here.events(&mut events);
    connected(&late);
}

#[test]
fn packets_other_than_a_wake_end_an_open_connection() {
    for (garbage, with_file) in [(&b"garbage"[..], false), (&[2], false), (&[1], true), (&[0; 200], false)] {
        let here = open();
        let peer = Hostile::connect(&here);
        let file = peer.file();
        peer.send(&peer.hello(), &[file.as_fd()]);
        let (id, _, _incoming) = accepted(&here);
        assert_eq!(peer.receive().verdict(), Verdict::Accepted);
        let files = [file.as_fd()];
        peer.send(garbage, if with_file { &files } else { &[] });
        assert_eq!(died(&here), id);
    }
}

/// Counts its calls, and reports each.
struct Counting(AtomicUsize, Mutex<mpsc::Sender<usize>>);

impl Progress for Counting {
    fn progress(&self) -> bool {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        self.1.lock().unwrap().send(count).unwrap();
        false
    }
}

#[test]
fn a_wake_runs_the_progress_of_the_peer() {
    let (here, peer) = (open(), open());
    let (sender, calls) = mpsc::channel();
    let counting: Arc<dyn Progress> = Arc::new(Counting(AtomicUsize::new(0), Mutex::new(sender)));
    here.set_progress(Arc::downgrade(&counting));
    peer.connect(&here.address()).unwrap();
    let (there, _outgoing) = connected(&peer);
    let (back, _, _incoming) = accepted(&here);
    peer.wake(there);
    assert_eq!(calls.recv_timeout(LIMIT).unwrap(), 1);
    peer.wake(there);
    assert_eq!(calls.recv_timeout(LIMIT).unwrap(), 2);
    // The other direction, and a connection that does not exist, do no harm.
    here.wake(back);
    here.wake(ConnectionId(99));
    assert_eq!(here.stats().woken, 2);
    // Without the object that makes progress, a wake is ignored.
    drop(counting);
    peer.wake(there);
    peer.connect(&here.address()).unwrap();
    connected(&peer);
}

/// Owns a connector, as an endpoint does.
struct Owner(Mutex<Option<Connector>>, Mutex<mpsc::Sender<()>>);

impl Progress for Owner {
    fn progress(&self) -> bool {
        // The end of the connector on its own helper thread.
        drop(self.0.lock().unwrap().take());
        self.1.lock().unwrap().send(()).unwrap();
        false
    }
}

#[test]
fn a_connector_may_end_on_its_own_thread() {
    let (here, peer) = (open(), open());
    peer.connect(&here.address()).unwrap();
    let (id, _outgoing) = connected(&peer);
    accepted(&here);
    let (sender, ended) = mpsc::channel();
    let owner = Arc::new(Owner(Mutex::new(None), Mutex::new(sender)));
    let progress: Arc<dyn Progress> = owner.clone();
    here.set_progress(Arc::downgrade(&progress));
    *owner.0.lock().unwrap() = Some(here);
    peer.wake(id);
    ended.recv_timeout(LIMIT).unwrap();
    assert_eq!(died(&peer), id);
}
