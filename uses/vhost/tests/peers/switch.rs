//! The test switch: ports of this crate, a polling thread, and commands that set what it does with packets.

use crate::backend::Copies;
use crate::frames::{FLOWS, answer, is_damaged, numbered, of_testpmd, write_numbered};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_vhost::peers::{Counts, LOOPING, Work};
use telpher_vhost::{
    CopyPolicy, DmaQueue, Offer, PacketPool, Packets, PoolOptions, Port, PortOptions, QueueOptions, Role, Socket,
};

/// Packets per burst. Source: DPDK's testpmd, its default.
const BURST: usize = 32;

/// One port of the switch.
pub(crate) struct PortAt<'a> {
    pub(crate) path: &'a Path,
    pub(crate) pairs: u16,
    pub(crate) client: bool,
}

/// A switch that runs until it is dropped.
pub(crate) struct Switch {
    orders: Option<Sender<Order>>,
    poller: Option<JoinHandle<()>>,
    _sockets: Vec<Socket>,
}

/// A command to the polling thread, executed between two bursts.
enum Order {
    Work(Work),
    Rest,
    Tell(Sender<(Counts, u64)>),
}

impl Switch {
    /// Creates ports at these sockets. The numbers that came back last are stored in the file `kept` for the next
    /// switch.
    pub(crate) fn start(copies: Copies, kept: &Path, ports: &[PortAt<'_>]) -> Switch {
        let pool = PacketPool::new(PoolOptions { buffers: 8192, longest: 2048 }).expect("memory for packets");
        let rings = vec![options(copies)];
        let mut queues = Vec::new();
        let mut sockets = Vec::new();
        for at in ports {
            let options =
                PortOptions { offer: Offer::of_pairs(at.pairs), rings: rings.clone(), ..PortOptions::default() };
            let port = Port::new(&pool, options);
            let role = if at.client { Role::Client } else { Role::Server };
            sockets.push(Socket::serve(&port, at.path, role).expect("a socket"));
            queues.extend((0..usize::from(at.pairs)).map(|pair| Queues::new(&port, pair)));
        }
        let kept = File::options().read(true).write(true).create(true).truncate(false).open(kept).expect("a file");
        let mut poller = Poller { copies, queues, counts: Counts::default(), earlier: 0, kept };
        poller.remember();
        let (orders, heard) = channel();
        let poller = Some(std::thread::spawn(move || poller.run(&heard)));
        Switch { orders: Some(orders), poller, _sockets: sockets }
    }

    /// Stops the current work and starts another.
    pub(crate) fn work(&self, work: Work) {
        self.give(Order::Work(work));
    }

    /// Stops; packets in flight to a guest are delivered.
    pub(crate) fn rest(&self) {
        self.give(Order::Rest);
    }

    /// The counters so far, and how many packets came back that a previous switch had sent. Answered after all earlier
    /// commands.
    pub(crate) fn tell(&self) -> (Counts, u64) {
        let (to, from) = channel();
        self.give(Order::Tell(to));
        from.recv().expect("the poller runs")
    }

    fn give(&self, order: Order) {
        self.orders.as_ref().expect("kept until the end").send(order).expect("the poller runs");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.orders = None;
        let ended = self.poller.take().expect("kept until the end").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// Two queues of a modelled device for all rings, so that copies complete out of order.
fn options(copies: Copies) -> QueueOptions {
    let hybrid = match copies {
        Copies::Cpu => return QueueOptions::default(),
        Copies::Device => CopyPolicy::Device,
        Copies::CopyPolicy => CopyPolicy::From(256),
    };
    // On the polling thread: there is no core to spare.
    let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Inline)).expect("a device");
    let dma_queue = |queue| {
        let portal = device.portal(queue).expect("a queue of the preset");
        Arc::new(DmaQueue::new(portal, 256).expect("a DMA queue"))
    };
    QueueOptions { hybrid, dma_queues: ["wq0.0", "wq0.1"].map(dma_queue).into(), in_flight: 256 }
}

/// A queue pair and its packets in flight.
struct Queues {
    port: Arc<Port>,
    pair: usize,
    /// Buffers for packets from the guest.
    spare: Packets,
    /// Packets from the guest.
    sent: Packets,
    /// Packets to the guest.
    going: Packets,
    /// Packets that the guest has received.
    got: Packets,
    /// Packets submitted and not complete.
    flying: u64,
    /// The number of the next packet to send, of the next of these expected back, and of the last that came back, which
    /// may be older.
    next: u64,
    expected: u64,
    last: u64,
    /// The number of testpmd's next packet, once one has arrived.
    flow: Option<u32>,
}

impl Queues {
    fn new(port: &Arc<Port>, pair: usize) -> Queues {
        let [spare, sent, going, got] = std::array::from_fn(|_| port.pool().empty(2 * BURST));
        let port = Arc::clone(port);
        Queues { port, pair, spare, sent, going, got, flying: 0, next: 0, expected: 0, last: 0, flow: None }
    }

