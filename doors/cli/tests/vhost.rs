//! `telpher vhost` as a program: guests at its sockets, packets counted and summed at both ends, and the program's
//! output.

#[path = "../../../uses/vhost/tests/frontend/mod.rs"]
mod frontend;
#[path = "network/interface.rs"]
mod interface;
mod network;
mod schemas;
#[path = "../../../ci/skip.rs"]
mod skip;

use frontend::wire::{Wire, message, send};
use frontend::{HEADER, MRG, addresses, count, event, u32s, u64s};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use telpher_os::Random;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest};

const PACKED: u64 = MRG | Features::RING_PACKED.bits();
/// Number of descriptors in a guest's rings.
const SIZE: u16 = 128;
const BUFFER: u64 = 2048;
/// Maximum time of every wait; long enough for a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A folder for the sockets and files of one test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        // A number for each, since tests run side by side and may choose the same name.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("telpher-cli-vhost-{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        TestFolder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The running program; killed on drop.
struct Switch {
    child: Option<Child>,
}

impl Switch {
    fn start(args: &[&str]) -> Switch {
        let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
        command.arg("vhost").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        Switch { child: Some(command.spawn().expect("the binary starts")) }
    }

    /// Waits until the program ends, and returns its output.
    fn wait(mut self) -> Output {
        self.child.take().expect("it was not ended yet").wait_with_output().expect("it ends")
    }

    /// Ends the program with SIGINT, as Ctrl-C does, and returns its output.
    fn end(mut self) -> Output {
        let child = self.child.take().expect("it was not ended yet");
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
        child.wait_with_output().expect("it ends")
    }

    /// Ends the program and returns its JSON summary.
    fn summary(self) -> Value {
        let output = self.end();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        schemas::parse(&output.stdout)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Connects to the switch as soon as its socket exists.
fn dial(path: &Path) -> Wire {
    let start = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Wire(stream),
            Err(error) => assert!(start.elapsed() < SOON, "{}: {error}", path.display()),
        }
        std::thread::yield_now();
    }
}

/// A guest with one pair of queues.
struct Guest {
    wire: Wire,
    memory: MockGuest,
    receive: MockDriver,
    transmit: MockDriver,
    /// Addresses of the buffers that the switch holds, by ring and identifier.
    out: [HashMap<u16, u64>; 2],
    /// Addresses of free transmit buffers.
    free: Vec<u64>,
}

impl Guest {
    fn connect(path: impl AsRef<Path>, features: u64) -> Guest {
        let wire = dial(path.as_ref());
        wire.agree(features).expect("an agreement");
        Guest::set_up(wire, features)
    }

    /// Sets up memory and rings after the feature negotiation.
    fn set_up(wire: Wire, features: u64) -> Guest {
        let mut memory = MockGuest::new(4 << 20);
        let agreed = Features::from_bits_retain(features);
        let mut receive = MockDriver::new(&mut memory, SIZE, agreed, Direction::Receive);
        let transmit = MockDriver::new(&mut memory, SIZE, agreed, Direction::Transmit);
        let mut out = [HashMap::new(), HashMap::new()];
        for _ in 0..SIZE {
            let at = memory.lend(BUFFER);
            out[0].insert(offer(&mut receive, at, BUFFER), at);
        }
        let free = (0..SIZE).map(|_| memory.lend(BUFFER)).collect();
        wire.memory(&memory).expect("memory");
        wire.ring(0, &receive).expect("a ring");
        wire.ring(1, &transmit).expect("a ring");
        Guest { wire, memory, receive, transmit, out, free }
    }

    /// Announces a guest that has moved here, as a frontend does (`SEND_RARP`).
    fn moves(&self, address: [u8; 6]) {
        self.wire.tell(19, &[&address[..], &[0; 2]].concat(), &[]).expect("it is heard");
    }

    /// Sends a packet; returns false if there is no free buffer.
    fn send(&mut self, packet: &[u8]) -> bool {
        self.take_back();
        let Some(at) = self.free.pop() else { return false };
        self.memory.write(at, &[0; HEADER]);
        self.memory.write(at + HEADER as u64, packet);
        let id = offer(&mut self.transmit, at, (HEADER + packet.len()) as u64);
        self.out[1].insert(id, at);
        true
    }

    /// Sends a packet, and waits until the switch has taken all packets.
    fn send_until_taken(&mut self, packet: &[u8]) {
        let start = Instant::now();
        while !self.send(packet) {
            assert!(start.elapsed() < SOON, "no buffer is free");
        }
        while self.take_back() > 0 {
            assert!(start.elapsed() < SOON, "the packet is not taken");
        }
    }

    /// Takes back the buffers whose packets the switch has taken; returns the number of buffers that it still holds.
    fn take_back(&mut self) -> usize {
        for (id, _) in self.transmit.collect() {
            self.free.push(self.out[1].remove(&id).expect("it is out"));
        }
        self.out[1].len()
    }

    /// Returns the packets that have arrived, and offers their buffers again.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        // An identifier is free as soon as it is collected, so all packets are read before an identifier is used again.
        let back = self.receive.collect().into_iter();
        let back: Vec<(u64, u32)> = back.map(|(id, len)| (self.out[0].remove(&id).expect("it is out"), len)).collect();
        let read = |(at, len): &(u64, u32)| self.memory.read(*at, *len as usize).split_off(HEADER);
        let packets = back.iter().map(read).collect();
        for (at, _) in back {
            self.out[0].insert(offer(&mut self.receive, at, BUFFER), at);
        }
        packets
    }

    /// Waits until `count` packets have arrived.
    fn receive_some(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut packets, begun) = (Vec::new(), Instant::now());
        while packets.len() < count {
            packets.extend(self.receive());
            assert!(begun.elapsed() < SOON, "{} of {count} packets came", packets.len());
            std::thread::yield_now();
        }
        packets
    }

    /// Sends the packets with these numbers, and waits until the switch has taken them all.
    fn send_all(&mut self, numbers: std::ops::Range<u64>) {
        self.send_until(numbers, 1);
    }

    /// Sends the packets with these numbers, and waits until the switch holds fewer than `few`.
    fn send_until(&mut self, numbers: std::ops::Range<u64>, few: usize) {
        let start = Instant::now();
        for number in numbers {
            while !self.send(&packet(number)) {
                assert!(start.elapsed() < SOON, "packet {number} is not taken");
            }
        }
        while self.take_back() >= few {
            assert!(start.elapsed() < SOON, "{} packets are not taken", self.out[1].len());
            std::thread::yield_now();
        }
    }
}

fn offer(driver: &mut MockDriver, at: u64, len: u64) -> u16 {
    driver.offer(&[(at, u32::try_from(len).expect("a buffer's length"))]).expect("the ring has room")
}

/// Returns packet `number`: addresses, its number, bytes derived from it, and a checksum; 64 to 1518 bytes.
fn packet(number: u64) -> Vec<u8> {
    let len = 64 + usize::try_from(number * 97 % 1455).expect("small");
    let mut bytes = vec![0xff; 12];
    bytes.extend([0x88, 0xb5]);
    bytes.extend(number.to_le_bytes());
    bytes.extend((0..len - 30).map(|at| (number.wrapping_mul(31).wrapping_add(at as u64)).to_le_bytes()[0]));
    bytes.extend(sum(&bytes[12..]).to_le_bytes());
    bytes
}

