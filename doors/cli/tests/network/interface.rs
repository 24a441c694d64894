//! `telpher vhost --nic`: an interface of this system between a guest and the other end of a veth pair.

use super::network::{GUEST_IP, GUEST_MAC, Namespace, Network, PARTNER, PARTNER_IP, PARTNER_MAC, PORT, UDP_PORT};
use super::{
    BUFFER, Guest, HEADER, MRG, PACKED, SIZE, SOON, Switch, TestFolder, assert_adds_up_but_for, captured, number,
    offer, schemas, skip,
};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver};

/// Bytes before a datagram's payload: Ethernet 14, IPv4 20, UDP 8.
const HEADERS: usize = 42;
/// Numbered packets each way. `peers::long` has a million.
const COUNT: u64 = 50_000;
/// The most packets of one direction in flight. Fewer than a guest's ring has buffers, and than a socket holds.
const WINDOW: u64 = 48;

/// Starts the switch in a namespace.
fn start(namespace: &Namespace, args: &[&str]) -> Switch {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.path().display())).args([env!("CARGO_BIN_EXE_telpher"), "vhost"]);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    Switch { child: Some(command.spawn().expect("nsenter of util-linux")) }
}

/// Creates a network, or skips the test.
fn network(test: &str) -> Option<Network> {
    match Network::new() {
        Ok(network) => Some(network),
        Err(why) => {
            skip::skip(test, &why);
            None
        }
    }
}

/// The sum of RFC 1071 over bytes, which is 0 if they contain their checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

/// The UDP checksum's bytes: pseudo-header and datagram (RFC 768).
fn summed(packet: &[u8]) -> Vec<u8> {
    let datagram = &packet[20..];
    let len = u16::try_from(datagram.len()).expect("short").to_be_bytes();
    [&packet[12..20], &[0, 17], &len, datagram].concat()
}

/// The payload of datagram `number`: its number, then bytes that follow from it; up to 1472 bytes.
fn payload(number: u64) -> Vec<u8> {
    let len = usize::try_from(number * 97 % 1465).expect("small");
    let body = (0..len).map(|at| number.wrapping_mul(31).wrapping_add(at as u64).to_le_bytes()[0]);
    number.to_le_bytes().into_iter().chain(body).collect()
}

/// A datagram of the guest to the partner, as a whole frame.
fn from_guest(payload: &[u8]) -> Vec<u8> {
    let total = |bytes: usize| u16::try_from(bytes + payload.len()).expect("short").to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(total(28));
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend([GUEST_IP, PARTNER_IP].concat());
    let sum = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend([UDP_PORT.to_be_bytes(), UDP_PORT.to_be_bytes(), total(8), [0; 2]].concat());
    packet.extend(payload);
    let sum = match checksum(&summed(&packet)) {
        0 => u16::MAX,
        sum => sum,
    };
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
    [&PARTNER_MAC[..], &GUEST_MAC, &[8, 0], &packet].concat()
}