    /// Submits packets to the guest and counts those that it has received.
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

    /// Fills up the packets to send with numbered ones. Every other one is short, so that both copy paths may be used.
    fn fill(&mut self, count: usize, len: u32, mixed: bool) {
        let old = self.going.len();
        self.going.fetch(count);
        for index in old..self.going.len() {
            self.going.resize(index, if mixed && index % 2 == 1 { 60 } else { len });
            write_numbered(self.going.get_mut(index).expect("fetched"), self.next);
            self.next += 1;
        }
    }

    /// Checks packets from testpmd: intact and in order. With several queues the numbers have gaps.
    fn check_flow(&mut self, counts: &mut Counts) {
        let in_order = self.port.pairs() == 1;
        for packet in self.sent.iter() {
            match of_testpmd(packet) {
                Some(Some(number)) => {
                    counts.errors += u64::from(in_order && self.flow.is_some_and(|flow| flow != number));
                    self.flow = Some((number + 1) % FLOWS);
                }
                Some(None) => {}
                None => counts.errors += 1,
            }
        }
        self.sent.truncate(0);
    }

    /// Sends returned packets again, with new numbers. Every packet that this switch has sent has to come back, in
    /// order. Packets of a previous switch may be lost, and are not sent again.
    fn check_around(&mut self, counts: &mut Counts) -> u64 {
        let (mut earlier, mut again) = (0, 0);
        for index in 0..self.sent.len() {
            let packet = self.sent.get_mut(index).expect("an index of the row");
            let number = numbered(packet).filter(|&number| number > self.last);
            match number {
                Some(number) if number >> LIVES == self.next >> LIVES => {
                    counts.errors += u64::from(number != self.expected);
                    self.expected = number + 1;
                    write_numbered(packet, self.next);
                    self.next += 1;
                    again = index + 1;
                }
                Some(_) => earlier += 1,
                None => counts.errors += 1,
            }
            self.last = number.unwrap_or(self.last);
        }
        // No packet of a previous switch comes after one of this switch: they were sent first.
        if again > 0 {
            let old = usize::try_from(earlier).expect("of a burst").min(again);
            let mut dropped = self.port.pool().empty(BURST);
            self.sent.move_to(old, &mut dropped);
            self.sent.move_to(usize::MAX, &mut self.going);
        }
        self.sent.truncate(0);
        earlier
    }

