//! The cost of a packet for the forwarding core: one receive from the guest and one send to it, with copies by that
//! core or by a device. This is the flat line of "Accelerating DPDK Vhost" (Intel).
//!
//! The forwarding loop and the guest's driver run on one core, and only the loop's turns are timed; the engine has the
//! other core. A burst is sent, and each turn starts after the copies of the turn before it have completed, as with a
//! device that keeps up. So this measures what the core pays for a packet, not the speed of the engine, which is
//! software here. A turn longer than any undisturbed one was interrupted; its whole interval is dropped.

use super::super::BenchError;
use super::super::goal::{Goal, Row};
use super::super::measure::{Clock, median};
use super::guest::Guest;
use super::ours::{CopyBy, Ours, Working};
use crate::options::VhostTraffic;
use crate::point::Cores;
use serde::Serialize;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use telpher_switch::Forwarder;
use telpher_vhost::{CopyPolicy, PacketPool};

/// Packets sent together: the forwarding loop's burst.
const BURST: u32 = 32;
/// Bursts in an interval.
const BURSTS: u32 = 16;
/// Pause between two turns: the time that a modelled engine needs for a burst of the longest packets, and less than the
/// time that it polls before it sleeps. Source: measured, 12 µs for 32 packets of 1518 bytes between far cores.
const PAUSE: Duration = Duration::from_micros(20);
/// Limit above which a turn counts as interrupted. Source: chosen, several times what 64 copies of the longest packets
/// take.
const LONGEST: Duration = Duration::from_micros(60);
/// Maximum number of turns until a burst has gone around; a burst that needs more counts as interrupted.
const TURNS: u32 = 64;
/// Time limit for the copies in flight to complete, however busy the engine's core is. Source: chosen.
const LANDED: Duration = Duration::from_secs(10);
/// Minimum number of intervals.
const FEWEST: usize = 5;
/// How much more the longest packet may cost than the shortest. Source: goal of the pipeline.
const FLAT: f64 = 1.15;
/// Minimum part of the bytes that the device must copy. Source: goal of the pipeline.
const SHARE: f64 = 0.95;

/// The cost of a packet of one length.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// The ring's layout.
    pub ring: &'static str,
    /// Bytes of the packet.
    pub size: u32,
    /// Whether a device makes the copies.
    pub by_device: bool,
    /// The cost in ticks of the time stamp counter.
    pub ticks: f64,
    /// The cost in nanoseconds.
    pub ns: f64,
    /// Part of the bytes that the device copied.
    pub share: f64,
    /// Intervals that count.
    pub intervals: usize,
    /// Intervals with an interrupted turn.
    pub interrupted: usize,
}

/// Measures every length with both kinds of copies, each for about `time` in all.
pub(super) fn measure(
    ring: &'static str,
    packed: bool,
    sizes: &[u32],
    rounds: u32,
    time: Duration,
    cores: Cores,
    pool: &PacketPool,
) -> Result<Vec<Cost>, BenchError> {
    let ways = [CopyBy::Cpu, CopyBy::Thread(CopyPolicy::Device, cores.guest)];
    let rigs = ways.map(|way| GuestAndBackend::new(way, packed, pool));
    let [cpu, device] = rigs;
    let mut rigs = [cpu?, device?];
    let (sizes, slice) = (sizes.to_vec(), time / rounds.max(1));
    let (tell, told) = mpsc::channel();
    // The loop runs on its own core; the benchmark's thread stays on its core.
    let working = Working::start("bench-flat", cores.backend, move |_| {
        let clock = Clock::calibrate();
        let mut seen: Vec<[Intervals; 2]> = sizes.iter().map(|_| Default::default()).collect();
        for _ in 0..rounds {
            for (&size, seen) in sizes.iter().zip(&mut seen) {
                for (rig, seen) in rigs.iter_mut().zip(seen) {
                    rig.measure(size, slice, &clock, seen);
                }
            }
        }
        let costs = sizes.iter().zip(seen).flat_map(|(&size, seen)| {
            let [cpu, device] = seen;
            [(false, cpu), (true, device)].map(|(by_device, seen)| seen.cost(ring, size, by_device, &clock))
        });
        let _ = tell.send(costs.collect());
    })?;
    let costs = told.recv().map_err(|_| BenchError::NotHere("the forwarding loop came to no end".into()))?;
    drop(working);
    Ok(costs)
}

