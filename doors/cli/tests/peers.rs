//! `telpher vhost` between unmodified guests: each receives what the other sends, and the summary adds up.

mod network;
#[path = "../../../uses/vhost/tests/peers/peer_slot.rs"]
#[allow(dead_code, reason = "of the lock of telpher-vhost's peer tests, with which these take turns")]
mod peer_slot;
#[path = "../../../ci/skip.rs"]
mod skip;

use network::{GUEST_IP, Network, PARTNER_MAC, PORT, UDP_PORT};
use peer_slot::PeerSlot;
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use telpher_vhost::peers::{self, Counts, Testpmd, Virtio, Work};

/// Packets that prove a working connection: many times the size of a ring.
const ENOUGH: u64 = 50_000;
/// testpmd numbers its packets modulo this.
const FLOWS: u32 = 1024;
/// Packet lengths: the polling thread copies the first, the device the second.
const LENGTHS: [u32; 2] = [128, 1514];

/// The running program; killed on drop.
struct Switch(Child);

impl Switch {
    fn start(room: &PeerSlot, sockets: [&Path; 2], capture: &Path) -> Switch {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "-c", &room.cpus()[0].to_string()]);
        command.args([env!("CARGO_BIN_EXE_telpher"), "vhost", "--retry", "--quiet", "--format", "json"]);
        command.args(["--device", "model:spr", "--threshold", "512", "--snap", "64"]);
        for socket in sockets {
            command.arg("--socket").arg(socket);
        }
        command.arg("--capture").arg(format!("1:{}", capture.display()));
        Switch::ready(command, &sockets)
    }

    /// Starts the switch between a socket and the interface of a network.
    fn at_interface(room: &PeerSlot, network: &Network, socket: &Path) -> Switch {
        let mut command = Command::new("setpriv");
        let namespace = format!("--net={}", network.switch.path().display());
        command.args(["--pdeathsig", "KILL", "nsenter", &namespace, "taskset", "-c", &room.cpus()[0].to_string()]);
        command.args([env!("CARGO_BIN_EXE_telpher"), "vhost", "--retry", "--quiet", "--format", "json", "--nic", PORT]);
        command.arg("--socket").arg(socket);
        Switch::ready(command, &[socket])
    }

    /// Waits until the sockets exist.
    fn ready(mut command: Command, sockets: &[&Path]) -> Switch {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("setpriv of util-linux");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !sockets.iter().all(|socket| socket.exists()) {
            let runs = child.try_wait().is_ok_and(|status| status.is_none());
            assert!(runs && Instant::now() < deadline, "no sockets");
            std::thread::yield_now();
        }
        Switch(child)
    }

    /// Ends the program with SIGINT, as Ctrl-C does, and returns its summary.
    fn end(mut self) -> Value {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("it runs");
        let stdout = self.0.stdout.take().expect("piped above");
        let summary = serde_json::from_reader(stdout).expect("a summary in JSON");
        assert!(self.0.wait().expect("it was started here").success());
        summary
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // An error means that the program has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends numbered packets from one guest to the other; returns the sender's counts.
fn send(from: &mut Testpmd, to: &mut Testpmd, len: u32) -> Counts {
    let before = [from.counts().expect("counts"), to.counts().expect("counts")];
    to.work(Work::Sink).expect("a sink");
    from.work(Work::Numbered(len)).expect("a source");
    let arrived = |to: &mut Testpmd| to.counts().expect("counts") - before[1];
    let deadline = Instant::now() + Duration::from_secs(20);
    let wait = |to: &mut Testpmd, wanted: u64| {
        while arrived(to).received < wanted {
            assert!(Instant::now() < deadline, "{:?} of {wanted}", arrived(to));
        }
    };
    wait(to, ENOUGH);
    from.rest().expect("a rest");
    let sent = from.counts().expect("counts") - before[0];
    wait(to, sent.sent);
    to.rest().expect("a rest");
    let got = arrived(to);
    assert_eq!((got.received, got.received_bytes, got.errors), (sent.sent, sent.sent * u64::from(len), 0));
    sent
}

#[test]
fn telpher_vhost_forwards_between_guests_and_its_summary_adds_up() {
    let test = "telpher_vhost_forwards_between_guests_and_its_summary_adds_up";
    let room = PeerSlot::take();
    if let Some(why) = peers::missing() {
        return skip::skip(test, &why);
    }
    let [first, second, capture] = ["first", "second", "capture"].map(|name| room.file(name));
    let switch = Switch::start(&room, [&first, &second], &capture);
    let guest = |name: &'static str, virtio: &Virtio, socket: &Path| {
        Testpmd::guest(&room.seat(name, 1), virtio, &[socket]).unwrap_or_else(|error| panic!("{error}"))
    };
    let mut one = guest("one", &Virtio::SPLIT, &first);
    let mut other = guest("other", &Virtio::PACKED, &second);
    let there = send(&mut one, &mut other, LENGTHS[0]);
    let back = send(&mut other, &mut one, LENGTHS[1]);
    let summary = switch.end();

    let port = |index: usize| &summary["ports"][index];
    let of = |index: usize, what: &str| [&port(index)[what]["packets"], &port(index)[what]["bytes"]].map(Value::as_u64);
    let expected = |counts: Counts| [Some(counts.sent), Some(counts.sent_bytes)];
    assert_eq!([of(0, "received"), of(1, "sent")], [expected(there); 2], "{summary:#}");
    assert_eq!([of(1, "received"), of(0, "sent")], [expected(back); 2], "{summary:#}");
    for index in 0..2 {
        let dropped = port(index)["dropped"].as_object().expect("reasons");
        assert!(dropped.values().all(|count| count == 0), "{summary:#}");
        assert_eq!((&port(index)["held"], &port(index)["unsettled"]), (&0.into(), &0.into()), "{summary:#}");
        // The device has copied the long packets, out of one guest and into the other.
        assert_eq!(of(index, "by_device"), expected(back), "{summary:#}");
    }
    let left_out = port(1)["capture"]["left_out"].as_u64().expect("a number");
    let frames = frames_in(&std::fs::read(&capture).expect("the capture"));
    assert_eq!(frames.len() as u64 + left_out, there.sent + back.sent);
    let mut jumps = 0;
    for (len, sent) in LENGTHS.into_iter().zip([there.sent, back.sent]) {
        let numbers: Vec<u32> = frames.iter().filter(|frame| frame.0 == len).map(|frame| frame.1).collect();
        assert!(numbers.len() as u64 <= sent);
        jumps += numbers.windows(2).filter(|pair| pair[1] != (pair[0] + 1) % FLOWS).count();
    }
    // The packets are in order; there are gaps only if the capture left packets out.
    assert!(left_out > 0 || jumps == 0, "{jumps} packets came out of turn");
}