    /// Waits for a guest that sends nothing, unless packets are in flight.
    fn wait(&self, timeout: Duration) {
        if self.flying == 0 && self.going.is_empty() {
            self.port.wait(2 * self.pair + 1, timeout);
        }
    }
}

/// Bits of a number that count within one instance of the switch; the bits above them identify the instance.
const LIVES: u32 = 40;

/// The polling thread.
struct Poller {
    copies: Copies,
    queues: Vec<Queues>,
    counts: Counts,
    /// Packets of earlier switches that came back.
    earlier: u64,
    /// The number of this instance, then the last returned number of each queue pair: 8 bytes each.
    kept: File,
}

impl Poller {
    /// Runs until the commands end.
    fn run(mut self, orders: &Receiver<Order>) {
        let mut work = None;
        loop {
            let order = match work {
                None => orders.recv().map_err(|_| TryRecvError::Disconnected),
                Some(_) => orders.try_recv(),
            };
            match order {
                Ok(Order::Work(next)) => {
                    self.rest(work);
                    self.begin(next);
                    work = Some(next);
                }
                Ok(Order::Rest) => self.rest(work.take()),
                Ok(Order::Tell(to)) => {
                    let _ = to.send((self.counts, self.earlier));
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            if let Some(work) = work {
                self.turn(work);
            }
        }
    }

    /// The numbers stored by a previous switch.
    fn remember(&mut self) {
        for (index, queues) in self.queues.iter_mut().enumerate() {
            queues.last = read(&self.kept, index + 1);
        }
    }

    fn begin(&mut self, work: Work) {
        let life = read(&self.kept, 0) + 1;
        write(&self.kept, 0, life);
        for queues in &mut self.queues {
            (queues.next, queues.expected, queues.flow) = (life << LIVES, life << LIVES, None);
            if let Work::Begin(len) = work {
                queues.fill(usize::try_from(LOOPING).expect("a few"), len, true);
            }
        }
    }

    /// One round over all queues.
    fn turn(&mut self, work: Work) {
        let mut came = false;
        for index in 0..self.queues.len() {
            let queues = &mut self.queues[index];
            match work {
                Work::Source(len) => queues.fill(BURST, len, false),
                _ => queues.take(&mut self.counts),
            }
            came |= !queues.sent.is_empty();
            match work {
                Work::Sink => queues.check_flow(&mut self.counts),
                Work::Begin(_) if !queues.sent.is_empty() => {
                    self.earlier += queues.check_around(&mut self.counts);
                    // Before any packet is sent again: a switch stores what it has seen before it can be killed.
                    write(&self.kept, index + 1, queues.last);
                }
                Work::Echo => {
                    let counts = &mut self.counts;
                    queues.sent.for_each_mut(|frame| {
                        counts.errors += u64::from(is_damaged(frame));
                        answer(frame);
                    });
                    queues.sent.move_to(usize::MAX, &mut queues.going);
                }
                _ => {}
            }
            match work {
                Work::Hand => self.hand_on(index),
                Work::Sink => {}
                _ => self.queues[index].give(&mut self.counts),
            }
        }
        if matches!(work, Work::Echo | Work::Hand) && !came {
            self.follow();
            // A queue that is not waited for does not wait either.
            let timeout = if self.queues.len() == 1 { Duration::from_millis(100) } else { Duration::from_millis(1) };
            self.queues.iter().for_each(|queues| queues.wait(timeout));
        }
    }

    /// Forwards packets from one port to the guest at the other.
    fn hand_on(&mut self, from: usize) {
        let to = self.queues.len() - 1 - from;
        if let Ok([one, other]) = self.queues.get_disjoint_mut([from, to]) {
            one.sent.move_to(usize::MAX, &mut other.going);
        }
        self.queues[to].give(&mut self.counts);
    }

    /// Delivers packets to a guest that has moved to another port.
    fn follow(&mut self) {
        let runs = |queues: &Queues| queues.port.is_running(2 * queues.pair);
        let here = self.queues.iter().position(|queues| !queues.going.is_empty() && !runs(queues));
        let there = self.queues.iter().position(runs);
        if let (Some(here), Some(there)) = (here, there)
            && let Ok([one, other]) = self.queues.get_disjoint_mut([here, there])
        {
            one.going.move_to(usize::MAX, &mut other.going);
        }
    }

    /// Finishes submitted packets; drops the others, except circulating ones.
    fn rest(&mut self, work: Option<Work>) {
        for queues in &mut self.queues {
            if !matches!(work, Some(Work::Begin(_))) {
                queues.going.truncate(0);
            }
            // A guest that does not take them within a second is gone.
            let deadline = Instant::now() + Duration::from_secs(1);
            let ring = 2 * queues.pair;
            while (queues.flying > 0 || !queues.going.is_empty())
                && queues.port.is_running(ring)
                && Instant::now() < deadline
            {
                queues.give(&mut self.counts);
            }
            queues.going.truncate(0);
            queues.flying = 0;
            for ring in [ring, ring + 1] {
                let stats = queues.port.stats(ring);
                let expected = match self.copies {
                    Copies::Cpu => 0..=0,
                    Copies::Device => stats.packets..=stats.packets,
                    Copies::CopyPolicy => 0..=stats.packets,
                };
                assert!(expected.contains(&stats.by_device), "{:?}: {stats:?}", self.copies);
                assert_eq!(stats.all_drops(), 0, "{stats:?}");
            }
        }
    }
}

fn read(file: &File, index: usize) -> u64 {
    let mut bytes = [0; 8];
    // A number that was never written is 0.
    let _ = file.read_exact_at(&mut bytes, index as u64 * 8);
    u64::from_le_bytes(bytes)
}

fn write(file: &File, index: usize, value: u64) {
    file.write_all_at(&value.to_le_bytes(), index as u64 * 8).expect("a file of the test's own");
}
