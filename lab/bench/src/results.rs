//! Results of a sweep, as data: the source of JSON, CSV, tables and charts.

use super::crossover::{Crossover, crossover};
use super::distance::RoundTrip;
use super::simulated::Simulated;
use serde::Serialize;
use telpher_report::machine::Machine;

/// The remark next to all numbers of the modelled device.
pub const MODEL_REMARK: &str =
    "Device numbers are those of a software model: its speed on this CPU, not the speed of DSA hardware.";

/// The remark next to hardware's numbers under `telpher run`.
pub const VIRTUAL_REMARK: &str = "The hardware here is the virtual device of `telpher run`, a software model too: its \
                                  numbers are not those of DSA hardware.";

/// How the remark about other load begins.
pub const LOAD: &str = "The load is";

/// The executor of descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    /// The submitting thread.
    Inline,
    /// Engine threads of the model.
    Threaded,
    /// A real device.
    Hardware,
}

/// A route: where and how transfers are executed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Route {
    /// `cpu` or the device's name.
    pub device: String,
    /// The executor, for a device.
    pub runner: Option<Runner>,
    /// Requested number of descriptors or batches in flight.
    pub depth: u32,
    /// Descriptors in a batch; 1 without batches.
    pub batch: u32,
    /// Submitting threads.
    pub threads: u32,
}

impl Route {
    /// True for the CPU path.
    pub fn is_cpu(&self) -> bool {
        self.runner.is_none()
    }

    /// True if each operation is waited for before the next.
    pub fn is_sync(&self) -> bool {
        self.depth == 1 && self.batch == 1
    }

    /// A short name for columns and legends: `threaded` one at a time, `threaded ×32` with 32 in flight, `threaded
    /// 2×b32` with two batches of 32 in flight.
    pub fn label(&self) -> String {
        let runner = match self.runner {
            None => return "CPU".into(),
            Some(Runner::Inline) => "inline",
            Some(Runner::Threaded) => "threaded",
            Some(Runner::Hardware) => "hardware",
        };
        match (self.depth, self.batch) {
            (1, 1) => runner.into(),
            (depth, 1) => format!("{runner} ×{depth}"),
            (1, batch) => format!("{runner} b{batch}"),
            (depth, batch) => format!("{runner} {depth}×b{batch}"),
        }
    }
}

/// The parts of the time of an operation on a device, medians in nanoseconds per descriptor.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Breakdown {
    /// Building the descriptor and taking its buffers in.
    pub prepare_ns: f64,
    /// From then until the queue owns it.
    pub submit_ns: f64,
    /// From then until the completion record is seen.
    pub wait_ns: f64,
}

/// One operation at one size on one route.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Short name of the operation.
    pub op: &'static str,
    /// Bytes of one transfer.
    pub size: u64,
    /// The route.
    #[serde(flatten)]
    pub route: Route,
    /// Actual number of descriptors in flight per thread: the depth times the batch, as far as buffers and queue allow.
    pub in_flight: u32,
    /// Bytes per second: transfer size times operations, independent of what an operation reads and writes besides.
    pub bytes_per_s: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Median latency of one operation, from its preparation until its completion is seen; `None` if none was measured.
    pub p50_ns: Option<f64>,
    /// Latency that 99 % of the operations do not exceed; `None` for fewer than 100 operations.
    pub p99_ns: Option<f64>,
    /// Latency that 99.9 % do not exceed; `None` for fewer than 1,000 operations.
    pub p999_ns: Option<f64>,
    /// Operations timed together for one latency, because one is too short for the clock.
    pub timed_together: u32,
    /// Number of measured latencies.
    pub samples: u64,
    /// CPU time of the submitting threads per operation.
    pub cpu_ns_per_op: f64,
    /// Joules that the processor packages used per GB, over the throughput windows; `None` where they are not known.
    pub joules_per_gb: Option<f64>,
    /// Prepare, submit, wait; only for a device, one at a time.
    #[serde(flatten)]
    pub breakdown: Option<Breakdown>,
    /// Distance between the submitting core and the next core involved, measured just before the point.
    pub distance: Option<RoundTrip>,
}

/// The size from which a route beats the CPU path.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CrossoverRow {
    /// Short name of the operation.
    pub op: &'static str,
    /// Label of the route.
    pub route: String,
    /// By throughput.
    pub throughput: Crossover,
    /// By the submitting thread's CPU time.
    pub cpu_time: Crossover,
}

/// The energy of the CPU's copies and of each way of waiting for a device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WaitingEnergy {
    /// The device that is waited for.
    pub device: Option<String>,
    /// Bytes of a copy.
    pub bytes: usize,
    /// Joules per GB (10⁹ bytes) of the processor packages; `None` where they are not known.
    pub ways: Vec<(&'static str, Option<f64>)>,
    /// Why they are not known.
    pub reason: Option<String>,
}

/// A whole sweep.
#[derive(Clone, Debug, Serialize)]
pub struct SweepResult {
    /// `sweep`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader, one sentence each.
    pub remarks: Vec<String>,
    /// Every measurement.
    pub points: Vec<Point>,
    /// The crossovers, derived from the points.
    pub crossovers: Vec<CrossoverRow>,
    /// What a real device would give, in simulated time.
    pub simulated: Option<Simulated>,
    /// The energy of the CPU's copies and of each way of waiting, if it was asked for.
    pub waiting: Option<WaitingEnergy>,
}

