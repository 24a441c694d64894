//! The forwarding loop: one thread over its streams, turn after turn, without waiting.
//!
//! A turn of a stream is the three-stage pipeline of "Accelerating DPDK Vhost" (Intel), Figure 5: what has landed since the turn before is shown
//! to the guest; packets are taken from the other side, worked on, and their copies submitted as one batch; and while those are copied, the
//! thread has the other streams' turns to do. In one turn of some the clock is read between the stages, so that it is known where the cycles go.

use crate::capture::{Capture, Pen};
use crate::end::End;
use crate::frames::{ANNOUNCEMENT, Addresses, Source, announcement};
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use telpher_os::ticks;
use telpher_vhost::{PacketPool, Packets};

/// What is done with packets. The names are testpmd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// From one port of a pair to the other, as they are. A port without a partner is its own.
    Io,
    /// The same, with addresses: to the guest that gets it, from the port it leaves through.
    Mac,
    /// Taken from every port, and that was it.
    RxOnly,
    /// Made, for every port.
    TxOnly,
    /// Both: what comes is taken, and packets of many flows are made.
    FlowGen,
}

impl Mode {
    /// What it does, for people.
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

/// What becomes of packets that the other side has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Full {
    /// They are dropped, and counted.
    Drop,
    /// They wait, and so do those behind them, for [`Settings::retry_for`] at most. Then they are dropped, and counted, and so is what comes after them
    /// until the receiver takes a packet again.
    Retry,
}

/// How long packets wait for a receiver that takes nothing, unless `--retry-for` says otherwise. Source: chosen. A guest that is paused for a moment, as
/// at the end of a live migration, is back within a second; a guest that is stopped costs its partner a second, once.
pub const RETRY_FOR: Duration = Duration::from_secs(1);

/// How a forwarder works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What it does.
    pub mode: Mode,
    /// Packets that are taken and submitted together.
    pub burst: usize,
    /// What happens when there is no room.
    pub full: Full,
    /// How long packets wait with [`Full::Retry`] while the receiver takes none.
    pub retry_for: Duration,
    /// Bytes of packets that are made.
    pub len: u32,
    /// Destinations of packets that are made.
    pub flows: u32,
}

impl Default for Settings {
    /// testpmd's: io, 32 packets a burst, no retry, packets of 64 bytes.
    fn default() -> Self {
        Settings { mode: Mode::Io, burst: 32, full: Full::Drop, retry_for: RETRY_FOR, len: 64, flows: 1 }
    }
}

/// Queues of ports: from where, to where. Ports are paired as testpmd pairs them, 0 with 1, 2 with 3; the last of an odd number is its own
/// partner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Port and queue that packets are taken from.
    pub from: Option<(usize, usize)>,
    /// Port and queue that they go to.
    pub to: Option<(usize, usize)>,
}

/// The port that one of so many is paired with.
pub fn partner(port: usize, ports: usize) -> usize {
    if port ^ 1 < ports { port ^ 1 } else { port }
}

/// All that is to be done between ports with so many queues each.
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

/// What one thread has done for one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounts {
    /// Packets that came from it.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets that it was given, as far as it knows of them.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Packets whose way to it has begun: those that it was given, those on their way, and those that its guest had too short a buffer for.
    pub submitted: u64,
    /// Packets that were made for it.
    pub made: u64,
    /// Packets that came from it and are wanted nowhere.
    pub sunk: u64,
    /// Packets for it that its guest had no buffers for.
    pub no_room: u64,
    /// The same, after the guest took nothing for [`Settings::retry_for`].
    pub retried: u64,
    /// Packets for it while nobody was there.
    pub nobody: u64,
    /// Packets for it that were still in the switch's hands when it ended.
    pub held: u64,
    /// Times that its guest had moved here and was announced on the other side; those frames count as made there.
    pub announced: u64,
}

/// Ticks of the time stamp counter, by stage, over all streams of a thread: of turns that are clocked, which stand for those that are not. Turns are all
/// counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stages {
    /// Finding out what has landed, and showing it to guests.
    pub collect: u64,
    /// Taking packets from guests.
    pub take: u64,
    /// What the mode does to packets.
    pub work: u64,
    /// Beginning packets' way into guests.
    pub submit: u64,
    /// Turns in which nothing moved.
    pub waiting: u64,
    /// How many those were.
    pub idle_turns: u64,
    /// How many turns there were in which something did.
    pub busy_turns: u64,
}

