//! Kills at any moment, repeatedly. A backend whose frontend keeps the inflight record loses no descriptor and uses
//! none twice. A killed frontend only ends its session. Runs for `TELPHER_SOAK_SECONDS` per ring layout.
//!
//! The killed processes are further instances of this program. Packets are numbered, and every byte follows from the
//! number. Packets come back as sent, once, in order; packets inside the switch when it was killed are lost.
#![cfg(not(loom))]

#[path = "../../../path/mover/tests/common/mod.rs"]
mod common;
mod frontend;

use common::Chance;
use frontend::wire::{SocketPath, Wire};
use frontend::{Guest, HEADER, MRG, u64s};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_vhost::layout::Features;
use telpher_vhost::ring::MockDriver;
use telpher_vhost::{
    CopyPolicy, DmaQueue, Offer, PacketPool, Packets, PoolOptions, Port, PortOptions, QueueOptions, Role, Socket,
};

/// The environment variable that makes an instance of this program a child: a role and the socket.
const ROLE: &str = "TELPHER_TEST_KILLED";
const LAYOUTS: [u64; 2] = [MRG, MRG | Features::RING_PACKED.bits()];
/// A backend's copy policy.
const WAYS: [&str; 3] = ["cpu", "inline", "threaded"];
/// Buffers of a switch, and so the most packets that one kill can lose.
const BUFFERS: u32 = 128;
/// The longest packet in bytes.
const LONGEST: usize = 1500;
/// After this time without progress something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a packet from its sender and number.
fn packet(sender: u32, number: u32) -> Vec<u8> {
    let seed = u64::from(sender) << 32 | u64::from(number);
    let mut chance = Chance::new(seed);
    let len = 60 + usize::try_from(chance.below(LONGEST as u64 - 59)).unwrap();
    let mut bytes = chance.bytes(len);
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}

/// Returns a packet's sender and number; panics if it is not exactly as sent.
fn read(bytes: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (number, sender) = (word(0), word(4));
    assert!(bytes == packet(sender, number), "a packet came changed: {sender} {number}, {} bytes", bytes.len());
    (sender, number)
}

/// A guest that sends packets to itself through a switch.
struct Talk {
    guest: Guest,
    features: u64,
    sender: u32,
    /// Buffers of chains in the ring, and free buffers.
    lent: [HashMap<u16, u64>; 2],
    free: [Vec<u64>; 2],
    /// The next number to send, the last that came back, and how many came back.
    next: u32,
    last: Option<u32>,
    back: u32,
    /// The inflight record, and the backend's description of it.
    record: Option<(Vec<u8>, OwnedFd)>,
}

impl Talk {
    fn new(features: u64, sender: u32) -> Talk {
        let mut guest = Guest::new(features);
        let free = [(); 2].map(|()| (0..64).map(|_| guest.memory.lend(2048)).collect());
        let lent = Default::default();
        Talk { guest, features, sender, lent, free, next: 0, last: None, back: 0, record: None }
    }

    /// Sets everything up with a newly connected backend.
    fn connect(&mut self, wire: &Wire) -> std::io::Result<()> {
        wire.agree(self.features)?;
        if self.record.is_none() {
            let (place, file) = wire.ask(31, &[&u64s(&[0, 0])[..], &[2, 0, 64, 0]].concat())?;
            self.record = Some((place, file.expect("a record is a file")));
        }
        let (place, file) = self.record.as_ref().expect("just made");
        wire.tell(32, place, &[file.as_fd()])?;
        wire.memory(&self.guest.memory)?;
        wire.ring(0, &self.guest.receive)?;
        wire.ring(1, &self.guest.transmit)
    }

    /// One round of the driver: offers more buffers if requested, and collects used ones. Returns true if there were
    /// any.
    fn turn(&mut self, send: bool, listen: bool) -> bool {
        let Guest { memory, receive, transmit } = &mut self.guest;
        while listen && let Some(at) = self.free[0].pop() {
            self.lent[0].insert(receive.offer(&[(at, 2048)]).expect("as many buffers as descriptors"), at);
        }
        while send && let Some(at) = self.free[1].pop() {
            let bytes = packet(self.sender, self.next);
            self.next += 1;
            memory.write(at + HEADER as u64, &bytes);
            let len = u32::try_from(HEADER + bytes.len()).unwrap();
            self.lent[1].insert(transmit.offer(&[(at, len)]).expect("as many buffers as descriptors"), at);
        }
        // The driver panics if it gets back a chain that the device does not have.
        let sent = transmit.collect();
        for (id, len) in &sent {
            assert_eq!(*len, 0);
            self.free[1].extend(self.lent[1].remove(id));
        }
        let received = receive.collect();
        for (id, len) in &received {
            let at = self.lent[0].remove(id).expect("one of those that are out");
            let bytes = memory.read(at, *len as usize);
            let (sender, number) = read(&bytes[HEADER..]);
            self.free[0].push(at);
            if sender != self.sender {
                // From a killed guest, and still in the switch.
                assert_eq!(self.last, None, "a stranger's packet came late");
                continue;
            }
            assert!(number < self.next, "{number} was never sent");
            assert!(self.last.is_none_or(|last| last < number), "{number} came after {:?}", self.last);
            self.last = Some(number);
            self.back += 1;
        }
        !(sent.is_empty() && received.is_empty())
    }