impl SweepResult {
    /// Creates a result and derives the crossovers.
    pub fn new(machine: Machine, remarks: Vec<String>, points: Vec<Point>) -> Self {
        let mut result = SweepResult {
            kind: "sweep",
            machine,
            remarks,
            points,
            crossovers: Vec::new(),
            simulated: None,
            waiting: None,
        };
        for op in result.ops() {
            for route in result.routes().into_iter().filter(|r| !r.is_cpu()) {
                let against = |cost: fn(&Point) -> f64| {
                    let pairs: Vec<_> = result
                        .of(op, &route)
                        .filter_map(|p| {
                            let cpu =
                                result.points.iter().find(|c| c.op == op && c.size == p.size && c.route.is_cpu())?;
                            Some((p.size, cost(p), cost(cpu)))
                        })
                        .collect();
                    crossover(&pairs)
                };
                let row = CrossoverRow {
                    op,
                    route: route.label(),
                    throughput: against(|p| 1.0 / p.ops_per_s),
                    cpu_time: against(|p| p.cpu_ns_per_op),
                };
                if result.points.iter().any(|p| p.route.is_cpu()) {
                    result.crossovers.push(row);
                }
            }
        }
        result
    }

    /// Returns the operations in the order in which they ran.
    pub fn ops(&self) -> Vec<&'static str> {
        unique(self.points.iter().map(|p| p.op))
    }

    /// Returns the routes in the order in which they ran.
    pub fn routes(&self) -> Vec<Route> {
        unique(self.points.iter().map(|p| p.route.clone()))
    }

    /// Returns the sizes, ascending.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes = unique(self.points.iter().map(|p| p.size));
        sizes.sort_unstable();
        sizes
    }

    /// Returns the points of one operation on one route.
    pub fn of<'a>(&'a self, op: &str, route: &Route) -> impl Iterator<Item = &'a Point> {
        self.points.iter().filter(move |p| p.op == op && p.route == *route)
    }

    /// Returns the point of one operation, size and route.
    pub fn at(&self, op: &str, size: u64, route: &Route) -> Option<&Point> {
        self.of(op, route).find(|p| p.size == size)
    }
}

/// Returns every value once, in the order of first appearance.
fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

/// A sweep of one operation at three sizes, where the threaded device wins from 4 KiB.
#[cfg(test)]
pub(crate) fn sample() -> SweepResult {
    let mut points = Vec::new();
    for (size, cpu, device) in [(64u64, 2.0, 90.0), (4096, 80.0, 60.0), (65536, 2000.0, 900.0)] {
        for (runner, ns) in [(None, cpu), (Some(Runner::Threaded), device)] {
            let device = if runner.is_some() { "model:spr" } else { "cpu" };
            let distance =
                RoundTrip { from: 0, to: 1, round_trip_ns: 61.0, distance: Some(telpher_os::Distance::Near) };
            points.push(Point {
                op: "move",
                size,
                route: Route { device: device.into(), runner, depth: 1, batch: 1, threads: 1 },
                in_flight: 1,
                bytes_per_s: size as f64 / ns * 1e9,
                ops_per_s: 1e9 / ns,
                p50_ns: Some(ns),
                p99_ns: Some(2.0 * ns),
                p999_ns: Some(3.0 * ns),
                timed_together: 1,
                samples: 1000,
                cpu_ns_per_op: ns,
                joules_per_gb: Some(5.0),
                breakdown: runner.map(|_| Breakdown { prepare_ns: 10.0, submit_ns: 20.0, wait_ns: ns - 30.0 }),
                distance: runner.map(|_| distance),
            });
        }
    }
    let simulated = |size| crate::simulated::SimulatedPoint {
        op: "move",
        size,
        bytes_per_s: 30e9,
        depth: 32,
        batch: 1,
        latency_ns: 1000.0,
    };
    let simulated = Simulated { profile: "spr-asplos", points: [64, 4096, 65536].map(simulated).into() };
    let result = SweepResult::new(Machine::read(), vec![MODEL_REMARK.into()], points);
    SweepResult { simulated: Some(simulated), ..result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_s_crossover_is_found_from_the_points() {
        let result = sample();
        assert_eq!(result.crossovers.len(), 1);
        assert_eq!(result.crossovers[0].throughput, Crossover::From(4096));
        assert_eq!(result.crossovers[0].route, "threaded");
    }

    #[test]
    fn labels_distinguish_the_modes() {
        let route = |runner, depth, batch| Route { device: "d".into(), runner, depth, batch, threads: 1 }.label();
        assert_eq!(route(None, 1, 1), "CPU");
        assert_eq!(route(Some(Runner::Inline), 1, 1), "inline");
        assert_eq!(route(Some(Runner::Threaded), 32, 1), "threaded ×32");
        assert_eq!(route(Some(Runner::Hardware), 32, 1), "hardware ×32");
        assert_eq!(route(Some(Runner::Threaded), 1, 32), "threaded b32");
        assert_eq!(route(Some(Runner::Threaded), 4, 32), "threaded 4×b32");
    }
}
