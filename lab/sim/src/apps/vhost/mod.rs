//! A software switch's core between a network port and a virtual machine: DPDK's testpmd with a vhost port, packets copied by the
//! core or by a device (white paper; KUPER §6.4).
//!
//! ```text
//! port ─► receive 32 ─► forward ─► enqueue: copy into the guest's buffers ─► virtqueue ─► guest (forwards)
//!   ▲                                                                                        │
//!   └──── send ◄────── forward ◄── dequeue: copy out of them ◄───────────────── virtqueue ◄──┘
//! ```
//!
//! One core does all of it but the guest's part. With a device, a burst's copies are one batch; completed ones are handed on in the
//! order of the ring, whatever order they completed in, and nobody waits for any.

use super::Report;
use super::core_cache::CoreCache;
use crate::places::Place;
use crate::ps::Ps;
use crate::scenario::Measure;
use crate::work::Lane;
use crate::world::{Core, Signal, Ticket, World};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use telpher_abi::{Descriptor, Flags, Opcode};

/// Who copies packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    /// The switch's core.
    Core,
    /// A device.
    Device {
        /// Queue for packets to the guest.
        enqueue: Lane,
        /// Queue for packets from it.
        dequeue: Lane,
    },
}

/// The switch, and what it runs on.
#[derive(Clone, PartialEq, Debug)]
pub struct Vhost {
    /// Bytes of a packet on the wire, checksum included.
    pub packet_bytes: u32,
    /// Most packets taken at a time.
    pub burst: u32,
    /// Who copies.
    pub copies: Copies,
    /// Packets that are counted.
    pub packets: u64,
    /// Packets that pass before counting begins: every buffer has been used then.
    pub warm_up: u64,
    /// What the port brings, megabits a second with preambles and gaps.
    pub offered_mbit_s: u64,
    /// Entries of the port's receive and transmit rings, each.
    pub port_ring: u32,
    /// Entries of each virtqueue.
    pub virtqueue: u32,
    /// Clock of both cores, MHz.
    pub clock_mhz: u32,
    /// The core's second-level cache.
    pub l2_bytes: u64,
    /// Its ways.
    pub l2_ways: u32,
    /// What the work costs.
    pub costs: VhostCosts,
}

/// What the switch's work costs, in cycles of its core.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct VhostCosts {
    /// A round over both directions, however many packets there are.
    pub round: f64,
    /// A packet that is forwarded both ways, without copying it: port, switching and rings.
    pub packet: f64,
    /// One copy, however long.
    pub copy: f64,
    /// A line that is copied twice, to the guest and from it.
    pub line: f64,
    /// A line of a packet that is not in the core's cache where it could be.
    pub payload_miss: f64,
    /// A line of a buffer's header or of a ring that is not.
    pub header_miss: f64,
    /// A copy by a device: its descriptor, its entry in the array that keeps the order, its completion.
    pub offload: f64,
    /// A packet in the guest.
    pub guest: f64,
}

impl Default for Vhost {
    /// 512-byte packets copied by the core, on the white paper's machine (Tables 3 to 7).
    fn default() -> Self {
        Vhost {
            packet_bytes: 512,
            burst: 32,
            copies: Copies::Core,
            packets: 20_000,
            warm_up: 10_000,
            offered_mbit_s: 100_000,
            port_ring: 2048,
            virtqueue: 1024,
            clock_mhz: 1800,
            l2_bytes: 2 << 20,
            l2_ways: 16,
            costs: VhostCosts {
                round: 240.0,
                packet: 219.0,
                copy: 7.4,
                line: 9.1,
                payload_miss: 11.57,
                header_miss: 73.6,
                offload: 75.68,
                guest: 120.0,
            },
        }
    }
}

impl Copies {
    /// The two dedicated queues of the white paper's Table 7.
    pub const DEVICE: Copies = Copies::Device {
        enqueue: Lane { device: 0, wq: 0, shared: false },
        dequeue: Lane { device: 0, wq: 1, shared: false },
    };
}

