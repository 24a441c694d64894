//! Routing: to which of several devices an operation is sent, and what the choice costs.
//!
//! Four modelled devices, two on each socket of a mock machine: the thread and the source are on node 0, the
//! destination is on node 1. So the chosen device is the same on every machine, and the cost of the choice is visible.
//! The gain of a near device is not visible, because the memory behind the mock can be on any node.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates, ratio};
use crate::BenchError;
use crate::buffers::fill_known;
use crate::goal::{Goal, Row};
use crate::measure::median;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use telpher_device::{Config, ModelDevice, ModelOptions, Runner, WqMode};
use telpher_mover::{Mover, Policy, Route, Split, SystemClock, Threshold, Topology};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "where",
    question: "To which of several devices does an operation go, and what does the choice cost?",
    cores: 1,
    weight: 2.0,
    measure,
};

/// Nodes of the devices.
const NODES: [u32; 4] = [0, 0, 1, 1];
/// Operations in flight at a time.
const IN_FLIGHT: usize = 8;
/// Bytes of one operation: few, so that the choice is a visible part of the cost.
const BYTES: usize = 4 << 10;
/// Bytes of the copy that is split over several devices.
const LONG: usize = 8 << 20;
/// Numbers of devices for the long copy.
const WAYS: [u32; 3] = [1, 2, 4];

/// A route, its name in words, and the devices to which it may send.
struct RouteChoice {
    route: Route,
    words: &'static str,
    may: [bool; 4],
}

/// The route with which each other route is compared.
const FIRST: RouteChoice = RouteChoice { route: Route::First, words: "first", may: [true, false, false, false] };
/// The other routes. Thread and source are on node 0, the destination is on node 1.
const OTHERS: [RouteChoice; 4] = [
    RouteChoice { route: Route::RoundRobin, words: "round-robin", may: [true; 4] },
    RouteChoice { route: Route::LeastLoaded, words: "least-loaded", may: [true; 4] },
    RouteChoice { route: Route::Local, words: "local", may: [true, true, false, false] },
    RouteChoice { route: Route::PushPull, words: "push-pull", may: [true; 4] },
];

/// Two sockets. Only the destinations are on the second.
#[derive(Debug, Default)]
struct Sockets {
    /// Addresses of the destinations.
    second: OnceLock<Range<u64>>,
}

impl Topology for Sockets {
    fn nodes(&self) -> u32 {
        2
    }

    /// Values that firmware reports: 10 for a node itself, 21 for the other socket.
    fn distance(&self, from: u32, to: u32) -> u32 {
        if from == to { 10 } else { 21 }
    }

    fn of_this_thread(&self) -> Option<u32> {
        Some(0)
    }

    fn of_memory(&self, address: u64) -> Option<u32> {
        Some(u32::from(self.second.get().is_some_and(|second| second.contains(&address))))
    }
}

/// A mover with one route, and its buffers.
struct RouteCase {
    devices: Arc<[ModelDevice; 4]>,
    mover: Mover,
    src: Vec<u8>,
    /// One buffer; each copy writes a part of it.
    dst: Vec<u8>,
}

impl RouteCase {
    fn new(devices: &Arc<[ModelDevice; 4]>, route: Route) -> Result<Self, BenchError> {
        let mut src = vec![0; BYTES];
        fill_known(&mut src, 1);
        let dst = vec![0; IN_FLIGHT * BYTES];
        let topology = Arc::new(Sockets::default());
        let first = dst.as_ptr().addr() as u64;
        topology.second.get_or_init(|| first..first + dst.len() as u64);
        let policy = Policy { route, threshold: Threshold::DEVICE, ..Policy::default() };
        let mover = Mover::with_topology(queues(&devices[..])?, policy, Arc::new(SystemClock::default()), topology);
        Ok(RouteCase { devices: Arc::clone(devices), mover, src, dst })
    }

    /// Copies all parts at once, and calls `meanwhile` while they are in flight.
    fn copies(&mut self, meanwhile: impl FnOnce()) -> Result<u64, BenchError> {
        let (mover, src) = (&self.mover, &self.src);
        let done = mover.scope(|scope| {
            let jobs: Vec<_> = self.dst.chunks_mut(BYTES).map(|dst| scope.copy(src, dst)).collect();
            meanwhile();
            jobs.into_iter().map(|job| job.wait().result).collect::<Vec<_>>()
        });
        done.into_iter().try_fold(0, |count, result| EXPERIMENT.done(result).map(|()| count + 1))
    }

    /// Returns the fraction of the operations in flight that each device holds.
    fn shares(&mut self) -> Result<[f64; 4], BenchError> {
        let devices = Arc::clone(&self.devices);
        let mut held = [0.0; 4];
        devices.iter().for_each(|device| device.hold(true));
        self.copies(|| {
            for (held, device) in held.iter_mut().zip(devices.iter()) {
                let queues = device.listing().groups.into_iter().flat_map(|group| group.grouped_workqueues);
                *held = queues.filter_map(|queue| queue.occupancy).map(|entries| entries as f64).sum::<f64>();
                device.hold(false);
            }
        })?;
        Ok(held.map(|held| held / IN_FLIGHT as f64))
    }

    fn check(&self) -> Result<(), BenchError> {
        self.dst.chunks(BYTES).try_for_each(|dst| EXPERIMENT.arrived(&self.src, dst))
    }
}

/// Returns one queue of each device.
fn queues(devices: &[ModelDevice]) -> Result<Vec<Arc<dyn Portal>>, BenchError> {
    devices.iter().map(|device| Ok(device.portal("wq0.0")?)).collect()
}

