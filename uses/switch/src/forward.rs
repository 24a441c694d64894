//! The forwarding loop: one thread serves its streams in turns, without waiting.
//!
//! A turn of a stream is the three-stage pipeline of "Accelerating DPDK Vhost" (Intel), Figure 5. First, copies
//! completed since the last turn are shown to the guest. Second, packets are taken from the other side, processed, and
//! their copies submitted as one batch. Third, while the device copies, the thread serves the other streams. In some
//! turns the clock is read between the stages, to measure the cycles of each stage.

use crate::capture::{Capture, CaptureWriter};
use crate::endpoint::End;
use crate::frames::{ANNOUNCEMENT, Addresses, Source, announcement};
use crate::stats::{Counts, PortCounts, Stages};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telpher_metrics::Publisher;
use telpher_os::ticks;
use telpher_vhost::{PacketPool, Packets};

/// How the switch handles packets. The names are testpmd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Forwards unchanged from one port of a pair to the other. A port without a peer is its own peer.
    Io,
    /// Forwards with new addresses: to the receiving guest, from the sending port.
    Mac,
    /// Receives from every port and drops.
    RxOnly,
    /// Generates packets for every port.
    TxOnly,
    /// Receives and drops, and generates packets of many flows.
    FlowGen,
}

impl Mode {
    /// Returns the mode's name in testpmd.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Io => "io",
            Mode::Mac => "mac",
            Mode::RxOnly => "rxonly",
            Mode::TxOnly => "txonly",
            Mode::FlowGen => "flowgen",
        }
    }

    /// Describes the mode in words.
    pub fn words(self) -> &'static str {
        match self {
            Mode::Io => "io forwarding",
            Mode::Mac => "mac forwarding",
            Mode::RxOnly => "receiving only",
            Mode::TxOnly => "sending only",
            Mode::FlowGen => "flow generation",
        }
    }
}

/// How packets without room on the other side are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Full {
    /// They are dropped and counted.
    Drop,
    /// They, and the packets behind them, wait at most [`Settings::retry_for`]. Then they and all later packets are
    /// dropped and counted until the receiver takes a packet again.
    Retry,
}

/// How long packets wait for a receiver that takes none, without `--retry-for`. Source: chosen. A guest that is paused
/// briefly, as at the end of a live migration, is back within a second; a stopped guest delays its peer by a second,
/// once.
pub const RETRY_FOR: Duration = Duration::from_secs(1);

/// Settings of a forwarder.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The mode.
    pub mode: Mode,
    /// Packets that are received and submitted together.
    pub burst: usize,
    /// How packets without room are handled.
    pub full: Full,
    /// How long packets wait with [`Full::Retry`] while the receiver takes none.
    pub retry_for: Duration,
    /// Bytes of generated packets.
    pub len: u32,
    /// Number of destinations of generated packets.
    pub flows: u32,
}

impl Default for Settings {
    /// testpmd's defaults: io, bursts of 32 packets, no retry, packets of 64 bytes.
    fn default() -> Self {
        Settings { mode: Mode::Io, burst: 32, full: Full::Drop, retry_for: RETRY_FOR, len: 64, flows: 1 }
    }
}

/// Source and destination queues. Ports are paired as in testpmd, 0 with 1, 2 with 3; the last of an odd number is its
/// own peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Port and queue that packets are taken from.
    pub from: Option<(usize, usize)>,
    /// Port and queue that packets go to.
    pub to: Option<(usize, usize)>,
}

/// Returns the peer of a port, among `ports` ports.
pub fn partner(port: usize, ports: usize) -> usize {
    if port ^ 1 < ports { port ^ 1 } else { port }
}

/// Returns all routes between ports with these numbers of queues.
pub fn routes(queues: &[usize], mode: Mode) -> Vec<Route> {
    let all = queues.iter().enumerate().flat_map(|(port, queues)| (0..*queues).map(move |queue| (port, queue)));
    let route = |(port, queue): (usize, usize)| {
        let here = Some((port, queue));
        let partner = partner(port, queues.len());
        match mode {
            Mode::Io | Mode::Mac => Route { from: here, to: Some((partner, queue % queues[partner])) },
            Mode::RxOnly => Route { from: here, to: None },
            Mode::TxOnly => Route { from: None, to: here },
            Mode::FlowGen => Route { from: here, to: here },
        }
    };
    all.map(route).collect()
}