/// Returns port and payload of a frame that is a datagram from the partner to the guest, after a look at its checksums.
/// The partner's system also sends frames of its own, for which it returns `None`.
fn datagram(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (addresses, packet) = frame.split_at_checked(14)?;
    let ours = addresses == [&GUEST_MAC[..], &PARTNER_MAC, &[8, 0]].concat() && packet[9] == 17;
    if !ours {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    // Without the bytes that make a frame as long as the shortest.
    let packet = &packet[..total];
    assert_eq!((checksum(&packet[..20]), checksum(&summed(packet))), (0, 0), "checksums of {packet:?}");
    assert_ne!(packet[26..28], [0; 2], "a checksum");
    // Without a payload it is one of `ready`.
    (total > 28).then_some(())?;
    Some((u16::from_be_bytes([packet[20], packet[21]]), &frame[HEADERS..14 + total]))
}

/// Returns the payloads of the datagrams that came to the guest, in their order.
fn received(guest: &mut Guest) -> Vec<Vec<u8>> {
    guest.receive().iter().filter_map(|frame| Some(datagram(frame)?.1.to_vec())).collect()
}

/// Sends datagrams without a payload until one comes: then nothing is lost for want of a guest any more.
fn ready(guest: &mut Guest, udp: &UdpSocket) {
    let begun = Instant::now();
    let is_ours = |frame: &Vec<u8>| frame[..14] == [&GUEST_MAC[..], &PARTNER_MAC, &[8, 0]].concat() && frame[23] == 17;
    while !guest.receive().iter().any(is_ours) {
        udp.send(&[]).expect("it is sent");
        assert!(begun.elapsed() < SOON, "no datagram comes");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Sends `count` numbered packets each way at the same time, from the number `first` on, at most a window in flight,
/// and checks that all come, in order and unchanged.
fn exchange(guest: &mut Guest, udp: &UdpSocket, first: u64, count: u64) {
    let (mut sent, mut came) = ([first; 2], [first; 2]);
    let (end, mut begun) = (first + count, Instant::now());
    let mut room = [0; 2048];
    while came != [end; 2] {
        let before = came;
        while sent[0] < end.min(came[0] + WINDOW) && udp.send(&payload(sent[0])).is_ok() {
            sent[0] += 1;
        }
        for bytes in received(guest) {
            assert!(bytes == payload(came[0]), "packet {} to the guest", came[0]);
            came[0] += 1;
        }
        while sent[1] < end.min(came[1] + WINDOW) && guest.send(&from_guest(&payload(sent[1]))) {
            sent[1] += 1;
        }
        while let Ok(len) = udp.recv(&mut room) {
            assert!(room[..len] == payload(came[1]), "packet {} to the partner", came[1]);
            came[1] += 1;
        }
        if came != before {
            begun = Instant::now();
        }
        assert!(begun.elapsed() < SOON, "{sent:?} sent, {came:?} came");
        std::thread::yield_now();
    }
}

/// Returns the dropped packets of a port that concern the test's packets. The partner's system also sends some frames
/// of its own, which may come when no guest is there.
fn dropped<'a>(summary: &'a Value, port: &str) -> Vec<(&'a String, &'a Value)> {
    let reasons = summary.pointer(&format!("/ports/{port}/dropped")).and_then(Value::as_object).expect("reasons");
    reasons.iter().filter(|(reason, _)| *reason != "no receiver").collect()
}

#[test]
fn frames_pass_between_an_interface_and_a_guest_in_order_and_none_is_lost() {
    let test = "frames_pass_between_an_interface_and_a_guest_in_order_and_none_is_lost";
    for (features, more) in [(MRG, &[][..]), (PACKED, &["--device", "model:spr", "--threshold", "512"])] {
        let Some(network) = network(test) else { return };
        let folder = TestFolder::new("nic");
        let path = folder.word("a");
        let args = ["--socket", &path, "--nic", PORT, "--format", "json", "--quiet"];
        let switch = start(&network.switch, &[&args, more].concat());
        let mut guest = Guest::connect(&path, features);
        let udp = network.udp(UDP_PORT);
        ready(&mut guest, &udp);
        exchange(&mut guest, &udp, 0, COUNT / 2);
        let summary = switch.summary();
        assert_adds_up_but_for(&summary, |_| false);
        assert_eq!(summary["ports"][1]["name"], format!("nic {PORT}"));
        assert_eq!((dropped(&summary, "0"), dropped(&summary, "1")), (vec![], vec![]), "{summary:#}");
        assert_eq!(number(&summary, "/ports/1/sent/packets"), COUNT / 2);
        assert!(number(&summary, "/ports/0/sent/packets") >= COUNT / 2, "{summary:#}");
        drop(guest);
    }
}

/// The lines that the switch prints, while it runs.
struct Lines {
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    fn of(switch: &mut Switch) -> Lines {
        let stderr = switch.child.as_mut().and_then(|child| child.stderr.take()).expect("piped");
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Lines { lines, seen: Vec::new() }
    }

    /// Does `meanwhile` until a new line contains `words`.
    fn wait(&mut self, words: &str, mut meanwhile: impl FnMut()) {
        let begun = Instant::now();
        loop {
            meanwhile();
            while let Ok(line) = self.lines.try_recv() {
                let found = line.contains(words);
                self.seen.push(line);
                if found {
                    return;
                }
            }
            assert!(begun.elapsed() < SOON, "no line with {words:?} in {:#?}", self.seen);
        }
    }

    fn count(&self, words: &str) -> usize {
        self.seen.iter().filter(|line| line.contains(words)).count()
    }
}

#[test]
fn an_interface_may_go_down_and_away_under_load() {
    let Some(network) = network("an_interface_may_go_down_and_away_under_load") else { return };
    let folder = TestFolder::new("nic-away");
    let path = folder.word("a");
    let mut switch = start(&network.switch, &["--socket", &path, "--nic", PORT, "--format", "json"]);
    let mut lines = Lines::of(&mut switch);
    let mut guest = Guest::connect(&path, MRG);
    let udp = network.udp(UDP_PORT);
    ready(&mut guest, &udp);
    exchange(&mut guest, &udp, 0, 100);
    let load = |guest: &mut Guest, udp: &UdpSocket| {
        for number in 0..16 {
            // Without a link neither arrives, and the partner's system may refuse to send.
            let _ = (guest.send(&from_guest(&payload(number))), udp.send(&payload(number)));
        }
        guest.receive();
        while udp.recv(&mut [0; 2048]).is_ok() {}
        std::thread::yield_now();
    };
    // Once nothing is left from before, numbered packets pass again.
    let settle = |guest: &mut Guest, udp: &UdpSocket| {
        let marks = [u64::MAX - 1, u64::MAX];
        let (mut came, begun) = ([false; 2], Instant::now());
        let _ = (udp.send(&marks[0].to_le_bytes()), guest.send(&from_guest(&marks[1].to_le_bytes())));
        while came != [true; 2] {
            came[0] |= received(guest).iter().any(|bytes| bytes[..] == marks[0].to_le_bytes());
            let mut room = [0; 2048];
            while let Ok(len) = udp.recv(&mut room) {
                came[1] |= room[..len] == marks[1].to_le_bytes();
            }
            assert!(begun.elapsed() < SOON, "{came:?}");
        }
    };
    network.switch.ip(&format!("link set {PORT} down"));
    lines.wait("port 1: its interface is down", || load(&mut guest, &udp));
    network.switch.ip(&format!("link set {PORT} up"));
    lines.wait("port 1: its interface is up", || load(&mut guest, &udp));
    settle(&mut guest, &udp);
    exchange(&mut guest, &udp, 100, 1000);
    network.switch.ip(&format!("link del {PORT}"));
    lines.wait("port 1: its interface was removed", || load(&mut guest, &udp));
    network.connect();
    lines.wait("port 1: its interface is up", || load(&mut guest, &udp));
    settle(&mut guest, &udp);
    exchange(&mut guest, &udp, 1100, 1000);
    let output = switch.end();
    let summary = schemas::parse(&output.stdout);
    assert!(number(&summary, "/ports/1/dropped/no receiver") > 0, "{summary:#}");
    let said = ["interface is down", "was removed", "interface is up"].map(|words| lines.count(words));
    assert_eq!(said, [1, 1, 2], "{:#?}", lines.seen);
}

#[test]
fn large_frames_of_a_veth_partner_are_divided_and_their_checksums_are_right() {
    const BYTES: usize = 4 << 20;
    let test = "large_frames_of_a_veth_partner_are_divided_and_their_checksums_are_right";
    let Some(network) = network(test) else { return };
    let folder = TestFolder::new("nic-large");
    // A second veth pair in the same two namespaces would be reached without the switch; the other end needs its own.
    let other = Namespace::new("other").expect("as the first two");
    network.switch.ip(&format!("link add port1 type veth peer name partner1 netns {}", other.path().display()));
    other.ip("addr add 198.18.79.2/24 dev partner1");
    other.ip("link set partner1 up");
    network.switch.ip("link set port1 up");
    network.partner.ip(&format!("neigh del 198.18.79.2 dev {PARTNER}"));
    let capture = folder.word("a.pcap");
    let args = ["--nic", PORT, "--nic", "port1", "--retry", "--capture", &format!("0:{capture}"), "--format", "json"];
    let switch = start(&network.switch, &[&args[..], &["--quiet"]].concat());
    let listener = other.within(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 4000))).expect("a listener");
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251).to_le_bytes()[0]).collect();
    let mut sender =
        network.partner.within(|| TcpStream::connect_timeout(&(Ipv4Addr::from(GUEST_IP), 4000).into(), SOON));
    let sender = sender.as_mut().expect("a connection through the switch");
    let (mut receiver, _) = listener.accept().expect("the same connection");
    receiver.set_read_timeout(Some(SOON)).expect("a socket");
    let got = std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&bytes).expect("it is sent");
            sender.shutdown(std::net::Shutdown::Write).expect("a socket");
        });
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).expect("it comes");
        got
    });
    assert!(got == bytes, "{} of {BYTES} bytes came", got.len());
    let sent = network.partner.within(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("counters");
    let row = sent.lines().find_map(|line| line.trim().strip_prefix(PARTNER)?.strip_prefix(':')).expect("a row");
    let frames: u64 = row.split_whitespace().nth(9).and_then(|word| word.parse().ok()).expect("frames sent");
    let summary = switch.summary();
    let packets = number(&summary, "/ports/0/received/packets");
    // Frames of the partner were large: there are more packets than frames.
    assert!(frames * 2 < packets && packets > (BYTES / 1448) as u64, "{frames} frames, {packets} packets");
    assert_eq!(summary["ports"][0]["dropped"], serde_json::json!({}), "{summary:#}");
    assert_adds_up_but_for(&summary, |_| false);
    let longest = captured(capture.as_ref()).iter().map(|(_, len)| *len).max();
    assert!(longest.is_some_and(|len| len <= 1514), "{longest:?}");
}