/// Returns a checksum that depends on the bytes and their order.
fn sum(bytes: &[u8]) -> u64 {
    let (mut one, mut two) = (0_u32, 0_u32);
    for byte in bytes {
        one = one.wrapping_add(u32::from(*byte) + 1);
        two = two.wrapping_add(one);
    }
    u64::from(two) << 32 | u64::from(one)
}

/// Returns true if the bytes are packet `number`; its addresses are ignored.
fn is_packet(bytes: &[u8], number: u64) -> bool {
    let (body, checksum) = bytes.split_at(bytes.len() - 8);
    bytes[12..] == packet(number)[12..] && checksum == sum(&body[12..]).to_le_bytes()
}

/// Sends `count` packets in each direction at the same time, and returns what each guest received.
fn exchange(a: &mut Guest, b: &mut Guest, count: u64) -> [Vec<Vec<u8>>; 2] {
    let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
    let start = Instant::now();
    while got.iter().any(|got| (got.len() as u64) < count) {
        for (side, guest) in [&mut *a, &mut *b].into_iter().enumerate() {
            // No more packets in flight than the other guest has buffers, so that none is dropped.
            let window = got[1 - side].len() as u64 + u64::from(SIZE) / 2;
            while sent[side] < count.min(window) && guest.send(&packet(sent[side])) {
                sent[side] += 1;
            }
            got[side].extend(guest.receive());
        }
        assert!(start.elapsed() < SOON, "{sent:?} sent, {:?} came", got.each_ref().map(Vec::len));
        std::thread::yield_now();
    }
    while a.take_back() + b.take_back() > 0 {
        assert!(start.elapsed() < SOON, "what came is not given back");
    }
    got
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {value}"))
}

/// Asserts that received and generated packets equal those sent, sunk, dropped, held and unsettled.
fn assert_adds_up(summary: &Value) {
    assert_adds_up_but_for(summary, |_| false);
}

/// The same check if some chains contained no packet: drops with these reasons are not counted as received.
fn assert_adds_up_but_for(summary: &Value, never_came: impl Fn(&str) -> bool) {
    let ports = summary["ports"].as_array().expect("ports");
    let all = |path: &str| ports.iter().map(|port| number(port, path)).sum::<u64>();
    let dropped = |port: &Value| {
        let reasons = port["dropped"].as_object().expect("reasons").iter();
        let came = reasons.filter(|(reason, _)| !never_came(reason));
        came.map(|(_, count)| count.as_u64().expect("a count")).sum::<u64>()
    };
    let came = all("/received/packets") + all("/generated");
    let went = all("/sent/packets") + all("/discarded") + all("/held") + all("/unsettled");
    assert_eq!(came, went + ports.iter().map(dropped).sum::<u64>(), "{summary:#}");
}

#[test]
fn two_ports_forward_numbered_packets_in_order_and_the_summary_adds_up() {
    const COUNT: u64 = 1000;
    let folder = TestFolder::new("two");
    let all: u64 = (0..COUNT).map(|number| packet(number).len() as u64).sum();
    let large = (0..COUNT).filter(|number| packet(*number).len() >= 512).count() as u64;
    let ways: [(&[&str], u64); 4] = [
        (&[], 0),
        (&["--device", "model:spr", "--threshold", "all", "--map", "txq@wq0.0+wq0.1,1:rxq0@wq0.2"], 2 * COUNT),
        (&["--device", "model:spr", "--runner", "threaded", "--threshold", "512"], 2 * large),
        (&["--device", "model:spr", "--threshold", "off", "--cpus", "0"], 0),
    ];
    for (features, (more, by_device)) in [MRG, PACKED].into_iter().flat_map(|features| ways.map(|way| (features, way)))
    {
        let (a, b) = (folder.word("a"), folder.word("b"));
        let args = ["--socket", &a, "--socket", &b, "--forward", "mac", "--format", "json", "--quiet"];
        let switch = Switch::start(&[&args, more].concat());
        let mut guests = [&a, &b].map(|path| Guest::connect(path, features));
        let [one, two] = &mut guests;
        let got = exchange(one, two, COUNT);
        for (side, packets) in got.iter().enumerate() {
            let port = u8::try_from(side).expect("0 or 1");
            for (number, bytes) in packets.iter().enumerate() {
                assert!(is_packet(bytes, number as u64), "packet {number} of side {side}");
                assert_eq!(bytes[..12], [2, 0, 0, 0, 0, port, 2, 0, 0, 1, 0, port]);
            }
        }
        let summary = switch.summary();
        assert_adds_up(&summary);
        for port in summary["ports"].as_array().expect("ports") {
            for way in ["/received", "/sent"] {
                assert_eq!(number(port, &format!("{way}/packets")), COUNT, "{port:#}");
                assert_eq!(number(port, &format!("{way}/bytes")), all);
            }
            assert_eq!((number(port, "/by_device/packets"), number(port, "/unsettled")), (by_device, 0), "{port:#}");
            assert_eq!(port["dropped"].as_object().expect("reasons").len(), 0);
            assert_eq!((number(port, "/sessions"), number(port, "/refused_requests")), (1, 0));
            assert!(number(port, "/calls") > 0, "the guests' drivers want to be called");
        }
        let copies: u64 = summary["dma_queues"]
            .as_array()
            .expect("dma_queues")
            .iter()
            .map(|dma_queue| number(dma_queue, "/copies"))
            .sum();
        assert!(copies >= 2 * by_device, "a copy for each packet at least: {copies}");
        let stages = &summary["stages"];
        for stage in ["/collect", "/take", "/work", "/submit", "/waiting", "/busy_turns", "/idle_turns"] {
            assert!(number(stages, stage) > 0, "{stages:#}");
        }
        drop(guests);
    }
}