/// Returns the number of queues of each port if it is an interface. `pairs` has the queue pairs of each socket, and
/// `None` for an interface. An interface has as many queues as its peer; an interface whose peer is an interface has
/// one.
pub(crate) fn interface_queues(pairs: &[Option<usize>]) -> Vec<usize> {
    let peer = |port| pairs[partner(port, pairs.len())];
    (0..pairs.len()).map(|port| peer(port).unwrap_or(1)).collect()
}

/// Moves packets between ports, on one thread's share of the routes.
#[derive(Debug)]
pub struct Forwarder {
    ends: Vec<End>,
    streams: Vec<Stream>,
    settings: Settings,
    counts: Counts,
}

/// One route's packets.
#[derive(Debug)]
struct Stream {
    route: Route,
    work: Work,
    /// An announcement to submit before anything else. The mode does not change its addresses.
    news: Packets,
    /// Packets to submit.
    row: Packets,
    /// Buffers for the next packets.
    spare: Packets,
    /// Packets that were sent.
    done: Packets,
    stall: Stall,
    sampling: Sampling,
    /// The capture of received packets.
    coming: Option<CaptureWriter>,
    /// The capture of sent packets.
    going: Option<CaptureWriter>,
}

#[derive(Debug)]
enum Work {
    Nothing,
    Address(Addresses),
    Make(Source),
}

/// Buffers that a stream keeps besides those in flight; more go back to the pool. Source: assumed, twice what a ring
/// has in flight by default, so that streams between equally used queues never need the pool.
const KEPT: usize = 2048;
/// Turns between two publications of a forwarder's counts. Source: chosen, some microseconds apart.
const PUBLISHED: u64 = 64;
/// The first turns with packets are all clocked, so that short runs are exact. Source: chosen.
const ALL_CLOCKED: u64 = 1000;
/// Later, one turn in this many is clocked. Source: chosen; five reads of the counter take as long as one or two small
/// packets. It is a prime, so that turns that alternate, with and without packets, are sampled equally.
const CLOCKED: u64 = 13;
/// Consecutive turns of all streams in which nothing moved, before the thread yields its processor. Source: chosen,
/// some 100 µs: at such a low packet rate the delay does not matter.
const PATIENCE: u64 = 1024;

impl Forwarder {
    /// Creates a forwarder for `routes` between `ends`; all their packets must be from `pool`.
    ///
    /// # Panics
    /// If a route names a port or a queue that does not exist.
    pub fn new(ends: &[End], routes: &[Route], pool: &PacketPool, settings: Settings) -> Forwarder {
        let queues: Vec<usize> = ends.iter().map(End::queues).collect();
        let stream = |route: &Route| {
            for (end, queue) in [route.from, route.to].into_iter().flatten() {
                assert!(queue < queues[end], "end {end} has {} queues", queues[end]);
            }
            let work = match (settings.mode, route.to) {
                (Mode::Mac, Some((end, _))) => Work::Address(Addresses::of_port(end)),
                (Mode::TxOnly | Mode::FlowGen, Some((end, _))) => {
                    Work::Make(Source::new(end, settings.len, settings.flows))
                }
                _ => Work::Nothing,
            };
            let row = || pool.empty(KEPT);
            let (news, row, spare, done) = (pool.empty(1), row(), row(), row());
            Stream {
                route: *route,
                work,
                news,
                row,
                spare,
                done,
                stall: Stall::default(),
                sampling: Sampling::default(),
                coming: None,
                going: None,
            }
        };
        let ports = vec![PortCounts::default(); ends.len()];
        let counts = Counts { ports, stages: Stages::default() };
        Forwarder { ends: ends.to_vec(), streams: routes.iter().map(stream).collect(), settings, counts }
    }

    /// Adds captures of the ports.
    pub fn captured(mut self, captures: &[Option<Arc<Capture>>]) -> Forwarder {
        let pen = |side: Option<(usize, usize)>| side.and_then(|(end, _)| Some(captures.get(end)?.as_ref()?.pen()));
        for stream in &mut self.streams {
            (stream.coming, stream.going) = (pen(stream.route.from), pen(stream.route.to));
        }
        self
    }

    /// Returns the counts so far.
    #[cfg(test)]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Runs one turn of each stream. Returns the number of packets that moved, in or out.
    #[inline]
    pub fn turn(&mut self) -> u64 {
        let mut moved = 0;
        for stream in &mut self.streams {
            moved += stream.turn(&self.ends, &self.settings, &mut self.counts);
        }
        moved
    }