#[test]
fn frames_that_do_not_fit_are_counted() {
    let Some(network) = network("frames_that_do_not_fit_are_counted") else { return };
    let Network { switch: here, partner: there } = &network;
    there.ip(&format!("link set {PARTNER} mtu 4000"));
    here.ip(&format!("link set {PORT} mtu 4000"));
    let folder = TestFolder::new("nic-fit");
    let path = folder.word("a");
    let args = ["--socket", &path, "--nic", PORT, "--longest", "3042", "--format", "json", "--quiet"];
    let switch = start(here, &args);
    // Without merged buffers, of which each has 2048 bytes with the header.
    let mut guest = Guest::connect(&path, Features::VERSION_1.bits());
    let udp = network.udp(UDP_PORT);
    ready(&mut guest, &udp);
    // Too long for the switch, too long for the guest, and the longest that fits.
    for len in [3001, 3000, 2048 - HEADER - HEADERS + 1, 2048 - HEADER - HEADERS] {
        udp.send(&vec![7; len]).expect("it is sent");
    }
    let (mut came, begun) = (Vec::new(), Instant::now());
    while came.is_empty() {
        came = received(&mut guest);
        assert!(begun.elapsed() < SOON, "the longest that fits does not come");
    }
    assert_eq!(came, [vec![7; 2048 - HEADER - HEADERS]]);
    here.ip(&format!("link set {PORT} mtu 1500"));
    // One byte more than the MTU, no whole header, then one that passes.
    for frame in [from_guest(&[1; 1473]), vec![9; 10], from_guest(b"passes")] {
        guest.send_until_taken(&frame);
    }
    udp.set_nonblocking(false).expect("a socket");
    udp.set_read_timeout(Some(SOON)).expect("a socket");
    let mut room = [0; 64];
    let len = udp.recv(&mut room).expect("a datagram");
    assert_eq!(&room[..len], b"passes");
    let summary = switch.summary();
    let count = |port: usize, reason: &str| summary["ports"][port]["dropped"][reason].as_u64();
    assert_eq!(count(0, "a packet does not fit the guest's buffer"), Some(2), "{summary:#}");
    assert_eq!(count(1, "a frame is longer than --longest"), Some(1), "{summary:#}");
    assert_eq!(count(1, "a frame is longer than the interface's MTU"), Some(1), "{summary:#}");
    assert_eq!(count(1, "a frame is shorter than an Ethernet header"), Some(1), "{summary:#}");
    assert_eq!((number(&summary, "/ports/1/sent/packets"), number(&summary, "/ports/1/unsettled")), (1, 0));
    drop(guest);
}