/// What a thread has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// By port.
    pub ports: Vec<PortCounts>,
    /// Where its time went.
    pub stages: Stages,
}

/// Moves packets between ends, one thread's share of the routes.
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
    /// An announcement that is to be submitted before anything else. Nothing is done to it: its address is what it has to say.
    news: Packets,
    /// Packets that are to be submitted.
    row: Packets,
    /// Buffers for the next ones.
    spare: Packets,
    /// Packets that are through.
    done: Packets,
    stall: Stall,
    sampling: Sampling,
    /// Who writes down what comes.
    coming: Option<Pen>,
    /// Who writes down what goes.
    going: Option<Pen>,
}

#[derive(Debug)]
enum Work {
    Nothing,
    Address(Addresses),
    Make(Source),
}

/// Buffers that a stream keeps beside those on their way; more go back to the pool. Source: assumed, twice what a ring has in flight by
/// default, so that streams between queues that are used alike never go there.
const KEPT: usize = 2048;
/// Turns between two looks of others at what a forwarder has counted. Source: chosen, some microseconds apart.
const PUBLISHED: u64 = 64;
/// Turns with packets before which all are clocked: short runs are told exactly. Source: chosen.
const ALL_CLOCKED: u64 = 1000;
/// Later, one turn of so many is. Source: chosen; five looks at the counter take as long as one or two small packets, and this is a prime, so that turns
/// that alternate, as those with packets and those without do, are met alike.
const CLOCKED: u64 = 13;
/// Turns of all streams in which nothing moved, one after another, before the processor is lent to whoever else wants it. Source: chosen, some
/// 100 µs: nobody sends at a rate at which that would matter.
const PATIENCE: u64 = 1024;

impl Forwarder {
    /// A forwarder over these routes between ends whose packets are all of this pool.
    ///
    /// # Panics
    /// If a route names an end or a queue that is not there.
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
            let row = || pool.row(KEPT);
            let (news, row, spare, done) = (pool.row(1), row(), row(), row());
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

    /// The same, with these ports captured.
    pub fn captured(mut self, captures: &[Option<Arc<Capture>>]) -> Forwarder {
        let pen = |side: Option<(usize, usize)>| side.and_then(|(end, _)| Some(captures.get(end)?.as_ref()?.pen()));
        for stream in &mut self.streams {
            (stream.coming, stream.going) = (pen(stream.route.from), pen(stream.route.to));
        }
        self
    }

    /// What it has done so far.
    #[cfg(test)]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// One turn of each stream. Returns how many packets moved, in or out.
    #[inline]
    pub fn turn(&mut self) -> u64 {
        let mut moved = 0;
        for stream in &mut self.streams {
            moved += stream.turn(&self.ends, &self.settings, &mut self.counts);
        }
        moved
    }

    /// Turn after turn until `stop`, with its counts shown in `shared`, and for a moment longer: until what is on its way has got there.
    pub fn run(&mut self, stop: &AtomicBool, shared: &Mutex<Counts>) {
        let (mut turns, mut idle) = (0_u64, 0_u64);
        // Relaxed: nothing is published by it.
        while !stop.load(Ordering::Relaxed) {
            idle = if self.turn() == 0 { idle + 1 } else { 0 };
            turns += 1;
            if turns.is_multiple_of(PUBLISHED) {
                match shared.try_lock() {
                    Ok(mut shared) => shared.clone_from(&self.counts),
                    Err(TryLockError::Poisoned(shared)) => shared.into_inner().clone_from(&self.counts),
                    Err(TryLockError::WouldBlock) => {}
                }
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
        shared.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.counts);
    }

    /// Collects what is on its way, until there is nothing, or nothing has come for so long.
    pub fn settle(&mut self, patience: Duration) {
        let mut end = Instant::now() + patience;
        while self.counts.ports.iter().zip(&self.ends).any(|(port, end)| port.submitted > port.sent + end.refused()) {
            let came: u64 = self.streams.iter_mut().map(|stream| stream.collect(&self.ends, &mut self.counts)).sum();
            if came > 0 {
                end = Instant::now() + patience;
            } else if Instant::now() >= end {
                break;
            }
        }
    }
}

/// Whether a stream's receiver takes packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stall {
    /// It took some when it was offered some last, or was not there.
    #[default]
    Takes,
    /// It has taken none since then.
    Since(Instant),
    /// It has taken none for as long as packets wait.
    Over,
}