    fn lent(&self) -> [usize; 2] {
        [&self.guest.receive, &self.guest.transmit].map(MockDriver::lent)
    }
}

/// Another instance of this program, to be killed; killed on drop in any case.
struct Victim(Child);

impl Victim {
    fn start(role: &str, socket: &Path) -> Victim {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, format!("{role} {}", socket.display())).stdin(Stdio::null()).stdout(Stdio::null());
        Victim(command.spawn().unwrap())
    }

    /// Kills it, and checks that it was alive.
    fn kill(mut self) {
        self.0.kill().unwrap();
        let status = self.0.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it ended before it was killed: {status}");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn seconds() -> Duration {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds)
}

/// Started by the other tests; does nothing on its own.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let (role, socket) = role.split_once(' ').unwrap();
    match role {
        "split" | "packed" => frontend_until_killed(LAYOUTS[usize::from(role == "packed")], Path::new(socket)),
        way => backend_until_killed(way, Path::new(socket)),
    }
}

/// A switch with one port that returns the guest's packets.
struct Echo {
    port: Arc<Port>,
    pool: PacketPool,
    rows: [Packets; 2],
    /// Keeps its engines running.
    _device: Option<ModelDevice>,
}

impl Echo {
    fn new(way: &str) -> Echo {
        let runner = match way {
            "inline" => Some(Runner::Inline),
            "threaded" => Some(Runner::Threaded),
            _ => None,
        };
        let device = runner.map(|it| ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(it)).unwrap());
        let dma_queue = |device: &ModelDevice| Arc::new(DmaQueue::new(device.portal("wq0.0").unwrap(), 64).unwrap());
        let dma_queues = device.iter().map(dma_queue).collect();
        let queue = QueueOptions { hybrid: CopyPolicy::From(400), dma_queues, in_flight: 64 };
        let pool = PacketPool::new(PoolOptions { buffers: BUFFERS, longest: 2048 }).unwrap();
        let options = PortOptions { offer: Offer::of_pairs(1), rings: vec![queue], ..PortOptions::default() };
        let rows = [pool.empty(64), pool.empty(64)];
        Echo { port: Port::new(&pool, options), pool, rows, _device: device }
    }

    /// One round; received packets pass through `look`.
    fn turn(&mut self, mut look: impl FnMut(&[u8])) {
        let [packets, spare] = &mut self.rows;
        let before = packets.len();
        spare.fetch(32);
        self.port.transmit(0, packets, spare, 32);
        packets.iter().skip(before).for_each(&mut look);
        self.port.receive(0, packets, spare);
        spare.truncate(64);
    }
}

fn backend_until_killed(way: &str, socket: &Path) -> ! {
    let mut echo = Echo::new(way);
    let _socket = Socket::serve(&echo.port, socket, Role::Client).unwrap();
    loop {
        echo.turn(|packet| assert!(read(packet).1 < u32::MAX));
        std::thread::yield_now();
    }
}

fn frontend_until_killed(features: u64, socket: &Path) -> ! {
    let mut talk = Talk::new(features, std::process::id());
    let stream = UnixStream::connect(socket).unwrap();
    talk.connect(&Wire(stream.try_clone().unwrap())).unwrap();
    loop {
        if !talk.turn(true, true) {
            std::thread::yield_now();
        }
    }
}

/// A connected backend, unless it was killed before, which happens occasionally.
fn meet(
    talk: &mut Talk,
    listener: &UnixListener,
    way: &str,
    place: &SocketPath,
    chance: &mut Chance,
) -> Option<(Victim, UnixStream)> {
    let victim = Victim::start(way, &place.0);
    let (stream, _) = listener.accept().unwrap();
    let early = chance.below(4) == 0;
    let wire = Wire(stream.try_clone().unwrap());
    if !early {
        talk.connect(&wire).expect("it is still alive");
        return Some((victim, stream));
    }
    let pause = Duration::from_micros(chance.below(3000));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(pause);
            victim.kill();
        });
        // It may have finished the setup by then. The connection stays until the process is dead, or it would
        // reconnect.
        let _ = talk.connect(&wire);
    });
    None
}