    /// Runs turns until `stop` and publishes its counts meanwhile, then waits briefly for packets in flight.
    pub fn run(&mut self, stop: &AtomicBool, publisher: &mut Publisher) {
        let (mut turns, mut idle) = (0_u64, 0_u64);
        // Relaxed: the flag publishes no other data.
        while !stop.load(Ordering::Relaxed) {
            idle = if self.turn() == 0 { idle + 1 } else { 0 };
            turns += 1;
            if turns.is_multiple_of(PUBLISHED) {
                self.counts.publish(publisher);
            }
            if idle > PATIENCE {
                self.streams.iter_mut().for_each(Stream::flush);
                std::thread::yield_now();
            }
        }
        self.settle(Duration::from_millis(100));
        for stream in &mut self.streams {
            if let Some((end, _)) = stream.route.to {
                self.counts.ports[end].held += (stream.news.len() + stream.row.len()) as u64;
            }
            stream.flush();
        }
        self.counts.publish(publisher);
    }

    /// Collects packets in flight until there are none, or none has completed for a while.
    pub fn settle(&mut self, timeout: Duration) {
        let mut end = Instant::now() + timeout;
        while self.counts.ports.iter().zip(&self.ends).any(|(port, end)| port.submitted > port.sent + end.refused()) {
            let came: u64 = self.streams.iter_mut().map(|stream| stream.collect(&self.ends, &mut self.counts)).sum();
            if came > 0 {
                end = Instant::now() + timeout;
            } else if Instant::now() >= end {
                break;
            }
        }
    }
}

/// Whether a stream's receiver takes packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stall {
    /// It took some packets at the last offer, or is not connected.
    #[default]
    Takes,
    /// It has taken none since then.
    Since(Instant),
    /// It has taken none for the whole waiting time.
    Over,
}

impl Stall {
    /// Records that the receiver takes none of the offered packets. Returns true if they have waited long enough.
    fn is_over(&mut self, now: Instant, retry_for: Duration) -> bool {
        *self = match *self {
            Stall::Takes => Stall::Since(now),
            Stall::Since(begun) if now.saturating_duration_since(begun) >= retry_for => Stall::Over,
            same => same,
        };
        *self == Stall::Over
    }
}

/// Which of a stream's turns are clocked.
#[derive(Debug, Default)]
struct Sampling {
    /// Turns until the next one.
    left: u64,
}

impl Sampling {
    /// Returns how many turns this turn represents, after `busy_turns` turns with packets; 0 if it is not clocked.
    #[inline]
    fn stands_for(&mut self, busy_turns: u64) -> u64 {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return 0;
        }
        let stands_for = if busy_turns < ALL_CLOCKED { 1 } else { CLOCKED };
        self.left = stands_for - 1;
        stands_for
    }
}

impl Stream {
    #[inline]
    fn turn(&mut self, ends: &[End], settings: &Settings, counts: &mut Counts) -> u64 {
        let stands_for = self.sampling.stands_for(counts.stages.busy_turns);
        let ticks = || if stands_for > 0 { ticks() } else { 0 };
        let since = |begun: u64, end: u64| stands_for * end.wrapping_sub(begun);
        let start = ticks();
        let collected = self.collect(ends, counts);
        let after_collect = ticks();
        let taken = self.take(ends, settings, counts);
        self.announce(ends, counts);
        let after_take = ticks();
        self.work(settings, counts);
        let after_work = ticks();
        let submitted = self.submit(ends, settings, counts);
        let end = ticks();
        let stages = &mut counts.stages;
        let moved = collected + taken + submitted;
        if moved == 0 {
            stages.waiting += since(start, end);
            stages.idle_turns += 1;
        } else {
            stages.collect += since(start, after_collect);
            stages.take += since(after_collect, after_take);
            stages.work += since(after_take, after_work);
            stages.submit += since(after_work, end);
            stages.busy_turns += 1;
        }
        moved
    }

    /// Stage one: shows completed packets to the guest and frees their buffers.
    #[inline]
    fn collect(&mut self, ends: &[End], counts: &mut Counts) -> u64 {
        let Some((end, queue)) = self.route.to else { return 0 };
        let got = ends[end].collect(queue, &mut self.done);
        if got > 0 {
            let port = &mut counts.ports[end];
            port.sent += got as u64;
            port.sent_bytes += self.done.bytes();
            if let Some(pen) = &mut self.going {
                pen.write(&self.done, 0);
            }
            self.done.move_to(got, &mut self.spare);
            if self.spare.len() > KEPT {
                self.spare.truncate(KEPT / 2);
            }
        }
        got as u64
    }