impl Stall {
    /// The receiver takes none of the packets that it is offered now. True if they have waited long enough.
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
    /// How many turns this one stands for, after so many with packets; nothing if it is not clocked.
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
        let begun = ticks();
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
            stages.waiting += since(begun, end);
            stages.idle_turns += 1;
        } else {
            stages.collect += since(begun, after_collect);
            stages.take += since(after_collect, after_take);
            stages.work += since(after_take, after_work);
            stages.submit += since(after_work, end);
            stages.busy_turns += 1;
        }
        moved
    }

    /// Stage one: what has landed is shown to the guest, and its buffers are free.
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

    /// Stage two, first half: packets from the other side. While some wait for room, none are taken.
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
                port.sunk += taken as u64;
                into.move_to(taken, &mut self.spare);
            }
        }
        taken as u64
    }

    /// A guest that has moved to this side is announced on the other.
    #[inline]
    fn announce(&mut self, ends: &[End], counts: &mut Counts) {
        let (Some((from, _)), Some((to, _))) = (self.route.from, self.route.to) else { return };
        // To itself it need not be. One before that still waits is of the same guest, or of one that it took the place of.
        if from == to || !self.news.is_empty() {
            return;
        }
        let Some(address) = ends[from].take_announcement() else { return };
        (counts.ports[from].announced, counts.ports[to].made) =
            (counts.ports[from].announced + 1, counts.ports[to].made + 1);
        self.spare.fetch(1);
        self.spare.move_to(1, &mut self.news);
        self.news.resize(0, ANNOUNCEMENT);
        match self.news.get_mut(0) {
            Some(frame) => frame.copy_from_slice(&announcement(address)),
            // All buffers are out.
            None => counts.ports[to].no_room += 1,
        }
    }

    /// Sends what was written down on its way.
    fn flush(&mut self) {
        [&mut self.coming, &mut self.going].into_iter().flatten().for_each(Pen::flush);
    }

    /// What the mode does to them.
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
                    let (end, _) = self.route.to.expect("packets are made for somebody");
                    counts.ports[end].made += (self.row.len() - before) as u64;
                }
            }
        }
    }

    /// Stage two, second half: their copies begin, as one batch.
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
                    Some(&mut port.nobody)
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
                // What is behind does not overtake.
                break;
            }
        }
        all
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        self.ports.resize(self.ports.len().max(other.ports.len()), PortCounts::default());
        for (mine, more) in self.ports.iter_mut().zip(&other.ports) {
            *mine = mine.with(more, u64::wrapping_add);
        }
        self.stages = self.stages.with(&other.stages, u64::wrapping_add);
    }
}

impl Sub for &Counts {
    type Output = Counts;

    /// What came since an earlier look.
    fn sub(self, earlier: &Counts) -> Counts {
        let before = |index: usize| earlier.ports.get(index).copied().unwrap_or_default();
        let ports = self.ports.iter().enumerate();
        let ports = ports.map(|(index, port)| port.with(&before(index), u64::saturating_sub)).collect();
        Counts { ports, stages: self.stages.with(&earlier.stages, u64::saturating_sub) }
    }
}

impl PortCounts {
    fn with(&self, other: &PortCounts, of: fn(u64, u64) -> u64) -> PortCounts {
        PortCounts {
            received: of(self.received, other.received),
            received_bytes: of(self.received_bytes, other.received_bytes),
            sent: of(self.sent, other.sent),
            sent_bytes: of(self.sent_bytes, other.sent_bytes),
            submitted: of(self.submitted, other.submitted),
            made: of(self.made, other.made),
            sunk: of(self.sunk, other.sunk),
            no_room: of(self.no_room, other.no_room),
            retried: of(self.retried, other.retried),
            nobody: of(self.nobody, other.nobody),
            held: of(self.held, other.held),
            announced: of(self.announced, other.announced),
        }
    }
}

impl Stages {
    fn with(&self, other: &Stages, of: fn(u64, u64) -> u64) -> Stages {
        Stages {
            collect: of(self.collect, other.collect),
            take: of(self.take, other.take),
            work: of(self.work, other.work),
            submit: of(self.submit, other.submit),
            waiting: of(self.waiting, other.waiting),
            idle_turns: of(self.idle_turns, other.idle_turns),
            busy_turns: of(self.busy_turns, other.busy_turns),
        }
    }
}