fn backends_are_killed(features: u64, seed: u64) {
    let place = SocketPath::new(&format!("backends-{seed}"));
    let listener = UnixListener::bind(&place.0).unwrap();
    let mut chance = Chance::new(seed);
    for way in WAYS {
        let mut talk = Talk::new(features, u32::try_from(seed).unwrap());
        let (end, mut kills) = (Instant::now() + seconds() / 3, 0_u32);
        while Instant::now() < end || kills < 8 {
            kills += 1;
            let Some((victim, _stream)) = meet(&mut talk, &listener, way, &place, &mut chance) else { continue };
            let (mut left, since) = (chance.below(400), Instant::now());
            while left > 0 {
                if talk.turn(true, true) {
                    left -= 1;
                } else {
                    assert!(since.elapsed() < PATIENCE, "{way}: nothing comes back, {:?} are out", talk.lent());
                    std::thread::yield_now();
                }
            }
            victim.kill();
            // Published chains stay published; the driver reads them now or when another backend is there.
            if chance.below(2) == 0 {
                talk.turn(false, false);
            }
        }
        // The last backend lives until every descriptor of both rings has come back.
        let victim = Victim::start(way, &place.0);
        let (stream, _) = listener.accept().unwrap();
        talk.connect(&Wire(stream.try_clone().unwrap())).expect("it is still alive");
        let since = Instant::now();
        while talk.lent()[0] > 0 {
            assert!(since.elapsed() < PATIENCE, "{way}: {:?} descriptors are lost", talk.lent());
            talk.turn(true, false);
            std::thread::yield_now();
        }
        while talk.lent()[1] > 0 {
            assert!(since.elapsed() < PATIENCE, "{way}: {:?} descriptors are lost", talk.lent());
            talk.turn(false, true);
            std::thread::yield_now();
        }
        victim.kill();
        let lost = talk.next - talk.back;
        eprintln!("{way}, seed {seed}: {kills} kills, {} packets, {lost} lost", talk.next);
        assert!(lost <= (kills + 1) * BUFFERS, "{lost} packets are lost with {kills} backends");
        assert!(talk.back > 64);
    }
}

#[test]
fn killed_split_ring_backends_lose_and_duplicate_no_descriptor() {
    backends_are_killed(LAYOUTS[0], 1);
}

#[test]
fn killed_packed_ring_backends_lose_and_duplicate_no_descriptor() {
    backends_are_killed(LAYOUTS[1], 2);
}

/// A port whose guest sends packets to itself in this process.
struct Neighbour {
    echo: Echo,
    talk: Talk,
    _frontend: frontend::Frontend,
}

impl Neighbour {
    fn new(way: &str) -> Neighbour {
        let (echo, talk) = (Echo::new(way), Talk::new(MRG, 7));
        let frontend = talk.guest.connect(&echo.port);
        Neighbour { echo, talk, _frontend: frontend }
    }

    fn turn(&mut self) {
        self.talk.turn(true, true);
        self.echo.turn(|_| ());
    }
}

#[test]
fn a_killed_frontend_ends_its_session_and_other_ports_keep_running() {
    let place = SocketPath::new("frontends");
    let mut chance = Chance::new(3);
    for way in WAYS {
        let mut neighbour = Neighbour::new(way);
        let mut echo = Echo::new(way);
        let socket = Socket::serve(&echo.port, &place.0, Role::Server).unwrap();
        // The last number that came back, per frontend.
        let mut last: HashMap<u32, u32> = HashMap::new();
        let mut look = |bytes: &[u8]| {
            let (sender, number) = read(bytes);
            let before = last.insert(sender, number);
            assert!(before.is_none_or(|before| before < number), "{number} came after {before:?}");
        };
        let (end, mut kills) = (Instant::now() + seconds() / 3, 0);
        while Instant::now() < end || kills < 8 {
            let victim = Victim::start(["split", "packed"][usize::from(kills % 2 == 1)], &place.0);
            // From before it connects to long after.
            let mut left = chance.below(200);
            let (heard, since) = (neighbour.talk.back, Instant::now());
            while left > 0 || neighbour.talk.back == heard {
                left = left.saturating_sub(1);
                echo.turn(&mut look);
                neighbour.turn();
                assert!(since.elapsed() < PATIENCE, "{way}: the other port stands still");
                std::thread::yield_now();
            }
            victim.kill();
            kills += 1;
        }
        // A live frontend is still served.
        let victim = Victim::start("packed", &place.0);
        let (pid, since) = (victim.0.id(), Instant::now());
        let mut came = false;
        while !came {
            echo.turn(|bytes| {
                look(bytes);
                came |= read(bytes).0 == pid;
            });
            assert!(since.elapsed() < PATIENCE, "{way}: no frontend is served any more: {:?}", socket.state());
            std::thread::yield_now();
        }
        victim.kill();
        while socket.state().connected {
            echo.turn(&mut look);
            std::thread::yield_now();
        }
        assert!(!echo.port.is_running(0) && !echo.port.is_running(1));
        // Packets in flight at the end are with the port, which completes a burst of them, or with a thread that waits
        // for their copies.
        let since = Instant::now();
        while echo.pool.free() < BUFFERS as usize {
            assert!(since.elapsed() < PATIENCE, "{way}: {} of {BUFFERS} buffers are back", echo.pool.free());
            echo.turn(&mut look);
            echo.rows.iter_mut().for_each(|row| row.truncate(0));
            std::thread::yield_now();
        }
        eprintln!(
            "{way}: {kills} kills, {} packets, {} of the other port",
            last.values().sum::<u32>(),
            neighbour.talk.back
        );
    }
}