    /// Stage two, first half: takes packets from the other side; none while earlier packets wait for room.
    #[inline]
    fn take(&mut self, ends: &[End], settings: &Settings, counts: &mut Counts) -> u64 {
        let Some((end, queue)) = self.route.from else { return 0 };
        let sink = self.route.to.is_none() || matches!(self.work, Work::Make(_));
        if !sink && !self.row.is_empty() {
            return 0;
        }
        self.spare.fetch(settings.burst);
        let into = if sink { &mut self.done } else { &mut self.row };
        let taken = ends[end].take(queue, into, &mut self.spare, settings.burst);
        if taken > 0 {
            let port = &mut counts.ports[end];
            port.received += taken as u64;
            port.received_bytes += into.bytes();
            if let Some(pen) = &mut self.coming {
                pen.write(into, 0);
            }
            if sink {
                port.discarded += taken as u64;
                into.move_to(taken, &mut self.spare);
            }
        }
        taken as u64
    }

    /// Announces a guest that has migrated to this side on the other side.
    #[inline]
    fn announce(&mut self, ends: &[End], counts: &mut Counts) {
        let (Some((from, _)), Some((to, _))) = (self.route.from, self.route.to) else { return };
        // A guest is not announced to itself. An earlier announcement that still waits is replaced: it is of the same
        // guest, or of its predecessor.
        if from == to || !self.news.is_empty() {
            return;
        }
        let Some(address) = ends[from].take_announcement() else { return };
        (counts.ports[from].announced, counts.ports[to].generated) =
            (counts.ports[from].announced + 1, counts.ports[to].generated + 1);
        self.spare.fetch(1);
        self.spare.move_to(1, &mut self.news);
        self.news.resize(0, ANNOUNCEMENT);
        match self.news.get_mut(0) {
            Some(frame) => frame.copy_from_slice(&announcement(address)),
            // No buffer is free.
            None => counts.ports[to].no_room += 1,
        }
    }

    /// Sends the captured chunks to their writers.
    fn flush(&mut self) {
        [&mut self.coming, &mut self.going].into_iter().flatten().for_each(CaptureWriter::flush);
    }

    /// Processes the packets as the mode says.
    #[inline]
    fn work(&mut self, settings: &Settings, counts: &mut Counts) {
        match &mut self.work {
            Work::Nothing => {}
            Work::Address(addresses) => addresses.write(&mut self.row),
            Work::Make(source) => {
                let before = self.row.len();
                if before < settings.burst {
                    self.spare.fetch(settings.burst);
                    self.spare.move_to(settings.burst - before, &mut self.row);
                    source.make(&mut self.row, before);
                    let (end, _) = self.route.to.expect("generated packets have a destination");
                    counts.ports[end].generated += (self.row.len() - before) as u64;
                }
            }
        }
    }

    /// Stage two, second half: submits their copies as one batch.
    #[inline]
    fn submit(&mut self, ends: &[End], settings: &Settings, counts: &mut Counts) -> u64 {
        let Some((end, queue)) = self.route.to else { return 0 };
        let port = &mut counts.ports[end];
        let mut all = 0;
        for row in [&mut self.news, &mut self.row] {
            if row.is_empty() {
                continue;
            }
            let submitted = ends[end].submit(queue, row);
            port.submitted += submitted as u64;
            all += submitted as u64;
            if submitted > 0 {
                self.stall = Stall::Takes;
            }
            if !row.is_empty() && !matches!(self.work, Work::Make(_)) {
                let left = row.len();
                let dropped = if !ends[end].is_there(queue) {
                    self.stall = Stall::Takes;
                    Some(&mut port.no_receiver)
                } else if settings.full == Full::Drop {
                    Some(&mut port.no_room)
                } else {
                    self.stall.is_over(Instant::now(), settings.retry_for).then_some(&mut port.retried)
                };
                if let Some(dropped) = dropped {
                    *dropped += left as u64;
                    row.move_to(left, &mut self.spare);
                }
            }
            if !row.is_empty() {
                // Later packets must not overtake these.
                break;
            }
        }
        all
    }
}