/// The most packets in flight: fewer than the rings and the partner's socket hold.
const WINDOW: u64 = 64;

/// Sends `count` numbered packets from an interface's partner to testpmd, which sends them back with changed addresses.
/// All come back, in order and unchanged.
fn around(test: &str, virtio: &Virtio, count: u64) {
    let room = PeerSlot::take();
    if let Some(why) = peers::missing() {
        return skip::skip(test, &why);
    }
    let network = match Network::new() {
        Ok(network) => network,
        Err(why) => return skip::skip(test, &why),
    };
    let path = room.file("guest");
    let switch = Switch::at_interface(&room, &network, &path);
    let mut guest = Testpmd::guest(&room.seat("guest", 1), virtio, &[&path]).unwrap_or_else(|error| panic!("{error}"));
    guest.work(Work::Return).expect("mac forwarding");
    let udp = network.udp(UDP_PORT);
    // A socket for all frames of the partner's namespace. testpmd's packets have the partner's Ethernet address, which
    // is that of testpmd's first peer, and the guest's IPv4 address, so the partner's own sockets do not get them.
    let all = Some(Protocol::from_raw(RawProtocol::new(u32::from(3_u16.to_be())).expect("not zero")));
    let sniffer = network.partner.within(|| {
        socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, all)
    });
    let sniffer = sniffer.expect("root may see all frames");
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&sniffer, 4 << 20).expect("root may");
    let payload = |number: u64| {
        let len = usize::try_from(number * 97 % 1465).expect("small");
        let body = (0..len).map(|at| number.wrapping_mul(31).wrapping_add(at as u64).to_le_bytes()[0]);
        number.to_le_bytes().into_iter().chain(body).collect::<Vec<u8>>()
    };
    let (mut sent, mut came, mut last) = (0, 0, Instant::now());
    let mut frame = [0; 2048];
    // Without a payload until one comes back: then nothing is lost for want of a guest any more.
    loop {
        udp.send(&[]).expect("it is sent");
        std::thread::sleep(Duration::from_millis(1));
        if std::iter::from_fn(|| recv(&sniffer, &mut frame, RecvFlags::empty()).ok().map(|_| frame))
            .any(|frame| frame[..6] == PARTNER_MAC && frame[23] == 17)
        {
            break;
        }
        assert!(last.elapsed() < Duration::from_secs(60), "no datagram comes back");
    }
    while came < count {
        while sent < count.min(came + WINDOW) && udp.send(&payload(sent)).is_ok() {
            sent += 1;
        }
        while let Ok((len, _)) = recv(&sniffer, &mut frame, RecvFlags::empty()) {
            let frame = &frame[..len];
            if frame[..6] == PARTNER_MAC && frame[12..14] == [8, 0] && frame[23] == 17 && frame[30..34] == GUEST_IP {
                let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
                // The others have a payload.
                if total > 28 {
                    assert!(frame[42..14 + total] == payload(came), "packet {came} came back as {frame:?}");
                    (came, last) = (came + 1, Instant::now());
                }
            }
        }
        assert!(last.elapsed() < Duration::from_secs(60), "{came} of {sent} came back");
    }
    let summary = switch.end();
    let count_of = |path: &str| summary.pointer(path).and_then(Value::as_u64).expect("a number");
    for port in 0..2 {
        // The partner's system also sends frames of its own.
        assert!(count_of(&format!("/ports/{port}/sent/packets")) >= count, "{summary:#}");
        let dropped = summary["ports"][port]["dropped"].as_object().expect("reasons");
        assert!(dropped.keys().all(|reason| reason == "no receiver"), "{summary:#}");
    }
}

#[test]
fn packets_pass_between_an_interface_and_testpmd_in_order() {
    around("packets_pass_between_an_interface_and_testpmd_in_order", &Virtio::SPLIT, ENOUGH);
}

mod long {
    use super::*;

    #[test]
    fn a_million_packets_pass_between_an_interface_and_testpmd_in_order() {
        let test = "long::a_million_packets_pass_between_an_interface_and_testpmd_in_order";
        for virtio in [Virtio::SPLIT, Virtio::PACKED] {
            around(test, &virtio, 1_000_000);
        }
    }
}

/// Returns lengths and numbers of the packets in a capture. Source: IETF draft-ietf-opsawg-pcap §4, §5. The number is
/// the
/// last part of the destination's address.
fn frames_in(bytes: &[u8]) -> Vec<(u32, u32)> {
    let mut frames = Vec::new();
    let mut rest = &bytes[24..];
    while !rest.is_empty() {
        let (header, after) = rest.split_at(16);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (frame, after) = after.split_at(word(8) as usize);
        frames.push((word(12), u32::from(u16::from_be_bytes([frame[32], frame[33]])) % FLOWS));
        rest = after;
    }
    frames
}