/// Returns the rows of the costs.
pub(super) fn rows(costs: &[Cost]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (by_device, copier) in [(true, "a device"), (false, "the core itself")] {
        let of: Vec<&Cost> = costs.iter().filter(|cost| cost.by_device == by_device).collect();
        let (Some(least), Some(most)) =
            (of.iter().min_by_key(|cost| cost.size), of.iter().max_by_key(|cost| cost.size))
        else {
            continue;
        };
        let ring = least.ring;
        let how = format!(
            "{:.0} and {:.0} ticks ({:.1} and {:.1} ns) around, \
             {} and {} intervals without an interruption, {} and {} with one",
            least.ticks,
            most.ticks,
            least.ns,
            most.ns,
            least.intervals,
            most.intervals,
            least.interrupted,
            most.interrupted
        );
        let what = format!("{ring} ring: {} B against {} B, copied by {copier}", most.size, least.size);
        let goal = by_device.then_some(Goal::AtMost(FLAT));
        rows.push(Row::new(what, most.ticks / least.ticks, "times the cost", goal, how));
        if by_device {
            let share = of.iter().map(|cost| cost.share).reduce(f64::min).unwrap_or(f64::NAN);
            let what = format!("{ring} ring: bytes copied by the device, at the length with the fewest");
            rows.push(Row::new(
                what,
                100.0 * share,
                "%",
                Some(Goal::AtLeast(100.0 * SHARE)),
                "of the packets' bytes, both ways; the net header before a packet is written by the core",
            ));
        }
    }
    rows
}

/// Costs of intervals, in ticks per packet.
#[derive(Debug, Default)]
struct Intervals {
    ticks: Vec<f64>,
    interrupted: usize,
    by_device: u64,
    bytes: u64,
}

impl Intervals {
    fn cost(mut self, ring: &'static str, size: u32, by_device: bool, clock: &Clock) -> Cost {
        let ticks = median(&mut self.ticks);
        // `Clock::ns` takes whole ticks; a million of them yield the factor for a fraction of ticks.
        let ns = clock.ns(1_000_000) / 1e6 * ticks;
        let share = self.by_device as f64 / self.bytes as f64;
        let (intervals, interrupted) = (self.ticks.len(), self.interrupted);
        Cost { ring, size, by_device, ticks, ns, share, intervals, interrupted }
    }
}

/// A guest and a backend on one thread.
struct GuestAndBackend {
    guest: Guest,
    ours: Ours,
}

impl GuestAndBackend {
    fn new(way: CopyBy, packed: bool, pool: &PacketPool) -> Result<GuestAndBackend, BenchError> {
        let ours = Ours::new(way, pool)?;
        let mut guest = Guest::connect(&ours.port, packed)?;
        guest.begin(VhostTraffic::B2f, 0);
        Ok(GuestAndBackend { guest, ours })
    }

    fn measure(&mut self, size: u32, time: Duration, clock: &Clock, seen: &mut Intervals) {
        let mut forwarder = self.ours.forwarder(VhostTraffic::Loop, size);
        // One interval is not measured: it warms caches and buffers.
        self.interval(&mut forwarder, size, clock);
        self.settle(&mut forwarder);
        let (before, bytes_before) = (self.ours.dma_queue().bytes, self.bytes());
        let (begun, mut count) = (Instant::now(), 0);
        while count < FEWEST || begun.elapsed() < time {
            match self.interval(&mut forwarder, size, clock) {
                Some(ticks) => seen.ticks.push(ticks),
                None => seen.interrupted += 1,
            }
            count += 1;
        }
        self.settle(&mut forwarder);
        seen.by_device += self.ours.dma_queue().bytes - before;
        seen.bytes += self.bytes() - bytes_before;
    }