/// Lines from one packet buffer to the next: DPDK's 2176 bytes and its pool's header, an odd number so that buffers spread over sets.
const STRIDE: u64 = 35;
/// Lines of a buffer before its data: header and room in front.
const HEADROOM: u64 = 4;
/// Addresses (in lines) of the guest's buffers and of rings; the host's begin at 0.
const GUEST: u64 = 1 << 40;
const RINGS: u64 = 2 << 40;
/// A ring has no more entries: 16 bits number them.
const MOST_ENTRIES: u32 = 1 << 16;
/// Packets a switch's pool keeps at hand for the core, last in, first out (DPDK: mbcache).
const AT_HAND: u64 = 250;

/// Costs as times.
struct Times {
    round: Ps,
    packet: Ps,
    copy: Ps,
    line: Ps,
    payload_miss: Ps,
    header_miss: Ps,
    offload: Ps,
    guest: Ps,
}

/// Buffers by number, and where they are.
struct Buffers {
    cache: CoreCache,
    /// Lines of a packet.
    lines: u64,
    receive: VecDeque<u64>,
    send: VecDeque<u64>,
    at_hand: Vec<u64>,
    /// The guest's empty buffers in the ring, and those it has not put there again.
    empty: VecDeque<u64>,
    sent: VecDeque<u64>,
    idle: VecDeque<u64>,
    /// Entries of the rings.
    port_ring: u64,
    virtqueue: u64,
    turn: u64,
    missed_payload: u64,
    missed_headers: u64,
}

/// What the host's core and the guest's share.
struct Shared {
    buffers: Buffers,
    /// Filled buffers that the guest has not seen, and those it has given back.
    to_guest: VecDeque<u64>,
    from_guest: VecDeque<u64>,
    /// The guest has some in hand.
    in_guest: bool,
    over: bool,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    received: u64,
    /// The port had no room for them.
    lost: u64,
    forwarded: u64,
    /// When counting began, how many had been forwarded then, and when it ended.
    since: Ps,
    before: u64,
    until: Ps,
    /// What the core did since.
    copying: Ps,
    working: Ps,
    payload_misses: u64,
    header_misses: u64,
}

impl Buffers {
    fn new(of: &Vhost) -> Self {
        let (port, queue) =
            (u64::from(of.port_ring.clamp(1, MOST_ENTRIES)), u64::from(of.virtqueue.clamp(1, MOST_ENTRIES)));
        Buffers {
            cache: CoreCache::new(of.l2_bytes, of.l2_ways),
            lines: u64::from(of.packet_bytes.saturating_sub(4)).div_ceil(64).max(1),
            receive: (0..port).collect(),
            send: VecDeque::new(),
            at_hand: (port..2 * port + AT_HAND).rev().collect(),
            empty: (0..queue).collect(),
            sent: VecDeque::new(),
            idle: (queue..2 * queue + AT_HAND).collect(),
            port_ring: port,
            virtqueue: queue,
            turn: 0,
            missed_payload: 0,
            missed_headers: 0,
        }
    }

    fn header(&mut self, line: u64) {
        self.missed_headers += u64::from(!self.cache.touch(line));
    }

    /// A line of a packet; its first is the business of `packet`, for it is read and written by all.
    fn payload(&mut self, buffer: u64, line: u64) {
        let hit = self.cache.touch(buffer + line);
        self.missed_payload += u64::from(!hit && line > 0);
    }

    /// The port has filled the next buffer of its ring; the core reads its header, puts an empty one in its place, and forwards.
    fn receive(&mut self) -> u64 {
        self.turn += 1;
        let buffer = self.receive.pop_front().unwrap_or(0);
        for line in 0..self.lines {
            self.cache.lose(buffer * STRIDE + HEADROOM + line);
        }
        self.header(buffer * STRIDE);
        if let Some(next) = self.at_hand.pop() {
            self.header(next * STRIDE);
            self.receive.push_back(next);
        }
        self.cache.touch(buffer * STRIDE + HEADROOM);
        buffer
    }

    /// A packet's lines, and the guest's with them, pass through the core.
    fn copy(&mut self, host: u64, guest: u64, to_guest: bool) {
        let (host, guest) = (host * STRIDE + HEADROOM, GUEST + guest * STRIDE + HEADROOM);
        // The port wrote what comes from it: reading it is what `line` costs.
        for line in 0..self.lines {
            if to_guest {
                self.cache.touch(host + line);
            } else {
                self.payload(host, line);
            }
            self.payload(guest, line);
        }
    }

