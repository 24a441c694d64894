//! The totals of a switch between two snapshots, as the data of its summary.

use telpher_report::switch::{
    CaptureSummary, PortSummary, QueueSummary, Rate, StageCycles, StageSummary, SwitchSummary, Traffic,
};
use telpher_switch::{Full, PortSnapshot, Snapshot};
use telpher_switch_run::{DmaQueues, RunOptions};

/// Summarises the time between two snapshots.
pub(super) fn summary(options: &RunOptions, dma_queues: &DmaQueues, begun: &Snapshot, end: &Snapshot) -> SwitchSummary {
    let settings = &options.settings;
    let seconds = (end.at - begun.at).as_secs_f64();
    let traffic = |packets, bytes| Traffic { packets, bytes, rate: Rate::of(packets, bytes, seconds) };
    let port = |(index, port): (usize, &PortSnapshot)| {
        let counts = &end.counts.ports[index];
        let rings = port.rings.unwrap_or_default();
        let socket = port.socket.clone().unwrap_or_default();
        let capture = port.capture.clone();
        PortSummary {
            name: port.name.clone(),
            received: traffic(counts.received, counts.received_bytes),
            sent: traffic(counts.sent, counts.sent_bytes),
            generated: counts.generated,
            discarded: counts.discarded,
            dropped: end.drops(index).into_iter().collect(),
            held: counts.held,
            unsettled: counts.submitted.saturating_sub(counts.sent + port.refused),
            by_device: traffic(rings.by_device, rings.bytes_by_device),
            announced: counts.announced,
            calls: rings.calls,
            sessions: socket.sessions,
            refused_requests: socket.refused,
            last_remark: socket.last,
            broken_rings: port.broken.iter().map(|(ring, why)| (*ring, why.to_string())).collect(),
            capture: capture.map(|(file, packets, left_out)| CaptureSummary { file, packets, left_out }),
        }
    };
    let of = &end.counts.stages;
    let nanos = (end.at - begun.at).as_nanos() as f64;
    let ticks_per_ns = if nanos > 0.0 { end.ticks.wrapping_sub(begun.ticks) as f64 / nanos } else { 0.0 };
    let dma_queue = |dma_queue: &std::sync::Arc<telpher_vhost::DmaQueue>| {
        let stats = dma_queue.stats();
        QueueSummary {
            name: dma_queue.name().to_owned(),
            copies: stats.copies,
            bytes: stats.bytes,
            redone: stats.redone,
            contended: stats.contended,
        }
    };
    let telpher_switch::StageCycles { ring_work, copies, device, mode, waiting } = end.cycles(begun);
    SwitchSummary {
        forward: settings.mode.name().to_owned(),
        forward_words: settings.mode.words(),
        full: if settings.full == Full::Retry { "retry" } else { "drop" },
        retry_for_seconds: (settings.full == Full::Retry).then_some(settings.retry_for.as_secs_f64()),
        burst: settings.burst,
        device: options.device.clone(),
        rule: dma_queues.rule(),
        threads: options.cpus.len().max(1),
        seconds,
        ports: end.ports.iter().enumerate().map(port).collect(),
        stages: StageSummary {
            cycles: StageCycles { ring_work, copies, device, mode, waiting },
            collect: of.collect,
            take: of.take,
            work: of.work,
            submit: of.submit,
            idle_turns: of.idle_turns,
            busy_turns: of.busy_turns,
            ticks_per_ns,
        },
        dma_queues: dma_queues.all().iter().map(dma_queue).collect(),
    }
}
