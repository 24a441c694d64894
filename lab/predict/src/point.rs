//! One point of a run, from the outcome of its simulation.

use telpher_report::simulation::{Cores, Held, PARTS, Pages, Part, Point, Used};
use telpher_sim::{LoadOutcome, NamedValue, Outcome, Picos, Stream};

/// Returns the point of a stream's load in a scenario's outcome.
pub(crate) fn point_of(outcome: &Outcome, load: &LoadOutcome, stream: &Stream, threads: u32, device: String) -> Point {
    let each = |time: Picos| time.as_nanos_f64() / float(load.operations);
    let (timeline, cycles) = (&load.timeline, &load.cycles);
    let completed = (timeline.completed > 0).then(|| float(timeline.completed));
    let part = |(name, time): (&'static str, Picos)| Part { name, ns: completed.map(|all| time.as_nanos_f64() / all) };
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
            requested: outcome.translations.requested,
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

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn float(count: u64) -> f64 {
    count.max(1) as f64
}