/// The routes of each thread: those that lead to the same queue stay together.
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
    fn ports_are_paired_and_the_last_of_an_odd_number_is_its_own_partner() {
        let of = |from, to| route(Some(from), Some(to));
        assert_eq!(routes(&[1], Mode::Io), [of((0, 0), (0, 0))]);
        assert_eq!(routes(&[1, 1, 1], Mode::Mac), [of((0, 0), (1, 0)), of((1, 0), (0, 0)), of((2, 0), (2, 0))]);
        assert_eq!(routes(&[2, 1], Mode::Io), [of((0, 0), (1, 0)), of((0, 1), (1, 0)), of((1, 0), (0, 0))]);
        assert_eq!(routes(&[2], Mode::RxOnly), [route(Some((0, 0)), None), route(Some((0, 1)), None)]);
        assert_eq!(routes(&[1, 1], Mode::TxOnly), [route(None, Some((0, 0))), route(None, Some((1, 0)))]);
        assert_eq!(routes(&[1, 1], Mode::FlowGen), [of((0, 0), (0, 0)), of((1, 0), (1, 0))]);
    }

    #[test]
    fn turns_that_are_clocked_stand_for_all() {
        let mut sampling = Sampling::default();
        let mut stand = |turns: u64, busy: u64| (0..turns).map(|_| sampling.stands_for(busy)).collect::<Vec<_>>();
        assert_eq!(stand(100, ALL_CLOCKED - 1), [1; 100]);
        let later = stand(100 * CLOCKED, ALL_CLOCKED);
        assert_eq!(later.iter().filter(|&&turns| turns > 0).count(), 100);
        assert_eq!(later.iter().sum::<u64>(), 100 * CLOCKED);
    }

    #[test]
    fn packets_that_are_made_wait_for_a_guest_and_nothing_is_counted_as_lost() {
        let pool = PacketPool::new(PoolOptions { buffers: 256, longest: 2048 }).unwrap();
        let ends = [End::Guest(Port::new(&pool, PortOptions::default()))];
        let settings = Settings { mode: Mode::TxOnly, ..Settings::default() };
        let mut forwarder = Forwarder::new(&ends, &routes(&[1], Mode::TxOnly), &pool, settings);
        assert_eq!((forwarder.turn(), forwarder.turn()), (0, 0));
        let counts = forwarder.counts().ports[0];
        assert_eq!(counts, PortCounts { made: 32, ..PortCounts::default() });
        assert_eq!(forwarder.counts().stages.idle_turns, 2);
    }

    #[test]
    fn packets_wait_for_a_receiver_as_long_as_they_are_told_to_and_not_again_until_it_takes_some() {
        let (begun, bound) = (Instant::now(), Duration::from_millis(10));
        let at = |millis| begun + Duration::from_millis(millis);
        let mut stall = Stall::default();
        let over = [0, 9, 10, 11].map(|millis| stall.is_over(at(millis), bound));
        assert_eq!(over, [false, false, true, true]);
        stall = Stall::Takes;
        assert_eq!([100, 109, 110].map(|millis| stall.is_over(at(millis), bound)), [false, false, true]);
    }

    #[test]
    fn counts_of_threads_add_up_and_looks_differ() {
        let port = |n| PortCounts { received: n, sent: 2 * n, nobody: 3 * n, ..PortCounts::default() };
        let counts = |n| Counts { ports: vec![port(n)], stages: Stages { take: n, ..Stages::default() } };
        let mut sum = Counts::default();
        sum += &counts(2);
        sum += &counts(5);
        assert_eq!(sum, counts(7));
        assert_eq!(&sum - &counts(3), counts(4));
        assert_eq!(&sum - &Counts::default(), counts(7));
    }

    #[test]
    fn queues_that_lead_to_the_same_place_have_one_thread() {
        let io = routes(&[2, 1], Mode::Io);
        assert_eq!(shares(&io, 2), [vec![io[0], io[1]], vec![io[2]]]);
        assert_eq!(shares(&io, 1).concat().len(), 3);
        assert_eq!(shares(&io, 9).len(), 2);
        let rx = routes(&[2, 1], Mode::RxOnly);
        assert_eq!(shares(&rx, 2), [vec![rx[0], rx[2]], vec![rx[1]]]);
    }
}
