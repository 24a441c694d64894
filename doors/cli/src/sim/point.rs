//! One point of a run, as data: the source of JSON, CSV, tables and charts.

use serde::Serialize;
use telpher_sim::{LoadOutcome, NamedValue, Outcome, Picos, Stream};

/// Load and device of a core's own work in a sweep.
pub(crate) const CPU: &str = "cpu";

/// Load of a device's work in a sweep.
pub(crate) const DEVICE: &str = "device";

/// Parts of the latency, in the order in which they come.
pub(crate) const PARTS: [&str; 8] =
    ["backlog", "prepare", "submit", "queue", "translate", "process", "complete", "wait"];

/// One load of one simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Point {
    /// Name of the load.
    pub(crate) load: String,
    /// Short name of the operation.
    pub(crate) op: &'static str,
    /// Bytes of one transfer.
    pub(crate) size: u64,
    /// `cpu`, or what the queues belong to.
    pub(crate) device: String,
    /// Descriptors or batches each thread keeps in flight.
    pub(crate) depth: u32,
    /// Descriptors in a batch; 1 without batches.
    pub(crate) batch: u32,
    /// Submitting threads.
    pub(crate) threads: u32,
    /// Operations, members of batches counted each.
    pub(crate) operations: u64,
    /// Bytes per second.
    pub(crate) bytes_per_s: f64,
    /// Operations per second.
    pub(crate) ops_per_s: f64,
    /// Latency of a submission (of a batch, where it is one) that half of them do not exceed.
    pub(crate) p50_ns: Option<f64>,
    /// That 99 % of them do not exceed; nothing of fewer than 100.
    pub(crate) p99_ns: Option<f64>,
    /// That 99.9 % do not exceed; nothing of fewer than 1,000.
    pub(crate) p999_ns: Option<f64>,
    /// On average; the parts together. Nothing if none was completed.
    pub(crate) mean_ns: Option<f64>,
    /// Where it is spent.
    pub(crate) parts: Vec<Part>,
    /// What the load's cores did for one operation.
    pub(crate) core: Cores,
    /// How busy things were.
    pub(crate) resources: Vec<Used>,
    /// How engines learnt where pages are, all loads together.
    pub(crate) translations: Pages,
    /// The bottleneck.
    pub(crate) bottleneck: Option<Held>,
}

/// How engines learnt where the pages of operands are.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Pages {
    /// Operands in a page that engines remembered.
    pub(crate) remembered: u64,
    /// Pages that the IOMMU was asked for.
    pub(crate) asked: u64,
    /// Those of them whose tables it walked through.
    pub(crate) walked: u64,
}

/// A part of the latency, on average.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Part {
    /// `prepare`, `queue` and so on.
    pub(crate) name: &'static str,
    /// Nanoseconds of one submission; nothing if none was completed.
    pub(crate) ns: Option<f64>,
}

/// Nanoseconds of a core for one operation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Cores {
    /// Preparing, submitting, copying.
    pub(crate) busy_ns: f64,
    /// Looking at the record.
    pub(crate) polling_ns: f64,
    /// In UMWAIT.
    pub(crate) umwait_ns: f64,
    /// Free for others.
    pub(crate) idle_ns: f64,
}

/// How busy something was.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Used {
    /// What.
    pub(crate) what: String,
    /// 0 to 1.
    pub(crate) share: f64,
}

/// The bottleneck of a load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Held {
    /// Of which kind: `device`, `latency` and so on.
    pub(crate) limit: &'static str,
    /// Which it is.
    pub(crate) what: String,
    /// What would help.
    pub(crate) help: String,
    /// The whole sentence.
    pub(crate) sentence: String,
}

impl Point {
    /// Of a stream's load in a scenario's outcome.
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
            // Of several sizes, their mean.
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

    /// What it is among others: its load where a file names it, else its mode.
    pub(crate) fn how(&self) -> String {
        if [DEVICE, CPU].contains(&self.load.as_str()) { self.label() } else { self.load.clone() }
    }

    /// True for the CPU path.
    pub(crate) fn is_cpu(&self) -> bool {
        self.device == CPU
    }

    /// A short name for columns and legends, as `telpher bench` has them: `one at a time`, `×32`, `2×b32`.
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