/// Divides the routes among threads; routes to the same queue stay on one thread.
pub fn shares(routes: &[Route], threads: usize) -> Vec<Vec<Route>> {
    let mut targets: Vec<Vec<Route>> = Vec::new();
    for route in routes {
        match targets.iter_mut().find(|routes| route.to.is_some() && routes[0].to == route.to) {
            Some(routes) => routes.push(*route),
            None => targets.push(vec![*route]),
        }
    }
    let mut shares = vec![Vec::new(); threads.min(targets.len())];
    for (index, routes) in targets.into_iter().enumerate() {
        let share = index % shares.len();
        shares[share].extend(routes);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_vhost::{PoolOptions, Port, PortOptions};

    fn route(from: Option<(usize, usize)>, to: Option<(usize, usize)>) -> Route {
        Route { from, to }
    }

    #[test]
    fn ports_are_paired_and_the_last_of_an_odd_number_is_its_own_peer() {
        let of = |from, to| route(Some(from), Some(to));
        assert_eq!(routes(&[1], Mode::Io), [of((0, 0), (0, 0))]);
        assert_eq!(routes(&[1, 1, 1], Mode::Mac), [of((0, 0), (1, 0)), of((1, 0), (0, 0)), of((2, 0), (2, 0))]);
        assert_eq!(routes(&[2, 1], Mode::Io), [of((0, 0), (1, 0)), of((0, 1), (1, 0)), of((1, 0), (0, 0))]);
        assert_eq!(routes(&[2], Mode::RxOnly), [route(Some((0, 0)), None), route(Some((0, 1)), None)]);
        assert_eq!(routes(&[1, 1], Mode::TxOnly), [route(None, Some((0, 0))), route(None, Some((1, 0)))]);
        assert_eq!(routes(&[1, 1], Mode::FlowGen), [of((0, 0), (0, 0)), of((1, 0), (1, 0))]);
    }

    #[test]
    fn clocked_turns_represent_all() {
        let mut sampling = Sampling::default();
        let mut stand = |turns: u64, busy: u64| (0..turns).map(|_| sampling.stands_for(busy)).collect::<Vec<_>>();
        assert_eq!(stand(100, ALL_CLOCKED - 1), [1; 100]);
        let later = stand(100 * CLOCKED, ALL_CLOCKED);
        assert_eq!(later.iter().filter(|&&turns| turns > 0).count(), 100);
        assert_eq!(later.iter().sum::<u64>(), 100 * CLOCKED);
    }

    #[test]
    fn generated_packets_wait_for_a_guest_and_are_not_counted_as_lost() {
        let pool = PacketPool::new(PoolOptions { buffers: 256, longest: 2048 }).unwrap();
        let ends = [End::Guest(Port::new(&pool, PortOptions::default()))];
        let settings = Settings { mode: Mode::TxOnly, ..Settings::default() };
        let mut forwarder = Forwarder::new(&ends, &routes(&[1], Mode::TxOnly), &pool, settings);
        assert_eq!((forwarder.turn(), forwarder.turn()), (0, 0));
        let counts = forwarder.counts().ports[0];
        assert_eq!(counts, PortCounts { generated: 32, ..PortCounts::default() });
        assert_eq!(forwarder.counts().stages.idle_turns, 2);
    }

    #[test]
    fn packets_wait_once_for_a_receiver_until_it_takes_some_again() {
        let (begun, bound) = (Instant::now(), Duration::from_millis(10));
        let at = |millis| begun + Duration::from_millis(millis);
        let mut stall = Stall::default();
        let over = [0, 9, 10, 11].map(|millis| stall.is_over(at(millis), bound));
        assert_eq!(over, [false, false, true, true]);
        stall = Stall::Takes;
        assert_eq!([100, 109, 110].map(|millis| stall.is_over(at(millis), bound)), [false, false, true]);
    }

    #[test]
    fn routes_to_one_queue_share_a_thread() {
        let io = routes(&[2, 1], Mode::Io);
        assert_eq!(shares(&io, 2), [vec![io[0], io[1]], vec![io[2]]]);
        assert_eq!(shares(&io, 1).concat().len(), 3);
        assert_eq!(shares(&io, 9).len(), 2);
        let rx = routes(&[2, 1], Mode::RxOnly);
        assert_eq!(shares(&rx, 2), [vec![rx[0], rx[2]], vec![rx[1]]]);
    }

    #[test]
    fn an_interface_has_as_many_queues_as_its_peer() {
        assert_eq!(interface_queues(&[Some(4), None])[1..], [4]);
        assert_eq!(interface_queues(&[None, Some(4)])[..1], [4]);
        assert_eq!(interface_queues(&[Some(4), Some(2), None, None])[2..], [1, 1]);
        assert_eq!(interface_queues(&[Some(1), Some(2), Some(3), None, None, None])[3..], [3, 1, 1]);
        assert_eq!(interface_queues(&[None, None]), [1, 1]);
        assert_eq!(interface_queues(&[None]), [1]);
    }
}