    /// A packet's entry in a virtqueue and its room there.
    fn entry(&mut self, queue: u64) {
        self.header(RINGS + queue * (1 << 20) + self.turn % self.virtqueue / 4);
    }

    /// The host's buffer is free again.
    fn free(&mut self, buffer: u64) {
        self.header(buffer * STRIDE);
        self.at_hand.push(buffer);
    }

    /// A packet goes to the port; the one that went before a whole ring is free.
    fn send(&mut self, buffer: u64) {
        self.header(RINGS + (5 << 20) + self.turn % self.port_ring / 4);
        self.send.push_back(buffer);
        if self.send.len() as u64 > self.port_ring
            && let Some(gone) = self.send.pop_front()
        {
            self.free(gone);
        }
    }

    /// The guest got a packet in this buffer, reads and writes its header.
    fn guest_forwards(&mut self, buffer: u64) {
        self.cache.lose(GUEST + buffer * STRIDE + HEADROOM);
    }

    /// The guest's buffer is empty; once a whole ring has gone it is used again.
    fn guest_sent(&mut self, buffer: u64) {
        self.sent.push_back(buffer);
        if self.sent.len() as u64 > self.virtqueue {
            self.idle.extend(self.sent.pop_front());
        }
        while (self.empty.len() as u64) < self.virtqueue
            && let Some(next) = self.idle.pop_front()
        {
            self.empty.push_back(next);
        }
    }
}

/// Copies under way, in the order of their ring.
struct Flight {
    ticket: Ticket,
    /// Host's and guest's buffers.
    packets: Vec<(u64, u64)>,
}

/// One direction's queue and the list of its descriptors.
#[derive(Clone, Copy)]
struct Way {
    lane: Lane,
    list: u64,
    one: Descriptor,
}

impl Way {
    async fn submit(self, core: &Core, packets: Vec<(u64, u64)>) -> Flight {
        // One packet is no batch.
        let work = match u32::try_from(packets.len()) {
            Ok(1) => self.one,
            count => Descriptor::batch(self.list, count.unwrap_or(u32::MAX)),
        };
        Flight { ticket: core.submit(self.lane, work).await, packets }
    }
}

/// Takes what is done from the front: what is behind something undone waits, or packets would overtake each other.
fn completed(flights: &mut VecDeque<Flight>) -> Vec<(u64, u64)> {
    let mut packets = Vec::new();
    while flights.front().is_some_and(|flight| flight.ticket.is_done()) {
        packets.extend(flights.pop_front().into_iter().flat_map(|flight| flight.packets));
    }
    packets
}

struct Host {
    app: Vhost,
    times: Times,
    shared: Rc<RefCell<Shared>>,
    ways: Option<(Way, Way)>,
    /// Given when the guest got something.
    bell: Signal,
}

impl Host {
    fn packet_bits(&self) -> u128 {
        u128::from(self.app.packet_bytes + 20) * 8
    }

    /// What the cache's misses since the last call took.
    fn misses(&self) -> (Ps, Ps) {
        let Shared { buffers, tally, .. } = &mut *self.shared.borrow_mut();
        let payload = std::mem::take(&mut buffers.missed_payload);
        let headers = std::mem::take(&mut buffers.missed_headers);
        tally.payload_misses += payload;
        tally.header_misses += headers;
        (self.times.payload_miss * payload, self.times.header_miss * headers)
    }

    /// Packets that the port has for the core by now.
    fn waiting(&self, now: Ps) -> u64 {
        let arrived = u128::from(now.0) * u128::from(self.app.offered_mbit_s) / self.packet_bits() / 1_000_000;
        let tally = &mut self.shared.borrow_mut().tally;
        let arrived = u64::try_from(arrived).unwrap_or(u64::MAX);
        tally.lost += arrived.saturating_sub(tally.received + tally.lost + u64::from(self.app.port_ring));
        arrived.saturating_sub(tally.received + tally.lost)
    }

    /// When the next packet comes that is not there yet; `None` if none ever does.
    fn next(&self) -> Option<Ps> {
        let tally = &self.shared.borrow().tally;
        let bits = u128::from(tally.received + tally.lost + 1) * self.packet_bits() * 1_000_000;
        let at = bits.div_ceil(u128::from(self.app.offered_mbit_s).checked_sub(1)? + 1);
        u64::try_from(at).ok().map(Ps)
    }

