//! This crate as the backend: a small switch in a process of its own, typed at as testpmd is, so that it can be killed as that can.
//!
//! The process is this test program once more, with the sockets in its environment, which makes one test of it the switch.

use crate::backend::{Side, Socket};
use crate::room::Room;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;
use telpher_vhost::peers::{Counts, LOOPING, Terminal, Work};
use telpher_vhost::{Offer, PacketPool, Packets, PoolOptions, Port, PortOptions};

/// The test that becomes the switch, and what tells it so: a line for each socket.
const SWITCH: &str = "telpher::tests::a_switch_answers_commands";
const SOCKETS: &str = "TELPHER_PEERS_SOCKETS";
const PROMPT: &str = "switch> ";
const SOON: Duration = Duration::from_secs(10);
/// Packets that are handed on together. Source: DPDK's testpmd, whose default it is.
const BURST: usize = 32;

/// The switch's process.
#[derive(Debug)]
pub(crate) struct Telpher {
    terminal: Terminal,
}

impl Telpher {
    /// A switch with a port at each socket.
    pub(crate) fn start(room: &Room, sockets: &[Socket]) -> Telpher {
        let lines = sockets
            .iter()
            .map(|socket| format!("{} {} {}", u8::from(socket.client), socket.queues, socket.path.display()));
        let sockets = lines.collect::<Vec<_>>().join("\n");
        let program = std::env::current_exe().expect("this program has a file");
        let mut words =
            vec!["-c".to_owned(), room.cpus()[0].to_string(), "env".to_owned(), format!("{SOCKETS}={sockets}")];
        words.push(program.to_str().expect("a path of UTF-8").to_owned());
        words.extend(["--exact", SWITCH, "--nocapture"].map(str::to_owned));
        let mut terminal = Terminal::start("telpher", "taskset", &words).expect("a terminal");
        terminal.until(PROMPT, SOON).unwrap_or_else(|error| panic!("{error}"));
        Telpher { terminal }
    }

    fn command(&mut self, command: &str) -> String {
        let answer = self.terminal.line(command).and_then(|()| self.terminal.until(PROMPT, SOON));
        answer.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Side for Telpher {
    fn work(&mut self, work: Work) {
        let answer = match work {
            Work::Source(len) => self.command(&format!("source {len}")),
            Work::Sink => self.command("sink"),
            Work::Begin(len) => self.command(&format!("begin {len}")),
            Work::Echo => self.command("echo"),
            Work::Numbered(_) | Work::Return => panic!("that is what guests do"),
        };
        assert_eq!(answer, "");
    }

    fn rest(&mut self) {
        assert_eq!(self.command("rest"), "");
    }

    fn counts(&mut self) -> Counts {
        let answer = self.command("counts");
        let mut numbers = answer.split_whitespace().map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().unwrap_or_else(|| panic!("five numbers, not {answer:?}"));
        let [received, received_bytes, sent, sent_bytes, errors] = std::array::from_fn(|_| next());
        Counts { received, received_bytes, sent, sent_bytes, errors }
    }

    fn kill(&mut self) {
        self.terminal.kill();
    }

    fn runs(&mut self) -> bool {
        self.terminal.runs()
    }
}

/// What the switch's polling thread is told between two bursts.
enum Order {
    Work(Work),
    Rest,
    Counts(Sender<Counts>),
}

/// The switch: reads commands until its input ends, while a thread polls.
fn switch(sockets: &str) {
    let pool = PacketPool::new(PoolOptions { buffers: 8192, longest: 2048 }).expect("memory for packets");
    let mut queues = Vec::new();
    let mut served = Vec::new();
    for socket in sockets.lines() {
        let mut words = socket.splitn(3, ' ');
        let [client, pairs, path] = std::array::from_fn(|_| words.next().expect("three words"));
        let pairs = pairs.parse().expect("a number");
        let port = Port::new(&pool, PortOptions { offer: Offer::of_pairs(pairs), ..PortOptions::default() });
        let role = if client == "1" { telpher_vhost::Role::Client } else { telpher_vhost::Role::Server };
        served.push(telpher_vhost::Socket::serve(&port, path, role).expect("a socket"));
        queues.extend((0..usize::from(pairs)).map(|pair| Queues::new(&port, pair)));
    }
    let (orders, heard) = channel();
    let poller = std::thread::spawn(move || Poller { queues, counts: Counts::default() }.run(&heard));
    let give = |order| orders.send(order).expect("the poller runs");
    ask("");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let (word, number) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "source" => give(Order::Work(Work::Source(number.parse().expect("a length")))),
            "sink" => give(Order::Work(Work::Sink)),
            "begin" => give(Order::Work(Work::Begin(number.parse().expect("a length")))),
            "echo" => give(Order::Work(Work::Echo)),
            "rest" => give(Order::Rest),
            "counts" => {}
            other => panic!("no command {other:?}"),
        }
        // Whatever it was, it has been done when the counts are answered.
        let (answer, answered) = channel();
        give(Order::Counts(answer));
        let Counts { received, received_bytes, sent, sent_bytes, errors } = answered.recv().expect("the poller runs");
        let counts = format!("{received} {received_bytes} {sent} {sent_bytes} {errors}");
        ask(if word == "counts" { &counts } else { "" });
    }
    drop(orders);
    poller.join().expect("it does not panic");
    drop(served);
}