#[test]
fn a_tag_of_a_virtual_network_stays() {
    let test = "a_tag_of_a_virtual_network_stays";
    let Some(network) = network(test) else { return };
    let there = &network.partner;
    let words = ["link", "add", "link", PARTNER, "name", "tagged0", "type", "vlan", "id", "5"];
    if !there.within(|| Command::new("ip").args(words).status()).is_ok_and(|status| status.success()) {
        return skip::skip(test, "the kernel has no VLAN devices");
    }
    there.ip("addr add 198.18.80.1/24 dev tagged0");
    there.ip("link set tagged0 up");
    there.ip("neigh add 198.18.80.2 lladdr 02:00:00:00:00:07 dev tagged0");
    let folder = TestFolder::new("nic-tag");
    let path = folder.word("a");
    let switch = start(&network.switch, &["--socket", &path, "--nic", PORT, "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    ready(&mut guest, &network.udp(UDP_PORT));
    let begun = Instant::now();
    // It comes with the frame, whose checksum is complete.
    let tagged = there.within(|| UdpSocket::bind("198.18.80.1:4000")).expect("an address");
    tagged.send_to(b"a tagged datagram", "198.18.80.2:4000").expect("it is sent");
    let is_tagged = |frame: &Vec<u8>| frame[12..18] == [0x81, 0, 0, 5, 8, 0] && frame[27] == 17;
    let frame = loop {
        if let Some(frame) = guest.receive().into_iter().find(is_tagged) {
            break frame;
        }
        assert!(begun.elapsed() < SOON, "the tagged frame does not come");
    };
    assert_eq!(checksum(&summed(&frame[18..])), 0);
    assert!(frame.ends_with(b"a tagged datagram"));
    // Back with swapped addresses, which leave the checksums as they are.
    let mut back = frame.clone();
    for (from, to, len) in [(0, 6, 6), (6, 0, 6), (30, 34, 4), (34, 30, 4)] {
        back[to..to + len].copy_from_slice(&frame[from..from + len]);
    }
    guest.send_until_taken(&back);
    tagged.set_read_timeout(Some(SOON)).expect("a socket");
    let mut room = [0; 64];
    let len = tagged.recv(&mut room).expect("the tagged frame comes back");
    assert_eq!(&room[..len], b"a tagged datagram");
    drop((switch, guest));
}

#[test]
fn flows_are_divided_among_the_queues_that_the_guest_uses_and_keep_their_order() {
    const FLOWS: u16 = 32;
    const EACH: u64 = 50;
    let test = "flows_are_divided_among_the_queues_that_the_guest_uses_and_keep_their_order";
    let Some(network) = network(test) else { return };
    let folder = TestFolder::new("nic-queues");
    let path = folder.word("a");
    let socket = format!("{path},queues=2");
    let switch = start(&network.switch, &["--socket", &socket, "--nic", PORT, "--format", "json", "--quiet"]);
    let mut guest = Guest::connect(&path, MRG);
    ready(&mut guest, &network.udp(UDP_PORT));
    let flows: Vec<UdpSocket> = (0..FLOWS).map(|flow| network.udp(5000 + flow)).collect();
    let mut next: HashMap<u16, u64> = HashMap::new();
    let mut expect = |frame: &[u8]| {
        let Some((flow, bytes)) = datagram(frame) else { return 0 };
        let next = next.entry(flow).or_default();
        assert!(bytes == payload(*next), "packet {next} of flow {flow}");
        *next += 1;
        1
    };
    // Sends a packet of each flow, and waits for all of them.
    let mut round = |guest: &mut Guest, number: u64, second: &mut dyn FnMut(&mut Guest) -> Vec<Vec<u8>>| {
        let (mut came, begun) = ([0; 2], Instant::now());
        for flow in &flows {
            flow.send(&payload(number)).expect("it is sent");
        }
        while came[0] + came[1] < u64::from(FLOWS) {
            came[0] += guest.receive().iter().map(|frame| expect(frame)).sum::<u64>();
            came[1] += second(guest).iter().map(|frame| expect(frame)).sum::<u64>();
            assert!(begun.elapsed() < SOON, "{came:?} in round {number}");
            std::thread::yield_now();
        }
        came
    };
    // The second pair does not run yet: all flows come through the first.
    for number in 0..EACH {
        assert_eq!(round(&mut guest, number, &mut |_| Vec::new()), [FLOWS.into(), 0]);
    }
    let agreed = Features::from_bits_retain(MRG);
    let mut receive = MockDriver::new(&mut guest.memory, SIZE, agreed, Direction::Receive);
    let transmit = MockDriver::new(&mut guest.memory, SIZE, agreed, Direction::Transmit);
    let mut out = HashMap::new();
    for _ in 0..SIZE {
        let at = guest.memory.lend(BUFFER);
        out.insert(offer(&mut receive, at, BUFFER), at);
    }
    guest.wire.ring(2, &receive).expect("a ring");
    guest.wire.ring(3, &transmit).expect("a ring");
    let mut second = |guest: &mut Guest| {
        let back = receive.collect().into_iter();
        let back: Vec<(u64, u32)> = back.map(|(id, len)| (out.remove(&id).expect("it is out"), len)).collect();
        let frames = back.iter().map(|(at, len)| guest.memory.read(*at, *len as usize).split_off(HEADER)).collect();
        for (at, _) in back {
            out.insert(offer(&mut receive, at, BUFFER), at);
        }
        frames
    };
    let (mut all, begun, mut number) = ([0; 2], Instant::now(), EACH);
    // Both are used, sooner or later after the second runs.
    while number < 2 * EACH || all.contains(&0) {
        let came = round(&mut guest, number, &mut second);
        all = [all[0] + came[0], all[1] + came[1]];
        number += 1;
        assert!(begun.elapsed() < SOON, "{all:?}");
    }
    let summary = switch.summary();
    assert_eq!(dropped(&summary, "0"), vec![], "{summary:#}");
    drop(guest);
}

#[test]
fn an_interface_that_cannot_be_used_is_refused_with_a_remedy() {
    let Some(network) = network("an_interface_that_cannot_be_used_is_refused_with_a_remedy") else { return };
    let folder = TestFolder::new("nic-refused");
    let path = folder.word("a");
    let refusal = |program: &[&str], name: &str| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", network.switch.path().display())).args(program);
        command.args([env!("CARGO_BIN_EXE_telpher"), "vhost", "--socket", &path, "--nic", name]);
        let output = command.output().expect("nsenter of util-linux");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success() && stderr.trim_end().lines().count() == 1, "{stderr}");
        stderr
    };
    for name in ["none0", "", "a-name-that-is-too-long"] {
        let stderr = refusal(&[], name);
        assert!(stderr.contains("'ip link' lists the interfaces of this system"), "{stderr}");
    }
    // Root without the right.
    let stderr = refusal(&["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"], PORT);
    assert!(stderr.contains("setcap cap_net_raw+ep") && stderr.contains(PORT), "{stderr}");
}