/// Starts a device on each of the nodes.
fn devices(machine: &Machine, runner: Runner) -> Result<[ModelDevice; 4], BenchError> {
    let start = |node| {
        let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, 64, 1)).with_numa_node(node);
        ModelDevice::start(options.with_runner(runner))
    };
    // A thread inherits the CPU affinity of the thread that starts it.
    let started = thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let _ = telpher_os::run_on(&machine.engine_cores(1));
            NODES.map(start)
        });
        starter.join().expect("starting a device does not panic")
    });
    let started: Result<Vec<_>, _> = started.into_iter().collect();
    let started = started.map_err(|source| BenchError::Start { name: "model:spr".into(), source })?;
    Ok(started.try_into().expect("as many as there are nodes"))
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = choosing(machine, time / 2)?;
    rows.extend(split_over_devices(machine, time / 2)?);
    Ok(rows)
}

/// Compares each route with the first queue alone.
fn choosing(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let devices = Arc::new(devices(machine, Runner::Inline)?);
    let step = |side: &mut RouteCase| side.copies(|| ());
    let ways: Vec<&RouteChoice> = std::iter::once(&FIRST).chain(&OTHERS).collect();
    let side =
        |way: &&RouteChoice| Ok(InterleavedLoad { states: vec![RouteCase::new(&devices, way.route)?], step: &step });
    let mut sides = ways.iter().map(side).collect::<Result<Vec<_>, BenchError>>()?;
    let seen = rates(machine, time, &mut sides)?;
    let nodes = machine.nodes.len();
    let mut rows = Vec::new();
    for (index, way) in ways.iter().enumerate().skip(1) {
        let side = &mut sides[index].states[0];
        side.check()?;
        let shares = side.shares()?;
        let ns = 1e9 / median(&mut seen[index].clone());
        let size = units::size(BYTES as u64);
        rows.push(Row::new(
            format!("{size} copies, {IN_FLIGHT} in flight, {} over four devices: against the first alone", way.words),
            ratio(&seen[index], &seen[0]),
            "of its speed",
            None,
            format!("inline, {} each; a mock of two sockets, this machine has {}", units::time(ns), counted(nodes)),
        ));
        let may = shares.iter().zip(way.may).filter(|(_, may)| *may).map(|(share, _)| share).sum();
        let percent = shares.map(|share| format!("{:.0}", 100.0 * share)).join(", ");
        rows.push(Row::new(
            format!("sent by {} to the devices it names", way.words),
            may,
            "of all",
            Some(Goal::AtLeast(1.0)),
            format!("{percent} % on nodes 0, 0, 1, 1; thread and source on 0, destination on 1"),
        ));
    }
    Ok(rows)
}

fn counted(nodes: usize) -> String {
    if nodes == 1 { "one node".into() } else { format!("{nodes} nodes") }
}

/// Compares one long copy over several devices with the same copy on one device.
fn split_over_devices(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    /// A mover, a source and a destination.
    type Long = (Mover, Option<(Vec<u8>, Vec<u8>)>);
    let devices = devices(machine, Runner::Threaded)?;
    let step = |(mover, buffers): &mut Long| {
        let (src, dst) = buffers.take().expect("the buffers came back");
        let bytes = src.len() as u64;
        let (result, src, dst) = mover.copy(src, dst).wait().into_parts();
        *buffers = Some((src, dst));
        EXPERIMENT.done(result).map(|()| bytes)
    };
    let long = |ways| {
        let split = Split { ways, ..Split::default() };
        let mut src = vec![0; LONG];
        fill_known(&mut src, 1);
        let mover = Mover::new(queues(&devices)?, Policy { split, route: Route::First, ..Policy::default() });
        Ok(InterleavedLoad { states: vec![(mover, Some((src, vec![0; LONG])))], step: &step })
    };
    let mut sides = WAYS.iter().map(|&ways| long(ways)).collect::<Result<Vec<_>, BenchError>>()?;
    let seen = rates(machine, time, &mut sides)?;
    for (_, buffers) in sides.iter().flat_map(|side| &side.states) {
        buffers.iter().try_for_each(|(src, dst)| EXPERIMENT.arrived(src, dst))?;
    }
    let cores = machine.engine_cores(1).len();
    let rate = |side: usize| units::rate(median(&mut seen[side].clone()));
    let row = |side: usize| {
        Row::new(
            format!("a copy of {} over {} devices: against one", units::size(LONG as u64), WAYS[side]),
            ratio(&seen[side], &seen[0]),
            "of its speed",
            None,
            format!("{} against {}; the engines' threads share {cores} core(s)", rate(side), rate(0)),
        )
    };
    Ok((1..WAYS.len()).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_sends_to_its_devices() {
        let devices = Arc::new(devices(&Machine::read(), Runner::Inline).unwrap());
        let shares = |route| RouteCase::new(&devices, route).unwrap().shares().unwrap();
        assert_eq!(shares(Route::First), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(shares(Route::RoundRobin), [0.25; 4]);
        assert_eq!(shares(Route::LeastLoaded), [0.25; 4]);
        assert_eq!(shares(Route::Local), [0.5, 0.5, 0.0, 0.0]);
        assert_eq!(shares(Route::PushPull), [0.25; 4]);
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let devices = Arc::new(devices(&Machine::read(), Runner::Inline).unwrap());
        let mut side = RouteCase::new(&devices, Route::Local).unwrap();
        assert_eq!(side.copies(|| ()).unwrap(), IN_FLIGHT as u64);
        side.check().unwrap();
        side.dst[BYTES + 77] ^= 1;
        assert!(matches!(side.check(), Err(BenchError::Mismatch { offset: 77, .. })));
    }
}