/// Returns the packets of a capture, with their original lengths.
fn captured(path: &Path) -> Vec<(Vec<u8>, usize)> {
    let bytes = std::fs::read(path).expect("the capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    // Nanoseconds, version 2.4, Ethernet: draft-ietf-opsawg-pcap.
    assert_eq!((word(0), word(4), word(20)), (0xa1b2_3c4d, 0x0004_0002, 1));
    let (mut packets, mut at) = (Vec::new(), 24);
    while at < bytes.len() {
        assert!(word(at) > 1_600_000_000 && word(at + 4) < 1_000_000_000, "a moment of our time");
        let (kept, len) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(kept, len.min(word(16) as usize));
        packets.push((bytes[at + 16..at + 16 + kept].to_vec(), len));
        at += 16 + kept;
    }
    assert_eq!(at, bytes.len(), "whole packets only");
    packets
}

#[test]
fn a_capture_has_all_packets_of_its_port() {
    const COUNT: u64 = 300;
    let folder = TestFolder::new("capture");
    let (a, b) = (folder.word("a"), folder.word("b"));
    let (whole, short) = (folder.path("whole.pcap"), folder.path("short.pcap"));
    let captures = [format!("0:{}", whole.display()), format!("1:{}", short.display())];
    let args = ["--socket", &a, "--socket", &b, "--capture", &captures[0], "--format", "json", "--quiet"];
    let switch = Switch::start(&args);
    let [mut one, mut two] = [&a, &b].map(|path| Guest::connect(path, MRG));
    exchange(&mut one, &mut two, COUNT);
    let summary = switch.summary();
    assert_eq!(number(&summary, "/ports/0/capture/packets"), 2 * COUNT);
    assert_eq!(number(&summary, "/ports/0/capture/left_out"), 0);
    assert_eq!(summary["ports"][1]["capture"], Value::Null);
    // Both directions pass the port, so every packet is captured twice, unchanged.
    let mut seen: HashMap<u64, u32> = HashMap::new();
    for (bytes, len) in captured(&whole) {
        let number = u64::from_le_bytes(bytes[14..22].try_into().expect("eight bytes"));
        assert!(bytes.len() == len && bytes == packet(number), "packet {number}");
        *seen.entry(number).or_default() += 1;
    }
    assert_eq!((seen.len() as u64, seen.values().sum::<u32>()), (COUNT, 600));
    assert!(seen.values().all(|count| *count == 2));
    drop((one, two));
    // The same with a limit on the captured bytes of each packet.
    let args = ["--socket", &a, "--socket", &b, "--capture", &captures[1], "--snap", "30", "--quiet"];
    let switch = Switch::start(&args);
    let [mut one, mut two] = [&a, &b].map(|path| Guest::connect(path, MRG));
    exchange(&mut one, &mut two, 5);
    let stdout = String::from_utf8(switch.end().stdout).expect("text");
    assert!(stdout.contains("10 packets in") && stdout.contains("0 left out"), "{stdout}");
    let packets = captured(&short);
    assert_eq!(packets.len(), 10);
    assert!(packets.iter().all(|(bytes, len)| bytes.len() == 30 && (64..=1518).contains(len)));
}

#[test]
fn packets_for_a_dead_guest_are_counted_and_the_next_guest_is_served() {
    let folder = TestFolder::new("dies");
    let (a, b) = (folder.word("a"), folder.word("b"));
    let switch = Switch::start(&["--socket", &a, "--socket", &b, "--format", "json"]);
    let [mut one, mut two] = [&a, &b].map(|path| Guest::connect(path, MRG));
    exchange(&mut one, &mut two, 50);
    drop(two);
    // The answer to this connection proves that the previous session has ended. The new session has no rings yet.
    let wire = dial(b.as_ref());
    wire.agree(PACKED).expect("an agreement");
    one.send_all(50..80);
    let mut two = Guest::set_up(wire, PACKED);
    let got = exchange(&mut one, &mut two, 50);
    for packets in &got {
        assert!(packets.iter().enumerate().all(|(number, bytes)| is_packet(bytes, number as u64)));
    }
    let output = switch.end();
    let summary = schemas::parse(&output.stdout);
    assert_adds_up(&summary);
    assert_eq!((number(&summary, "/ports/0/sessions"), number(&summary, "/ports/1/sessions")), (1, 2));
    assert_eq!(number(&summary, "/ports/1/dropped/no receiver"), 30, "{summary:#}");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(stderr.starts_with(&format!("port 0: {a}\nport 1: {b}\nio forwarding; ")), "{stderr}");
}

/// Returns the frame that tells the network where a guest is: vhost-user, `SEND_RARP`; RFC 903.
fn announcement(address: [u8; 6]) -> Vec<u8> {
    let mut frame = [&[0xff; 6], &address[..], &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]].concat();
    frame.extend([&address[..], &[0; 4], &address, &[0; 4]].concat());
    frame.resize(60, 0);
    frame
}

#[test]
fn a_moved_guest_is_announced_to_the_peer_port_with_its_own_address() {
    const MOVED: [u8; 6] = [0x52, 0x54, 0, 0xab, 0xcd, 0xef];
    let folder = TestFolder::new("moved");
    let (a, b) = (folder.word("a"), folder.word("b"));
    for forward in ["io", "mac"] {
        let args = [
            "--socket",
            &a,
            "--socket",
            &b,
            "--forward",
            forward,
            "--retry",
            "--retry-for",
            "60",
            "--format",
            "json",
            "--quiet",
        ];
        let switch = Switch::start(&args);
        let [mut one, mut two] = [&a, &b].map(|path| Guest::connect(path, MRG));
        one.moves(MOVED);
        assert_eq!(two.receive_some(1), [announcement(MOVED)]);
        // If the other guest's ring is full, the announcement waits and is still sent. The switch takes more packets
        // than fit,
        // so some already wait.
        let (begun, count) = (Instant::now(), u64::from(SIZE) + 64);
        one.send_until(0..count, 64);
        one.moves(MOVED);
        let (mut seen, mut got) = (0, Vec::new());
        while seen < 1 || (got.len() as u64) < count {
            let (news, packets): (Vec<_>, Vec<_>) =
                two.receive().into_iter().partition(|frame| frame[12..14] == [0x80, 0x35]);
            seen += news.len();
            assert!(news.iter().all(|frame| *frame == announcement(MOVED)), "{news:?}");
            got.extend(packets);
            assert!(begun.elapsed() < SOON, "{seen} announcements and {} packets came", got.len());
        }
        assert!(got.iter().enumerate().all(|(number, bytes)| is_packet(bytes, number as u64)));
        assert!(seen == 1 && one.receive().is_empty(), "it is told to the others, once");
        let summary = switch.summary();
        assert_adds_up(&summary);
        assert_eq!((number(&summary, "/ports/0/announced"), number(&summary, "/ports/1/announced")), (2, 0));
        assert_eq!((number(&summary, "/ports/0/generated"), number(&summary, "/ports/1/generated")), (0, 2));
        drop((one, two));
    }
}

/// What broke: with `--retry`, a guest that took no packets blocked the sending port forever.
#[test]
fn a_guest_that_takes_nothing_blocks_its_peer_for_retry_for_at_most() {
    let folder = TestFolder::new("stalled");
    let (a, b) = (folder.word("a"), folder.word("b"));
    let args = ["--socket", &a, "--socket", &b, "--retry", "--retry-for", "0.2", "--format", "json", "--quiet"];
    let switch = Switch::start(&args);
    let [mut one, mut two] = [&a, &b].map(|path| Guest::connect(path, MRG));
    // The receiver has this many buffers, and offers none again until `receive_some`.
    let buffers = u64::from(SIZE);
    one.send_all(0..3 * buffers);
    let came = two.receive_some(SIZE.into());
    assert!(came.iter().enumerate().all(|(number, bytes)| is_packet(bytes, number as u64)));
    // The receiver has offered its buffers again, so packets are no longer dropped.
    one.send_all(3 * buffers..4 * buffers);
    let came = two.receive_some(SIZE.into());
    assert!(came.iter().zip(3 * buffers..).all(|(bytes, number)| is_packet(bytes, number)));
    let summary = switch.summary();
    assert_adds_up(&summary);
    assert_eq!(summary["retry_for_seconds"], 0.2);
    let dropped = &summary["ports"][1]["dropped"];
    assert_eq!(dropped["no room at the receiver for --retry-for"], 2 * buffers, "{summary:#}");
    assert_eq!(dropped.as_object().map(serde_json::Map::len), Some(1), "{summary:#}");
}