    /// Waits for the copies in flight: the port counts a packet when its copies begin, the DMA queue when they are
    /// complete.
    fn settle(&mut self, forwarder: &mut Forwarder) {
        let start = Instant::now();
        while start.elapsed() < LANDED {
            if [0, 1].iter().all(|&ring| self.ours.port.in_flight(ring) == 0) {
                break;
            }
            forwarder.turn();
            pause();
            self.guest.take_in(|_, _| false);
        }
        self.guest.sent();
    }

    /// Returns the copied bytes of packets. The core writes the net header before each packet; it is not copied.
    fn bytes(&self) -> u64 {
        let [receive, transmit] = [0, 1].map(|ring| self.ours.port.stats(ring).bytes);
        receive + transmit
    }

    /// Returns ticks per packet, or `None` if a turn was interrupted.
    fn interval(&mut self, forwarder: &mut Forwarder, size: u32, clock: &Clock) -> Option<f64> {
        let (mut sum, mut whole) = (0, true);
        for _ in 0..BURSTS {
            for _ in 0..BURST {
                self.guest.send(size, None);
            }
            let (mut arrived, mut turns) = (0, 0);
            while arrived < u64::from(BURST) && turns < TURNS {
                let start = telpher_os::ticks();
                let moved = forwarder.turn();
                let ticks = clock.since(start);
                whole &= clock.ns(ticks) < LONGEST.as_secs_f64() * 1e9;
                if moved > 0 {
                    sum += ticks;
                }
                pause();
                arrived += self.guest.take_in(|_, _| false);
                turns += 1;
            }
            whole &= turns < TURNS;
            // Returns the buffers of the last packets to the forwarder.
            let started = telpher_os::ticks();
            if forwarder.turn() > 0 {
                sum += clock.since(started);
            }
            self.guest.sent();
        }
        whole.then(|| sum as f64 / f64::from(BURST * BURSTS))
    }
}

fn pause() {
    let start = Instant::now();
    while start.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(size: u32, by_device: bool, ticks: f64) -> Cost {
        Cost { ring: "split", size, by_device, ticks, ns: ticks / 3.0, share: 0.96, intervals: 9, interrupted: 1 }
    }

    #[test]
    fn the_longest_packet_is_compared_with_the_shortest_and_only_a_device_has_a_goal() {
        let costs = [cost(64, false, 100.0), cost(512, true, 700.0), cost(1518, false, 300.0)];
        let costs = [&costs[..], &[cost(64, true, 200.0), cost(1518, true, 230.0)]].concat();
        let rows = rows(&costs);
        assert_eq!(rows.iter().map(|row| row.measured).collect::<Vec<_>>(), [1.15, 96.0, 3.0]);
        assert_eq!(rows.iter().map(Row::reached).collect::<Vec<_>>(), [true, true, true]);
        assert_eq!(rows[2].goal, None);
        let steeper = [cost(64, true, 200.0), cost(1518, true, 231.0)];
        assert!(!super::rows(&steeper)[0].reached());
    }

    #[test]
    fn a_device_copies_all_bytes_and_the_core_copies_none() {
        let core = telpher_os::allowed_cpus().unwrap();
        let cores = Cores { backend: core[0], guest: *core.last().unwrap() };
        let pool = PacketPool::new(telpher_vhost::PoolOptions { buffers: 4096, longest: 2048 }).unwrap();
        let costs = measure("packed", true, &[64, 1518], 1, Duration::from_millis(1), cores, &pool).unwrap();
        assert_eq!(
            costs.iter().map(|cost| (cost.size, cost.by_device)).collect::<Vec<_>>(),
            [(64, false), (64, true), (1518, false), (1518, true)]
        );
        for cost in costs {
            assert!(cost.intervals + cost.interrupted >= FEWEST, "{cost:?}");
            assert!(
                if cost.by_device { cost.share > SHARE && cost.share <= 1.0 } else { cost.share == 0.0 },
                "{cost:?}"
            );
        }
    }
}