/// Answers a command and asks for the next.
fn ask(answer: &str) {
    print!("{answer}{PROMPT}");
    std::io::stdout().flush().expect("a terminal");
}

/// A pair of queues and the packets on their way.
struct Queues {
    port: Arc<Port>,
    pair: usize,
    /// Buffers for what the guest sends.
    spare: Packets,
    /// What the guest has sent.
    sent: Packets,
    /// What goes to the guest.
    going: Packets,
    /// What the guest has got.
    got: Packets,
    /// Packets submitted that have not landed.
    flying: u64,
    /// The number of the next packet that goes, and of the next that is to come back.
    next: u64,
    expected: u64,
}

impl Queues {
    fn new(port: &Arc<Port>, pair: usize) -> Queues {
        let row = || port.pool().row(2 * BURST);
        let [spare, sent, going, got] = std::array::from_fn(|_| row());
        Queues { port: Arc::clone(port), pair, spare, sent, going, got, flying: 0, next: 0, expected: 0 }
    }

    /// Hands packets to the guest and counts those that it has got.
    fn give(&mut self, counts: &mut Counts) {
        let taken = self.port.receive(self.pair, &mut self.going, &mut self.got);
        self.flying += taken as u64;
        self.flying -= (self.got.len() as u64).min(self.flying);
        counts.sent += self.got.len() as u64;
        counts.sent_bytes += self.got.iter().map(|packet| packet.len() as u64).sum::<u64>();
        self.got.truncate(0);
    }

    /// Takes packets from the guest.
    fn take(&mut self, counts: &mut Counts) {
        self.spare.fetch(BURST);
        self.port.transmit(self.pair, &mut self.sent, &mut self.spare, BURST);
        counts.received += self.sent.len() as u64;
        counts.received_bytes += self.sent.iter().map(|packet| packet.len() as u64).sum::<u64>();
    }

    /// Adds numbered packets to those that go, until there are so many.
    fn fill(&mut self, count: usize, len: u32) {
        let old = self.going.len();
        self.going.fetch(count);
        for index in old..self.going.len() {
            self.going.resize(index, len);
            write_numbered(self.going.get_mut(index).expect("fetched"), self.next);
            self.next += 1;
        }
    }

    fn work(&mut self, role: Work, counts: &mut Counts) {
        match role {
            Work::Source(len) => {
                self.fill(BURST, len);
                self.give(counts);
            }
            Work::Sink => {
                self.take(counts);
                counts.errors += self.sent.iter().map(|packet| u64::from(!is_of_testpmd(packet))).sum::<u64>();
                self.sent.truncate(0);
            }
            Work::Begin(_) => {
                self.take(counts);
                for index in 0..self.sent.len() {
                    let packet = self.sent.get_mut(index).expect("an index of the row");
                    counts.errors += u64::from(!is_numbered(packet, self.expected));
                    write_numbered(packet, self.next);
                    (self.expected, self.next) = (self.expected + 1, self.next + 1);
                }
                self.sent.move_to(usize::MAX, &mut self.going);
                self.give(counts);
            }
            Work::Echo => {
                self.take(counts);
                self.sent.for_each_mut(|packet| counts.errors += u64::from(!answer(packet)));
                self.sent.move_to(usize::MAX, &mut self.going);
                self.give(counts);
                // A guest that takes nothing has no claim to what it did not take.
                self.going.truncate(1024);
            }
            Work::Numbered(_) | Work::Return => unreachable!("that is what guests do"),
        }
    }
}

/// The thread that polls.
struct Poller {
    queues: Vec<Queues>,
    counts: Counts,
}