#[test]
fn retry_for_requires_retry() {
    let switch = Switch::start(&["--socket", "/nowhere/a", "--retry-for", "3"]);
    let output = switch.wait();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("--retry"), "{stderr}");
}

/// Reads the frontend's end of a connection until the switch has closed it. The switch has then counted the reason.
fn wait_for_the_end(wire: &Wire) {
    let mut rest = Vec::new();
    // A connection that is closed with unread bytes is reset.
    let _ = (&wire.0).read_to_end(&mut rest);
}

/// What broke: refusals were counted only if the frontend had asked for replies, and some were not reported at all.
#[test]
fn every_refusal_is_counted_and_its_reason_is_reported() {
    type Deed = fn(&Wire, &MockGuest, &MockDriver);
    fn say(wire: &Wire, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        assert!(send(&wire.0, &message(request, 0, payload), files));
    }
    fn table(guest: &MockGuest, more: u64) -> Vec<u8> {
        let region = guest.region();
        u64s(&[1, region.guest, region.len + more, region.user, region.offset])
    }
    // Requests without replies that end the session, and the reason that the summary reports.
    let ends: [(&str, Deed); 6] = [
        ("the frontend took features", |wire, _, _| say(wire, 2, &u64s(&[u64::MAX]), &[])),
        ("ring 9 of 2", |wire, _, _| say(wire, 8, &u32s(&[9, 64]), &[])),
        ("request 1 came with 1 files and takes at most 0", |wire, guest, _| {
            say(wire, 1, &[], &[guest.file().as_fd()])
        }),
        ("takes at most 1", |wire, guest, _| say(wire, 5, &table(guest, 0), &[guest.file().as_fd(); 9])),
        ("exceed a file of 4194304 bytes", |wire, guest, _| {
            say(wire, 5, &table(guest, 1 << 20), &[guest.file().as_fd()]);
        }),
        ("a frontend's ring 1 was refused", |wire, guest, driver| {
            say(wire, 5, &table(guest, 0), &[guest.file().as_fd()]);
            say(wire, 8, &u32s(&[1, SIZE.into()]), &[]);
            let mut outside = addresses(1, driver, 0, 0);
            outside[8..16].copy_from_slice(&[0x55; 8]);
            say(wire, 9, &outside, &[]);
            say(wire, 12, &u64s(&[0x101]), &[]);
        }),
    ];
    let folder = TestFolder::new("refused");
    let path = folder.word("a");
    let switch = || Switch::start(&["--socket", &path, "--format", "json", "--quiet"]);
    let guest = || {
        let mut memory = MockGuest::new(4 << 20);
        let driver = MockDriver::new(&mut memory, SIZE, Features::from_bits_retain(MRG), Direction::Transmit);
        (memory, driver)
    };
    for (why, deed) in ends {
        let (switch, (memory, driver)) = (switch(), guest());
        for _ in 0..2 {
            let wire = dial(path.as_ref());
            deed(&wire, &memory, &driver);
            wait_for_the_end(&wire);
        }
        let summary = switch.summary();
        assert_eq!(number(&summary, "/ports/0/refused_requests"), 2, "{why}: {summary:#}");
        let remark = summary["ports"][0]["last_remark"].as_str().unwrap_or_default();
        assert!(remark.contains(why), "{why}: {remark}");
    }
    // A ring is described before its memory, and the memory does not contain it: the table is accepted, and the ring
    // waits
    // for another table.
    let (running, (mut memory, mut driver)) = (switch(), guest());
    let wire = dial(path.as_ref());
    wire.agree(MRG).expect("an agreement");
    wire.ring(1, &driver).expect("a ring");
    let other = MockGuest::new(1 << 20);
    let region = other.region();
    let elsewhere = u64s(&[1, region.guest, region.len, 0x7777_0000_0000, region.offset]);
    wire.tell(5, &elsewhere, &[other.file().as_fd()]).expect("it is taken");
    // The reply to the next request proves that the previous request was handled.
    wire.tell(3, &[], &[]).expect("it is heard");
    let summary = running.summary();
    assert_eq!(number(&summary, "/ports/0/refused_requests"), 1, "{summary:#}");
    let remark = summary["ports"][0]["last_remark"].as_str().unwrap_or_default().to_owned();
    assert!(remark.contains("ring 1 was refused") && remark.contains("not inside one region"), "{remark}");
    // If the file of the guest's memory is truncated, the rings in it break.
    let running = switch();
    let wire = dial(path.as_ref());
    wire.agree(MRG).expect("an agreement");
    wire.memory(&memory).expect("memory");
    let broken = event();
    wire.tell(14, &u64s(&[1]), &[broken.as_fd()]).expect("it is heard");
    wire.ring(1, &driver).expect("a ring");
    let at = memory.lend(BUFFER);
    offer(&mut driver, at, BUFFER);
    rustix::fs::ftruncate(memory.file(), 0).expect("the file is ours");
    let started = Instant::now();
    while count(&broken) == 0 {
        assert!(started.elapsed() < SOON, "the frontend is not told that its ring broke");
        std::thread::yield_now();
    }
    // The summary also reports sessions that have ended since.
    drop(wire);
    let summary = running.summary();
    let remark = summary["ports"][0]["broken_rings"]["1"].as_str().unwrap_or_default();
    assert!(remark.contains("a file of the guest's memory became shorter than announced"), "{summary:#}");
}

/// Environment variable that makes this program the hostile frontend: socket, seed and milliseconds.
const HOSTILE: &str = "TELPHER_TEST_HOSTILE_FRONTEND";
/// Number of a user without any files.
const UNPRIVILEGED: u32 = 64_001;

