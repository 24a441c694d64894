//! The results of simulations, as data: the source of JSON, CSV, tables and charts.

pub mod tables;

use crate::about::About;
use serde::Serialize;

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// `sim run`.
    pub kind: &'static str,
    /// The header of the result.
    #[serde(flatten)]
    pub about: About,
    /// The workload file, if one was given.
    pub workload: Option<String>,
    /// Further remarks for the reader.
    pub remarks: Vec<String>,
    /// Points in the order of operations, sizes and modes, the CPU first; or the loads of a workload.
    pub points: Vec<Point>,
    /// Operations that the device refuses, so that they have no numbers.
    pub refused: Vec<Refused>,
    /// Results that applications of a workload reported.
    pub apps: Vec<App>,
}

impl RunResult {
    /// True if the devices have refused everything that they were to do. What the CPU did instead does not count.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let is_refused = |point: &Point| {
            let is_same = |refused: &Refused| (refused.op, refused.size) == (point.op, point.size);
            point.device == CPU && self.refused.iter().any(is_same)
        };
        !self.refused.is_empty() && self.apps.is_empty() && self.points.iter().all(is_refused)
    }
}

/// An operation that the device, or the CPU, refuses: it has no numbers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Refused {
    /// Short name of the operation.
    pub op: &'static str,
    /// Bytes of one transfer.
    pub size: u64,
    /// Name of the devices.
    pub device: String,
    /// Descriptors or batches each thread would keep in flight.
    pub depth: u32,
    /// Descriptors in a batch; 1 without batches.
    pub batch: u32,
    /// Submitting threads.
    pub threads: u32,
    /// The device's answer.
    pub status: String,
    /// Why.
    pub reason: String,
}

/// The results that one application reported.
#[derive(Clone, Debug, Serialize)]
pub struct App {
    /// Name of its load.
    pub load: String,
    /// Name, value and unit of each result.
    pub measures: Vec<(String, f64, &'static str)>,
}

/// Name of a sweep's load that a core executes itself.
pub const CPU: &str = "cpu";

/// Name of a sweep's load that devices execute.
pub const DEVICE: &str = "device";

/// The parts of the latency, in order of time.
pub const PARTS: [&str; 8] = ["backlog", "prepare", "submit", "queue", "translate", "process", "complete", "wait"];

/// The result of one load in one simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Name of the load.
    pub load: String,
    /// Short name of the operation.
    pub op: &'static str,
    /// Bytes of one transfer.
    pub size: u64,
    /// `cpu`, or the name of the devices.
    pub device: String,
    /// Descriptors or batches each thread keeps in flight.
    pub depth: u32,
    /// Descriptors in a batch; 1 without batches.
    pub batch: u32,
    /// Submitting threads.
    pub threads: u32,
    /// Completed operations; each member of a batch counts.
    pub operations: u64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Median latency of a submission (of a whole batch, if it is one).
    pub p50_ns: Option<f64>,
    /// The 99th percentile; `None` with fewer than 100 submissions.
    pub p99_ns: Option<f64>,
    /// The 99.9th percentile; `None` with fewer than 1,000 submissions.
    pub p999_ns: Option<f64>,
    /// Mean latency, the sum of the parts; `None` if no submission completed.
    pub mean_ns: Option<f64>,
    /// The parts of the mean latency.
    pub parts: Vec<Part>,
    /// The time of the load's cores for one operation, by activity.
    pub core: Cores,
    /// The utilisation of the resources.
    pub resources: Vec<Used>,
    /// Address translations of the engines, over all loads.
    pub translations: Pages,
    /// The bottleneck.
    pub bottleneck: Option<Held>,
}

/// Address translations of operands, by how the engines got them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Pages {
    /// Operands in the page of the previous operand, whose translation engines cache.
    pub remembered: u64,
    /// Pages for which engines asked the IOMMU.
    pub requested: u64,
    /// Those of them for which the IOMMU walked the page tables.
    pub walked: u64,
}

/// A part of the mean latency.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Part {
    /// Its name, such as `prepare` or `queue`.
    pub name: &'static str,
    /// Nanoseconds for one submission; `None` if no submission completed.
    pub ns: Option<f64>,
}

/// Nanoseconds of a core for one operation, by activity.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cores {
    /// Preparing, submitting and copying.
    pub busy_ns: f64,
    /// Polling the completion record.
    pub polling_ns: f64,
    /// Waiting in UMWAIT.
    pub umwait_ns: f64,
    /// Free for other work.
    pub idle_ns: f64,
}

/// The utilisation of a resource.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Used {
    /// Name of the resource.
    pub what: String,
    /// Share of the time, from 0 to 1.
    pub share: f64,
}

/// The bottleneck of a load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Held {
    /// Its kind, such as `device` or `latency`.
    pub limit: &'static str,
    /// The resource, such as `throughput of dsa0`.
    pub what: String,
    /// Advice.
    pub help: String,
    /// The description as a whole sentence.
    pub sentence: String,
}

impl Point {
    /// Returns the name that distinguishes the point: its load's name in a workload file, otherwise its mode.
    #[must_use]
    pub fn how(&self) -> String {
        if [DEVICE, CPU].contains(&self.load.as_str()) { self.label() } else { self.load.clone() }
    }

    /// True for the CPU path.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.device == CPU
    }

    /// Returns a short name for columns and legends, as in `telpher bench`: `one at a time`, `×32`, `2×b32`.
    #[must_use]
    pub fn label(&self) -> String {
        if self.is_cpu() { "CPU".into() } else { mode(self.depth, self.batch) }
    }
}

impl Refused {
    /// Returns the name of its mode, as [`Point::label`] does.
    #[must_use]
    pub fn label(&self) -> String {
        if self.device == CPU { "CPU".into() } else { mode(self.depth, self.batch) }
    }
}

fn mode(depth: u32, batch: u32) -> String {
    match (depth, batch) {
        (1, 1) => "one at a time".into(),
        (depth, 1) => format!("×{depth}"),
        (1, batch) => format!("b{batch}"),
        (depth, batch) => format!("{depth}×b{batch}"),
    }
}