impl Poller {
    /// Until nobody gives orders any more.
    fn run(mut self, orders: &Receiver<Order>) {
        let mut role = None;
        loop {
            let order = match role {
                None => orders.recv().map_err(|_| TryRecvError::Disconnected),
                Some(_) => orders.try_recv(),
            };
            match order {
                Ok(Order::Work(work)) => {
                    for queues in &mut self.queues {
                        (queues.next, queues.expected) = (0, 0);
                        if let Work::Begin(len) = work {
                            queues.fill(usize::try_from(LOOPING).unwrap_or(0), len);
                        }
                    }
                    role = Some(work);
                }
                Ok(Order::Rest) => {
                    self.rest(role.take());
                }
                Ok(Order::Counts(to)) => {
                    let _ = to.send(self.counts);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            if let Some(role) = role {
                self.queues.iter_mut().for_each(|queues| queues.work(role, &mut self.counts));
            }
        }
    }

    /// What was begun ends; what was to begin does not, but for packets that are on their way around.
    fn rest(&mut self, role: Option<Work>) {
        for queues in &mut self.queues {
            if !matches!(role, Some(Work::Begin(_))) {
                queues.going.truncate(0);
            }
            // A guest that is gone takes nothing; a second is much more than one takes that is there.
            let deadline = std::time::Instant::now() + Duration::from_secs(1);
            while (queues.flying > 0 || !queues.going.is_empty()) && std::time::Instant::now() < deadline {
                queues.give(&mut self.counts);
            }
            queues.going.truncate(0);
            queues.flying = 0;
        }
    }
}

/// Bytes of an Ethernet header, and where its type is. Source: IEEE 802.3.
const ETHERNET: usize = 14;
const TYPE: std::ops::Range<usize> = 12..14;
/// For experiments. Source: IEEE 802, local experimental ethertype 1.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
/// This side's address: locally administered.
const OURS: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// A packet with a number, and bytes that follow from it.
fn write_numbered(packet: &mut [u8], number: u64) {
    packet[..6].fill(0xff);
    packet[6..12].copy_from_slice(&OURS);
    packet[TYPE].copy_from_slice(&EXPERIMENT);
    let (count, rest) = packet[ETHERNET..].split_at_mut(8);
    count.copy_from_slice(&number.to_be_bytes());
    rest.fill(number.to_le_bytes()[0]);
}

/// Whether it is that packet, sent back by somebody who changed no more than the addresses.
fn is_numbered(packet: &[u8], number: u64) -> bool {
    let byte = number.to_le_bytes()[0];
    packet.get(TYPE) == Some(&EXPERIMENT)
        && packet.get(ETHERNET..ETHERNET + 8) == Some(&number.to_be_bytes())
        && packet[ETHERNET + 8..].iter().all(|&other| other == byte)
}

/// Whether it is what testpmd sends: IPv4 over its whole length, with a checksum that is right.
fn is_of_testpmd(packet: &[u8]) -> bool {
    let Some(header) = packet.get(ETHERNET..ETHERNET + 20) else { return false };
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    packet[TYPE] == IPV4 && header[0] == 0x45 && len + ETHERNET == packet.len() && checksum(header) == 0
}

/// Makes the answer of an ARP request or a ping; false if it is neither. Source: RFC 826, RFC 792.
fn answer(packet: &mut [u8]) -> bool {
    let ours = match packet.get(TYPE) {
        Some(kind) if kind == ARP && packet.len() >= ETHERNET + 28 && packet[20..22] == [0, 1] => {
            packet[21] = 2;
            // Whoever is asked for, it is this one.
            let asked: [u8; 4] = packet[38..42].try_into().expect("four bytes");
            packet.copy_within(22..32, 32);
            packet[22..28].copy_from_slice(&OURS);
            packet[28..32].copy_from_slice(&asked);
            true
        }
        // A header of 20 bytes, ICMP, an echo request.
        Some(kind)
            if kind == IPV4
                && packet.len() >= ETHERNET + 28
                && packet[14] == 0x45
                && packet[23] == 1
                && packet[34] == 8 =>
        {
            let (source, destination) = packet[26..34].split_at_mut(4);
            source.swap_with_slice(destination);
            let len = usize::from(u16::from_be_bytes([packet[16], packet[17]])).clamp(28, packet.len() - ETHERNET);
            let message = &mut packet[34..ETHERNET + len];
            if checksum(message) != 0 {
                return false;
            }
            (message[0], message[2], message[3]) = (0, 0, 0);
            let sum = checksum(message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
            true
        }
        _ => false,
    };
    packet.copy_within(6..12, 0);
    packet[6..12].copy_from_slice(&OURS);
    ours
}

/// Source: RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_answers_commands() {
        if let Ok(sockets) = std::env::var(SOCKETS) {
            return switch(&sockets);
        }
        let room = Room::take();
        let mut telpher = Telpher::start(&room, &[Socket::new(&room, "socket")]);
        assert!(room.file("socket").exists());
        telpher.work(Work::Source(64));
        telpher.rest();
        assert_eq!(telpher.counts(), Counts::default());
        assert!(telpher.runs());
    }

    #[test]
    fn pings_are_answered_and_damage_is_noticed() {
        let mut ping = vec![0_u8; 60];
        ping[TYPE].copy_from_slice(&IPV4);
        ping[14] = 0x45;
        ping[16..18].copy_from_slice(&46_u16.to_be_bytes());
        ping[23] = 1;
        ping[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        ping[34] = 8;
        ping[59] = 7;
        let sum = checksum(&ping[34..]).to_be_bytes();
        ping[36..38].copy_from_slice(&sum);
        let mut damaged = ping.clone();
        damaged[50] ^= 1;
        assert!(answer(&mut ping) && !answer(&mut damaged) && !answer(&mut [0; 20]));
        assert_eq!((&ping[26..34], ping[34], checksum(&ping[34..])), (&[10, 0, 0, 1, 10, 0, 0, 2][..], 0, 0));
        let mut numbered = vec![0; 64];
        write_numbered(&mut numbered, 300);
        assert!(is_numbered(&numbered, 300) && !is_numbered(&numbered, 301) && !is_numbered(&numbered[..20], 300));
        numbered[63] ^= 1;
        assert!(!is_numbered(&numbered, 300));
    }
}