/// A seeded random generator with ranges and choices.
struct Chance(Random);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// Runs one session of the hostile frontend; errors are expected.
fn hostile_session(chance: &mut Chance, path: &str) -> std::io::Result<()> {
    let features = if chance.below(2) == 0 { MRG } else { PACKED };
    let wire = Wire(UnixStream::connect(path)?);
    // The switch need not answer.
    wire.0.set_read_timeout(Some(Duration::from_millis(500)))?;
    wire.0.set_write_timeout(Some(Duration::from_millis(500)))?;
    let mut memory = MockGuest::new(4 << 20);
    let files = [
        memory.file().try_clone()?,
        event(),
        std::fs::File::open("/dev/zero")?.into(),
        wire.0.try_clone()?.into(),
        rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC)?,
    ];
    if chance.below(4) == 0 {
        // Random bytes, or half of a message; the connection stays open for a while.
        let count = usize::try_from(chance.below(9)).expect("small");
        let bytes = if chance.below(2) == 0 { chance.bytes(64) } else { message(5, 0, &[0; 200])[..100].to_vec() };
        send(&wire.0, &bytes, &vec![files[0].as_fd(); count]);
        std::thread::sleep(Duration::from_millis(chance.below(5)));
        return Ok(());
    }
    wire.agree(features)?;
    wire.memory(&memory)?;
    let agreed = Features::from_bits_retain(features);
    let mut drivers =
        [Direction::Receive, Direction::Transmit].map(|way| MockDriver::new(&mut memory, 64, agreed, way));
    for (ring, driver) in (0..).zip(&drivers) {
        wire.ring(ring, driver)?;
    }
    let buffer = memory.lend(1 << 20);
    for _ in 0..chance.below(60) {
        match chance.below(12) {
            // Chains with any address and length, and random words in a ring.
            0..=4 => {
                let at = if chance.below(3) == 0 { chance.next() } else { buffer + chance.below(1 << 20) };
                let longest = if chance.below(3) == 0 { 1 << 32 } else { 3000 };
                let len = u32::try_from(chance.below(longest)).expect("a word");
                let _ = drivers[usize::from(chance.below(2) == 0)].offer(&[(at, len)]);
            }
            5 => {
                let parts = drivers[usize::from(chance.below(2) == 0)].parts();
                let part =
                    [parts.descriptors, parts.driver, parts.device][usize::try_from(chance.below(3)).expect("small")];
                memory.write(part + 2 * chance.below(64), &chance.bytes(2));
            }
            // The guest's memory is replaced, shortened, or removed.
            6 => {
                let region = memory.region();
                let table = u64s(&[1, region.guest, 4096 * chance.below(1025), region.user, 4096 * chance.below(3)]);
                send(&wire.0, &message(5, 8, &table), &[files[0].as_fd()]);
            }
            7 => rustix::fs::ftruncate(memory.file(), 4096 * chance.below(1024))?,
            8 => {
                let ring = u32::try_from(chance.below(3)).expect("small");
                send(&wire.0, &message(11, 0, &u32s(&[ring, 0])), &[]);
            }
            // Any request, with a payload of the right length, and any files.
            _ => {
                let request = u32::try_from(chance.below(42)).expect("small");
                let len = match request {
                    1 | 3 | 4 | 15 | 17 | 34 | 36 | 40 => 0,
                    6 => 16,
                    9 | 37 | 38 => 40,
                    31 | 32 => 20,
                    _ => 8,
                };
                let payload: Vec<u8> = if chance.below(2) == 0 {
                    chance.bytes(len)
                } else {
                    vec![0; usize::try_from(len).expect("small")]
                };
                let from = usize::try_from(chance.below(files.len() as u64)).expect("small");
                let files: Vec<_> =
                    files[from..].iter().take(usize::try_from(chance.below(3)).expect("small")).collect();
                let files: Vec<BorrowedFd<'_>> = files.into_iter().map(AsFd::as_fd).collect();
                if !send(&wire.0, &message(request, if chance.below(2) == 0 { 8 } else { 0 }, &payload), &files) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Started by the test below; returns at once otherwise.
#[test]
fn the_hostile_frontend() {
    let Ok(role) = std::env::var(HOSTILE) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("it is there");
    let [path, seed, millis] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let end = Instant::now() + Duration::from_millis(millis.parse().expect("a number"));
    let mut chance = Chance(Random::new(seed.parse().expect("a number")));
    for session in 0.. {
        if session >= 20 && Instant::now() >= end {
            break;
        }
        // A refusal ends the session; continue with the next.
        let _ = hostile_session(&mut chance, path);
    }
}

/// Returns the number of file descriptors that the switch has open.
fn open_files(switch: &Switch) -> usize {
    let id = switch.child.as_ref().expect("it runs").id();
    std::fs::read_dir(format!("/proc/{id}/fd")).expect("a list of open files").count()
}

/// Whatever the frontend of another user sends and writes, the other guests' packets arrive unchanged, and the next
/// frontend is served.
#[test]
fn a_hostile_frontend_of_an_unprivileged_user_harms_no_other_guest() {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse::<u64>().expect("whole seconds"));
    let folder = TestFolder::new("hostile");
    let [h, x, a, b] = ["h", "x", "a", "b"].map(|name| folder.word(name));
    let args =
        ["--socket", &h, "--socket", &x, "--socket", &a, "--socket", &b, "--device", "model:spr", "--threshold", "512"];
    // Each packet fits into one buffer of a guest.
    let switch = Switch::start(&[&args[..], &["--longest", "2000", "--format", "json", "--quiet"]].concat());
    let [mut one, mut two] = [&a, &b].map(|path| Guest::connect(path, PACKED));
    let mut partner = Guest::connect(&x, MRG);
    drop(Guest::connect(&h, MRG));
    // The switch serves the next session after it has closed all files of the previous one. The count before and the
    // count
    // after both include one connection on this socket.
    let honest = Guest::connect(&h, MRG);
    let before = open_files(&switch);
    drop(honest);
    let mut hostile = Command::new("/proc/self/exe");
    hostile.args(["--exact", "the_hostile_frontend", "--nocapture", "--test-threads=1"]);
    hostile.env(HOSTILE, format!("{h} 1 {}", seconds * 1000)).stdout(Stdio::null());
    if rustix::process::geteuid().is_root() {
        // Connecting needs write permission; give it to this user.
        hostile.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("the folder is ours");
        std::fs::set_permissions(&h, PermissionsExt::from_mode(0o666)).expect("the socket is ours");
    }
    let mut hostile = hostile.spawn().expect("this program starts again");
    let started = Instant::now();
    let ended = loop {
        for packets in exchange(&mut one, &mut two, 200) {
            assert!(packets.iter().enumerate().all(|(number, bytes)| is_packet(bytes, number as u64)));
        }
        // The peer gives buffers back, and sends packets, too.
        partner.receive();
        partner.send(&packet(7));
        if let Some(status) = hostile.try_wait().expect("it can be waited for") {
            break status;
        }
        assert!(started.elapsed() < SOON + Duration::from_secs(seconds), "the hostile frontend hangs");
    };
    assert!(ended.success(), "the hostile frontend: {ended}");
    let mut guest = Guest::connect(&h, MRG);
    assert_eq!(open_files(&switch), before, "what hostile sessions sent is closed");
    // Free the buffers that hold packets of the hostile guest.
    partner.receive();
    guest.send_all(0..50);
    let is_one = |bytes: &Vec<u8>| {
        let number = bytes.get(14..22).map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")));
        number.is_some_and(|number| number < 50 && bytes.len() >= 64 && is_packet(bytes, number))
    };
    let (mut came, started) = (Vec::new(), Instant::now());
    while came.len() < 50 {
        // These packets arrive after those of the hostile guest.
        came.extend(partner.receive().into_iter().filter(is_one));
        assert!(started.elapsed() < SOON, "{} of 50 packets came", came.len());
    }
    let summary = switch.summary();
    // Invalid chains, and packets that are too long for the switch.
    let chains = ["a buffer", "a chain", "a descriptor", "an indirect", "a packet is longer"];
    assert_adds_up_but_for(&summary, |reason| chains.iter().any(|chain| reason.starts_with(chain)));
    assert!(number(&summary, "/ports/0/sessions") > 3, "{summary:#}");
    assert!(number(&summary, "/ports/0/refused_requests") > 0, "{summary:#}");
    for port in ["1", "2", "3"] {
        assert_eq!(number(&summary, &format!("/ports/{port}/sessions")), 1, "{summary:#}");
    }
}

/// The kernel lets only users with write permission connect to the socket. If root owns it, that is root alone.
#[test]
fn a_user_without_write_permission_cannot_connect() {
    if !rustix::process::geteuid().is_root() {
        let test = "a_user_without_write_permission_cannot_connect";
        return skip::skip(test, "becomes another user, which only root can");
    }
    let folder = TestFolder::new("foreign");
    let path = folder.word("a");
    let switch = Switch::start(&["--socket", &path, "--format", "json", "--quiet"]);
    drop(dial(path.as_ref()));
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("the folder is ours");
    let mode = std::fs::metadata(&path).expect("the socket is there").permissions().mode();
    assert_eq!(mode & 0o002, 0, "of this system's umask, {mode:o}");
    let mut foreign = Command::new("/proc/self/exe");
    foreign.args(["--exact", "the_foreign_user", "--nocapture", "--test-threads=1"]).env(FOREIGN, &path);
    let status = foreign.uid(UNPRIVILEGED).gid(UNPRIVILEGED).stdout(Stdio::null()).status();
    assert!(status.expect("this program starts again").success());
    assert_eq!(number(&switch.summary(), "/ports/0/sessions"), 1);
}

/// Environment variable with the socket to which another user tries to connect.
const FOREIGN: &str = "TELPHER_TEST_FOREIGN_USER";

/// Started by the test above; returns at once otherwise.
#[test]
fn the_foreign_user() {
    let Ok(path) = std::env::var(FOREIGN) else { return };
    let refused = UnixStream::connect(&path).expect_err("it is root's");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // The user cannot replace the socket by another one either.
    assert!(std::fs::remove_file(&path).is_err());
}

#[test]
fn an_announcement_that_waits_for_room_at_the_end_is_held() {
    let folder = TestFolder::new("held");
    let (a, b) = (folder.word("a"), folder.word("b"));
    let args = [
        "--socket",
        &a,
        "--socket",
        &b,
        "--forward",
        "io",
        "--retry",
        "--retry-for",
        "60",
        "--format",
        "json",
        "--quiet",
    ];
    let switch = Switch::start(&args);
    let [mut one, two] = [&a, &b].map(|path| Guest::connect(path, MRG));
    let count = u64::from(SIZE) + 64;
    one.send_until(0..count, 64);
    one.moves([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
    // The switch makes thousands of turns in this time, enough to take the announcement.
    std::thread::sleep(Duration::from_millis(100));
    let summary = switch.summary();
    assert_adds_up(&summary);
    assert_eq!((number(&summary, "/ports/0/announced"), number(&summary, "/ports/1/generated")), (1, 1), "{summary:#}");
    drop((one, two));
}

#[test]
fn a_guest_without_a_peer_port_is_not_announced() {
    let folder = TestFolder::new("alone-moved");
    let path = folder.word("a");
    let switch = Switch::start(&["--socket", &path, "--forward", "io", "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    guest.moves([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
    // The guest's own packet comes back, after anything that the switch sent before.
    assert!(guest.send(&packet(0)));
    let got = guest.receive_some(1);
    assert!(got.len() == 1 && is_packet(&got[0], 0), "{got:?}");
    let summary = switch.summary();
    assert_eq!((number(&summary, "/ports/0/announced"), number(&summary, "/ports/0/generated")), (0, 0), "{summary:#}");
    drop(guest);
}

#[test]
fn packets_are_generated_and_discarded_without_a_peer_port() {
    let folder = TestFolder::new("alone");
    let path = folder.word("a");
    // Generated packets are numbered, and there are as many as the guest takes.
    let args = ["--socket", &path, "--forward", "txonly", "--size", "200", "--format", "json", "--quiet"];
    let switch = Switch::start(&args);
    let mut guest = Guest::connect(&path, PACKED);
    for (number, packet) in guest.receive_some(500).iter().enumerate() {
        assert_eq!((packet.len(), &packet[42..50]), (200, &(number as u64).to_le_bytes()[..]));
    }
    let summary = switch.summary();
    assert_adds_up(&summary);
    assert!(number(&summary, "/ports/0/sent/packets") >= 500 && number(&summary, "/ports/0/generated") >= 500);
    drop(guest);
    // Generated packets have several destinations; received packets are discarded.
    let switch =
        Switch::start(&["--socket", &path, "--forward", "flowgen", "--flows", "3", "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    let destinations: Vec<Vec<u8>> = guest.receive_some(6).iter().map(|packet| packet[30..34].to_vec()).collect();
    assert_eq!(destinations[..3], destinations[3..6]);
    assert_eq!(destinations.iter().collect::<std::collections::HashSet<_>>().len(), 3);
    guest.send_all(0..200);
    let summary = switch.summary();
    assert_adds_up(&summary);
    assert_eq!(number(&summary, "/ports/0/discarded"), 200);
    drop(guest);
    // Received packets are discarded, and none is sent.
    let switch = Switch::start(&["--socket", &path, "--forward", "rxonly", "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    guest.send_all(0..200);
    assert_eq!(guest.receive().len(), 0);
    let summary = switch.summary();
    assert_adds_up(&summary);
    assert_eq!((number(&summary, "/ports/0/discarded"), number(&summary, "/ports/0/sent/packets")), (200, 0));
}

#[test]
fn a_client_port_connects_to_waiting_frontends() {
    let folder = TestFolder::new("client");
    let path = folder.path("guest");
    let listener = UnixListener::bind(&path).expect("a socket");
    let port = format!("{},client", path.display());
    let switch = Switch::start(&["--socket", &port, "--format", "json", "--quiet"]);
    let mut last = None;
    for _ in 0..2 {
        // The previous guest leaves, and the switch connects again.
        drop(last.take());
        let wire = Wire(listener.accept().expect("it comes").0);
        wire.agree(MRG).expect("an agreement");
        let mut guest = Guest::set_up(wire, MRG);
        guest.send_all(0..40);
        // The port has no peer, so its packets come back.
        let packets = guest.receive_some(40);
        assert!(packets.iter().enumerate().all(|(number, bytes)| *bytes == packet(number as u64)));
        last = Some(guest);
    }
    assert_eq!(number(&switch.summary(), "/ports/0/sessions"), 2);
    drop(last);
}

#[test]
fn features_are_shown_with_and_without_a_guest() {
    let telpher = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_telpher")).arg("vhost").args(args).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let offered = telpher(&["--show-features"]);
    for words in ["Device features (offered)", "34  yes  VIRTIO_F_RING_PACKED", "Protocol features", "REPLY_ACK"] {
        assert!(offered.contains(words), "{words}: {offered}");
    }
    let bits = schemas::parse(telpher(&["--show-features", "--format", "json"]));
    assert_eq!(bits["device"][0]["name"], "VIRTIO_NET_F_CSUM");
    let folder = TestFolder::new("features");
    let path = folder.word("a");
    let switch = Switch::start(&["--socket", &path, "--show-features"]);
    let wire = dial(Path::new(&path));
    wire.agree(PACKED).expect("an agreement");
    let mut memory = MockGuest::new(4 << 20);
    let driver = MockDriver::new(&mut memory, SIZE, Features::from_bits_retain(PACKED), Direction::Receive);
    wire.memory(&memory).expect("memory");
    // A running ring is all that the switch waits for. It may end before the frontend has its reply.
    let _ = wire.ring(0, &driver);
    let output = switch.wait();
    assert!(output.status.success());
    let agreed = String::from_utf8(output.stdout).expect("text");
    assert!(agreed.contains("34  yes  yes  VIRTIO_F_RING_PACKED"), "{agreed}");
    assert!(agreed.contains("35  yes  -    VIRTIO_F_IN_ORDER"), "{agreed}");
}

/// Returns a function that runs `ip` with these arguments until it succeeds, since interfaces are created after
/// sockets.
/// Skips and returns `None` if this machine cannot have interfaces.
fn tap_tools(test: &str) -> Option<impl Fn(&str)> {
    let ip = |words: &str| Command::new("ip").args(words.split(' ')).output();
    let root = rustix::process::geteuid().is_root();
    if !root || !Path::new("/dev/net/tun").exists() || ip("-V").is_err() {
        eprintln!("{test} skipped: a TAP interface needs root, /dev/net/tun and the program ip");
        return None;
    }
    Some(move |words: &str| {
        let start = Instant::now();
        while let done = ip(words).expect("ip runs")
            && !done.status.success()
        {
            assert!(start.elapsed() < SOON, "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
        }
    })
}

#[test]
fn an_interface_of_this_system_is_a_port() {
    let Some(ip) = tap_tools("an_interface_of_this_system_is_a_port") else { return };
    let folder = TestFolder::new("tap");
    let path = folder.word("a");
    let switch = Switch::start(&["--socket", &path, "--tap", "tlphr%", "--quiet"]);
    let output = switch.wait();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("an interface's name has 1 to 15"), "{stderr}");
    let name = format!("tlphr{}", std::process::id());
    let switch = Switch::start(&["--socket", &path, "--tap", &name, "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    ip(&format!("addr add 198.18.77.1/30 dev {name}"));
    ip(&format!("link set {name} up"));
    // Who has 198.18.77.1? Tell 198.18.77.2 (RFC 826).
    let mut request = vec![0xff; 6];
    request.extend([2, 0, 0, 0, 0, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 7, 198, 18, 77, 2]);
    request.extend([0, 0, 0, 0, 0, 0, 198, 18, 77, 1]);
    request.resize(60, 0);
    let is_answer =
        |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[20..22] == [0, 2] && frame[28..32] == [198, 18, 77, 1];
    let started = Instant::now();
    let answer = loop {
        guest.send(&request);
        if let Some(answer) = guest.receive().into_iter().find(is_answer) {
            break answer;
        }
        assert!(started.elapsed() < SOON, "nothing answers at {name}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!((&answer[..6], &answer[38..42]), (&[2, 0, 0, 0, 0, 7][..], &[198, 18, 77, 2][..]));
    let summary = switch.summary();
    assert_eq!(summary["ports"][1]["name"], format!("tap {name}"));
    assert!(number(&summary, "/ports/1/received/packets") >= 1 && number(&summary, "/ports/1/sent/packets") >= 1);
}

#[test]
fn frames_that_an_interface_refuses_or_the_switch_cannot_hold_are_counted() {
    let Some(ip) = tap_tools("frames_that_an_interface_refuses_or_the_switch_cannot_hold_are_counted") else { return };
    let folder = TestFolder::new("tap-odd");
    let (path, name) = (folder.word("a"), format!("tlpho{}", std::process::id()));
    let args = ["--socket", &path, "--tap", &name, "--longest", "1600", "--format", "json", "--quiet"];
    let switch = Switch::start(&args);
    let mut guest = Guest::connect(&path, MRG);
    // While the interface is down, it has no receiver.
    guest.send_all(0..10);
    for command in ["addr add 198.18.78.1/30 dev", "link set mtu 4000 dev", "link set up dev"] {
        ip(&format!("{command} {name}"));
    }
    ip(&format!("neigh add 198.18.78.2 lladdr 02:00:00:00:00:07 dev {name}"));
    // A frame without a complete header: the interface refuses it at once, and takes the frames that follow.
    let started = Instant::now();
    while !guest.send(&[7; 10]) {
        assert!(started.elapsed() < SOON);
    }
    guest.send_all(10..20);
    // UDP datagrams, with Ethernet's 14, IPv4's 20 and UDP's 8 bytes of headers: one makes a frame that is one byte too
    // long,
    // one the longest frame.
    let system = std::net::UdpSocket::bind("198.18.78.1:0").expect("an address of this system");
    for bytes in [1601 - 42, 1600 - 42] {
        system.send_to(&vec![9; bytes], "198.18.78.2:9").expect("a way to the guest");
    }
    let is_datagram = |frame: &Vec<u8>| frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == [0, 9];
    let mut came = Vec::new();
    while came.is_empty() {
        came.extend(guest.receive().into_iter().filter(is_datagram));
        assert!(started.elapsed() < SOON, "the longest frame does not come");
        std::thread::yield_now();
    }
    assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), [1600]);
    let summary = switch.summary();
    let dropped = |reason: &str| summary["ports"][1]["dropped"][reason].as_u64();
    assert_eq!(dropped("no receiver"), Some(10), "{summary:#}");
    assert_eq!(dropped("a frame is shorter than an Ethernet header"), Some(1), "{summary:#}");
    assert_eq!(dropped("a frame is longer than --longest"), Some(1), "{summary:#}");
    assert_eq!((number(&summary, "/ports/1/sent/packets"), number(&summary, "/ports/1/unsettled")), (10, 0));
    drop(guest);
}

#[test]
fn packets_too_long_for_a_guests_buffers_are_counted_once() {
    let folder = TestFolder::new("short");
    let path = folder.word("a");
    let args = ["--socket", &path, "--forward", "txonly", "--size", "4000", "--longest", "4000", "--format", "json"];
    let switch = Switch::start(&[&args[..], &["--quiet"]].concat());
    let guest = Guest::connect(&path, Features::VERSION_1.bits());
    std::thread::sleep(Duration::from_millis(100));
    let summary = switch.summary();
    assert_adds_up(&summary);
    let dropped = summary["ports"][0]["dropped"].as_object().expect("reasons");
    assert!(dropped.values().any(|count| count.as_u64() > Some(0)), "{summary:#}");
    assert_eq!((number(&summary, "/ports/0/sent/packets"), number(&summary, "/ports/0/unsettled")), (0, 0));
    drop(guest);
}

#[test]
fn an_interface_has_a_queue_for_each_pair_that_its_guest_uses() {
    let Some(ip) = tap_tools("an_interface_has_a_queue_for_each_pair_that_its_guest_uses") else { return };
    const MOVED: [u8; 6] = [0x52, 0x54, 0, 0xab, 0xcd, 0xef];
    let folder = TestFolder::new("queues");
    let (path, name) = (folder.word("a"), format!("tlphq{}", std::process::id()));
    let (socket, capture) = (format!("{path},queues=2"), format!("1:{}", folder.word("tap.pcap")));
    let args = ["--socket", &socket, "--tap", &name, "--capture", &capture, "--format", "json", "--quiet"];
    let switch = Switch::start(&[&args[..], &["--cpus", "0"]].concat());
    let mut guest = Guest::connect(&path, MRG);
    ip(&format!("link set {name} up"));
    let queues = || std::fs::read_dir(format!("/sys/class/net/{name}/queues")).map_or(0, Iterator::count) / 2;
    let wait = |wanted: usize| {
        let started = Instant::now();
        while queues() != wanted {
            assert!(started.elapsed() < SOON, "{} queues, not {wanted}", queues());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // The second pair of queues does not run yet, so no flow uses it.
    wait(1);
    let agreed = Features::from_bits_retain(MRG);
    let mut second = MockDriver::new(&mut guest.memory, SIZE, agreed, Direction::Transmit);
    let receive = MockDriver::new(&mut guest.memory, SIZE, agreed, Direction::Receive);
    guest.wire.ring(2, &receive).expect("a ring");
    guest.wire.ring(3, &second).expect("a ring");
    wait(2);
    guest.moves(MOVED);
    // Send through both pairs. The kernel also sends frames of its own to no particular receiver.
    for number in 0..20 {
        let at = guest.memory.lend(BUFFER);
        let bytes = packet(number);
        guest.memory.write(at, &[0; HEADER]);
        guest.memory.write(at + HEADER as u64, &bytes);
        offer(&mut second, at, (HEADER + bytes.len()) as u64);
    }
    guest.send_all(20..40);
    let start_time = Instant::now();
    let mut back = 0;
    while back < 20 {
        back += second.collect().len();
        assert!(start_time.elapsed() < SOON, "{back} of 20 packets of the second pair are taken");
    }
    // The pair is disabled, so no flow uses it any more.
    guest.wire.tell(18, &[2_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat(), &[]).expect("it is heard");
    wait(1);
    let summary = switch.summary();
    assert!(number(&summary, "/ports/1/sent/packets") >= 41, "{summary:#}");
    assert_eq!((number(&summary, "/ports/0/announced"), number(&summary, "/ports/1/generated")), (1, 1));
    let frames: Vec<_> = captured(&folder.path("tap.pcap")).into_iter().map(|(frame, _)| frame).collect();
    assert_eq!(frames.iter().filter(|frame| **frame == announcement(MOVED)).count(), 1);
    for number in 0..40 {
        assert_eq!(frames.iter().filter(|frame| **frame == packet(number)).count(), 1, "packet {number}");
    }
}

/// An interface that exists until this is dropped.
struct Made<'a, F: Fn(&str)>(&'a str, &'a F);

impl<F: Fn(&str)> Drop for Made<'_, F> {
    fn drop(&mut self) {
        if Path::new("/sys/class/net").join(self.0).exists() {
            self.1(&format!("link del {}", self.0));
        }
    }
}

#[test]
fn an_existing_interface_keeps_its_settings() {
    let Some(ip) = tap_tools("an_existing_interface_keeps_its_settings") else { return };
    let folder = TestFolder::new("made");
    let path = folder.word("a");
    let name = format!("tlphm{}", std::process::id());
    let several = format!("{path},queues=2");
    let begin = |socket: &str| Switch::start(&["--socket", socket, "--tap", &name, "--format", "json", "--quiet"]);
    for (kind, works) in [("", [true, false]), (" multi_queue", [true, true])] {
        let _made = Made(&name, &ip);
        ip(&format!("tuntap add {name} mode tap{kind}"));
        for (socket, works) in [&path, &several].into_iter().zip(works) {
            let switch = begin(socket);
            if works {
                drop(Guest::connect(&path, MRG));
                assert_eq!(switch.summary()["ports"][1]["name"], format!("tap {name}"));
            } else {
                let stderr = String::from_utf8(switch.wait().stderr).expect("text");
                assert!(stderr.contains("make it anew (ip tuntap add NAME mode tap multi_queue)"), "{stderr}");
            }
        }
    }
}

#[test]
fn invalid_options_are_refused_in_one_sentence_with_a_remedy() {
    let folder = TestFolder::new("refused");
    let path = folder.word("a");
    let long = folder.word(&"x".repeat(120));
    let [file, living] = ["file", "living"].map(|name| folder.word(name));
    std::fs::write(&file, "another program's").expect("a file");
    let _listener = UnixListener::bind(&living).expect("a socket");
    let cases: [(&[&str], &str); 17] = [
        (&[], "give --socket PATH for a guest, or --tap NAME"),
        (&["--socket", ",client"], "has no path; a port is PATH"),
        (&["--socket", "a,queues=0"], "queues=1 to queues=128"),
        (&["--socket", "no/such/folder/a"], "give another path with --socket"),
        (&["--socket", &long], "cannot name a socket at"),
        (&["--socket", &file], "a file that is not a socket; remove it, or give another path"),
        (&["--socket", &living], "another process listens there; stop it, or give another path"),
        (&["--socket", &path, "--forward", "route"], "io or mac or rxonly"),
        (&["--socket", &path, "--device", "gpu"], "accepted: cpu, model:spr"),
        (&["--socket", &path, "--device", "model:spr", "--map", "txq0@wq7.7"], "model:spr has wq0.0, wq0.1"),
        (&["--socket", &path, "--map", "txq0"], "such as txq0@wq0.1"),
        (&["--socket", &path, "--threshold", "512"], "name one with --device"),
        (&["--socket", &path, "--cpus", "9999"], "name one of them with --cpus"),
        (&["--socket", &path, "--capture", "1:a.pcap"], "the ports are 0 to 0"),
        (&["--socket", &path, "--capture", "0:no/such/folder/a.pcap"], "name another file with --capture"),
        (&["--socket", &path, "--forward", "txonly", "--size", "4000"], "give --longest 4000"),
        (&["--tap", "a/b"], "an interface's name has 1 to 15"),
    ];
    for (args, words) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_telpher")).arg("vhost").args(args).output().expect("it runs");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?} said more than a sentence: {stderr}");
        assert!(stderr.starts_with("telpher: ") && stderr.contains(words), "{args:?}: {stderr}");
    }
    assert_eq!(std::fs::read(&file).expect("it is there"), b"another program's");
    assert!(Path::new(&living).exists());
}

#[test]
fn a_socket_whose_switch_was_killed_is_replaced() {
    let folder = TestFolder::new("stale");
    let path = folder.word("a");
    let mut killed = Switch::start(&["--socket", &path, "--quiet"]);
    dial(path.as_ref()).agree(MRG).expect("an agreement");
    let child = killed.child.as_mut().expect("it runs");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(Path::new(&path).exists());
    let switch = Switch::start(&["--socket", &path, "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    guest.send_all(0..20);
    assert_eq!(guest.receive_some(20).len(), 20);
    drop(guest);
    assert_eq!(number(&switch.summary(), "/ports/0/sessions"), 1);
    assert!(!Path::new(&path).exists());
}