    async fn works(&self, core: &Core, copies: u64) {
        let (payload, headers) = self.misses();
        let lines = self.shared.borrow().buffers.lines;
        let copying = if self.ways.is_some() {
            Ps::ZERO
        } else {
            payload + self.times.copy * copies + Ps(self.times.line.0 * copies * lines / 2)
        };
        let offload = if self.ways.is_some() { self.times.offload * copies } else { Ps::ZERO };
        let rest = Ps(self.times.round.0 / 2) + Ps(self.times.packet.0 * copies / 2) + headers + offload;
        {
            let tally = &mut self.shared.borrow_mut().tally;
            tally.copying += copying;
            tally.working += copying + rest;
        }
        core.busy(copying + rest).await;
    }

    /// From the port to the guest.
    async fn enqueue(&self, core: &Core, flights: &mut VecDeque<Flight>) {
        let there = self.waiting(core.now()).min(self.app.burst.into());
        let mut packets = Vec::new();
        {
            let Shared { buffers, tally, .. } = &mut *self.shared.borrow_mut();
            tally.received += there;
            let hosts: Vec<u64> = (0..there).map(|_| buffers.receive()).collect();
            for host in hosts {
                let Some(guest) = buffers.empty.pop_front() else {
                    buffers.free(host);
                    continue;
                };
                buffers.entry(0);
                if self.ways.is_none() {
                    buffers.copy(host, guest, true);
                }
                packets.push((host, guest));
            }
        }
        self.works(core, packets.len() as u64).await;
        let done = match &self.ways {
            None => packets,
            Some((way, _)) => {
                if !packets.is_empty() {
                    flights.push_back(way.submit(core, packets).await);
                }
                completed(flights)
            }
        };
        let Shared { buffers, to_guest, .. } = &mut *self.shared.borrow_mut();
        for (host, guest) in done {
            buffers.free(host);
            to_guest.push_back(guest);
        }
        if !to_guest.is_empty() && core.waiting(self.bell) > 0 {
            core.give(self.bell);
        }
    }

    /// From the guest to the port.
    async fn dequeue(&self, core: &Core, flights: &mut VecDeque<Flight>) {
        let mut packets = Vec::new();
        {
            let Shared { buffers, from_guest, .. } = &mut *self.shared.borrow_mut();
            while packets.len() < self.app.burst as usize
                && let Some(guest) = from_guest.pop_front()
            {
                let host = buffers.at_hand.pop().unwrap_or(0);
                buffers.header(host * STRIDE);
                buffers.entry(1);
                if self.ways.is_none() {
                    buffers.copy(host, guest, false);
                }
                packets.push((host, guest));
            }
        }
        self.works(core, packets.len() as u64).await;
        let done = match &self.ways {
            None => packets,
            Some((_, way)) => {
                if !packets.is_empty() {
                    flights.push_back(way.submit(core, packets).await);
                }
                completed(flights)
            }
        };
        let Shared { buffers, tally, .. } = &mut *self.shared.borrow_mut();
        for (host, guest) in done {
            buffers.guest_sent(guest);
            if self.ways.is_some() {
                for line in 0..buffers.lines {
                    buffers.cache.lose(host * STRIDE + HEADROOM + line);
                }
                buffers.cache.touch(host * STRIDE + HEADROOM);
            }
            buffers.send(host);
            tally.forwarded += 1;
        }
    }

    async fn run(self, core: Core) {
        let (mut inward, mut outward) = (VecDeque::new(), VecDeque::new());
        let mut counting = false;
        loop {
            self.enqueue(&core, &mut inward).await;
            self.dequeue(&core, &mut outward).await;
            // The port has nothing, and nothing is under way: the core looks until something comes.
            let idle = inward.is_empty() && outward.is_empty() && {
                let Shared { to_guest, from_guest, in_guest, .. } = &*self.shared.borrow();
                to_guest.is_empty() && from_guest.is_empty() && !in_guest
            };
            if idle {
                let Some(next) = self.next() else { break };
                core.busy(next.since(core.now())).await;
            }
            let tally = &mut self.shared.borrow_mut().tally;
            if !counting && tally.forwarded >= self.app.warm_up {
                counting = true;
                let Tally { received, lost, forwarded, .. } = *tally;
                *tally = Tally { received, lost, forwarded, before: forwarded, since: core.now(), ..Tally::default() };
            }
            if counting && tally.forwarded - tally.before >= self.app.packets {
                tally.until = core.now();
                break;
            }
        }
        self.shared.borrow_mut().over = true;
        core.give(self.bell);
    }
}

