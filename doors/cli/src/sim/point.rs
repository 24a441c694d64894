//! One point of a run, as data: the source of JSON, CSV, tables and charts.

use serde::Serialize;
use telpher_sim::{LoadOutcome, NamedValue, Outcome, Picos, Stream};

/// Name of a sweep's load that a core executes itself.
pub(crate) const CPU: &str = "cpu";

/// Name of a sweep's load that devices execute.
pub(crate) const DEVICE: &str = "device";

/// The parts of the latency, in order of time.
pub(crate) const PARTS: [&str; 8] =
    ["backlog", "prepare", "submit", "queue", "translate", "process", "complete", "wait"];

/// The result of one load in one simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Point {
    /// Name of the load.
    pub(crate) load: String,
    /// Short name of the operation.
    pub(crate) op: &'static str,
    /// Bytes of one transfer.
    pub(crate) size: u64,
    /// `cpu`, or the name of the devices.
    pub(crate) device: String,
    /// Descriptors or batches each thread keeps in flight.
    pub(crate) depth: u32,
    /// Descriptors in a batch; 1 without batches.
    pub(crate) batch: u32,
    /// Submitting threads.
    pub(crate) threads: u32,
    /// Completed operations; each member of a batch counts.
    pub(crate) operations: u64,
    /// Bytes per second.
    pub(crate) bytes_per_s: f64,
    /// Operations per second.
    pub(crate) ops_per_s: f64,
    /// Median latency of a submission (of a whole batch, if it is one).
    pub(crate) p50_ns: Option<f64>,
    /// The 99th percentile; `None` with fewer than 100 submissions.
    pub(crate) p99_ns: Option<f64>,
    /// The 99.9th percentile; `None` with fewer than 1,000 submissions.
    pub(crate) p999_ns: Option<f64>,
    /// Mean latency, the sum of the parts; `None` if no submission completed.
    pub(crate) mean_ns: Option<f64>,
    /// The parts of the mean latency.
    pub(crate) parts: Vec<Part>,
    /// The time of the load's cores for one operation, by activity.
    pub(crate) core: Cores,
    /// The utilisation of the resources.
    pub(crate) resources: Vec<Used>,
    /// Address translations of the engines, over all loads.
    pub(crate) translations: Pages,
    /// The bottleneck.
    pub(crate) bottleneck: Option<Held>,
}

/// Address translations of operands, by how the engines got them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Pages {
    /// Operands in the page of the previous operand, whose translation engines cache.
    pub(crate) remembered: u64,
    /// Pages for which engines asked the IOMMU.
    pub(crate) asked: u64,
    /// Those of them for which the IOMMU walked the page tables.
    pub(crate) walked: u64,
}

/// A part of the mean latency.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Part {
    /// Its name, such as `prepare` or `queue`.
    pub(crate) name: &'static str,
    /// Nanoseconds for one submission; `None` if no submission completed.
    pub(crate) ns: Option<f64>,
}

/// Nanoseconds of a core for one operation, by activity.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Cores {
    /// Preparing, submitting and copying.
    pub(crate) busy_ns: f64,
    /// Polling the completion record.
    pub(crate) polling_ns: f64,
    /// Waiting in UMWAIT.
    pub(crate) umwait_ns: f64,
    /// Free for other work.
    pub(crate) idle_ns: f64,
}

/// The utilisation of a resource.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Used {
    /// Name of the resource.
    pub(crate) what: String,
    /// Share of the time, from 0 to 1.
    pub(crate) share: f64,
}

/// The bottleneck of a load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Held {
    /// Its kind, such as `device` or `latency`.
    pub(crate) limit: &'static str,
    /// The resource, such as `reads to writes of dsa0`.
    pub(crate) what: String,
    /// Advice.
    pub(crate) help: String,
    /// The description as a whole sentence.
    pub(crate) sentence: String,
}

impl Point {
    /// Returns the point of a stream's load in a scenario's outcome.
    pub(crate) fn of(outcome: &Outcome, load: &LoadOutcome, stream: &Stream, threads: u32, device: String) -> Self {
        let each = |time: Picos| time.as_nanos_f64() / float(load.operations);
        let (timeline, cycles) = (&load.timeline, &load.cycles);
        let completed = (timeline.completed > 0).then(|| float(timeline.completed));
        let part =
            |(name, time): (&'static str, Picos)| Part { name, ns: completed.map(|all| time.as_nanos_f64() / all) };
        let parts = [
            timeline.backlog,
            timeline.prepare,
            timeline.submit,
            timeline.queue,
            timeline.translate,
            timeline.process,
            timeline.complete,
            timeline.notice,
        ];
        let at = |part| load.latencies.percentile(part).map(Picos::as_nanos_f64);
        Point {
            load: load.name.clone(),
            op: stream.op.short_name(),
            // The mean size, if there are several.
            size: load.bytes.checked_div(load.operations).unwrap_or(0),
            device,
            depth: stream.depth,
            batch: stream.batch,
            threads,
            operations: load.operations,
            bytes_per_s: load.gigabytes_per_second() * 1e9,
            ops_per_s: load.operations_per_second(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            mean_ns: completed.map(|_| load.mean_latency_ns()),
            parts: PARTS.into_iter().zip(parts).map(part).collect(),
            core: Cores {
                busy_ns: each(cycles.busy),
                polling_ns: each(cycles.polling),
                umwait_ns: each(cycles.umwait),
                idle_ns: each(cycles.idle),
            },
            resources: outcome
                .resources
                .iter()
                .map(|used| Used { what: used.what.to_string(), share: used.share })
                .collect(),
            translations: Pages {
                remembered: outcome.translations.remembered,
                asked: outcome.translations.asked,
                walked: outcome.translations.walked,
            },
            bottleneck: load.bottleneck.as_ref().map(|bottleneck| Held {
                limit: bottleneck.limit.name(),
                what: bottleneck.what.clone(),
                help: bottleneck.help.clone(),
                sentence: bottleneck.to_string(),
            }),
        }
    }

    /// Returns the name that distinguishes the point: its load's name in a workload file, otherwise its mode.
    pub(crate) fn how(&self) -> String {
        if [DEVICE, CPU].contains(&self.load.as_str()) { self.label() } else { self.load.clone() }
    }

    /// True for the CPU path.
    pub(crate) fn is_cpu(&self) -> bool {
        self.device == CPU
    }

    /// Returns a short name for columns and legends, as in `telpher bench`: `one at a time`, `×32`, `2×b32`.
    pub(crate) fn label(&self) -> String {
        match (self.depth, self.batch) {
            _ if self.is_cpu() => "CPU".into(),
            (1, 1) => "one at a time".into(),
            (depth, 1) => format!("×{depth}"),
            (1, batch) => format!("b{batch}"),
            (depth, batch) => format!("{depth}×b{batch}"),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn float(count: u64) -> f64 {
    count.max(1) as f64
}