/// The guest's core: forwards what it finds.
async fn guest(core: Core, shared: Rc<RefCell<Shared>>, bell: Signal, burst: u32, packet: Ps) {
    loop {
        let packets: Vec<u64> = {
            let Shared { to_guest, buffers, in_guest, .. } = &mut *shared.borrow_mut();
            let count = to_guest.len().min(burst as usize);
            let packets: Vec<u64> = to_guest.drain(..count).collect();
            for packet in &packets {
                buffers.guest_forwards(*packet);
            }
            *in_guest = !packets.is_empty();
            packets
        };
        if !packets.is_empty() {
            core.busy(packet * packets.len() as u64).await;
            shared.borrow_mut().from_guest.extend(packets);
        } else if shared.borrow().over {
            return;
        } else {
            core.until(bell).await;
        }
    }
}

impl Vhost {
    fn times(&self) -> Times {
        let of = |cycles: f64| Ps::from_nanos_f64(cycles * 1e3 / f64::from(self.clock_mhz.max(1)));
        let VhostCosts { round, packet, copy, line, payload_miss, header_miss, offload, guest } = self.costs;
        Times {
            round: of(round),
            packet: of(packet),
            copy: of(copy),
            line: of(line),
            payload_miss: of(payload_miss),
            header_miss: of(header_miss),
            offload: of(offload),
            guest: of(guest),
        }
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = Vhost {
            burst: self.burst.clamp(1, 1024),
            packet_bytes: self.packet_bytes.clamp(64, 65535),
            ..self.clone()
        };
        let times = app.times();
        let ways = match app.copies {
            Copies::Core => None,
            Copies::Device { enqueue, dequeue } => {
                let mut way = |lane| {
                    let (src, dst) = (world.places.add(Place::on(0)), world.places.add(Place::on(0)));
                    // DPDK's driver has every copy end in the cache.
                    let one =
                        World::descriptor(Opcode::MemoryMove, src, dst, app.packet_bytes.saturating_sub(4).max(1))
                            .and_flags(Flags::CACHE_CONTROL_1);
                    Way { lane, list: world.places.add_list(Place::on(0), vec![one; app.burst as usize]), one }
                };
                Some((way(enqueue), way(dequeue)))
            }
        };
        let shared = Rc::new(RefCell::new(Shared {
            buffers: Buffers::new(&app),
            to_guest: VecDeque::new(),
            from_guest: VecDeque::new(),
            in_guest: false,
            over: false,
            tally: Tally::default(),
        }));
        let (burst, per_packet) = (app.burst, times.guest);
        let bytes = u64::from(app.packet_bytes.saturating_sub(4));
        let clock = f64::from(app.clock_mhz);
        let bell = world.signal(0);
        let host = Host { app, times, shared: shared.clone(), ways, bell };
        world.spawn(0, |core| host.run(core));
        world.spawn(0, |core| guest(core, shared.clone(), bell, burst, per_packet));
        Box::new(move |_| shared.borrow().tally.measures(bytes, clock))
    }
}

impl Tally {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn measures(&self, bytes: u64, clock_mhz: f64) -> Vec<Measure> {
        let forwarded = (self.forwarded - self.before) as f64;
        let seconds = self.until.since(self.since).as_secs_f64().max(1e-12);
        let rate = forwarded / seconds;
        let working = self.working.as_secs_f64().max(1e-12);
        let of = |name: &str, value: f64, unit| Measure { name: name.to_owned(), value, unit };
        vec![
            of("forwarding rate", rate / 1e6, "Mpps"),
            of("cycles per packet", clock_mhz * 1e6 / rate.max(1e-12), "cycles"),
            of("core cycles in copies", self.copying.as_secs_f64() / working * 100.0, "%"),
            of("payload lines not in the core's cache", self.payload_misses as f64 / forwarded, "per packet"),
            of("header lines not in the core's cache", self.header_misses as f64 / forwarded, "per packet"),
            of("bytes copied", 2.0 * bytes as f64 * rate / 1e9, "GB/s"),
        ]
    }
}
